"""Batches of every kind can be cut into samples; what can't be is refused with what to do."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.validate.samples import Batch
from small import Made, images


@dataclass
class Record:
    x: Tensor
    y: Tensor
    name: str = ""


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    y: Tensor


Named = collections.namedtuple("Named", "x y")
X, Y = images()
WORDS = ["a", "bc", "def", "g", "hi", "j"]
WEIGHTS = [{"w": float(i)} for i in range(1, 7)]
BOXES = [{"w": torch.ones(n)} for n in (1, 6, 2, 3, 6, 1)]  # one as long as the batch
RAGGED = [torch.randn(2 + i % 3, 4, generator=torch.Generator().manual_seed(i)) for i in range(6)]


def of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def pictures(model: nn.Module, listed: list[Tensor], y: Tensor) -> Tensor:
    """Tensors of different lengths in a list, one a sample."""
    rows = nn.utils.rnn.pad_sequence(listed, batch_first=True)
    used = torch.arange(rows.shape[1]) < torch.tensor([[len(x)] for x in listed])
    return F.cross_entropy((model(rows) * used[..., None]).sum(1), y, reduction="none")


# name -> loss, batch
BATCHES: dict[str, tuple[Any, Any]] = {
    "tuple": (of, (X, Y)),
    "list": (of, [X, Y]),
    "named tuple": (of, Named(X, Y)),
    "mapping": (lambda m, b: of(m, b["x"], b["y"]), {"x": X, "y": Y, "flag": True, "number": 3}),
    "ordered mapping": (lambda m, b: of(m, b["x"], b["y"]), collections.OrderedDict(x=X, y=Y)),
    "dataclass": (lambda m, b: of(m, b.x, b.y), Record(X, Y)),
    "frozen dataclass": (lambda m, b: of(m, b.x, b.y), Frozen(X, Y)),
    "dataclass beside": (lambda m, w, b: of(m, b.x, b.y) * w, (torch.ones(6), Record(X, Y, "n"))),
    "mapping in a tuple in a list": (lambda m, t: of(m, t[0]["x"], t[0]["y"]), [({"x": X, "y": Y}, 3)]),
    "list of texts": (lambda m, x, y, t: of(m, x, y) * torch.tensor([len(w) for w in t]), (X, Y, WORDS)),
    "tuple of numbers": (lambda m, x, y, n: of(m, x, y) * torch.tensor(n), (X, Y, (1, 2, 3, 4, 5, 6))),
    "lists of mappings": (lambda m, x, y, n: of(m, x, y) * torch.tensor([d["w"] for d in n]), (X, Y, WEIGHTS)),
    "list of tensors of other lengths": (lambda m, y, listed: pictures(m, listed, y), (Y, RAGGED)),
    "lists of mappings of tensors": (lambda m, x, y, n: of(m, x, y) * torch.stack([d["w"].mean() for d in n]), (X, Y, BOXES)),
    "list of views": (lambda m, views, y: of(m, sum(views), y), ([X, X.flip(1)], Y)),
    "as many views as samples": (lambda m, views, y: of(m, sum(views), y), ([X[:3], X[:3].flip(1), X[:3] + 1], Y[:3])),
    "None and scalars": (lambda m, x, y, a, b: of(m, x, y) * b, (X, Y, None, torch.tensor(2.0))),
    "a constant of another length": (lambda m, x, y, w: F.cross_entropy(m(x), y, w, reduction="none"), (X, Y, torch.ones(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_every_kind(name: str) -> None:
    torch.manual_seed(0)
    loss, batch = BATCHES[name]
    assert len(gc.check(nn.Linear(4, 3), loss, batch, "layer-wise").replayed) >= 3


@pytest.mark.parametrize("name", BATCHES)
def test_mixing_is_seen_in_batches_of_every_kind(name: str) -> None:
    torch.manual_seed(0)
    loss, batch = BATCHES[name]
    with pytest.raises(gc.PrivacyViolation, match=r"mixes the samples|depends on the other samples"):
        gc.check(Made(lambda m, x: m.head(x - x.mean(0))), loss, batch, "layer-wise")


@pytest.mark.parametrize("mixed", [False, True])
def test_a_dataclass_in_and_a_dataclass_out(mixed: bool) -> None:
    model = Made(lambda m, b: Record(m.head(b.x - b.x.mean(0) * mixed), b.y))
    loss = lambda m, b: F.cross_entropy(m(b).x, b.y, reduction="none")  # noqa: E731
    if mixed:
        with pytest.raises(gc.PrivacyViolation, match=r"the forward method of Made itself"):
            gc.check(model, loss, Record(X, Y), "layer-wise")
    else:
        gc.check(model, loss, Record(X, Y), "layer-wise")


def places(b: int) -> tuple[nn.Module, Any, Any]:
    """Numbers of positions beside a batch that is as long."""
    model = Made(lambda m, x, p: m.head(x + m.table(p)).mean(1), table=nn.Embedding(9, 4))
    return model, lambda m, x, y, p: F.cross_entropy(m(x, p), y, reduction="none"), (*images(b, 3, 4), torch.arange(3))


@pytest.mark.parametrize("b", [3, 4])
def test_positions_as_long_as_the_batch(b: int) -> None:
    report = gc.check(*places(b), "layer-wise")
    assert any("input 2" in w for w in report.warnings) == (b == 3)


def test_positions_hide_no_mixing() -> None:
    _, loss, batch = places(3)
    model = Made(lambda m, x, p: m.head(x + m.table(p) + x.mean(0)).mean(1), table=nn.Embedding(9, 4))
    with pytest.raises(gc.PrivacyViolation, match=r"mixes the samples|can't be computed"):
        gc.check(model, loss, batch, "layer-wise")


def test_numbers_of_the_samples_are_no_positions() -> None:
    x, y = images(3)
    loss = lambda m, x, y, i: of(m, x, y) * (1 + i)  # noqa: E731
    assert not any(
        "input 2" in w for w in gc.check(nn.Linear(4, 3), loss, (x, y, torch.arange(3)), "layer-wise").warnings
    )


def test_another_input_as_long_as_the_batch_is_named() -> None:
    """It may hold samples, so it isn't guessed that it doesn't."""
    model = Made(lambda m, x, bank: m.head(x + (x @ bank.t()).softmax(-1) @ bank))
    loss = lambda m, x, y, bank: of(lambda x: m(x, bank), x, y)  # noqa: E731
    bank = torch.randn(6, 4)
    for size in (6, 5):
        if size == 6:
            with pytest.raises(gc.PrivacyViolation, match=r"keep apart if input 2 of the batch is of no sample"):
                gc.check(model, loss, (X, Y, bank), "layer-wise")
        else:
            gc.check(model, loss, (X[:5], Y[:5], bank), "layer-wise")


def test_inputs_are_left_as_they_were() -> None:
    constant, x = torch.zeros(2), X.clone()
    gc.check(
        Made(lambda m, x: m.head(x.mul_(2))),
        lambda m, x, y, c: of(m, x, y) + 0 * c.add_(1).sum(),
        (x, Y, constant),
        "layer-wise",
    )
    assert torch.equal(x, X)
    assert not constant.any()


def test_samples_are_taken_in_order_and_changed_alone() -> None:
    batch = Batch((X, Record(X, Y), WORDS))
    x, record, words = batch.pick(4, 1)
    assert torch.equal(x, X[[4, 1]])
    assert torch.equal(record.y, Y[[4, 1]])
    assert words == ["hi", "bc"]
    x, record, _ = batch.changed([0, 1], times={1: 0.0})
    assert torch.equal(x, torch.stack([X[0], torch.zeros(4)]))
    assert record.y.tolist() == [int(Y[0]), 0]
