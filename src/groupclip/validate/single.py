"""The truth that a check compares with: one sample alone, by plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..partition.groups import Partition
from ..persample.norms import square_sums
from .replay import Replays
from .state import State


@dataclass(frozen=True)
class Sample:
    """Holds what plain torch gives for one sample alone.

    Attributes:
        loss: its loss.
        grads: its gradients.
        norms: of its scaled gradients, by group.
        dtype: the coarsest of the pass.
        left: what the pass left behind, weights aside.
        scale: what ``grads`` are to be multiplied by.
        times: what its loss is multiplied by.
    """

    loss: float
    grads: dict[str, Tensor]
    norms: Mapping[str, float]
    dtype: torch.dtype
    left: State
    scale: float = 1.0
    times: float = 1.0

    def weight(self, group: str, threshold: float) -> float:
        """Return what ``grads`` count for in a sum of clipped gradients: the scale times the clip factor of Abadi et al.; a sample
        that isn't finite contributes nothing.
        """
        norm = self.norms[group]
        if norm - norm != 0:
            return 0.0
        return self.scale * min(1.0, threshold / norm) if norm > 0 else self.scale

    def scaled(self, by: float) -> Sample:
        """Return the sample with its loss multiplied."""
        norms = {group: norm * by for group, norm in self.norms.items()}
        return replace(self, norms=norms, scale=self.scale * by, times=self.times * by)


def alone(replays: Replays, arguments: tuple[Any, ...], sample: int, groups: Partition, times: float = 1.0) -> Sample:
    """Run the model, not attached, on a batch of one sample.

    Args:
        replays: of the model and its loss.
        arguments: of the loss after the model, with one sample.
        sample: which it is.
        groups: of the parameters.
        times: multiplies the loss.

    Raises:
        PrivacyViolation: the model or the loss can't be computed for one sample.
        ValueError, TypeError: the loss isn't one number per sample.
    """
    named = dict(replays.model.named_parameters())
    params = {n: named[n] for group in groups.names for n in groups[group]}
    with replays.alike([sample], one=True) as made:
        loss = replays.loss_of_one(arguments) * times
        grads = torch.autograd.grad(loss.sum(), list(params.values()), allow_unused=True)
        left = replays.state()
    found = {n: g.detach() for n, g in zip(params, grads, strict=True) if g is not None}
    norms = {
        m: sum(float(square_sums(found[n].unsqueeze(0))) for n in groups[m] if n in found) ** 0.5 for m in groups.names
    }
    lowest = max([loss.dtype, *(g.dtype for g in found.values())], key=lambda d: torch.finfo(d).eps)
    return Sample(float(loss.detach()), found, norms, torch.bfloat16 if made.draws.half else lowest, left, times=times)
