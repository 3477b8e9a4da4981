"""What one sample writes, where samples run one at a time, is found by no other sample of the pass."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from apart import Runs, attached, by_engine, differing, drawn, linear, single_samples, squares
from groupclip.alone.carried import copied, holds_still, write_back, written_into

B = 4


def buffer(m: Any, h: Tensor) -> Tensor:
    m.mean.mul_(0.5).add_(h.detach().mean(0) * 0.5)
    return m.mean


def tensor(m: Any, h: Tensor) -> Tensor:
    m.held.add_(h.detach().mean(0))
    return m.held


def array(m: Any, h: Tensor) -> Tensor:
    m.array += h.detach().mean(0).numpy()
    return torch.from_numpy(m.array.copy())


def queue(m: Any, h: Tensor) -> Tensor:
    m.queue.append(h.detach().mean(0))
    return torch.stack(list(m.queue)).sum(0)


def nested(m: Any, h: Tensor) -> Tensor:
    m.nested["deep"]["sum"] = m.nested["deep"]["sum"] + h.detach().mean(0)
    return m.nested["deep"]["sum"]


def namespace(m: Any, h: Tensor) -> Tensor:
    m.space.sum = m.space.sum + h.detach().mean(0)
    return m.space.sum


WAYS = (buffer, tensor, array, queue, nested, namespace)


class Net(nn.Module):
    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.first, self.last = way, nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        zeros = torch.zeros(4, dtype=torch.float64)
        self.register_buffer("mean", zeros.clone(), persistent=False)
        self.held, self.array, self.queue = zeros.clone(), np.zeros(4), deque([zeros.clone()])
        self.nested = OrderedDict(deep={"sum": zeros.clone()})
        self.space = SimpleNamespace(sum=zeros.clone())

    def forward(self, x: Tensor) -> Tensor:
        np.asarray(x.detach().numpy()).sum()  # which vmap can't do
        h = self.first(x)
        return self.last(h - self.way(self, h))


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_sample_finds_what_another_wrote(way: Callable[[Any, Tensor], Tensor], guarded: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(B, 3, dtype=torch.float64)
    want: dict[str, Tensor] = {}
    for i in range(B):
        single = Net(way)
        named = dict(single.named_parameters())
        grads = torch.autograd.grad(single(x[i : i + 1]).square().sum(), list(named.values()))
        norm = float(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
        for name, g in zip(named, grads, strict=True):
            want[name] = want.get(name, 0) + g * min(1.0, 0.1 / norm)
    model = Net(way)
    mechanism = (
        gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=2, noise_multiplier=1.0) if guarded else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if guarded else None
    engine = gc.attach(model, optimizer, "all-layer", mechanism, thresholds=0.1, clip="abadi")
    engine.backward(model(x).square().sum(1))
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad.detach(), want[name], rtol=1e-10, atol=1e-12)


def test_what_cannot_be_put_back_is_left_alone() -> None:
    @dataclass(slots=True)
    class Slotted:
        number: int = 1

    model = nn.Linear(2, 2)
    model.slotted, model.sparse = Slotted(), torch.eye(2).to_sparse()  # type: ignore[assignment]
    for one in written_into([model]):
        write_back(one, copied(one))
    assert model.slotted.number == 1 and torch.equal(model.sparse.to_dense(), torch.eye(2))  # type: ignore[union-attr]


def test_everything_is_put_back_once_and_loops_end() -> None:
    model = nn.Linear(2, 2)
    loop: list[Any] = [torch.zeros(2), np.zeros(2)]
    loop.append(loop)
    model.loop = loop  # type: ignore[assignment]
    held = written_into([model])
    assert len(held) == len({id(h) for h in held}) == 3
    before = [copied(h) for h in held]
    loop[0].add_(1)
    loop[1] += 1
    loop.pop()
    for one, old in zip(held, before, strict=True):
        write_back(one, old)
    assert loop[0].sum() == 0 and loop[1].sum() == 0 and loop[2] is loop


@pytest.mark.parametrize("way", WAYS)
def test_no_pass_finds_what_an_earlier_one_wrote(way: Callable[[Any, Tensor], Tensor]) -> None:
    """The clipped sum of a second pass is that of a model that had no first one."""
    torch.manual_seed(1)
    before, x = torch.randn(B, 3, dtype=torch.float64), torch.randn(B, 3, dtype=torch.float64)
    sums = []
    for passes in ([x], [before[:1], before, x]):
        model = Net(way)
        mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=2, noise_multiplier=1.0)
        engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism, thresholds=0.1)
        for batch in passes:
            engine.discard()
            engine.backward(model(batch).square().sum(1))
        sums.append([p.grad.detach().clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_all_samples_leave_alike_stays(in_place: bool) -> None:
    """A counter isn't of the samples: it counts passes, here as elsewhere."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("passes", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            np.asarray(x.detach().numpy()).sum()
            if in_place:
                self.get_buffer("passes").add_(1)
            else:
                self.passes = self.get_buffer("passes") + 1
            return self.layer(x)

    model = Counting()
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=2, noise_multiplier=1.0)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism)
    for _ in range(3):
        engine.discard()
        engine.backward(model(torch.randn(B, 3)).square().sum(1))
    assert float(model.get_buffer("passes")) == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_fails_leaves_nothing_of_its_samples(way: Callable[[Any, Tensor], Tensor]) -> None:
    """The third sample raises: what the others wrote, and it itself, isn't there for the next pass."""

    class Bad(Net):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            if float(x.detach().max()) > 50:
                raise ValueError("a bad sample")
            return found

    torch.manual_seed(1)
    model = Bad(way)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=2, noise_multiplier=1.0)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism)
    held = written_into(list(model.modules()))
    before = [copied(one) for one in held]
    x = torch.randn(B, 3, dtype=torch.float64)
    x[2] = 100.0
    with pytest.raises(ValueError, match="a bad sample"):
        model(x)
    assert [id(one) for one in written_into(list(model.modules()))] == [id(one) for one in held]
    assert all(holds_still(one, old) for one, old in zip(held, before, strict=True))
    engine.detach()


@pytest.mark.parametrize("held", [torch.zeros(4, dtype=torch.float64), np.zeros(4)], ids=["a tensor", "an array"])
def test_no_sample_finds_what_another_wrote_into_an_input_that_all_get(held: Any) -> None:
    def run(m: Any, x: Tensor, memory: Any) -> Tensor:
        out = m.first(x) + torch.as_tensor(memory + 0)
        memory += x.detach().numpy()[0].sum()
        return out

    model = Runs(run, first=linear(5, 4)).double()
    x = drawn(3, 5)
    right = single_samples(model, (x,), lambda m, b: squares(m(b[0], held * 0)))
    engine = attached(model)
    assert differing(by_engine(engine, lambda: squares(model(x, held))), right) == []
    engine.detach()
    held *= 0
    plan = gc.Mechanism(dataset_size=100, expected_batch_size=3, steps=2, noise_multiplier=1.0)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", plan)
    model(x, held)
    assert not held.any(), "the next pass would find them"
    engine.detach()
