"""The passes of one stage of a pipeline: those of several micro-batches run forward before the first one runs backward.

What a forward pass leaves for its backward pass (gates, and what was used beside them) is put away when the next pass begins, and
taken up for its own backward pass. So each micro-batch is clipped as it would be if it were run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..autograd.gate import Gate
from ..autograd.slot import Slot
from ..autograd.tensors import PrivateTensor
from ..distributed.ranks import Ranks
from ..distributed.stages import check_sent
from ..errors import GroupClipError, UnsupportedOperation
from ..nested import tensors_in
from .backward import BackwardPass
from .checks import check_losses
from .forward import Forward, undone
from .hooks import show_plain, show_private


@dataclass(frozen=True, eq=False)
class Kept:
    """What a forward pass left for its backward pass: the gates of the groups, and the facts of the tape."""

    gates: list[Gate | None]
    batch: int | None
    shapes: tuple[tuple[int, ...], ...]
    beside: dict[Slot, Gate]
    in_parts: bool


@dataclass(frozen=True)
class Rows:
    """What the micro-batches of one run of the schedule hold: the first ``real`` rows are samples, and the others fill them up.

    Attributes:
        each: rows of a micro-batch.
        real: samples in all of them.
    """

    each: int
    real: int

    def real_in(self, chunk: int) -> int:
        """Return how many rows of this micro-batch are samples. They come first."""
        return min(max(self.real - chunk * self.each, 0), self.each)


class StagePasses:
    """Stands on one of torch's stages while an engine is attached to its module. ``remove`` takes it off.

    Args:
        stage: a ``torch.distributed.pipelining.PipelineStage``.
        ranks: of the training.
        forward, backward: of the engine.
    """

    def __init__(self, stage: Any, ranks: Ranks, model: nn.Module, forward: Forward, backward: BackwardPass) -> None:
        self.stage, self.ranks, self.step = stage, ranks, backward.step
        self.runs: tuple[Any, int] | None = None  # the schedule of the stage, and rows of its micro-batches
        self._model, self._backward, self._tape = model, backward, backward.tape
        self._kept: dict[int, Kept] = {}
        self._under_way: int | None = None  # the micro-batch whose gates stand open
        self._rows: Rows | None = None  # of the run under way
        self._filled: list[Tensor] = []  # whether rows that only fill had a gradient
        self._report = self._tape.report
        self._torchs = {name: getattr(stage, name) for name in _OURS}
        vars(stage).update({name: getattr(self, ours) for name, ours in _OURS.items()})
        self._tape.report = self._clipped
        self._tape.told = None  # whose rows they are is told once for all micro-batches
        forward.check_call = self._check_call
        forward.keep_in_front(outputs=not stage.is_last)

    def remove(self) -> None:
        """Leave the stage as it was."""
        self.forget()
        for name in self._torchs:
            del vars(self.stage)[name]

    def forget(self) -> None:
        """Forget what waits for a backward pass that doesn't come."""
        self._kept.clear()
        self._filled.clear()
        self._under_way = self._rows = None

    def _clear(self) -> None:
        """Begin or end a run of the schedule: what lies between two runs is of no micro-batch."""
        self.forget()
        for group in self._backward.groups:
            group.drop_gate()
        self._tape.forget()
        self._tape.batch = None

    def run(self, schedule: Any, rows: Rows, args: tuple[Any, ...], target: Any, kwargs: dict[str, Any]) -> None:
        """Run a schedule forward and backward on micro-batches that hold these rows. All ranks must call it.

        Raises:
            GroupClipError: see the messages. The logical batch must be given up then, as after any error that this raises.
        """
        self._clear()
        self._rows = rows
        try:
            inputs = args if self.stage.is_first else ()
            schedule.step(*inputs, target=target if self.stage.is_last else None, return_outputs=False, **kwargs)
            if any(map(bool, self._filled)):
                raise UnsupportedOperation(
                    "rows that only fill a micro-batch up have a gradient, though their losses have weight 0: the loss of a row "
                    "depends on other rows. Let loss_fn take each row's loss from this row alone (no mean over the rows)"
                )
        except BaseException as error:
            self.step.broke()
            if isinstance(error.__cause__, GroupClipError):  # ours, in torch's
                raise error.__cause__ from None
            raise
        finally:
            self._clear()

    # ------------------------------------------------------------------ in the place of torch's

    def _begin(self) -> None:
        """Begin a run of a schedule, before anything is sent."""
        if self.stage.has_backward and self._rows is None:
            raise UnsupportedOperation(
                f"{_CALLED} Call groupclip.PrivateSchedule(engine, schedule, rows=..).step(..) in the place of schedule.step(..)"
            )
        self._torchs["clear_runtime_states"]()

    def _shapes(self, *args: Any, **kwargs: Any) -> Any:
        """Find out the shapes of outputs, by a pass that trains nothing, on zeros where another stage would send something."""
        with self._aside(), undone(self._model):
            return self._torchs["_prepare_forward_infra"](*args, **kwargs)

    def _shapes_back(self, count: int, loss_fn: Callable[..., Tensor] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Find out the shapes of gradients, likewise."""
        total = None if loss_fn is None else lambda *a, **k: loss_fn(*a, **k).sum()
        with self._aside():
            return self._torchs["_prepare_backward_infra"](count, total, *args, **kwargs)

    def _outputs(self, *args: Tensor, **kwargs: Any) -> Any:
        """Compute outputs for their shapes. What others send is zero, which may be an index, and memory for it is in order."""
        if not self.stage.is_first:
            with torch.no_grad():
                for awaited in args:
                    awaited.zero_()
        return _in_order(self._torchs["_compute_outputs"](*args, **kwargs))

    def _gradients(self, *args: Any) -> tuple[Tensor | None, ...]:
        """Compute gradients for their shapes; memory for them is in order."""
        return _in_order(self._torchs["_compute_input_grads"](*args))

    def _forward_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:
        if not self.stage.has_backward:  # an evaluation
            with torch.no_grad():
                return self._torchs["forward_one_chunk"](chunk, *args, **kwargs)
        self._put_away()
        self._under_way = chunk
        return self._torchs["forward_one_chunk"](chunk, *args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. What comes out is sent as it lies: in order, a row a sample, as large as the next stage expects."""
        found = _in_order(self._torchs["forward_maybe_with_nosync"](*args, **kwargs))
        if self._rows is not None:
            self._check_rows(found, self._rows.each)
        if not self.stage.is_last:
            check_sent(found, self.stage._stage_meta.outputs)
        return found

    def _backward_chunk(
        self, chunk: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        if not full_backward:
            raise UnsupportedOperation("a backward pass of inputs alone, in which nothing is clipped")
        if not self.stage.has_backward:
            return
        self._put_away()
        self._take_up(chunk)
        assert self._tape.batch is not None
        with torch._C.DisableTorchFunctionSubclass():
            self.step.check_accumulation()
            if loss is not None:
                check_losses(loss, self._tape.batch, self._tape.shapes)

        def backward() -> None:
            total = None if loss is None else self._without_filling(self._backward.ready(loss), chunk).sum()
            self._torchs["backward_one_chunk"](chunk, total, full_backward, last_backward)
            sent = self.stage.bwd_cache  # what the stage before gets
            if chunk in sent:
                sent[chunk] = _in_order(sent[chunk])

        self._backward.within(self._tape.batch, 1.0, backward)
        self._under_way = None

    def _check_rows(self, outputs: Any, rows: int) -> None:
        """Check that the module took each row for a sample, and that the next one will: what it is sent says nothing of samples."""
        others = [] if self.stage.is_last else [t for t in tensors_in(outputs) if t.dim() == 0 or len(t) != rows]
        if self._tape.batch != rows or others or any(isinstance(t, PrivateTensor) for t in tensors_in(outputs)):
            raise UnsupportedOperation(
                f"a micro-batch has {rows} rows, and the stage took {self._tape.batch} samples from it, or returned tensors of "
                f"{[tuple(t.shape) for t in others]}, or one that is of no sample: what goes from stage to stage has the sample in "
                "dimension 0"
            )

    def _scale(self, factor: int) -> None:
        """Leave the gradients alone: they are sums over all micro-batches, and stay it."""

    # ------------------------------------------------------------------ of one micro-batch

    def _without_filling(self, losses: Tensor, chunk: int) -> Tensor:
        """Return losses of which only those of samples have a gradient."""
        assert self._rows is not None
        real = torch.arange(len(losses), device=losses.device) < self._rows.real_in(chunk)
        return torch.where(real, losses, torch.zeros_like(losses))

    def _clipped(self, group: str, norms: Tensor) -> None:
        """Hear the norms ``[rows]`` of a micro-batch, and tell those of samples."""
        assert self._rows is not None and self._under_way is not None
        real = self._rows.real_in(self._under_way)
        filling = norms[real:]
        if len(filling):
            self._filled.append(((filling > 0) & filling.isfinite()).any())
        self._report(group, norms[:real])

    def _put_away(self) -> None:
        """Put away what the pass under way left for its backward pass, its loss included."""
        if self._under_way is None:
            return
        tape, groups = self._tape, self._backward.groups
        self._kept[self._under_way] = Kept(
            [group.gate for group in groups], tape.batch, tape.shapes, tape.beside, tape.ran_in_parts
        )
        for group in groups:
            group.gate = None
        tape.beside, tape.ran_in_parts = {}, False
        self._under_way = None

    def _take_up(self, chunk: int) -> None:
        """Take up what the forward pass of a micro-batch left."""
        kept, tape = self._kept.pop(chunk), self._tape
        for group, gate in zip(self._backward.groups, kept.gates, strict=True):
            group.gate = gate
        tape.batch, tape.shapes, tape.beside, tape.ran_in_parts = kept.batch, kept.shapes, kept.beside, kept.in_parts
        self._under_way = chunk

    def _check_call(self) -> None:
        if self._under_way is None:
            raise UnsupportedOperation(
                f"{_CALLED} Samples come to it by groupclip.PrivateSchedule(engine, schedule, rows=..).step(..); to evaluate it, "
                "use torch.no_grad() or schedule.eval(..)"
            )

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Let the module be called, inside, as if no engine were there: no gradient comes to its parameters."""
        show_plain(self._backward.slots)
        self._tape.aside = True
        try:
            yield
        finally:
            self._tape.aside = False
            show_private(self._backward.slots)


def _in_order(value: Any) -> Any:
    """Return what is sent, or memory for it, as it lies in order: torch's stages send memory."""
    if isinstance(value, (tuple, list)):
        return type(value)([_in_order(each) for each in value])
    return value.contiguous() if isinstance(value, Tensor) else value


_CALLED = "the attached model is a stage of a pipeline, and it was called by itself, with gradients."

#: Methods of torch's stages -> ours in their place.
_OURS = {
    "clear_runtime_states": "_begin",
    "_prepare_forward_infra": "_shapes",
    "_prepare_backward_infra": "_shapes_back",
    "_compute_outputs": "_outputs",
    "_compute_input_grads": "_gradients",
    "forward_one_chunk": "_forward_chunk",
    "forward_maybe_with_nosync": "_call",
    "backward_one_chunk": "_backward_chunk",
    "scale_grads": "_scale",
}
