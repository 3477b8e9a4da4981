"""A sample that runs by itself is clipped whole, once, whatever else the pass does: against single samples in float64."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import groupclip as gc
from groupclip.errors import GroupClipError, PrivacyViolation

B, R = 5, 0.1
STYLES = ("all-layer", "uniform:2", "layer-wise", "param-wise")


def read(x: Tensor) -> None:
    """What vmap can't do: so samples run one at a time."""
    np.asarray(x.detach().numpy()).sum()


class Net(nn.Module):
    """Linear maps, a table, and what a test adds."""

    def __init__(self, way: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(4))
        self.way = way

    def forward(self, ids: Tensor) -> Tensor:
        read(ids)
        return self.way(self, ids)


def plainly(net: Net, ids: Tensor) -> Tensor:
    return net.last(net.norm(net.first(net.table(ids)).tanh() * net.scale))


def tied(net: Net, ids: Tensor) -> Tensor:
    """The table is used as rows and whole; the first map twice."""
    h = net.first(net.first(net.table(ids)).tanh())
    return F.linear(h, net.table.weight)


def derived(net: Net, ids: Tensor) -> Tensor:
    """A tensor of parameters alone beside the parameter itself."""
    weight = net.first.weight.t() * net.scale
    return net.last((net.table(ids) @ weight).tanh() + net.first(net.table(ids)))


def checkpointed(net: Net, ids: Tensor) -> Tensor:
    h = checkpoint(lambda h: net.norm(net.first(h).tanh()), net.table(ids), use_reentrant=False)
    return net.last(h)


def listed(net: Net, ids: Tensor) -> Tensor:
    """Parameters inside a list of operands, and as a keyword."""
    h = torch.cat([net.table(ids), net.scale.expand(1, ids.shape[1], 4)], dim=1)
    return F.linear(h, weight=net.last.weight, bias=net.last.bias)


def by_value(net: Net, ids: Tensor) -> Tensor:
    """Some samples leave a layer out."""
    h = net.table(ids)
    return net.last(net.first(h).relu() if int(ids[0, 0]) % 2 else h)


def inner_gradient(net: Net, ids: Tensor) -> Tensor:
    h = net.table(ids)
    return net.last(torch.func.grad(lambda v: net.first(v).tanh().sum())(h))


def unused(net: Net, ids: Tensor) -> Tensor:
    return net.last(net.table(ids))


WAYS = (plainly, tied, derived, checkpointed, listed, by_value, inner_gradient, unused)
IDS = torch.tensor([[0, 1, 2], [3, 3, 3], [4, 1, 0], [6, 6, 5], [1, 2, 6]])


def made(way: Callable[[Net, Tensor], Tensor]) -> Net:
    torch.manual_seed(0)
    return Net(way).double()


def single_samples(model: Net, groups: gc.Partition, loss: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
    """Clipped sums, and norms ``[M, B]``, of a loop over samples."""
    named = dict(model.named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in named.items()}
    norms = torch.zeros(len(groups), B, dtype=torch.float64)
    for i in range(B):
        found = torch.autograd.grad(loss(IDS[i : i + 1]).sum(), list(named.values()), allow_unused=True)
        grads = {n: g for n, g in zip(named, found, strict=True) if g is not None}
        for m, group in enumerate(groups):
            mine = [n for n in groups[group] if n in grads]
            norms[m, i] = torch.stack([grads[n].square().sum() for n in mine]).sum().sqrt() if mine else 0.0
            for n in mine:
                sums[n] += grads[n] * min(1.0, R / float(norms[m, i]) if norms[m, i] else 1.0)
    return list(sums.values()), norms


def attached(model: nn.Module, style: str) -> gc.Engine:
    return gc.attach(model, None, style, None, thresholds={g: R for g in gc.partition(model, style)}, clip="abadi")


def check(model: Net, engine: gc.Engine, run: Callable[[], Tensor], right: tuple[list[Tensor], Tensor]) -> None:
    engine.backward(run())
    for (name, p), expected in zip(model.named_parameters(), right[0], strict=True):
        found = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-13, msg=name)


def squares(out: Tensor) -> Tensor:
    return out.square().flatten(1).sum(1)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
