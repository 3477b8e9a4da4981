"""What the gates of one engine share while a pass is under way: the batch, and whether a backward may clip."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from ..clipping.functions import ClipFunction, LossReduction
from ..errors import PrivacyViolation, UnsupportedOperation
from ..nested import tensors_in
from .saved import checked
from .vmap import NATIVE, Part, hooks_on_saved, natively, side_by_side

if TYPE_CHECKING:
    from .gate import Gate
    from .slot import Slot

#: Where to take gradients that no optimizer is to step by: an attached model's are clipped, or refused.
ELSEWHERE = (
    "freeze the parameters meanwhile (p.requires_grad_(False), and True again before the next pass that trains), or take it on "
    "another model of the same class, after twin.load_state_dict(model.state_dict())"
)

#: How a model takes gradients that the training loss depends on: forces, scores, penalties.
INSIDE = (
    "Inside the model's forward() torch.func.grad and torch.func.vjp are exact by sample: "
    "torch.func.grad(lambda x: energy(x).sum())(x) in the place of torch.autograd.grad(energy(x).sum(), x, create_graph=True)[0]"
)


class Observer(Protocol):
    """Is told what happens to parameters in a pass: names and ways, never a value."""

    def used(self, parameters: Sequence[str], operation: str, way: str) -> None:
        """Hear that an operation used these parameters, and how it was split by sample (see :mod:`groupclip.autograd.dispatch`)."""

    def normed(self, parameter: str, method: str) -> None:
        """Hear how the per-sample norms of this parameter's gradients were computed."""


