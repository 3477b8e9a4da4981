"""Tensors without memory in place of those of a model and a batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..autograd.tensors import PrivateParameter
from .integers import small

META = torch.device("meta")


def blank(tensor: Tensor, batch: tuple[int, int] | None = None) -> Tensor:
    """Return a meta tensor of the same shape, strides and dtype; ``batch = (B, N)``: with N samples in place of B."""
    with torch._C.DisableTorchFunctionSubclass():
        if batch is not None and tensor.dim() > 0 and tensor.shape[0] == batch[0]:
            return torch.empty((batch[1], *tensor.shape[1:]), dtype=tensor.dtype, device=META)
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def blank_model(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose parameters and buffers have no memory; modes and what is frozen are kept.

    Raises:
        ValueError: the model is attached.
    """
    memo: dict[int, Any] = {}
    for p in model.parameters():
        if isinstance(p, PrivateParameter):
            raise ValueError("the model is attached: plan before groupclip.attach, or engine.detach() first")
        memo[id(p)] = nn.Parameter(blank(p), p.requires_grad)
    for b in model.buffers():
        memo[id(b)] = blank(b)
    return copy.deepcopy(model, memo)


def example(tensor: Tensor, batch: tuple[int, int]) -> Tensor:
    """Make numbers for a row of integers of an example batch (lengths, labels); ``batch = (B, N)``: N samples like those B.

    Their order stays, so that lengths that were sorted are. Other tensors are blank.
    """
    if tensor.dim() != 1 or not tensor.is_cpu or not small(tensor):
        return blank(tensor, batch)
    now, wanted = batch
    if len(tensor) != now:
        return tensor.clone()
    return tensor[torch.arange(wanted, device="cpu") * now // wanted]


__all__ = ["META", "blank", "blank_model", "example"]
