"""What users of FastDP and Opacus asked for, or complained of, as tests of what they expected.

Others of their reports have tests elsewhere: noise of each group and divisor (engine/test_noise, engine/test_plain), one event a
step with several backward passes (engine/test_step) and two engines (engine/test_copies), batches of dicts (sampling/test_batches),
position embeddings (rules/test_constants), packed sequences (peers/test_opacus_layers), memory over evaluation passes
(engine/test_passes), autocast (engine/test_precision), the search for sigma (privacy/test_mechanism), a loss of padded tokens
(test_f12_*).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peer_models import (
    Applies,
    contribution,
    exact,
    is_noise,
    noise_of_a_step,
    numbers,
    plan,
    private,
    repeated,
    same_in_micro_batches,
)
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import ENTRIES, clipped_by_engine, inexact, members
from groupclip.errors import CoverageError
from models import output_square

MLP = ENTRIES["mlp"]
IDS = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(0))
SHORT_IDS = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(0))


def test_attach_detach_attach_with_other_groups() -> None:
    """FastDP: detach raises, so training in two phases can't run."""
    model = ENTRIES["mlp"].model()
    for style in ("all-layer", "param-wise"):
        optimizer, engine = private(model, style=style)
        engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8)))
        assert is_noise(noise_of_a_step(model, optimizer, engine))
        engine.detach()
    assert inexact(model, ENTRIES["mlp"].batch(5), ENTRIES["mlp"].losses) == []


def test_a_custom_head_that_multiplies_by_its_weights() -> None:
    """FastDP: RMSNorm and an attention over labels written with ``@`` are left frozen, and the loss stays high."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        attention = (m.norm(x) @ m.labels.t()).softmax(1)  # [B, T, labels]
        return ((attention.transpose(1, 2) @ x) * m.readout).sum(-1) + m.bias

    model = Applies(
        use, norm=nn.RMSNorm(4), labels=nn.Parameter(torch.randn(3, 4)), readout=nn.Parameter(torch.randn(3, 4)),
        bias=nn.Parameter(torch.randn(3)),
    )  # fmt: skip
    assert exact(model, numbers(5, 6, 4))


class Positions(nn.Embedding):
    """A subclass with a forward of its own, as in BART and OPT."""

    def forward(self, count: int) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(count) + 2)


def test_a_subclass_of_embedding_and_a_shared_head() -> None:
    """Private-transformers: BART is refused for its shared parameters, then wrong for its position ids."""

    def use(m: nn.Module, ids: Tensor) -> Tensor:
        return F.linear(torch.tanh(m.table(ids) + m.positions(ids.shape[1])), m.table.weight)

    assert exact(Applies(use, table=nn.Embedding(7, 4), positions=Positions(8, 4)), SHORT_IDS)


def test_a_term_that_depends_on_no_data() -> None:
    """Private-transformers: how to add an L1 penalty to per-sample losses; a step on it alone is refused, not raw."""
    model = ENTRIES["mlp"].model().double()

    def losses(m: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return ENTRIES["mlp"].losses(m, batch) + 0.1 * sum(p.abs().sum() for p in m.parameters())

    groups = gc.partition(model, "layer-wise")
    batch = ENTRIES["mlp"].batch(5, torch.float64)
    got = clipped_by_engine(model, losses, batch, groups, "abadi")
    want = oracle.clipped_sum(model, losses, batch, members(groups), "abadi")
    assert all(torch.allclose(got.sums[n], want.sums[n], atol=1e-10) for n in want.sums)


def test_public_batches_between_private_ones() -> None:
    """Private-transformers: mixing public and private batches. Without a mechanism of its own, a public step is refused."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model)
    engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8)))
    optimizer.step()
    optimizer.zero_grad()
    engine.detach()
    before = [p.detach().clone() for p in model.parameters()]
    ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(4, seed=3)).mean().backward()  # public: plain torch again
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    optimizer.zero_grad()
    gc.attach(model, optimizer, "layer-wise", plan()).backward(
        ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8, seed=4))
    )


class Conv1D(nn.Module):
    """Weights ``[in, out]``, as in GPT-2."""

    def __init__(self, out: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).reshape(*x.shape[:-1], -1)


def test_weights_that_are_transposed() -> None:
    """Dp-transformers: per-sample gradients of GPT-2's Conv1D fail with a newer Opacus."""
    assert exact(nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(2, 6)), numbers(5, 3, 4))


def test_epsilon_of_the_plan_is_the_target() -> None:
    """Private-transformers: a final epsilon of 10 for a target of 8; an error at q = 0.125, sigma = 0.8."""
    mechanism = gc.Mechanism(dataset_size=8000, expected_batch_size=1000, steps=40).calibrate(epsilon=8.0, delta=1e-5)
    assert 7.92 <= mechanism.epsilon(delta=1e-5) <= 8.0
    loud = gc.Mechanism(dataset_size=8000, expected_batch_size=1000, steps=40, noise_multiplier=0.8)
    spent = [loud.epsilon(delta=1e-5, steps=s) for s in (1, 20, 40)]
    assert spent == sorted(spent) and all(math.isfinite(e) for e in spent)


