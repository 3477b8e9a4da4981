"""The judge is judged: numbers worked out by hand, and properties that don't need the loop."""

import math

import pytest
import torch
from torch import nn

import oracle
from models import CATALOGUE, Entry


class Scalars(nn.Module):
    """Sample x [2] has output a*x_1 + b*x_2 + c*x_1: the gradient of (a, b, c) is (x_1, x_2, x_1)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.tensor(value)) for value in (1.0, 2.0, 3.0))
        self.frozen = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen * (self.a * x[:, 0] + self.b * x[:, 1] + self.c * x[:, 0])


def output(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return model(*batch)


# Samples (3, 4), (0.5, 0), (0, 0). Group "ab" has gradients (x_1, x_2), norms 5, 0.5, 0; group "c" 3, 0.5, 0.
SAMPLES = (torch.tensor([[3.0, 4.0], [0.5, 0.0], [0.0, 0.0]]),)
GROUPS = {"ab": ("a", "b"), "c": ("c",)}
THRESHOLDS = {"ab": 1.0, "c": 2.0}
BY_HAND = {
    # ab: 1/5.01 * (3, 4) + 1/0.51 * (0.5, 0);  c: 2/3.01 * 3 + 2/0.51 * 0.5
    "automatic": (3 / 5.01 + 0.5 / 0.51, 4 / 5.01, 6 / 3.01 + 1 / 0.51),
    # ab: 1/5 * (3, 4) + 1 * (0.5, 0) = (1.1, 0.8);  c: 2/3 * 3 + 1 * 0.5 = 2.5
    "abadi": (1.1, 0.8, 2.5),
    # ab: 1/5 * (3, 4) + 1/0.5 * (0.5, 0) = (1.6, 0.8);  c: 2/3 * 3 + 2/0.5 * 0.5 = 4;  zero adds zero
    "flat-normalised": (1.6, 0.8, 4.0),
    # ab: 5 > 1, so 0, + (0.5, 0);  c: 3 > 2, so 0, + 0.5
    "global": (0.5, 0.0, 0.5),
}


@pytest.mark.parametrize("clip", BY_HAND)
def test_by_hand(clip: str) -> None:
    reference = oracle.clipped_sum(Scalars(), output, SAMPLES, GROUPS, clip, THRESHOLDS)
    assert reference.norms["ab"].tolist() == [5, 0.5, 0]
    assert reference.norms["c"].tolist() == [3, 0.5, 0]
    assert [reference.sums[name].item() for name in "abc"] == pytest.approx(BY_HAND[clip], rel=1e-14)
    assert "frozen" not in reference.sums


def test_default_thresholds_are_equal_shares() -> None:
    """Two groups: R_m = 1/sqrt(2), so the clipped gradients of one huge sample have norm 1 together."""
    reference = oracle.clipped_sum(Scalars(), output, (torch.tensor([[30.0, 40.0]]),), GROUPS, "abadi")
    assert reference.sums["c"].item() == pytest.approx(1 / math.sqrt(2), rel=1e-14)
    assert sum(g.item() ** 2 for g in reference.sums.values()) == pytest.approx(1, rel=1e-14)


def test_no_sample_is_a_zero_sum() -> None:
    reference = oracle.clipped_sum(Scalars(), output, (torch.zeros(0, 2),), GROUPS)
    assert reference.norms["ab"].shape == (0,)
    assert [reference.sums[name].item() for name in "abc"] == [0, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", oracle.CLIP)
def test_a_non_finite_group_adds_zero_and_the_others_stay(clip: str, bad: float) -> None:
    """Sample (1, bad): b's gradient isn't finite, c's is 1. Group ab drops the sample, group c keeps it."""
    clean = (torch.tensor([[0.5, 0.25]]),)
    spoilt = (torch.tensor([[1.0, bad], [0.5, 0.25]]),)
    want = oracle.clipped_sum(Scalars(), output, clean, GROUPS, clip, THRESHOLDS)
    got = oracle.clipped_sum(Scalars(), output, spoilt, GROUPS, clip, THRESHOLDS)
    assert torch.equal(got.sums["a"], want.sums["a"])
    assert torch.equal(got.sums["b"], want.sums["b"])
    kept = oracle.CLIP[clip](1.0, 2.0)
    assert got.sums["c"].item() == pytest.approx(want.sums["c"].item() + kept, rel=1e-14)
    assert not math.isfinite(got.norms["ab"][0]) and got.norms["c"].tolist() == [1, 0.5]


def test_groups_must_hold_exactly_what_trains() -> None:
    with pytest.raises(AssertionError):
        oracle.clipped_sum(Scalars(), output, SAMPLES, {"ab": ("a", "b")})


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_without_clipping_the_loop_is_the_plain_gradient(entry: Entry) -> None:
    """Under a huge R the abadi factor is 1, so the sum over samples is autograd's gradient of the summed
    losses: this also shows that the catalogue's models and losses keep samples apart."""
    model, batch = entry.model(torch.float64), entry.batch(4, torch.float64)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    reference = oracle.clipped_sum(model, entry.losses, batch, {"all": names}, "abadi", {"all": 1e6})
    losses = entry.losses(model, batch)
    assert losses.shape == (4,)
    losses.sum().backward()
    for name in names:
        gradient = model.get_parameter(name).grad
        want = torch.zeros_like(reference.sums[name]) if gradient is None else gradient
        torch.testing.assert_close(reference.sums[name], want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entries_are_reproducible_in_both_precisions(entry: Entry) -> None:
    state = torch.random.get_rng_state()
    first, second = entry.losses(entry.model(), entry.batch(2)), entry.losses(entry.model(), entry.batch(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state), "building an entry moved the global generator"
    double = entry.losses(entry.model(torch.float64), entry.batch(2, torch.float64))
    torch.testing.assert_close(first.double(), double, rtol=1e-5, atol=1e-5)
    assert not torch.equal(entry.losses(entry.model(seed=7), entry.batch(2)), first)
    assert not torch.equal(entry.losses(entry.model(), entry.batch(2, seed=7)), first)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_no_parameter_has_a_gradient_of_rounding_errors(entry: Entry) -> None:
    """A gradient is exactly zero or well above rounding: flat-normalised clipping would blow the errors up,
    and an engine in another precision could not agree with the loop."""
    model, batch = entry.model(), entry.batch(4)
    names = {name: [name] for name, p in model.named_parameters() if p.requires_grad}
    norms = oracle.clipped_sum(model, entry.losses, batch, names).norms
    unused = {name for name, norm in norms.items() if (norm == 0).any()}
    assert all((norm > 1e-4).all() for name, norm in norms.items() if name not in unused)
    assert (entry.name == "unused") == bool(unused)