def test_clipped_sums_are_those_of_single_samples(way: Callable[[Net, Tensor], Tensor], style: str) -> None:
    model = made(way)
    right = single_samples(model, gc.partition(model, style), lambda ids: squares(model(ids)))
    engine = attached(model, style)
    for _ in range(2):  # what one pass keeps isn't in the next
        check(model, engine, lambda: squares(model(IDS)), right)
        model.zero_grad()


@pytest.mark.parametrize("style", STYLES)
def test_two_calls_of_a_pass_are_clipped_together(style: str) -> None:
    """A sample's gradient is that of both: clipped apart, it would weigh up to 2 R."""
    model = made(plainly)
    other = IDS.flip(1) + 0

    def single(ids: Tensor) -> Tensor:
        return squares(model(ids)) * squares(model(ids.flip(1)))

    right = single_samples(model, gc.partition(model, style), single)
    engine = attached(model, style)
    check(model, engine, lambda: squares(model(IDS)) * squares(model(other)), right)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("first", ["alone", "together"])
def test_a_call_alone_and_a_call_together_are_clipped_together(style: str, first: str) -> None:
    model = made(plainly)

    def of(ids: Tensor, alone: bool) -> Tensor:
        model.way = plainly if alone else side
        return squares(model(ids))

    def side(net: Net, ids: Tensor) -> Tensor:
        return plainly(net, ids)

    reading = [True]
    original = Net.forward

    def forward(self: Net, ids: Tensor) -> Tensor:
        return original(self, ids) if reading[0] else plainly(self, ids)

    Net.forward = forward  # type: ignore[method-assign]
    try:

        def run(ids: Tensor) -> Tensor:
            total = torch.zeros(len(ids), dtype=torch.float64)
            for alone in (True, False) if first == "alone" else (False, True):
                reading[0] = alone
                total = total + of(ids, alone) * (1.0 if alone else 0.5)
            return total

        right = single_samples(model, gc.partition(model, style), run)
        engine = attached(model, style)
        check(model, engine, lambda: run(IDS), right)
    finally:
        Net.forward = original  # type: ignore[method-assign]


@pytest.mark.parametrize("style", STYLES)
def test_what_is_beside_the_pass_is_clipped_with_it(style: str) -> None:
    """A penalty on a weight in the loss of each sample."""
    model = made(plainly)
    right = single_samples(
        model, gc.partition(model, style), lambda ids: squares(model(ids)) + model.last.weight.square().sum()
    )
    engine = attached(model, style)
    check(model, engine, lambda: squares(model(IDS)) + model.last.weight.square().sum(), right)


@pytest.mark.parametrize("position", range(B))
def test_a_sample_without_finite_gradient_drops_out_alone(position: int) -> None:
    def way(net: Net, ids: Tensor) -> Tensor:
        out = plainly(net, ids)
        bad = torch.equal(ids[0], IDS[position])
        return out * torch.sqrt(net.scale.sum() * 0.0 + (0.0 if bad else 1.0))  # infinite behind a root of zero

    model = made(way)
    engine = attached(model, "all-layer")
    engine.backward(squares(model(IDS)))
    found = [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]
    others = [i for i in range(B) if i != position]
    model.zero_grad()
    engine.backward(squares(model(IDS[others])))
    for left, p in zip(found, model.parameters(), strict=True):
        assert p.grad is not None and torch.equal(left, p.grad.detach())


def test_norms_are_reported_in_the_order_of_the_batch() -> None:
    model = made(plainly)
    _, right = single_samples(model, gc.partition(model, "layer-wise"), lambda ids: squares(model(ids)))
    engine = attached(model, "layer-wise")
    engine.backward(squares(model(IDS)))
    norms = engine.unsafe_norms()
    found = torch.stack([norms[group] for group in gc.partition(model, "layer-wise")])
    torch.testing.assert_close(found, right, rtol=1e-12, atol=0)


