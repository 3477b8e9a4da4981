"""Images: whole, bicubic, square, and normalised with constants of the checkpoint alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from groupclip.paper.data.facts import DATASETS
from groupclip.paper.data.made import made_splits
from groupclip.paper.data.vision import ImageBatches, Images, Normalisation, logits, losses, score
from groupclip.paper.pretrained import NORMALISATION
from groupclip.paper.source import StandIn

COLUMNS = ("image", "label")


def images(*pictures: Image.Image, size: int = 4) -> Images:
    return Images([{"image": picture, "label": i} for i, picture in enumerate(pictures)], COLUMNS, size)


def test_every_kind_of_picture_becomes_rgb_of_the_size() -> None:
    grey = Image.new("L", (9, 5), 100)
    clear = Image.new("RGBA", (5, 9), (10, 20, 30, 255))
    found = images(grey, clear, Image.new("RGB", (3, 3), (250, 0, 5)))
    for (pixels, label), colour, number in zip(found, [(100,) * 3, (10, 20, 30), (250, 0, 5)], range(3), strict=True):
        assert (pixels.shape, pixels.dtype, label) == ((3, 4, 4), torch.uint8, number)
        assert torch.equal(pixels, torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4))


def test_the_whole_picture_is_resized_bicubically() -> None:
    """The weights of halving a row of eight by PIL's bicubic with a = -0.5, worked out here from its definition."""

    def cubic(x: float) -> float:
        x = abs(x)
        if x < 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    row = np.array([0, 255, 0, 0, 200, 40, 90, 10], np.uint8)
    picture = Image.fromarray(np.repeat(np.repeat(row[None], 8, 0)[..., None], 3, 2))
    expected = []
    for place in range(4):
        weights = np.array([cubic((source + 0.5 - (place + 0.5) * 2) / 2) for source in range(8)])
        expected.append(min(255, max(0, round(float((weights * row).sum() / weights.sum())))))
    pixels, _ = images(picture, size=4)[0]
    assert (pixels[0, 0].to(int) - torch.tensor(expected)).abs().max() <= 1  # PIL's fixed-point weights


def test_batches_are_normalised_with_the_checkpoints_constants() -> None:
    picture = Image.fromarray(np.array([[[0, 255, 51]]], np.uint8))
    found = images(picture, picture, size=1)
    pixels, labels = ImageBatches(NORMALISATION)([found[0], found[1]])
    assert pixels.dtype == torch.float32 and labels.dtype == torch.int64 and labels.tolist() == [0, 1]
    assert torch.allclose(pixels[0].flatten(), torch.tensor([-1.0, 1.0, 0.2 / 0.5 - 1]))
    other = ImageBatches(Normalisation(mean=(0.0, 0.5, 0.2), std=(1.0, 0.25, 0.1)))
    assert torch.allclose(other([found[0]])[0].flatten(), torch.tensor([0.0, 2.0, 0.0]), atol=1e-6)


def test_what_one_record_becomes_does_not_depend_on_the_others() -> None:
    made = made_splits(DATASETS["svhn"], StandIn(records=4))["train"]
    alone, among = Images(made[:1], COLUMNS, 8), Images(made, COLUMNS, 8)
    collate = ImageBatches(NORMALISATION)
    assert torch.equal(collate([alone[0]])[0][0], collate([among[i] for i in range(4)])[0][0])


class Brightness(nn.Module):
    """Votes for class 1 the brighter a picture is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.stack([torch.zeros(len(pixels)), self.weight * pixels.mean((1, 2, 3))], dim=1)


def test_accuracy_and_losses_by_hand() -> None:
    dark, light = (Image.new("RGB", (2, 2), (v, v, v)) for v in (0, 255))
    # labels 0, 1, 2: dark and light are right, the third can't be
    found = images(dark, light, light, size=2)
    model: Any = Brightness().train()
    collate = ImageBatches(NORMALISATION)
    assert score(model, {"accuracy": found}, collate) == {"accuracy": pytest.approx(200 / 3)}
    assert model.training and model.weight.grad is None
    batch = collate([found[0], found[1]])
    assert torch.equal(logits(model, batch), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
    assert torch.allclose(losses(model, batch), torch.full((2,), float(np.log(1 + np.exp(-1)))))


def test_accuracy_counts_every_record_once_whatever_the_batch() -> None:
    from groupclip.paper.data.scoring import accuracy

    pictures = [Image.new("RGB", (2, 2), (v, v, v)) for v in (0, 255, 0, 255, 255)]
    found = Images([{"image": p, "label": y} for p, y in zip(pictures, [0, 1, 1, 1, 0], strict=True)], COLUMNS, 2)
    for size in (1, 2, 3, 64):
        assert accuracy(Brightness(), found, ImageBatches(NORMALISATION), logits, size) == pytest.approx(60)
