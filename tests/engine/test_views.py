"""The views of a sample are clipped as one: against a loop over samples in float64, each a batch of its K rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_engine import grouped, members
from groupclip.engine.views import Views
from groupclip.errors import GroupClipError, PrivacyViolation, UnsupportedOperation
from models import CATALOGUE, Entry
from oracle import clipped

PLAN = gc.Mechanism(dataset_size=60, expected_batch_size=12, steps=4, noise_multiplier=1.0)
STYLES = ("all-layer", "layer-wise", "param-wise", "type-wise", "per-device", "uniform:2", "boundaries:1")


class Pictures(nn.Module):
    """Convolutions, normalisation, a residual, and blocks for the styles that need them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)) for _ in range(2))
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.stem(x))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden)) * self.scale
        return self.head(hidden.flatten(1))


def views_of(batch: int, views: int) -> tuple[Tensor, Tensor]:
    """``[B, K, ..]``, and the labels ``[B, K]``."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, views, 2, 4, 4, generator=generator).double()
    return x, torch.randint(3, (batch,), generator=generator).unsqueeze(1).expand(-1, views)


def cross_entropies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Shaped as the labels, ``[B, K]`` or of one sample ``[K]``."""
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def looped(model: nn.Module, x: Tensor, y: Tensor, groups: gc.Partition, clip: str) -> dict[str, Tensor]:
    """One sample at a time: the gradient of the mean loss of its K rows, by torch alone."""
    named = dict(model.named_parameters())
    samples = []
    for rows, labels in zip(x, y, strict=True):
        loss = cross_entropies(model, rows, labels).mean()
        samples.append(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))
    return clipped(samples, {name: p.shape for name, p in named.items()}, members(groups), clip, thresholds(groups)).sums


def thresholds(groups: gc.Partition) -> dict[str, float]:
    return {name: 0.3 + 0.1 * place for place, name in enumerate(groups.names)}


def found(model: nn.Module, engine: gc.Engine) -> dict[str, Tensor]:
    sums = {name: p.grad.clone() for name, p in model.named_parameters()}
    engine.detach()
    return sums


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("clip", ["abadi", "automatic"])
def test_views_are_clipped_as_one(style: str, views: int, clip: str):
    torch.manual_seed(0)
    model = Pictures().double()
    x, y = views_of(5, views)
    groups = gc.partition(model, style)
    expected = looped(model, x, y, groups, clip)
    engine = gc.attach(model, None, groups, None, clip=clip, thresholds=thresholds(groups), views=views)
    engine.backward(cross_entropies(model, x, y))
    for name, grad in found(model, engine).items():
        assert torch.allclose(grad, expected[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_models_of_every_kind(entry: Entry):
    """Tokens, tables that are used twice, attention: what a sample's rows do inside a rule that takes them as one sample."""
    model, batch = entry.model(torch.float64), entry.batch(6, torch.float64)
    groups = grouped(model, "layer-wise")
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    samples = []
    for first in range(0, 6, 2):
        loss = entry.losses(model, tuple(t[first : first + 2] for t in batch)).mean()
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        samples.append({n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)})
    expected = clipped(samples, {n: p.shape for n, p in named.items()}, members(groups)).sums
    engine = gc.attach(model, None, groups, None, views=2)
    apart = tuple(t.unflatten(0, (3, 2)) for t in batch)
    engine.backward(engine.per_sample(lambda *rows: entry.losses(model, rows), *apart))
    for n, p in named.items():
        assert torch.allclose(torch.zeros_like(p) if p.grad is None else p.grad, expected[n], rtol=0, atol=1e-10), n
    engine.detach()


def test_twin_rows_clipped_one_by_one_are_something_else():
    """Were the K views clipped as K units, one sample would add up to K thresholds."""
    torch.manual_seed(0)
    model = Pictures().double()
    x, y = views_of(1, 5)

    def length(views: int) -> float:
        engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=0.01, views=views)
        engine.backward(cross_entropies(model, *((x, y) if views > 1 else (x[0], y[0]))))
        sums = found(model, engine)
        return float(torch.sqrt(sum(g.square().sum() for g in sums.values())))

    assert length(5) <= 0.01 + 1e-12 < length(1)


def test_the_user_may_take_the_mean_and_so_may_a_function():
    torch.manual_seed(0)
    model = Pictures().double()
    x, y = views_of(4, 3)
    engine = gc.attach(model, None, "layer-wise", None, views=3)
    sums = []
    for losses in (
        lambda: cross_entropies(model, x, y),
        lambda: cross_entropies(model, x, y).mean(1),
        lambda: engine.per_sample(lambda rows, labels: F.cross_entropy(model(rows), labels), x, y),
        lambda: engine.per_sample(lambda rows, labels: cross_entropies(model, rows, labels), x, y),
    ):
        engine.backward(losses())
        sums.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    for other in sums[1:]:
        assert all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in zip(sums[0], other, strict=True))
    engine.detach()


def test_losses_of_its_own_reduction():
    torch.manual_seed(0)
    model = Pictures().double()
    x, y = views_of(4, 2)
    groups = gc.partition(model, "all-layer")
    expected = looped(model, x, y, groups, "automatic")
    engine = gc.attach(model, None, groups, None, thresholds=thresholds(groups), loss_reduction="mean", views=2)
    cross_entropies(model, x, y).mean().backward()
    for name, grad in found(model, engine).items():
        assert torch.allclose(grad, expected[name], rtol=0, atol=1e-12), name