def test_a_second_backward_is_refused_and_the_next_pass_is_whole() -> None:
    model = made(plainly)
    right = single_samples(model, gc.partition(model, "layer-wise"), lambda ids: squares(model(ids)))
    engine = attached(model, "layer-wise")
    losses = squares(model(IDS))
    engine.backward(losses)
    with pytest.raises(GroupClipError):
        engine.backward(losses)
    engine.discard()
    check(model, engine, lambda: squares(model(IDS)), right)


def test_batches_of_two_sizes_are_refused() -> None:
    model = made(plainly)
    engine = attached(model, "all-layer")
    with pytest.raises(PrivacyViolation):
        engine.backward(squares(model(IDS[:3])).sum() + squares(model(IDS)))
    assert all(p.grad is None for p in model.parameters())


def test_a_thrown_away_pass_leaves_nothing() -> None:
    model = made(plainly)
    right = single_samples(model, gc.partition(model, "all-layer"), lambda ids: squares(model(ids)))
    engine = attached(model, "all-layer")
    model(IDS.flip(0))
    check(model, engine, lambda: squares(model(IDS)), right)


def test_a_change_of_a_parameter_in_place_is_refused() -> None:
    def way(net: Net, ids: Tensor) -> Tensor:
        return net.last(net.table(ids) * net.scale.mul_(net.table(ids).mean()))

    model = made(way)
    before = model.scale.detach().clone()
    engine = attached(model, "all-layer")
    with pytest.raises(GroupClipError):
        engine.backward(squares(model(IDS)))
    assert torch.equal(model.scale.detach(), before)


class Boom(torch.autograd.Function):
    """Fails in the backward pass."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        raise MemoryError


@pytest.mark.parametrize("alone", [True, False])
def test_what_a_failed_pass_of_the_users_clipped_is_in_no_other(alone: bool) -> None:
    """A sample would weigh R in each."""

    def way(net: Net, ids: Tensor) -> Tensor:
        out = plainly(net, ids)
        return Boom.apply(out) if failing[0] and (not alone or int(ids[0, 0]) == 0) else out

    failing = [False]
    model = made(way)
    if not alone:
        model.forward = lambda ids: way(model, ids)  # type: ignore[method-assign]
    right = single_samples(model, gc.partition(model, "all-layer"), lambda ids: squares(model(ids)))
    engine = gc.attach(model, None, "all-layer", None, thresholds=R, clip="abadi", loss_reduction="sum")
    failing[0] = True
    for _ in range(3):
        with pytest.raises((MemoryError, PrivacyViolation, RuntimeError)):
            squares(model(IDS)).sum().backward()
    failing[0] = False
    engine.discard()
    squares(model(IDS)).sum().backward()
    for p, expected in zip(model.parameters(), right[0], strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.detach(), expected, rtol=1e-12, atol=1e-13)


def test_other_memory_of_a_parameter_is_refused_until_the_pass_before_is_given_up() -> None:
    model = made(plainly)
    engine = attached(model, "all-layer")
    model(IDS)  # thrown away
    model.last.weight.data = model.last.weight.detach() * 2
    with pytest.raises(PrivacyViolation, match=r"given other memory"):
        model(IDS)
    engine.discard()
    plain = made(plainly)
    plain.load_state_dict(model.state_dict())
    right = single_samples(plain, gc.partition(plain, "all-layer"), lambda ids: squares(plain(ids)))
    check(model, engine, lambda: squares(model(IDS)), right)


def test_an_empty_batch_through_a_model_that_reads() -> None:
    model = made(plainly)
    right = single_samples(model, gc.partition(model, "all-layer"), lambda ids: squares(model(ids)))
    engine = attached(model, "all-layer")
    engine.backward(squares(model(IDS[:0])))
    assert all(p.grad is None or not bool(p.grad.any()) for p in model.parameters())
    check(model, engine, lambda: squares(model(IDS)), right)


def test_threads_share_the_gate_of_a_group() -> None:
    model = made(plainly)
    engine = attached(model, "all-layer")
    (group,) = engine._groups
    for _ in range(50):
        barrier, gates = threading.Barrier(4), []

        def work(barrier: threading.Barrier = barrier, gates: list[object] = gates) -> None:
            barrier.wait()
            gates.append(group.open_gate())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(gate) for gate in gates}) == 1
        group.drop_gate()
