"""What the gates of one engine share while a pass is under way: the batch, and whether a backward may clip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .batch import Inputs, tensors_in
from .clipping import ClipFunction
from .course import Course
from .errors import PrivacyViolation
from .layout import Layouts

LossReduction = Literal["none", "mean", "sum"]

#: Where to take gradients that no optimizer is to step by: an attached model's are clipped, or refused.
ELSEWHERE = (
    "freeze the parameters meanwhile (p.requires_grad_(False), and True again before the next pass that trains), or take it on "
    "another model of the same class, after twin.load_state_dict(model.state_dict())"
)


class Observer(Protocol):
    """Is told what happens to parameters in a pass: names and ways, never a value."""

    def used(self, parameters: Sequence[str], operation: str, way: str) -> None:
        """An operation used these parameters, and was split by sample in this way (see :mod:`groupclip.private`)."""
        ...

    def normed(self, parameter: str, method: str) -> None:
        """The per-sample norms of this parameter's gradients were computed in this way."""
        ...


@dataclass
class Tape:
    """The facts that rules and gates ask for.

    Attributes:
        clip: the clip function.
        loss_reduction: how a scalar loss that the user calls ``backward`` on was made from per-sample losses;
            ``none`` forbids it.
        report: called with (group name, ``[B]`` norms) when a group ends. Not private.
        batch: B of the latest forward pass that records gradients; None before the first.
        shapes: of the tensors that it was called with; B is dimension 0 of the first.
        inputs: of the forward passes since the last backward.
        layouts: where the samples lie in what parameters meet.
        permitted: B of the backward pass of ``engine.backward`` that is under way.
        loss_scale: what its losses are multiplied by.
        ended: the groups that ended in that backward pass.
        observer: is told how each parameter is used, or None.
        course: follows the forward passes of the model itself, or None.
        told: is called with the batch of each pass that is the user's own, and no lesson's.
    """

    clip: ClipFunction
    loss_reduction: LossReduction
    report: Callable[[str, Tensor], None]
    batch: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    inputs: Inputs = field(default_factory=Inputs)
    layouts: Layouts = field(default_factory=Layouts)
    permitted: int | None = None
    loss_scale: float = 1.0
    ended: set[str] = field(default_factory=set)
    observer: Observer | None = None
    course: Course | None = None
    told: Callable[[Tensor], None] | None = None
    _inside: bool = False
    _thread: threading.Thread | None = None  # the one in a forward pass
    _lock: Any = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """Begin a forward pass that records gradients: the only one, as its batch is that of every use until its end.

        Raises:
            PrivacyViolation: another thread is in one.
        """
        self._require_alone()
        with self._lock:
            self._require_alone()
            self._thread = threading.current_thread()

    def _require_alone(self) -> None:
        if self._thread not in (None, threading.current_thread()) and self._thread.is_alive():
            raise PrivacyViolation(
                f"thread {self._thread.name!r} is in a forward pass of this model, and passes at the same time can't be told "
                "apart; let them take turns, give each thread a model and an engine of its own, or evaluate under torch.no_grad()"
            )

    def begin_forward(self, inputs: Any) -> None:
        """Read the batch off the model's inputs: dimension 0 of the first tensor. Only where gradients are recorded."""
        if not torch.is_grad_enabled() or in_backward():
            return
        tensors = [t for t in tensors_in(inputs) if t.dim() > 0]
        if not tensors:
            raise PrivacyViolation(
                "the model was called without any tensor that has a batch dimension, so samples can't be told apart; "
                "pass the batch as a tensor whose first dimension is the sample"
            )
        self.shapes = tuple(tuple(t.shape) for t in tensors)
        self.batch, self._inside = tensors[0].shape[0], True
        self.inputs.add(tensors)

    def tell(self, inputs: Any) -> None:
        """The pass that began on these inputs is the user's own."""
        if self.told is not None:
            self.told(next(t for t in tensors_in(inputs) if t.dim() > 0))

    def end_forward(self) -> None:
        self._inside = False

    def leave(self) -> None:
        """The end of a forward pass, whichever it was: one without gradients, in another thread, ends nothing."""
        if self.entered_here:
            self._thread = None
            self.end_forward()

    @property
    def entered_here(self) -> bool:
        """Whether this thread is in a forward pass."""
        return self._thread is threading.current_thread()

    @property
    def led_here(self) -> int | None:
        """What arranged rows between the last use of parameters and the one under way; None where that isn't followed."""
        return None if self.course is None or in_backward() else self.course.before

    @property
    def shown(self) -> bool:
        """Whether the pass under way is one of the model itself, of which lessons are given, or its recomputation."""
        return in_backward() or self.led_here is not None

    @property
    def knows_batch(self) -> bool:
        """Whether uses of parameters are known to be of the batch ``require_batch`` gives.

        After a forward pass, what else is computed before the backward (a penalty on the weights, say) counts for that
        batch, whose size ``engine.backward`` checks; ``loss.backward`` can't, so there only the forward pass itself counts.
        """
        return self.batch is not None and (self.loss_reduction == "none" or self._inside or in_backward())

    def require_batch(self) -> int:
        """B, or an error where the model itself was not called."""
        if in_backward() and self.permitted is not None:
            return self.permitted
        if self.batch is None or not self.knows_batch:
            raise PrivacyViolation(
                "a parameter was used outside a call of the model that was attached, so the number of samples isn't known; "
                "call the model itself (not one of its parts), put the calls under `with engine.forward_on(inputs):`, or run "
                "this under torch.no_grad()"
            )
        return self.batch

    def last_batch(self) -> int:
        """B of the latest forward pass, for losses that come from it."""
        return self.require_batch() if self.batch is None else self.batch

    @contextmanager
    def permit(self, batch: int, loss_scale: float) -> Iterator[None]:
        """Allow gates to clip: the gradient under way is that of the SUM of ``batch`` per-sample losses, times ``loss_scale``."""
        self._require_alone()
        self.permitted, self.loss_scale, self.ended = batch, loss_scale, set()
        try:
            yield
        finally:
            self.permitted, self.loss_scale, self.ended = None, 1.0, set()
            self.inputs.forget()

    def require_permission(self) -> None:
        """Refuse a backward pass on a reduced loss, unless the reduction was declared.

        Raises:
            PrivacyViolation: the pass didn't come from ``engine.backward`` and ``loss_reduction`` is ``none``.
        """
        if self.permitted is None and self.loss_reduction == "none":
            raise PrivacyViolation(
                "backward was called on a reduced loss, so how much each sample weighs in it isn't known; call "
                "engine.backward(losses) with one loss per sample (reduction='none'), or attach with "
                "loss_reduction='mean' or 'sum' if the loss is that over the samples of the batch. If it was a gradient for "
                f"another purpose (torch.autograd.grad for adversarial examples): {ELSEWHERE}"
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
        return 1.0 / self.loss_scale


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread (so a forward now is a recomputation)."""
    return torch._C._current_graph_task_id() != -1
