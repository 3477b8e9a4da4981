"""What a model keeps of its samples without noise is refused by name; what it keeps of other things passes and is put back."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.validate.state import State
from small import Made, cross_entropy, images


class Box:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.mean = torch.zeros(4)


def averaged(model: Any, x: Tensor) -> Tensor:
    model.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return model.head(x)


def averaged_anew(model: Any, x: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + 0.1 * x.mean(0)
    return model.head(x)


def in_an_object(model: Any, x: Tensor) -> Tensor:
    y = model.head(x - model.box.mean)
    model.box.mean = 0.9 * model.box.mean + 0.1 * x.mean(0)
    return y


def bank(model: Any, x: Tensor) -> Tensor:
    near = torch.stack(list(model.bank)).mean(0) if model.bank else 0.0
    model.bank.extend(x.detach())
    return model.head(x + 0.1 * near)


def queue_of_floats(model: Any, x: Tensor) -> Tensor:
    model.seen["means"].append(float(x.mean()))
    return model.head(x)


def reads_the_last_batch(model: Any, x: Tensor) -> Tensor:
    y = model.head(x if model.last is None else x + 0.1 * model.last.mean(0))
    model.last = x.detach()
    return y


def read_in_evaluation(model: Any, x: Tensor) -> Tensor:
    if not model.training:
        return model.head(x - model.last.mean(0))
    model.last = x.detach()
    return model.head(x)


def codebook(model: Any, x: Tensor) -> Tensor:
    """A vector quantiser that moves its codes, frozen parameters, to the samples."""
    nearest = torch.cdist(x, model.codes.weight).argmin(1)
    with torch.no_grad():
        model.codes.weight.index_add_(0, nearest, 0.1 * (x - model.codes.weight[nearest]))
    return model.head(x + model.codes.weight[nearest])


def sometimes(model: Any, x: Tensor) -> Tensor:
    """As those that put samples in the place of codes that nobody uses."""
    if torch.rand(()) < 0.05:
        model.codes.weight.data[0] = x[0]
    return model.head(x + model.codes.weight[0])


def coarse(model: Any, x: Tensor) -> Tensor:
    """A count that is the same for most samples."""
    model.mean += (x[:, 0] > 0.0).sum()
    return model.head(x)


def names(model: Any, x: Tensor) -> Tensor:
    model.names ^= {"odd", *map(str, range(20))}  # what has no order is put back in another
    return model.head(x)


def seen(model: Any, x: Tensor) -> Tensor:
    model.names.add(float(x.mean()))
    return model.head(x)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


KEEPS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a running mean in a buffer": (lambda: Made(averaged, mean=torch.zeros(4)), r"^mean changes with .* saved with the weights"),
    "a running mean in a new buffer": (lambda: Made(averaged_anew, mean=torch.zeros(4)), r"^mean changes with .* saved with"),
    "a running mean in an object": (lambda: Made(in_an_object, box=Box()), r"^box\.mean holds what earlier batches put there"),
    "a bank of features": (lambda: Made(bank, bank=collections.deque(maxlen=64)), r"^bank.* holds what earlier batches put"),
    "a full bank": (lambda: Made(bank, bank=collections.deque([torch.zeros(4)] * 1000, maxlen=1000)), r"^bank.* holds what"),
    "means in a list": (lambda: Made(queue_of_floats, seen={"means": []}), r"^seen.* holds .* keep it outside the model"),
    "means in a set": (lambda: Made(seen, names={"mlp"}), r"^names holds what earlier batches put there"),
    "the last batch": (lambda: Made(reads_the_last_batch, last=None), r"^last holds .* the next pass reads it"),
    "the last batch, in evaluation": (lambda: Made(read_in_evaluation, last=None), r"^last holds .* the next pass reads it"),
    "a codebook, now and then": (lambda: Made(sometimes, codes=frozen(nn.Embedding(5, 4))), r"codes\.weight of module 'codes'"),
    "a codebook": (lambda: Made(codebook, codes=frozen(nn.Embedding(5, 4))), r"codes\.weight of module 'codes' \(Embedding\)"),
}  # fmt: skip


def counts(model: Any, x: Tensor) -> Tensor:
    model.passes += 1
    model.history.append(len(model.history))
    model.calls.add_(1)
    return model.head(x)


def teacher(model: Any, x: Tensor) -> Tensor:
    """An average of the weights: of what is private already."""
    with torch.no_grad():
        model.slow.weight.mul_(0.9).add_(model.head.weight, alpha=0.1)
    return model.head(x) - model.slow(x).detach()


def clamped(model: Any, x: Tensor) -> Tensor:
    model.head.weight.data.mul_(0.8).clamp_(-0.3, 0.3)
    return model.head(x)


def shows(model: Any, x: Tensor) -> Tensor:
    model.features = x.detach()
    return model.head(x)


def table(model: Any, x: Tensor) -> Tensor:
    if model.cache is None:
        model.cache = torch.linspace(0, 1, x.shape[1])
    return model.head(x * model.cache)


def quantised(model: Any, x: Tensor) -> Tensor:
    return model.head(x + model.codes(torch.cdist(x, model.codes.weight).argmin(1)))


KEEPS_NOTHING: dict[str, Callable[[], nn.Module]] = {
    "nothing": lambda: Made(lambda m, x: m.head(x)),
    "counts of passes": lambda: Made(counts, passes=0, history=[], calls=torch.zeros(())),
    "an average of the weights": lambda: Made(teacher, slow=frozen(nn.Linear(4, 3))),
    "weights clamped in the forward pass": lambda: Made(clamped),
    "a set of names": lambda: Made(names, names={"attention", "mlp", "norm", "head"}),
    "a table made in the first pass": lambda: Made(table, cache=None),
    "a running mean from elsewhere": lambda: Made(lambda m, x: m.head(x - m.mean), mean=torch.ones(4)),
    "a codebook that stands": lambda: Made(quantised, codes=frozen(nn.Embedding(5, 4))),
    "spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3)),
    "batch norm at rest": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("name", KEEPS)
def test_what_is_kept_of_the_samples_is_named(name: str, samples: int) -> None:
    make, words = KEEPS[name]
    with pytest.raises(gc.PrivacyViolation, match=words):
        gc.check(make(), cross_entropy, images(), "layer-wise", samples=samples)


@pytest.mark.parametrize("name", KEEPS_NOTHING)
def test_what_is_kept_of_other_things_passes(name: str) -> None:
    torch.manual_seed(0)
    report = gc.check(KEEPS_NOTHING[name](), cross_entropy, images(), "layer-wise")
    assert len(report.replayed) >= 4
    assert not any("holds what" in w for w in report.warnings)


@pytest.mark.parametrize("odd", range(4))
def test_a_count_that_few_samples_change(odd: int) -> None:
    x, y = images(4)
    x[:, 0] = (torch.arange(4) == odd).float() - 0.5
    with pytest.raises(gc.PrivacyViolation, match=r"^mean changes with the samples"):
        gc.check(Made(coarse, mean=torch.zeros(())), cross_entropy, (x, y), "layer-wise", samples=4)


def test_what_only_the_whole_batch_leaves_is_looked_into() -> None:
    """A pass on samples 0 and 2 leaves nothing, and samples alone leave nothing; sample 1 beside others does."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if len(x) > 1 and bool((x[:, 0] > 5).any()):
            m.mean = x.mean(0)
        return m.head(x)

    x, y = images(6)
    gc.check(Made(forward, mean=torch.zeros(4)), cross_entropy, (x, y), "layer-wise")
    x[1, 0] = 6.0
    with pytest.raises(gc.PrivacyViolation, match=r"^mean changes with the samples"):
        gc.check(Made(forward, mean=torch.zeros(4)), cross_entropy, (x, y), "layer-wise")


