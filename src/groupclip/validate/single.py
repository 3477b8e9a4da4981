"""The truth that a check compares with: one sample alone, by plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PrivacyViolation
from ..norms import square_sums
from ..partition import Partition
from .replay import Losses, comparable


@dataclass(frozen=True)
class Sample:
    """What plain torch gives for one sample alone: its loss, and its gradients with the norm of each group."""

    loss: float
    grads: dict[str, Tensor]
    norms: Mapping[str, float]
    dtype: torch.dtype  # the coarsest of the pass

    def factor(self, group: str, threshold: float) -> float:
        """The clip factor of Abadi et al.; a sample that isn't finite contributes nothing."""
        norm = self.norms[group]
        if norm - norm != 0:
            return 0.0
        return min(1.0, threshold / norm) if norm > 0 else 1.0


def alone(model: nn.Module, loss_fn: Losses, arguments: tuple[Any, ...], groups: Partition, times: float) -> Sample:
    """Run the model, not attached, on a batch of one sample.

    Args:
        arguments: of ``loss_fn`` after the model, with one sample.
        times: multiplies the loss.

    Raises:
        PrivacyViolation: the model or the loss can't be computed for one sample.
        ValueError, TypeError: the loss isn't one number per sample.
    """
    named = dict(model.named_parameters())
    params = {n: named[n] for group in groups.names for n in groups[group]}
    with comparable(model) as draws:
        try:
            loss = loss_fn(model, *arguments)
        except Exception as error:
            raise PrivacyViolation(
                f"the model or the loss can't be computed for a batch of one sample ({type(error).__name__}): either they mix "
                "samples, or the sample isn't dimension 0 of every tensor in the batch (sequence-first tensors must be "
                "transposed)"
            ) from error
        _require_one(loss)
        loss = loss * times
        grads = torch.autograd.grad(loss.sum(), list(params.values()), allow_unused=True)
    found = {n: g.detach() for n, g in zip(params, grads, strict=True) if g is not None}
    norms = {
        m: sum(float(square_sums(found[n].unsqueeze(0))) for n in groups[m] if n in found) ** 0.5 for m in groups.names
    }
    lowest = max([loss.dtype, *(g.dtype for g in found.values())], key=lambda d: torch.finfo(d).eps)
    return Sample(float(loss.detach()), found, norms, torch.bfloat16 if draws.half else lowest)


def _require_one(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn gave {type(loss).__name__}; it must give a tensor [B] of losses, one per sample")
    if loss.dim() == 0:
        raise ValueError("loss_fn gave a single number; it must give one loss per sample, [B]: use reduction='none'")
    if tuple(loss.shape) != (1,):
        raise PrivacyViolation(
            f"loss_fn gave losses of shape {tuple(loss.shape)} for a batch of one sample: it must be (1,). If the first "
            "dimension of an input is the sequence, transpose it so that the sample comes first; if each sample has "
            "several losses, reduce them, e.g. losses.flatten(1).mean(1)"
        )
