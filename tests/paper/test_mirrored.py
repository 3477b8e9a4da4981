"""Scattering features that mirror images share: what they are made of, and that what they are scaled by knows no data."""

from __future__ import annotations

import functools

import numpy as np
import torch

from groupclip.paper.records import features as made
from groupclip.paper.records.mirrored import everywhere, mirrored, noise_images, usual
from groupclip.paper.scaled.vision_data import read
from groupclip.paper.scaled.vision_made import write_made
from groupclip.tasks.scattering import scattered


@functools.cache
def _noise() -> torch.Tensor:
    return noise_images(400, 3, 16, 16)


def images(count: int = 3) -> torch.Tensor:
    return _noise()[-count:]  # not the very images that `usual` is made of


def test_a_mirror_image_is_the_same_and_the_other_way_up_is_not():
    x = images()
    assert torch.equal(mirrored(x), mirrored(x.flip(3)))
    assert not torch.allclose(mirrored(x), mirrored(x.flip(2)), atol=0.1)
    assert mirrored(x).shape == (3, 243, 4, 2) and mirrored(x[:, :, :, :12]).shape == (3, 243, 4, 2)


def test_it_is_made_of_the_two_images_scattering():
    x = images(2)
    both = scattered(x, groups=0) + scattered(x.flip(3), groups=0)
    mean, deviation = usual(3, 16, 16)
    assert mean.shape == deviation.shape == (243, 1, 1)
    assert torch.allclose(mirrored(x) * deviation + mean, both[..., :2], atol=1e-5)


def test_features_of_images_as_they_are_have_constants_of_their_own():
    x = images(100)
    mean, deviation = usual(3, 16, 16, both=False)
    assert torch.allclose(everywhere(x) * deviation + mean, scattered(x, groups=0), atol=1e-5)
    assert not torch.allclose(everywhere(x[:3]), everywhere(x[:3].flip(3)).flip(3), atol=0.1)  # angles differ
    found = everywhere(x)
    assert found.shape == (100, 243, 4, 4) and found.mean((0, 2, 3)).abs().max() < 0.4
    assert 0.7 < found.std((0, 2, 3)).min() <= found.std((0, 2, 3)).max() < 1.4
    assert torch.equal(found[:5], torch.cat([everywhere(one[None]) for one in x[:5]]))


def test_an_image_s_features_are_its_own_to_the_bit():
    x = images(20)
    assert torch.equal(mirrored(x), torch.cat([mirrored(one[None]) for one in x]))


def test_maps_are_scaled_by_a_constant_that_fits_other_images():
    mean, deviation = (each.clone() for each in usual(3, 16, 16))
    found = mirrored(images(100))
    assert found.mean((0, 2, 3)).abs().max() < 0.4 and 0.7 < found.std((0, 2, 3)).min() <= found.std((0, 2, 3)).max() < 1.4
    mirrored(3 * images(5).abs())  # what is seen in between changes nothing
    assert torch.equal(usual(3, 16, 16)[0], mean) and torch.equal(usual(3, 16, 16)[1], deviation)


def test_noise_has_the_spectrum_of_photographs():
    x = noise_images(200, 1, 32, 32)[:, 0]
    assert x.shape == (200, 32, 32) and x.abs().max() <= 1
    power = torch.fft.fft2(x - x.mean((1, 2), keepdim=True)).abs().square().mean(0)
    slope = np.polyfit(np.log([3, 6, 12]), np.log([power[0, k].item() + power[k, 0].item() for k in (3, 6, 12)]), 1)[0]
    assert -3.0 < slope < -1.5  # of power; edges of a part cut out add some
    assert torch.equal(noise_images(3, 1, 16, 16), noise_images(3, 1, 16, 16))


def test_a_row_reads_them(tmp_path):
    file = tmp_path / "cifar10.npz"
    write_made(file, classes=4, train=30, test=8, seed=2)
    train, _ = made.features("mirrored", file, tmp_path / "kept")
    x = (read(file)[0].pixels[[7, 3]].float() - 127.5) / 127.5
    rows, _ = train.batch([7, 3])
    assert torch.equal(rows, mirrored(x).flatten(1).to(torch.float16).float()) and not torch.equal(rows[0], rows[1])
    as_they_are, _ = made.features("scaled", file, tmp_path / "kept")
    assert torch.equal(as_they_are.batch([7, 3])[0], everywhere(x).flatten(1).to(torch.float16).float())
    pixels, _ = made.features("pixels", file, tmp_path / "kept")
    assert torch.equal(pixels.batch([7, 3])[0], x.flatten(1).to(torch.float16).float())
    read.cache_clear()
