"""Schedules of pipeline stages on private batches: of any size, in micro-batches of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..alone.sequences import Sequences
from ..arguments import whole
from ..distributed.agreement import digest, told_by_all, unanimous
from ..distributed.stages import check_schedule
from ..errors import GroupClipError, PrivacyViolation, UnsupportedOperation
from ..nested import replaced, tensors_in
from ..sampling.marks import marks
from .engine import Engine
from .passes import Rows, StagePasses


class PrivateSchedule:
    """A schedule of ``torch.distributed.pipelining`` that trains privately. Every rank makes one, of its own stage's schedule.

    Args:
        engine: of this rank, attached with ``stage=``.
        schedule: a ``ScheduleGPipe`` or ``Schedule1F1B`` of that stage. Its ``loss_fn`` takes outputs and targets ``[rows, ..]``
            and returns one loss a row, ``[rows]``; loss i depends on row i alone. Its ``scale_grads`` changes nothing.
        rows: samples in each of its micro-batches. Memory and speed depend on it, and the result doesn't: smaller batches are
            filled up with rows whose losses have weight 0, and larger ones take several runs of the schedule.

    Attributes:
        schedule: torch's. Its ``eval`` may be called; it makes passes without gradients.

    Raises:
        UnsupportedOperation: an engine without a stage, another schedule, or one that has run already.
        ValueError: the schedule of another stage; ``rows`` below 1.
        PrivacyViolation: the ranks have other schedules or rows.
    """

    def __init__(self, engine: Engine, schedule: Any, *, rows: int) -> None:
        self._engine, self.schedule = engine, schedule
        passes = engine._passes
        if passes is None:
            raise UnsupportedOperation("the engine has no stage: give groupclip.attach stage=, on every rank")
        self._passes: StagePasses = passes
        self._like: tuple[Any, ...] | None = None  # what rows looked like at first
        self._sequences = Sequences(guarded=True)

        def check() -> None:
            check_schedule(schedule)
            if schedule._stage is not passes.stage:
                raise ValueError("the schedule is of another stage than the engine: make it of the one that attach was given")
            whole("rows", rows, least=1)
            if passes.runs is None and schedule._stage_forward_initialized:
                raise UnsupportedOperation("the schedule has run before this engine was attached: make a new one of the stage")
            if passes.runs is not None and passes.runs != (schedule, rows):
                raise UnsupportedOperation(
                    f"the stage has a schedule with rows={passes.runs[1]} already, and torch's stages receive in memory of one "
                    "size: keep one PrivateSchedule, or make a new stage and attach again"
                )

        unanimous(passes.ranks, check, lambda: {
            "the schedule": type(schedule).__name__, "its micro-batches": schedule._n_microbatches, "rows=": rows,
        }, "the schedule")  # fmt: skip
        self._rows, self._chunks = rows, schedule._n_microbatches
        passes.runs = schedule, rows

    def step(self, *args: Any, target: Tensor, **kwargs: Any) -> None:
        """Add the clipped gradients of these samples to ``p.grad``, on every rank of its own stage. No optimizer steps.

        Args:
            args: inputs ``[B, ..]`` of the first stage.
            target: ``[B, ..]``, for the loss of the last stage.
            kwargs: what every stage takes beside; tensors are ``[B, ..]``.

        All ranks call it with the same samples. Rows must have one shape in all batches: torch's stages receive in memory of one
        size.

        Raises:
            ValueError: tensors of other lengths, or rows of another shape than before.
            UnsupportedOperation: what has an entry for each sample, and torch doesn't cut into micro-batches.
            PrivacyViolation: other samples on another rank; gradients that another hand changed.
            RuntimeError: torch's, where another rank is lost.

        After an error that comes from inside of the schedule, ranks may wait for each other until the process group's timeout.
        Then call ``engine.discard()`` on all, or end the training.
        """
        samples = (args, target, kwargs)
        self._meet(args, target, kwargs)
        if len(target):
            self._like = _like(samples)
        room = self._rows * self._chunks
        for first in range(0, len(target), room):
            real = min(len(target) - first, room)
            inputs, targets, others = replaced(samples, lambda v, at=first, n=real: _cut(v, at, n, room))
            self._passes.run(self.schedule, Rows(self._rows, real), inputs, targets, others)
        if len(target):
            seen = self._passes.step.samples
            seen.called(next(tensors_in(args)))
            seen.passed()

    def _meet(self, args: tuple[Any, ...], target: Any, kwargs: dict[str, Any]) -> None:
        """Check that all ranks may take these samples, and that they have the same ones. The error tells nothing of them."""

        def look() -> dict[str, str]:
            self._check(args, target, kwargs)
            return {"samples": _digest((args, target, kwargs))}

        told = told_by_all(self._passes.ranks, look, "the samples")
        others = [rank for rank, each in enumerate(told) if each != told[0]]
        if others:
            raise PrivacyViolation(
                f"rank {others[0]} has other samples than rank 0, so no schedule runs: one sample's inputs would meet another "
                "one's target. Draw batches with dealt=False, and read (and augment) samples alike on all ranks"
            )

    def _check(self, args: tuple[Any, ...], target: Any, kwargs: dict[str, Any]) -> None:
        self._engine._require_attached()
        if not torch.is_grad_enabled():
            raise GroupClipError("PrivateSchedule.step records gradients, and this is under torch.no_grad(): use schedule.eval(..)")
        if not isinstance(target, Tensor) or not any(True for _ in tensors_in(args)):
            raise ValueError(
                "PrivateSchedule.step takes inputs and target=, tensors whose dimension 0 is the sample, on every rank"
            )
        lengths = sorted({len(t) if t.dim() else 0 for t in tensors_in((args, target, kwargs))})
        if len(lengths) != 1:
            raise ValueError(f"tensors of {lengths} rows: dimension 0 must be the sample, in all of them")
        _check_cut((args, kwargs))
        self._sequences.check(args, kwargs, len(target), None)
        like = _like((args, target, kwargs))
        if self._like is not None and like != self._like and len(target):
            raise ValueError(
                f"rows are {like}, and they were {self._like}: torch's stages receive in memory of one size. Pad all samples to "
                "one length (collate=)"
            )
        with torch._C.DisableTorchFunctionSubclass():
            self._passes.step.check_accumulation()


def _like(samples: Any) -> tuple[Any, ...]:
    """Return what rows look like: the shape and dtype of one, of each tensor."""
    return tuple((tuple(t.shape[1:]), str(t.dtype)) for t in tensors_in(samples))


def _digest(samples: Any) -> str:
    """Return a name for samples, the same on all ranks for the same ones. It doesn't tell how many there are."""
    return digest([list(_told(t)) for t in tensors_in(samples)])


def _told(tensor: Tensor) -> Iterator[Any]:
    yield [list(tensor.shape), str(tensor.dtype)]
    found = marks(tensor)
    if found is not None:
        yield found.rows.tolist()


def _check_cut(samples: Any) -> None:
    """Refuse tensors that torch's schedules don't cut into micro-batches: every sample would see those of all."""
    cut = Counter(id(leaf) for leaf in pytree.tree_leaves(samples))
    held = Counter(id(t) for t in tensors_in(samples))
    whole = [tuple(t.shape) for t in tensors_in(samples) if held[id(t)] > cut[id(t)]]
    if whole:
        raise UnsupportedOperation(
            f"tensors of shapes {whole} lie in objects that torch's schedules hand whole to every micro-batch, so each sample "
            "would see those of all: pass them in tuples, lists or dictionaries (dict(batch) of a batch of transformers)"
        )


def _cut(value: Any, first: int, real: int, room: int) -> Any:
    """Return ``room`` rows of a tensor: ``real`` of them from ``first`` on, and then the last one again and again."""
    if not isinstance(value, Tensor):
        return value
    rows = torch.arange(first, first + room, device=value.device).clamp(max=first + real - 1)
    return value.index_select(0, rows)