class Branching(nn.Module):
    """Samples take different paths, by what is in all of a sample's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if x.sum() > 0 else self.other(x)


def test_samples_on_different_paths():
    torch.manual_seed(0)
    model, x, y = Branching().double(), torch.randn(6, 2, 3).double(), (torch.arange(6) % 2).unsqueeze(1).expand(-1, 2)
    named = dict(model.named_parameters())
    samples = []
    for rows, labels in zip(x, y, strict=True):
        grads = torch.autograd.grad(cross_entropies(model, rows, labels).mean(), list(named.values()), allow_unused=True)
        samples.append({n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)})
    groups = gc.partition(model, "all-layer")
    expected = clipped(samples, {n: p.shape for n, p in named.items()}, members(groups)).sums
    engine = gc.attach(model, None, groups, None, views=2)
    engine.backward(cross_entropies(model, x, y))
    for name, grad in found(model, engine).items():
        assert torch.allclose(grad, expected[name], rtol=0, atol=1e-12), name


def test_an_empty_batch_is_a_step():
    model = nn.Linear(3, 2)
    engine = gc.attach(model, None, "all-layer", None, views=4)
    engine.backward(cross_entropies(model, torch.zeros(0, 4, 3), torch.zeros(0, 4, dtype=torch.long)))
    assert not found(model, engine)["weight"].any()


def test_evaluation_takes_rows_as_they_are():
    model = nn.Linear(3, 2)
    x = torch.randn(7, 3)
    before = model(x)
    engine = gc.attach(model, None, "all-layer", None, views=4)
    with torch.no_grad():
        assert torch.equal(model(x), before)
    engine.detach()


def test_a_run_is_counted_as_drawn_by_groupclip_and_the_record_says_how_many_views():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", PLAN, views=8)
    data = torch.utils.data.TensorDataset(torch.randn(60, 3), torch.randint(2, (60,)))
    for batch in gc.poisson_batches(data, PLAN, microbatch=16):
        for x, y in batch:
            views = torch.stack([x + 0.1 * torch.randn_like(x) for _ in range(8)], 1)
            engine.backward(cross_entropies(model, views, y.unsqueeze(1).expand(-1, 8)))
        optimizer.step()
        optimizer.zero_grad()
    record = engine.record(delta=1e-3)
    assert engine.ledger.steps_by_sampler == {"groupclip": 4, "user": 0}
    assert record.views == 8 and record.to_dict()["views"] == 8
    assert "the mean gradient of 8 views of every sample was clipped" in record.text()
    assert record.spent.epsilon == PLAN.epsilon(delta=1e-3)  # views cost nothing
    with pytest.raises(AttributeError, match="can't be changed"):
        engine.views = 1
    engine.detach()


def test_a_run_without_views_says_nothing_of_them():
    model = nn.Linear(3, 2)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", PLAN)
    assert "views" not in engine.statement(delta=1e-3) and engine.record(delta=1e-3).views == 1
    engine.detach()


def test_a_saved_run_goes_on_with_as_many_views():
    model = nn.Linear(3, 2)
    engine = gc.attach(model, None, "all-layer", None, views=4)
    state = engine.state_dict()
    engine.load_state_dict(state)
    engine.detach()
    other = gc.attach(model, None, "all-layer", None)
    with pytest.raises(PrivacyViolation, match="the saved run had other views"):
        other.load_state_dict(state)
    older = {name: value for name, value in other.state_dict().items() if name != "views"}
    other.load_state_dict(older)  # of a version that knew of none
    other.detach()


def test_what_is_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="views=0 must be >= 1"):
        gc.attach(model, None, "all-layer", None, views=0)
    with pytest.raises(TypeError, match="views='8' must be a whole number"):
        Views("8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="would add up the 4 views"):
        gc.attach(model, None, "all-layer", None, views=4, loss_reduction="sum")
    engine = gc.attach(model, None, "all-layer", None, views=4)
    for shape in ((8, 3), (2, 3, 4), (4, 2, 3), (4,)):  # rows in turn, and views elsewhere, might be of several samples
        with pytest.raises(ValueError, match=r"with views=4 every tensor is \[B, 4, \.\.\]"):
            model(torch.zeros(*shape, 3) if len(shape) == 1 else torch.zeros(shape))
    with pytest.raises(ValueError, match=r"the tensors have the shapes \[\(2, 4, 3\), \(2, 3\)\]"):
        engine.per_sample(lambda x, y: x.sum() + y.sum(), torch.zeros(2, 4, 3), torch.zeros(2, 3))
    outputs = model(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="losses has 8 entries, but the model was last called with 2 samples"):
        engine.backward(outputs.sum(2).flatten())
    with pytest.raises(GroupClipError, match="forward_on takes every row for a sample"), engine.forward_on(torch.zeros(2, 4, 3)):
        pass
    engine.detach()


def test_an_output_that_has_no_rows_is_refused():
    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).T

    model = Turned(3, 2)
    engine = gc.attach(model, None, "all-layer", None, views=4)
    with pytest.raises(UnsupportedOperation, match="its dimension 0 isn't the view"):
        model(torch.zeros(2, 4, 3))
    engine.detach()