def test_large_tensors_are_copied_once() -> None:
    """A loss function may close over a whole data set."""
    copies: Any = {}
    held = {"large": torch.zeros(2**21), "small": torch.zeros(2)}
    first, second = (State.of(held, copies=copies) for _ in range(2))
    assert second.leaves["['large']"].value is first.leaves["['large']"].value
    assert second.leaves["['small']"].value is not first.leaves["['small']"].value
    held["large"][7] = 1.0
    third = State.of(held, copies=copies)
    assert third.differing(second) == ["['large']"]
    second.restore()
    assert not held["large"].any()


def test_what_the_next_pass_overwrites_is_noted() -> None:
    report = gc.check(Made(shows, features=None), cross_entropy, images(), "layer-wise")
    assert any(w.startswith("features holds what the last batch put there") for w in report.warnings)


class Centred(nn.Module):
    """A loss with a memory, as of teachers whose outputs are centred."""

    def __init__(self, moving: bool) -> None:
        super().__init__()
        self.moving = moving
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        if self.moving:
            self.centre.mul_(0.9).add_(0.1 * logits.detach().mean(0))
        return F.cross_entropy(logits - self.centre, y, reduction="none")


def test_a_loss_keeps_nothing_either() -> None:
    gc.check(nn.Linear(4, 3), Centred(False), images(), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match=r"^centre changes with the samples"):
        gc.check(nn.Linear(4, 3), Centred(True), images(), "layer-wise")
    centre = torch.zeros(3)

    def closure(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        centre.mul_(0.9).add_(0.1 * logits.detach().mean(0))
        return F.cross_entropy(logits - centre, y, reduction="none")

    with pytest.raises(gc.PrivacyViolation, match=r"^centre holds what earlier batches"):
        gc.check(nn.Linear(4, 3), closure, images(), "layer-wise")
    assert not centre.any()


@pytest.mark.parametrize("make", [*(make for make, _ in KEEPS.values()), *KEEPS_NOTHING.values()])
def test_all_is_put_back(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = copy.deepcopy(model)
    with contextlib.suppress(gc.PrivacyViolation):
        gc.check(model, cross_entropy, images(), "layer-wise")
    assert_alike(vars(before), vars(model))


def assert_alike(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_alike(a[key], b[key])
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_alike(x, y)
    elif isinstance(a, (nn.Module, Box)):
        assert_alike(vars(a), vars(b))
    elif isinstance(a, (int, float, str, set, type(None))):
        assert a == b
