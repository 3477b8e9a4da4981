"""Where the samples lie in what a model returns: told by the shapes of its outputs for two samples.

A sample runs as a batch of one, and ``[1, 1, H]`` doesn't say which of its dimensions is the batch's. It is tried out once
for each kind of outputs, without gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..nested import tensors_in
from .inputs import Inputs, Probe
from .outputs import MAJOR, MINOR, ONE_NUMBER, Rows, Where


class Arrangement:
    """Remembers, for one model, where samples lie in its outputs.

    Args:
        probe: runs it without gradients.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.tries = True  # or samples are taken to be in dimension 0
        self._known: dict[Any, list[int]] = {}

    def of(self, inputs: Inputs) -> Where:
        """Make the arrangement for the outputs of a pass on these inputs."""

        def where(leaves: list[Rows | None]) -> list[int]:
            key = tuple(None if x is None else tuple(min(n, 2) for n in x.shape) for x in leaves)
            if key not in self._known:
                self._known[key] = self._try_out(inputs, leaves)
            return self._known[key]

        return where

    def knows_as(self, other: Arrangement) -> None:
        """Take over what was found out of a like model."""
        self._known = other._known

    def _try_out(self, inputs: Inputs, leaves: list[Rows | None]) -> list[int]:
        two = (0, 1) if inputs.batch > 1 else (0, 0)
        if not self.tries:
            return [0] * len(leaves)
        try:
            found: list[Tensor] = list(tensors_in(self._probe(*inputs.rows(two))))
        except Exception:  # it can't run on two samples: the contract says dimension 0
            return [0] * len(leaves)
        if len(found) != len(leaves):
            return [0] * len(leaves)
        return [0 if one is None else _place(one, both, two) for one, both in zip(leaves, found, strict=True)]


def _place(one: Rows, both: Tensor, two: tuple[int, int]) -> int:
    """Find the dimension in which a second sample shows."""
    shape = one.shape
    if len(shape) == 0:
        return ONE_NUMBER if both.dim() == 0 else 0
    if len(shape) != both.dim():
        return 0
    grown = [i for i, (a, b) in enumerate(zip(shape, both.shape, strict=True)) if a != b]
    if len(grown) == 1 and shape[grown[0]] == 1 and both.shape[grown[0]] == 2:
        return grown[0]
    if grown == [0] and both.shape[0] == 2 * shape[0]:
        return _rows(one.physical[list(two)].detach(), both)
    return 0


def _rows(apart: Tensor, both: Tensor) -> int:
    """Return how the rows of two samples lie, told by their values; 0 where these fit either way, or neither."""
    fits = {
        MAJOR: _alike(apart.flatten(0, 1), both),
        MINOR: _alike(apart.transpose(0, 1).flatten(0, 1), both),
    }
    fitting = [place for place, fit in fits.items() if fit]
    return fitting[0] if len(fitting) == 1 else 0


def _alike(x: Tensor, y: Tensor) -> bool:
    if not x.is_floating_point() or x.is_meta:
        return False
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    return torch.allclose(x, y.to(x.dtype), rtol=tolerance, atol=tolerance * float(x.abs().nan_to_num().max()))
