"""Where the samples lie in what a model returns: told by the shapes of its outputs for two samples.

A sample runs as a batch of one, and ``[1, 1, H]`` doesn't say which of its dimensions is the batch's. It is tried out once
for each kind
of outputs, without gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .batch import tensors_in
from .inputs import Inputs, Probe
from .outputs import Rows, Where


class Arrangement:
    """Of one model.

    Args:
        probe: runs it without gradients.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._known: dict[Any, list[int]] = {}

    def of(self, inputs: Inputs) -> Where:
        """For the outputs of a pass on these inputs."""

        def where(leaves: list[Rows | None]) -> list[int]:
            key = tuple(None if x is None else tuple(min(n, 2) for n in x.shape) for x in leaves)
            if key not in self._known:
                self._known[key] = self._tried(inputs, leaves)
            return self._known[key]

        return where

    def knows_as(self, other: Arrangement) -> None:
        """Take over what was found out of a like model."""
        self._known = other._known

    def _tried(self, inputs: Inputs, leaves: list[Rows | None]) -> list[int]:
        two = (0, 1) if inputs.batch > 1 else (0, 0)
        try:
            found: list[Tensor] = list(tensors_in(self._probe(*inputs.rows(two))))
        except Exception:  # it can't run on two samples: the contract says dimension 0
            return [0] * len(leaves)
        if len(found) != len(leaves):
            return [0] * len(leaves)
        return [
            0 if one is None else _dimension(one.shape, both.shape) for one, both in zip(leaves, found, strict=True)
        ]


def _dimension(one: torch.Size, both: torch.Size) -> int:
    """In which dimension a second sample shows."""
    if len(one) == 0 or len(one) != len(both):
        return 0
    grown = [i for i, (a, b) in enumerate(zip(one, both, strict=True)) if a != b]
    if len(grown) == 1 and one[grown[0]] == 1 and both[grown[0]] == 2:
        return grown[0]
    return 0
