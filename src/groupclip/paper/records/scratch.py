"""A network of a row that begins from random weights, on images or augmented views of them; and the row without its training."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...engine.attach import attach
from ...partition.choose import partition
from ...privacy.mechanism import Mechanism
from ...tasks.augment import augmented
from ..scaled.vision_data import SIDE, Images, read
from ..settings import TrainSettings
from ..source import needed_files
from ..workload import Workload
from .rows import Row
from .wideresnet import WideResNet

_AT_ONCE = 500  # held-out images


def from_scratch(row: Row, file: Path, seed: int, views: int) -> Workload:
    """Make the network of a row, with the weights of this seed, and its images.

    Raises:
        MissingSource: no such file.
    """
    needed_files(file.parent, {file.name: "the data"})
    return _workload(row, *read(file), seed, views)


def _workload(row: Row, train: Images, test: Images, seed: int, views: int) -> Workload:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WideResNet(train.classes) if row.network is None else row.network.build(train.classes, seed)

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        if views == 1:  # images as they are
            return F.cross_entropy(model(images), labels, reduction="none")
        outputs = model(augmented(images, views, crop=4, flip=True))  # [B, K, classes]
        return F.cross_entropy(outputs.movedim(2, 1), labels[:, None].expand(-1, views), reduction="none").mean(1)

    return Workload(
        name=row.name, model=model, train=train,  # type: ignore[arg-type]  # its items are row numbers
        collate=train.batch, losses=losses, evaluate=lambda model: _accuracy(model, test),
        description={
            "data": row.data, "records": len(train), "held_out": len(test), "classes": train.classes, "notes": list(row.notes),
            "views": "shifted by up to 4 pixels, and mirrored or not" if views > 1 else "images as they are",
        },
    )  # fmt: skip


@torch.no_grad()
def _accuracy(model: nn.Module, test: Images) -> dict[str, float]:
    device, right = next(model.parameters()).device, 0
    for first in range(0, len(test), _AT_ONCE):
        images, labels = test.batch(range(first, min(first + _AT_ONCE, len(test))))
        right += int((model(images.to(device)).argmax(1).cpu() == labels).sum())
    return {"accuracy": 100 * right / len(test)}


def dry_run(row: Row, samples: int = 2) -> tuple[int, Mechanism]:
    """Build a row's network, take one pass with its clipping and views over made images, and calibrate its plan.

    Returns:
        How many numbers are trained, and the plan of the whole run, with its noise.

    Raises:
        RuntimeError: a trainable parameter gets no gradient.
    """
    settings = row.settings
    assert isinstance(settings, TrainSettings)
    made = Images(torch.randint(256, (samples, 3, SIDE, SIDE), dtype=torch.uint8), torch.arange(samples) % 10, 10)
    workload = _workload(row, made, made, 0, settings.views)
    groups = partition(workload.model, settings.clipping)
    engine = attach(workload.model, None, groups, None, clip=settings.clip, thresholds=settings.thresholds, views=settings.views)
    engine.backward(workload.losses(workload.model, workload.collate(list(range(samples)))))
    without = [name for name, param in workload.model.named_parameters() if param.grad is None or not param.grad.any()]
    engine.detach()
    if without:
        raise RuntimeError(f"{row.name}: no gradient for {', '.join(without[:5])}")
    workload.evaluate(workload.model)
    return sum(groups.numbers), settings.mechanism(row.records)