def test_two_inputs() -> None:
    """Opacus, private-transformers: a layer with two inputs breaks the hooks."""
    model = Applies(lambda m, x, y: m.both(x, y), both=nn.Bilinear(3, 4, 2))
    assert exact(model, numbers(5, 3), numbers(5, 4))


def test_twin_the_judges_see_a_fault() -> None:
    """A loss that mixes samples, contributions above R, and a step without noise are told."""

    def mixing(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        losses = output_square(model, batch)
        return losses + 0.01 * losses.sum()

    with pytest.raises(AssertionError, match="off by"):
        exact(nn.Linear(3, 2), numbers(5, 3), losses=mixing)
    assert contribution(nn.Linear(3, 2), (numbers(5, 3),), "all-layer", "abadi") > 0.99
    with pytest.raises(AssertionError, match="without noise"):
        is_noise({"weight": torch.cat([torch.randn(200), torch.zeros(1)])})
    with pytest.raises(AssertionError, match="of what it should be"):
        is_noise({"weight": torch.randn(200) / 4})
    with pytest.raises(CoverageError):
        gc.attach(nn.Linear(3, 2), torch.optim.SGD(nn.Linear(3, 2).parameters()), "all-layer", plan())


class LoRA(nn.Module):
    """A frozen layer and its adapter."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.b(self.a(x))


def test_adapters_move_when_the_model_was_moved_after_attach() -> None:
    """Opacus: the loss falls, epsilon grows, and the adapters never change."""
    model = nn.Sequential(LoRA(4, 2), nn.Tanh(), LoRA(4, 2))
    assert exact(model, numbers(5, 4))
    model = model.float()
    optimizer, engine = private(model)
    model.to(torch.float64)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    engine.backward(output_square(model, (numbers(8, 4).double(),)))
    optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) is not p.requires_grad, name


def test_one_table_looked_up_in_two_shapes() -> None:
    """Opacus: word2vec, whose embedding is called twice with different shapes."""

    def use(m: nn.Module, centre: Tensor, context: Tensor) -> Tensor:
        return torch.einsum("bd,bkd->bk", m.table(centre), m.table(context))

    assert exact(Applies(use, table=nn.Embedding(7, 3)), IDS[:, 0], IDS[:, 1:])


def test_a_layer_that_sees_one_row_for_all() -> None:
    """Opacus: "size of tensor a (32) must match (21)" where a layer embeds the time step, once for the batch."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        time = torch.tanh(m.time(torch.ones(1, 3, dtype=x.dtype)))
        return m.out(torch.tanh(m.into(x) + time))

    assert exact(Applies(use, time=nn.Linear(3, 4), into=nn.Linear(4, 4), out=nn.Linear(4, 2)), numbers(5, 4))


def test_tokens_that_are_ignored() -> None:
    """Opacus's ghost loss averages over them too."""
    labels = torch.where(IDS < 2, -100, IDS)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        ids, labels = batch
        each = F.cross_entropy(model(ids).transpose(1, 2), labels, reduction="none", ignore_index=-100)
        return each.sum(1) / (labels != -100).sum(1).clamp(min=1)

    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    assert exact(model, IDS, labels, losses=losses)


def test_one_small_network_for_each_feature() -> None:
    """Opacus's validation misses a module of a neural additive model, which fails later."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([net(x[:, i : i + 1]) for i, net in enumerate(m.nets)], dim=1).sum(1, keepdim=True) + m.bias

    nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(4))
    assert exact(Applies(use, nets=nets, bias=nn.Parameter(torch.randn(1))), numbers(5, 4))


def test_rounds_of_federated_training() -> None:
    """Opacus: hooks are added twice, and the optimizer's parameters are others."""
    model = MLP.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hooks() -> list[int]:
        on_modules = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        on_parameters = [len(p._backward_hooks or ()) for p in model.parameters()]
        return [*on_modules, *on_parameters, len(optimizer._optimizer_step_pre_hooks)]

    before = hooks()
    for _ in range(5):
        engine = gc.attach(model, optimizer, "layer-wise", plan())
        engine.backward(MLP.losses(model, MLP.batch(8)))
        optimizer.step()
        optimizer.zero_grad()
        engine.detach()
        assert hooks() == before


def every_keyword_is_known(build: Callable[..., Any], name: str) -> bool:
    with pytest.raises(TypeError, match=name):
        build(**{name: 1.0})
    return True


def test_misspelt_keywords() -> None:
    """Opacus and FastDP swallow them: `max_gradnorm=3.` changes nothing and says nothing."""
    model = MLP.model()
    assert every_keyword_is_known(lambda **k: gc.attach(model, None, "all-layer", None, **k), "max_gradnorm")
    assert every_keyword_is_known(
        lambda **k: gc.Mechanism(dataset_size=9, expected_batch_size=1, steps=1, **k), "epochs"
    )
    assert every_keyword_is_known(lambda **k: gc.poisson_batches([1] * 40, plan(), **k), "poisson_sampling")


def test_a_block_shared_in_depth_in_micro_batches() -> None:
    """Opacus's ghost mode refuses tied and reused layers."""
    assert same_in_micro_batches(repeated(3), (numbers(5, 4),), (1, 4))
