"""Two families of models of several sizes, each with its private records: what the question of size is asked on.

- ``minilm``: MiniLM-L6, of which the upper 1, 2 or 6 blocks and a new head are trained on short phrases of SST-2. More blocks are
  more groups, as in the paper's models.
- ``cnn``: convolutional networks of equally many layers and growing width, on Fashion-MNIST from random weights. All have equally
  many groups: here the width alone grows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scaled.text_data import Phrase, Read, Tensors, collate, encode, read_sst2
from ..scaled.text_model import Classifier, area, blocks_of, minilm, read, upper
from ..scaled.text_model import losses as text_losses
from ..scaled.vision_data import Images
from ..scaled.vision_data import read as read_images

FASHION = "fashion_mnist.npz"
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One size of a family on its private records.

    new: a seed -> the model, with what is new in it drawn from the seed.
    records, collate: of the private set. ``losses(model, batch)`` gives ``[B]``.
    planned_with: the losses in float32, in which groups are planned and memory is predicted.
    evaluate: held-out ``loss`` (nats) and ``accuracy`` (percent) of a model.
    example: what a full micro-batch looks like, for predictions of memory.
    """

    new: Callable[[int], nn.Module]
    records: Any
    collate: Callable[[Any], Any]
    losses: Callable[[nn.Module, Any], Tensor]
    planned_with: Callable[[nn.Module, Any], Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float]]
    example: Any


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models of several sizes with one set of records and one setting.

    load: (folder of data, the family) -> size -> task.
    title: for the page.
    sizes: by increasing number of trained parameters.
    planned: the size on which planned groups are held against others.
    epsilon: whose noise the runs have, at :data:`DELTA`.
    records: private ones; None: all.
    later: sizes that are run when the other ones have all their seeds.
    rates: the learning rate of the results, and one to see whether they hang on it.
    """

    title: str
    load: Callable[[Path, Family], Mapping[str, Task]]
    sizes: tuple[str, ...]
    planned: str
    epsilon: float
    records: int | None
    batch_size: int
    steps: int
    microbatch: int
    rates: tuple[float, float]
    later: tuple[str, ...] = ()
    make: Callable[[], tuple[Classifier, Any]] = minilm


# ------------------------------------------------------------------------------------------------- upper blocks of MiniLM

TOKENS = 8  # word pieces with [CLS] and [SEP]: longer phrases are left out
HELD_OUT = 2_000  # phrases, the last of the file that are short enough


class Pooled(Classifier):
    """The mean of a text's word vectors, brought to mean 0 and variance 1 within the text, and a linear head."""

    def forward(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Return logits ``[B, 2]``."""
        vectors = self.vectors(texts, mask)
        return self.head(F.layer_norm(vectors, vectors.shape[1:]))


def upper_blocks(data: Path, family: Family) -> dict[str, Task]:
    """Return a task for each number of upper blocks; what frozen blocks make of a text is worked out once."""
    texts, _ = read_sst2(data)
    made: dict[str, Task] = {}
    for size in family.sizes:
        model, tokenizer = family.make()
        private, held_out = parts(encode(tokenizer, texts), family.records)
        frozen = len(blocks_of(model)) - int(size.removeprefix("top"))
        train, test = (read(model, part, frozen) for part in (private, held_out))
        width = model.head.in_features
        made[size] = Task(
            new=functools.partial(_with_new_head, upper(model, frozen), width), records=train, collate=collate,
            losses=text_losses, planned_with=_in_float32, evaluate=functools.partial(_text_scores, records=test),
            example=(
                torch.zeros(family.microbatch, TOKENS, width), torch.ones(family.microbatch, TOKENS, dtype=torch.long),
                torch.zeros(family.microbatch, dtype=torch.long),
            ),
        )  # fmt: skip
    return made


def parts(phrases: Sequence[Phrase], records: int | None) -> tuple[list[Phrase], list[Phrase]]:
    """Return the short phrases that are private, as many of either label, and those that are held out.

    The last :data:`HELD_OUT` in file order are held out, and of those before them the first ``records / 2`` of either label are
    private. Both keep the order in which they came.

    Raises:
        ValueError: a label has fewer.
    """
    places = sorted(phrase.place for phrase in phrases if len(phrase.ids) <= TOKENS)
    rest, held_out = places[:-HELD_OUT], set(places[-HELD_OUT:])
    labels = {phrase.place: phrase.label for phrase in phrases}
    private: set[int] = set()
    for label in (0, 1):
        of = [place for place in rest if labels[place] == label]
        if records is not None and len(of) < records // 2:
            raise ValueError(
                f"{len(of)} short phrases have label {label}, but {records // 2} are needed: lower records"
            )
        private.update(of[: None if records is None else records // 2])
    return [p for p in phrases if p.place in private], [p for p in phrases if p.place in held_out]


def _with_new_head(base: Classifier, width: int, seed: int) -> nn.Module:
    model = Pooled(copy.deepcopy(base.encoder), width)
    drawn = torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.head.weight.copy_(0.02 * drawn.clamp(-2, 2))
    return model


def _in_float32(model: nn.Module, batch: Tensors) -> Tensor:
    states, mask, labels = batch
    return F.cross_entropy(model(states, mask), labels, reduction="none")


def _text_scores(model: nn.Module, records: Sequence[Read]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        each = [records[first : first + 250] for first in range(0, len(records), 250)]
        logits = torch.cat([model(*collate(part)[:2]) for part in each]).double()
    labels = torch.tensor([record.label for record in records])
    margins = logits[:, 1] - logits[:, 0]
    moved = F.pad((margins + best_offset(margins, labels)).unsqueeze(1), (1, 0))
    as_it_is = {f"{name}_as_it_is": value for name, value in _scores(logits, labels).items()}
    return {**_scores(moved, labels), **as_it_is, "auc": 100 * area(margins, labels)}


def best_offset(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the constant that, added to all margins ``[N]`` of label 1 over label 0, gives the least cross-entropy.

    Noise moves the line between the labels, by as much in all texts: that hides what a model has learnt of their order. One number
    fitted to the held-out texts takes it out.
    """
    low, high = -margins.abs().max() - 20, margins.abs().max() + 20
    for _ in range(60):
        middle = (low + high) / 2
        if torch.sigmoid(margins + middle).mean() < labels.double().mean():  # the slope of the cross-entropy there
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ------------------------------------------------------------------------------------------------ convolutional networks


def networks(data: Path, family: Family) -> dict[str, Task]:
    """Return a task for each width of a network that begins with random weights."""
    train, test = read_images(data / FASHION)
    private = (
        train if family.records is None else Images(train.pixels[: family.records], train.labels[: family.records], 10)
    )
    return {
        size: Task(
            new=functools.partial(network, int(size.removeprefix("cnn-"))), records=private,
            collate=functools.partial(_grey, private), losses=image_losses, planned_with=image_losses,
            evaluate=functools.partial(_image_scores, images=test),
            example=(torch.zeros(family.microbatch, 1, 28, 28), torch.zeros(family.microbatch, dtype=torch.long)),
        )
        for size in family.sizes
    }  # fmt: skip


def network(width: int, seed: int) -> nn.Module:
    """Return four convolutions with group norms and tanh, and a linear layer, for grey images of 28 x 28.

    Args:
        width: channels of the first convolution, divisible by four; the others have twice as many.
        seed: of the initial weights.
    """
    twice = 2 * width
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        return nn.Sequential(
            nn.Conv2d(1, width, 8, 2, 3), nn.GroupNorm(4, width), nn.Tanh(), nn.MaxPool2d(2),
            nn.Conv2d(width, twice, 3, padding=1), nn.GroupNorm(4, twice), nn.Tanh(),
            nn.Conv2d(twice, twice, 3, padding=1), nn.GroupNorm(4, twice), nn.Tanh(), nn.MaxPool2d(2),
            nn.Conv2d(twice, twice, 3, padding=1), nn.GroupNorm(4, twice), nn.Tanh(),
            nn.Flatten(), nn.Linear(9 * twice, 10),
        )  # fmt: skip


def image_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return cross-entropy of each image, ``[B]``."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _grey(images: Images, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    chosen = torch.as_tensor(list(rows))
    return (images.pixels[chosen, :1, 2:30, 2:30].float() - 127.5) / 127.5, images.labels[chosen]


def _image_scores(model: nn.Module, images: Images) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        parts = [range(first, min(first + 500, len(images))) for first in range(0, len(images), 500)]
        logits = torch.cat([model(_grey(images, part)[0]) for part in parts])
    return _scores(logits, images.labels)


def _scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    right = (logits.argmax(1) == labels).double().mean()
    return {"accuracy": 100 * right.item(), "loss": F.cross_entropy(logits, labels).item()}


FAMILIES = {
    "minilm": Family(
        title="MiniLM's upper blocks, SST-2", load=upper_blocks, sizes=("top1", "top2", "top6"), planned="top2", epsilon=8.0,
        records=18_000, batch_size=160, steps=20, microbatch=64, rates=(1e-3, 2e-3),
    ),
    "cnn": Family(
        title="convolutional networks, Fashion-MNIST", load=networks, sizes=("cnn-8", "cnn-12", "cnn-24"), planned="cnn-12",
        epsilon=3.0, later=("cnn-8", "cnn-24"), records=None, batch_size=400, steps=60, microbatch=250, rates=(4e-3, 1e-2),
    ),
}  # fmt: skip
