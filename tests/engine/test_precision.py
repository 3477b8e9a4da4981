"""Lower precision: half-precision parameters, autocast, and mixed dtypes. Norms stay right, and no sample exceeds R."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import CORE, ENTRIES, clipped_by_engine, gradients, grouped, members

HALF = [torch.bfloat16, torch.float16]


def alone(model: nn.Module, losses: oracle.Losses, batch: tuple[Tensor, ...], clip: str, r: float) -> dict[str, Tensor]:
    """Group -> [B]: the norm of what each sample contributes when it is the whole batch, in units of R_m."""
    groups = grouped(model, "layer-wise")
    thresholds = dict.fromkeys(groups, r)
    found: dict[str, list[float]] = {group: [] for group in groups}
    for i in range(len(batch[0])):
        sums = clipped_by_engine(model, losses, tuple(t[i : i + 1] for t in batch), groups, clip, thresholds).sums
        for group in groups:
            squares = [sums[n].double().square().sum() for n in groups[group]]
            found[group].append(float(torch.stack(squares).sum().sqrt()) / r)
    return {group: torch.tensor(norms) for group, norms in found.items()}


def rescaled(losses: oracle.Losses, factor: float) -> oracle.Losses:
    return lambda model, batch: losses(model, batch) * factor


@pytest.mark.one_in(3)
@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CORE)
def test_half_precision_keeps_below_the_threshold(name: str, dtype: torch.dtype, factor: float) -> None:
    """Normalised to R, rounded to half precision: at R at most, and not far below."""
    entry = ENTRIES[name]
    model, batch = entry.model(dtype), entry.batch(3, dtype)
    for clip in ("flat-normalised", "automatic"):
        found = alone(model, rescaled(entry.losses, factor), batch, clip, 0.5)
        for group, norms in found.items():
            assert norms.max() <= 1 + 1e-6, (group, norms)
            if clip == "flat-normalised" and factor == 1.0:
                assert norms.min() >= 0.97, (group, norms)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CORE)
def test_half_precision_norms_are_those_of_the_model(name: str, dtype: torch.dtype) -> None:
    """Within the rounding of forward and backward (3 % and up for 8 bits), not off by their own size."""
    entry = ENTRIES[name]
    model, batch = entry.model(dtype), entry.batch(6, dtype)
    groups = grouped(model, "layer-wise")
    want = oracle.clipped_sum(model, entry.losses, batch, members(groups))
    for method in ("auto", "gram", "instantiated"):
        chosen = groups.with_methods({n: method for group in groups for n in groups[group]})
        got = clipped_by_engine(model, entry.losses, batch, chosen)
        for group in groups:
            assert got.norms[group].dtype == torch.float32
            torch.testing.assert_close(got.norms[group].double(), want.norms[group], rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", CORE)
def test_autocast(name: str) -> None:
    """float32 parameters, products in bfloat16: gradients in float32, norms near the model's."""
    entry = ENTRIES[name]
    model, batch = entry.model(), entry.batch(4)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        on = torch.autocast("cpu", torch.bfloat16) if model.training else contextlib.nullcontext()
        with on:
            return entry.losses(model, batch).float()

    groups = grouped(model, "layer-wise")
    want = oracle.clipped_sum(model.eval(), losses, batch, members(groups))
    model.train()
    got = clipped_by_engine(model, losses, batch, groups)
    for group in groups:
        torch.testing.assert_close(got.norms[group].double(), want.norms[group], rtol=0.1, atol=0.02)
        assert all(got.sums[n].dtype == torch.float32 for n in groups[group])


@pytest.mark.parametrize("clip", oracle.CLIP)
def test_float32_never_exceeds_the_threshold_by_its_rounding(clip: str) -> None:
    """Strictly: the room for rounding is taken off the factors."""
    for name in CORE:
        entry = ENTRIES[name]
        found = alone(entry.model(), rescaled(entry.losses, 1e4), entry.batch(4), clip, 0.5)
        assert max(norms.max() for norms in found.values()) <= 1.0


def test_parameters_of_different_dtypes_in_one_group() -> None:
    """The norm is of all of them; each gradient comes in the dtype of its parameter."""
    torch.manual_seed(0)
    lower, upper = nn.Linear(5, 4), nn.Linear(4, 3).bfloat16()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lower, self.upper = lower, upper

        def forward(self, x: Tensor) -> Tensor:
            return self.upper(torch.tanh(self.lower(x)).to(self.upper.weight.dtype)).float().square().sum(1)

    model, batch = Mixed(), (torch.randn(4, 5),)
    groups = gc.partition(model, "all-layer")
    want = oracle.clipped_sum(model, lambda m, b: m(*b), batch, members(groups)).norms["all"]
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups)
    torch.testing.assert_close(got.norms["all"].double(), want, rtol=0.05, atol=0.01)
    assert got.sums["lower.weight"].dtype == torch.float32 and got.sums["upper.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", HALF)
def test_a_private_step_in_half_precision(dtype: torch.dtype) -> None:
    entry = ENTRIES["mlp"]
    model = entry.model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = gc.Mechanism(dataset_size=40, expected_batch_size=4, steps=2, noise_multiplier=1.0)
    engine = gc.attach(model, optimizer, "layer-wise", plan)
    before = [p.detach().clone() for p in model.parameters()]
    engine.backward(entry.losses(model, entry.batch(4, dtype)))
    optimizer.step()
    for p, old in zip(model.parameters(), before, strict=True):
        assert p.dtype == dtype and torch.isfinite(p).all() and not torch.equal(p.detach(), old)


Change = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("cast", [torch.Tensor.double, torch.Tensor.bfloat16])
def test_losses_of_another_dtype(cast: Change) -> None:
    """Losses are often summed in float32 or float64 over a model in another precision."""
    entry = ENTRIES["mlp"]
    model, batch = entry.model(), entry.batch(4)
    groups = grouped(model, "layer-wise")
    want = clipped_by_engine(model, entry.losses, batch, groups)
    got = clipped_by_engine(model, lambda m, b: cast(entry.losses(m, b)), batch, groups)
    for n, total in got.sums.items():
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, want.sums[n], rtol=0, atol=1e-5)
    assert set(gradients(model)) == set(got.sums)
