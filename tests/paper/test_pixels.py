"""Coarser pixels: rounded as the copy of CIFAR-10 is, compared image by image, by a model that is fitted exactly."""

from __future__ import annotations

import math

import pytest
import torch

from benchmark import benchmark
from groupclip.paper.records.pixels import compared, rounded, rows_of
from groupclip.paper.scaled.vision_data import Images


def test_pixels_are_rounded_to_the_middle_of_their_interval():
    every = torch.arange(256, dtype=torch.uint8)
    six = rounded(every, 6)
    assert six.dtype == torch.uint8 and torch.equal(six.long(), (every.long() >> 2) * 4 + 2)  # as the copy is
    assert torch.equal(rounded(six, 6), six)
    for bits in (5, 4, 3):
        found = rounded(six, bits)
        assert len(found.unique()) == 2**bits and (found.long() - every.long()).abs().max() == 2 ** (7 - bits)
    with pytest.raises(ValueError, match="bits=8: give 1 to 7"):
        rounded(every, 8)


def test_differences_are_paired():
    six, five = torch.tensor([1, 1, 0, 1]).bool(), torch.tensor([1, 0, 0, 1]).bool()
    most, fewer = compared({6: six, 5: five}, records=9)
    assert (most["accuracy"], most["difference"], most["error"]) == (75.0, 0.0, 0.0)
    assert (fewer["accuracy"], fewer["difference"], fewer["error"]) == (
        50.0,
        -25.0,
        pytest.approx(100 * math.sqrt(0.25 / 4)),
    )
    assert rows_of([most, fewer]).splitlines()[-1] == "| 5 | 50.0 | -25.0 ± 25.0 |"


def test_the_linear_model_is_that_of_ridge_regression(tmp_path):
    module = benchmark("pixels")
    torch.manual_seed(0)
    x, labels, test = torch.randn(30, 12), torch.arange(30) % 3, torch.randn(50, 12)
    design = x.double()
    targets = torch.nn.functional.one_hot(labels, 3).double()
    mean = targets.mean(0)
    ridge = module.RIDGE * 12 * torch.eye(12).double()
    weights = torch.linalg.solve(design.T @ design + ridge, design.T @ (targets - mean))
    expected = (test.double() @ weights + mean).argmax(1)
    assert module.right(x, labels, test, expected, 3).all()
    assert not module.right(x, labels.flip(0), test, expected, 3).all()
    images = Images(torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8), torch.tensor([0, 1, 2]), 3)
    made = module.features(images, 4, tmp_path / "a.pt")
    assert torch.equal(module.features(images, 3, tmp_path / "a.pt"), made)  # kept
    assert not torch.equal(module.features(images, 3, tmp_path / "b.pt"), made)
