"""What the gates of one engine share while a pass is under way: the batch, and whether a backward may clip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .clipping import ClipFunction
from .errors import PrivacyViolation

LossReduction = Literal["none", "mean", "sum"]


@dataclass
class Tape:
    """The facts that rules and gates ask for.

    Attributes:
        clip: the clip function.
        loss_reduction: how a scalar loss that the user calls ``backward`` on was made from per-sample losses;
            ``none`` forbids it.
        batch: B of the latest forward pass that records gradients; None before the first.
        report: called with (group name, ``[B]`` norms) when a group ends. Not private.
    """

    clip: ClipFunction
    loss_reduction: LossReduction
    report: Callable[[str, Tensor], None]
    batch: int | None = None
    permitted: int | None = None  # B of the backward pass of engine.backward that is under way
    ended: set[str] = field(default_factory=set)  # groups that ended in that backward pass
    _inputs: list[tuple[int, int]] = field(default_factory=list)  # memory ranges of the model's input tensors

    def begin_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Read the batch off the model's inputs: dimension 0 of the first tensor. Only where gradients are recorded."""
        if not torch.is_grad_enabled() or in_backward():
            return
        tensors = [t for t in tensors_in((args, kwargs)) if t.dim() > 0]
        if not tensors:
            raise PrivacyViolation(
                "the model was called without any tensor that has a batch dimension, so samples can't be told apart; "
                "pass the batch as a tensor whose first dimension is the sample"
            )
        self.batch = tensors[0].shape[0]
        self._inputs = [_memory_range(t) for t in tensors]

    def require_batch(self) -> int:
        """B, or an error where the model itself was not called."""
        if self.batch is None:
            raise PrivacyViolation(
                "a parameter was used before the model itself was called, so the number of samples isn't known; "
                "call the model that was attached (not one of its parts), or run this under torch.no_grad()"
            )
        return self.batch

    def is_input(self, tensor: Tensor) -> bool:
        """Whether the tensor is, or is cut from, an input of the latest forward pass: then its rows are samples."""
        start, _ = _memory_range(tensor)
        return any(low <= start < high for low, high in self._inputs)

    @contextmanager
    def permit(self, batch: int) -> Iterator[None]:
        """Allow gates to clip: the gradient under way is that of the SUM of ``batch`` per-sample losses."""
        self.permitted, self.ended = batch, set()
        try:
            yield
        finally:
            self.permitted, self.ended = None, set()

    def require_permission(self) -> None:
        """Refuse a backward pass on a reduced loss, unless the reduction was declared.

        Raises:
            PrivacyViolation: the pass didn't come from ``engine.backward`` and ``loss_reduction`` is ``none``.
        """
        if self.permitted is None and self.loss_reduction == "none":
            raise PrivacyViolation(
                "backward was called on a reduced loss, so how much each sample weighs in it isn't known; call "
                "engine.backward(losses) with one loss per sample (reduction='none'), or attach with "
                "loss_reduction='mean' or 'sum' if the loss is that over the samples of the batch"
            )

    def scale(self, batch: int) -> float:
        """By how much booked gradients of ``batch`` samples must be multiplied to be those of each sample's own loss.

        Raises:
            PrivacyViolation: see :meth:`require_permission`; or the loss has another number of samples than the forward pass.
        """
        self.require_permission()
        if self.permitted is None:
            return float(batch) if self.loss_reduction == "mean" else 1.0
        if batch != self.permitted:
            raise PrivacyViolation(
                f"the losses have {self.permitted} entries, but a parameter was used with a batch of {batch} samples; "
                "give one loss for each sample of the batch that the model was called with"
            )
        return 1.0


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread (so a forward now is a recomputation)."""
    return torch._C._current_graph_task_id() != -1


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def _memory_range(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_meta:
        return (0, 0)
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + max(storage.nbytes(), 1)
