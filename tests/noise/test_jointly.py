"""Noise on many tensors at once: every coordinate of each gets its own draw, once, whatever its shape, strides and dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupclip.noise import jointly
from groupclip.noise.grid import HardenedNoise, grid
from groupclip.noise.jointly import add_to_all
from groupclip.noise.sources import InsecureNoise, SecureNoise


class Ones:
    """Adds std to every coordinate: what is hit twice, or not at all, shows. Notes how often it was called."""

    secure = False

    def __init__(self) -> None:
        self.calls = 0

    def add_(self, tensor: Tensor, std: float) -> None:
        self.calls += 1
        tensor.add_(std)


SHAPES = [(), (1,), (3,), (2, 5), (4, 1, 3), (0,), (130, 127), (1 << 14,), ((1 << 14) + 1,), (300, 70)]


@settings(max_examples=40, deadline=None)
@given(
    chosen=st.lists(
        st.tuples(
            st.sampled_from(SHAPES), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
            st.sampled_from([0.5, 2.0]), st.booleans(),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_every_coordinate_once(chosen: list[tuple[tuple[int, ...], torch.dtype, float, bool]]) -> None:
    sums = []
    for shape, dtype, std, turned in chosen:
        tensor = torch.zeros(shape, dtype=dtype)
        sums.append((tensor.t() if turned and tensor.dim() == 2 else tensor, std))
    held = [(tensor, tensor.data_ptr(), tensor._version) for tensor, _ in sums]
    add_to_all(Ones(), sums)
    for (tensor, std), (_, address, version) in zip(sums, held, strict=True):
        assert bool((tensor == std).all())
        assert tensor.data_ptr() == address and (tensor._version > version or tensor.numel() == 0)


def test_small_ones_are_drawn_together_and_large_ones_are_not() -> None:
    source = Ones()
    add_to_all(source, [(torch.zeros(50), 1.0) for _ in range(100)])
    assert source.calls == 1
    add_to_all(source, [(torch.zeros(1 << 15), 1.0) for _ in range(3)])
    assert source.calls == 4
    add_to_all(source, [(torch.zeros(1 << 14), 1.0) for _ in range(9)])  # a quarter of the room each
    assert source.calls == 7


@pytest.mark.parametrize("source", [SecureNoise, HardenedNoise])
def test_neither_alike_nor_of_another_size(source: type) -> None:
    """600 tensors of 100 numbers, in two groups. False-alarm rate: 1e-7 (six standard deviations, 6 figures)."""
    sums = [(torch.zeros(100), (1.0, 7.0)[i % 2]) for i in range(600)]
    add_to_all(source(), sums)
    for parity, std in enumerate((1.0, 7.0)):
        z = torch.stack([tensor for tensor, _ in sums[parity::2]]).double() / std
        assert abs(float(z.mean())) < 6 / math.sqrt(z.numel())
        assert abs(float(z.square().mean()) - 1) < 6 * math.sqrt(2 / z.numel())
        assert abs(float((z[1:] * z[:-1]).mean())) < 6 / math.sqrt(z[1:].numel())  # of one tensor and the next
        assert len(z.unique()) > 0.98 * z.numel()  # a grid of 2^-20 has some twice


def test_twin_one_draw_for_all_is_rejected() -> None:
    draw = torch.zeros(100)
    InsecureNoise(0).add_(draw, 1.0)
    z = draw.expand(300, 100).double()
    assert abs(float((z[1:] * z[:-1]).mean())) > 6 / math.sqrt(z[1:].numel())


def test_hardened_noise_stays_on_its_grid() -> None:
    sums = [(torch.full((5,), 0.1, dtype=torch.float64), 3.0) for _ in range(20)]
    add_to_all(HardenedNoise(), sums)
    for tensor, std in sums:
        units = tensor / grid(std)
        assert bool((units == units.round()).all())


@pytest.mark.parametrize(
    "sizes", [[], [5], [5, 7], [1 << 15, 3], [1 << 15, 3, 4], [1 << 14] * 9, [10_000] * 20, [(1 << 14) + 1] * 3]
)
def test_what_is_drawn_together_is_known_before(sizes: list[int]) -> None:
    """For plans of memory."""
    source, drawn = Ones(), []
    add = source.add_
    source.add_ = lambda tensor, std: (drawn.append(tensor.numel()), add(tensor, std))  # type: ignore[method-assign, assignment]
    add_to_all(source, [(torch.zeros(size), 1.0) for size in sizes])
    together = [count for count in drawn if count not in sizes]
    assert jointly.together_at_most(sizes) == max(together, default=0)


def test_nothing_is_no_error() -> None:
    add_to_all(Ones(), [])
    assert jointly.SMALL <= jointly._ROOM