@dataclass(eq=False)
class Tape:
    """The facts that rules and gates ask for.

    Attributes:
        clip: the clip function.
        loss_reduction: how a scalar loss that the user calls ``backward`` on was made from per-sample losses;
            ``none`` forbids it.
        report: called with (group name, ``[B]`` norms) when a group ends. Not private.
        batch: B of the latest forward pass that records gradients; None before the first.
        part: the samples that the forward pass under way is of; None outside of one.
        ran_in_parts: samples ran in more than one part since the last backward.
        beside: the parameters that were used beside a forward pass since the last backward (:mod:`groupclip.autograd.beside`).
        shapes: of the tensors that it was called with; B is dimension 0 of the first.
        permitted: B of the backward pass of ``engine.backward`` that is under way.
        loss_scale: what its losses are multiplied by.
        ended: the groups that ended in that backward pass.
        probing: a backward pass that books nothing is under way.
        guarded: noise is to come: hooks of the user's on what autograd saves must give it back as it was.
        in_step: the parameters are cut over ranks, which make as many passes as each other.
        aside: the parameters are plain ones meanwhile, for a pass that trains nothing.
        observer: is told how each parameter is used, or None.
        watch: gives what must be on while operations on samples of a part run (:class:`groupclip.autograd.reads.Reads`).
        own_pass: is called when a gradient of a backward pass arrives that isn't ``engine.backward``'s.
        told: is called with the batch of each pass that is the user's own.
    """

    clip: ClipFunction
    loss_reduction: LossReduction
    report: Callable[[str, Tensor], None]
    batch: int | None = None
    part: Part | None = None
    beside: dict[Slot, Gate] = field(default_factory=dict)
    ran_in_parts: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    permitted: int | None = None
    loss_scale: float = 1.0
    ended: set[str] = field(default_factory=set)
    probing: bool = False
    guarded: bool = False
    in_step: bool = False
    aside: bool = False
    observer: Observer | None = None
    watch: Callable[[Part], AbstractContextManager[Any]] = field(default=lambda _: nullcontext())
    own_pass: Callable[[], None] | None = None
    told: Callable[[Tensor], None] | None = None
    _inside: bool = False
    _hooks: Any = None  # on what autograd saves, when the part began
    _thread: threading.Thread | None = None  # the one in a forward pass
    _ident: int | None = None  # of that thread
    _lock: Any = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """Begin a forward pass that records gradients: the only one, as its batch is that of every use until its end.

        Raises:
            PrivacyViolation: another thread is in one.
        """
        self._require_alone()
        with self._lock:
            self._require_alone()
            self._thread, self._ident = threading.current_thread(), threading.get_ident()

    def _require_alone(self) -> None:
        if self._thread not in (None, threading.current_thread()) and self._thread.is_alive():
            raise PrivacyViolation(
                f"thread {self._thread.name!r} is in a forward pass of this model, and passes at the same time can't be told "
                "apart; let them take turns, give each thread a model and an engine of its own, or evaluate under torch.no_grad()"
            )

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Mark, inside, a forward pass that records gradients."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def begin_forward(self, batch: int, shapes: tuple[tuple[int, ...], ...]) -> None:
        """B samples come, in tensors of these shapes."""
        self.batch, self.shapes, self._inside = batch, shapes, True

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Credit, inside, uses of parameters to these samples."""
        before, self.part, hooks, self._hooks = self.part, part, self._hooks, hooks_on_saved(True)
        try:
            yield
        finally:
            self.part, self._hooks = before, hooks

    def follow_checkpoint(self) -> None:
        """Replace a checkpoint's hooks; to be called before an operation of a forward pass saves anything.

        A checkpoint computes again when autograd asks its hooks for a tensor that it left out. Its hooks are replaced by the same
        with the samples side by side as they are now: the tensors it has kept are theirs.
        """
        part, hooks = self.part, hooks_on_saved(True)
        if part is None or hooks is None or hooks is self._hooks or hooks == self._hooks:
            return
        pack, unpack = checked(*hooks) if self.guarded else hooks
        if isinstance(unpack, _SideBySide):
            return
        torch._C._autograd._pop_saved_tensors_default_hooks()  # pyright: ignore[reportAttributeAccessIssue]
        torch._C._autograd._push_saved_tensors_default_hooks(  # pyright: ignore[reportAttributeAccessIssue]
            pack, _SideBySide(self, part, unpack)
        )

    def tell(self, inputs: Any) -> None:
        """Tell that the pass which began on these inputs is the user's."""
        if self.told is not None:
            self.told(next(t for t in tensors_in(inputs) if t.dim() > 0))

    def end_forward(self) -> None:
        self._inside = False

    def leave(self) -> None:
        """End a forward pass, whichever it was: one without gradients, in another thread, ends nothing."""
        if self.entered_here:
            self._thread = self._ident = None
            self.end_forward()

    @property
    def entered_here(self) -> bool:
        """Whether this thread is in a forward pass."""
        return self._ident == threading.get_ident()

    @property
    def inside_here(self) -> bool:
        """Whether this thread runs samples of a part: in a forward pass, or where a checkpoint computes one again."""
        return self.aside or (self.part is not None and (self.entered_here or in_backward()))

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
                "this under torch.no_grad(). What cuts a model (fully_shard) comes before groupclip.attach"
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
            self.forget()

    def forget(self) -> None:
        """Forget what forward passes have left for a backward pass that is over, or doesn't come."""
        self.beside.clear()
        self.ran_in_parts = False

    def require_permission(self) -> None:
        """Refuse a backward pass inside the forward pass, and one on a reduced loss, unless the reduction was declared.

        Raises:
            PrivacyViolation: the pass didn't come from ``engine.backward`` and ``loss_reduction`` is ``none``; or the model's
                own forward pass asked for it.
        """
        if self.part is not None:
            raise PrivacyViolation(
                "torch.autograd.grad (or backward) inside the model's forward pass goes through uses of its parameters, which "
                f"are clipped in the backward pass of the losses only. {INSIDE}. If nothing is trained by it, {ELSEWHERE}"
            )
        if self.permitted is None and self.loss_reduction == "none":
            raise PrivacyViolation(
                "backward was called on a reduced loss, so how much each sample weighs in it isn't known; call "
                "engine.backward(losses) with one loss per sample (reduction='none'), or attach with "
                "loss_reduction='mean' or 'sum' if the loss is that over the samples of the batch. If it was a gradient for "
                f"another purpose (torch.autograd.grad for adversarial examples): {ELSEWHERE}"
            )

    def scale(self, batch: int) -> float:
        """Return by how much booked gradients of ``batch`` samples must be multiplied to be those of each sample's loss.

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


class _SideBySide:
    """A hook of a checkpoint, under which the samples of a part are side by side again."""

    def __init__(self, tape: Tape, part: Part, unpack: Callable[[Any], Tensor]) -> None:
        self._tape, self._part, self._unpack = weakref.ref(tape), part, unpack

    def __call__(self, held: Any) -> Tensor:
        tape = self._tape()
        with natively(), ExitStack() as stack:
            if self._part.level != NATIVE:
                stack.enter_context(side_by_side(self._part.size))
            if tape is not None:
                stack.enter_context(tape.on(self._part))
                stack.enter_context(tape.watch(self._part))
            return self._unpack(held)


def refuse_reentry() -> None:
    """Refuse a checkpoint that runs a backward pass inside a backward pass: nothing tells there what is of which sample.

    Raises:
        UnsupportedOperation: this is inside one.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is CheckpointFunction.backward.__code__:
            raise UnsupportedOperation(REENTRY)
        frame = frame.f_back


REENTRY = (
    "a re-entrant checkpoint runs a backward pass of its own, in which groups would be clipped in parts: use "
    "torch.utils.checkpoint with use_reentrant=False (transformers: gradient_checkpointing_enable("
    "gradient_checkpointing_kwargs={'use_reentrant': False}))"
)


def in_backward() -> bool:
    """Return whether autograd is running a backward pass in this thread (so a forward now is a recomputation)."""
    return torch._C._current_graph_task_id() != -1
