"""Scattering features equal kymatio's, whose numbers for one image are kept beside this file, and are made of one image alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from groupclip.tasks.scattering import GROUPS, MAPS, scattered

KEPT = json.loads(Path(__file__).with_name("scattering.json").read_text())


def image() -> torch.Tensor:
    """``[1, 1, 28, 28]``: waves whose frequency changes."""
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    return (torch.sin(0.3 * x + 0.02 * y * y) + 0.5 * torch.cos(1.1 * y - 0.01 * x * x))[None, None]


def test_it_is_kymatio_s():
    found = scattered(image(), groups=0)
    assert found.shape == (1, MAPS, 7, 7) and MAPS == 81
    means, at_a_place = (torch.tensor(values) for values in KEPT)  # rounded to four digits
    assert torch.allclose(found[0].mean((1, 2)), means, rtol=0, atol=2e-4)
    assert torch.allclose(found[0, :, 2, 5], at_a_place, rtol=0, atol=2e-4)
    assert means.abs().min() > 0 or means.count_nonzero() > 70  # the numbers say something


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 20, 33)])
def test_against_kymatio_itself(shape):
    """An optional package."""
    kymatio = pytest.importorskip("kymatio.torch")
    images = torch.randn(5, *shape)
    expected = kymatio.Scattering2D(J=2, shape=shape[1:])(images).flatten(1, 2)
    assert torch.allclose(scattered(images, groups=0), expected, rtol=0, atol=2e-4)


def test_features_are_made_of_their_image_alone():
    """To the bit: one person's image must not move another's last digits."""
    images = torch.randn(70, 2, 16, 24, generator=torch.Generator().manual_seed(0))
    together = scattered(images)
    assert torch.equal(together, torch.cat([scattered(one[None]) for one in images]))
    assert torch.equal(together[1:], scattered(images[1:]))
    assert scattered(images[:0]).shape == (0, 162, 4, 6)


def test_each_image_is_normalised_by_itself():
    images = torch.randn(3, 1, 16, 16) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1, 1)
    found = scattered(images)
    parts = found.unflatten(1, (GROUPS, 3)).flatten(2)
    assert torch.allclose(parts.mean(2), torch.zeros(3, GROUPS), atol=1e-5)
    assert torch.equal(found, F.group_norm(scattered(images, groups=0), GROUPS))


def test_an_image_of_one_grey_has_no_waves():
    found = scattered(torch.full((1, 1, 16, 16), 0.7), groups=0)
    assert torch.allclose(found[:, 0], torch.tensor(0.7), atol=1e-4) and found[:, 1:].abs().max() < 1e-4


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"images has shape \(1, 28, 28\)"):
        scattered(torch.zeros(1, 28, 28))
    with pytest.raises(ValueError, match="at least 8 x 8"):
        scattered(torch.zeros(1, 1, 7, 9))
    with pytest.raises(ValueError, match="groups=4 doesn't divide 81 maps"):
        scattered(torch.zeros(1, 1, 8, 8), groups=4)
