"""Where the samples lie in each tensor that meets a parameter: learnt by changing one sample, not guessed from shapes.

``[B, T, d]`` and ``[T, B, d]`` look alike when T = B; ``[2B, d]`` may hold two rows of each sample, one after the other
(sample-major) or view by view (sample-minor); a constant table may be as long as the batch. Read wrongly, rows would
be clipped as if they were samples. So the engine runs the model on two samples and changes one (:mod:`groupclip.lesson`):
what a parameter meets in one pass is compared with what it met in the other, and the entries that changed are those of the
sample that changed.

The samples of a lesson may not show how the batch itself is arranged: by its size, by a flag, by values. :mod:`groupclip.course`
sees to that, operation by operation.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Which of the two samples changes from each pass of a lesson to the next.
_CHANGED = (1, 0, 1)


class Axis(enum.Enum):
    """Where the samples are in a tensor."""

    MAJOR = "dimension 0: all rows of sample 0, then all of sample 1, .."
    MINOR = "dimension 0: the first row of every sample, then the second of every sample, .."
    SECOND = "dimension 1"
    CONSTANT = "nowhere: the same for every batch"
    MIXED = "not along one dimension"

    def fits(self, shape: torch.Size, batch: int) -> bool:
        """Whether a tensor of this shape can hold ``batch`` samples so."""
        if self in (Axis.MAJOR, Axis.MINOR):
            return len(shape) > 0 and (shape[0] == batch or (0 < batch <= shape[0] and shape[0] % batch == 0))
        return self is Axis.SECOND and len(shape) > 1 and shape[1] == batch

    def split(self, x: Tensor, batch: int) -> Tensor:
        """``x`` as ``[B, k, ..]``: the samples in front, then the k entries along dimension 0 that each has."""
        if self is Axis.SECOND:
            return x.movedim(1, 0)
        share = x.shape[0] // batch if batch else 1
        if self is Axis.MINOR:
            return x.reshape(share, batch, *x.shape[1:]).movedim(1, 0)
        return x.reshape(batch, share, *x.shape[1:])


#: A place where a tensor meets a parameter: (parameter, operation, which operand, its number of dimensions, what led there). The
#: last is None where no pass is followed: in a recomputation in the backward pass, or outside the model's own forward pass.
#: Without a parameter: where an operation moves rows (:mod:`groupclip.course`).
Place = tuple[str, Any, int, int, int | None]


@dataclass
class Layouts:
    """What has been learnt, and what a pass under way shows."""

    known: dict[Place, Axis] = field(default_factory=dict)
    shares: dict[Place, set[int]] = field(default_factory=dict)  # entries of dimension 0 that each sample had there
    complete: bool = False  # no pass has met an unknown place since the last lesson
    failed: bool = False  # the model can't run on two samples of its batch: nothing is read off shapes then
    astray: bool = False  # from here on, the pass under way isn't arranged as in its lesson
    _anywhere: dict[Place, Axis] = field(default_factory=dict)  # whatever led there
    _seen: dict[Place, list[Tensor]] | None = None
    _assumed: dict[Place, Axis] = field(default_factory=dict)

    def axis(self, place: Place, x: Tensor, batch: int, from_batch: bool, *, shown: bool) -> Axis:
        """Where the samples are in ``x``; MIXED if that isn't certain.

        Args:
            place: where it meets a parameter.
            x: the tensor.
            batch: B.
            from_batch: it is a view of an input, or gradients are recorded for it: it is no constant.
            shown: it is a pass of which lessons are given. What isn't known of others is read off the shape.
        """
        axis = self.met(place, x)
        if self._seen is not None:
            self.shares.setdefault(place, set()).add(x.shape[0] // batch)
            if axis is None:
                axis = self._assumed.setdefault(place, _guess(x, batch, from_batch))
        if axis is Axis.CONSTANT and x.requires_grad:
            # It isn't: the samples of the lesson were alike here, or multiplied by zero. Another lesson may show more.
            self.complete, axis = False, Axis.MIXED
        if axis is None:
            self.complete = False
            axis = Axis.MIXED if shown and batch > 0 else _by_shape(x, batch, from_batch)
        if self.astray:
            axis = Axis.MIXED
        if batch == 1 and axis is not Axis.SECOND:
            return Axis.MAJOR  # whatever it is, it is this sample's
        if axis is Axis.CONSTANT:
            return axis
        if not axis.fits(x.shape, batch):
            return Axis.MIXED
        if axis is not Axis.SECOND and x.shape[0] != batch and x.shape[0] // batch not in self.shares.get(place, ()):
            # Ragged rows may be a multiple of the batch by chance; a longer sequence is learnt in the next pass.
            self.complete = False
            return Axis.MIXED
        return axis

    def met(self, place: Place, x: Tensor) -> Axis | None:
        """What is known of a place, if anything; in a lesson, something is met there."""
        if self._seen is not None:
            self._seen.setdefault(place, []).append(_fingerprint(x))
        return self.known.get(place) if place[4] is not None else self._anywhere.get(place)

    def go_astray(self) -> None:
        """The pass under way isn't arranged as in its lesson; another may show how."""
        self.astray, self.complete = True, False

    def take_in(self, passes: list[dict[Place, list[Tensor]]]) -> None:
        """Take in what the passes of one lesson met; each differs from the one before in one sample."""
        for place in set().union(*passes):
            met = [p.get(place, []) for p in passes]
            found = {_compare(x, y, changed) for x, y, changed in zip(met, met[1:], _CHANGED, strict=False)}
            axis = found.pop() if len(found) == 1 else Axis.MIXED
            before = self.known.get(place, axis)
            if axis is Axis.CONSTANT and all(before.fits(x.shape, 2) for x in met[0]):
                continue  # as many rows as before, but the samples of this lesson are alike here
            self.known[place] = axis if before in (axis, Axis.CONSTANT) else Axis.MIXED
        self._know_anywhere()
        self.complete = True

    def doubt(self, met: dict[Place, list[Tensor]], beside: dict[Place, list[Tensor]], rows: int) -> bool:
        """Whether some place had not as many rows in a pass on ``rows`` samples as it should, after a pass ``met`` on two.

        Then it may be a constant that is as long as the batch by chance: it isn't certain where the samples are in it.
        """
        doubtful = [
            place for place, axis in self.known.items() for x, y in zip(met.get(place, ()), beside.get(place, ()), strict=False)
            if place[0] and axis in (Axis.MAJOR, Axis.MINOR, Axis.SECOND) and _rows(y, axis) * 2 != _rows(x, axis) * rows
        ]  # fmt: skip
        self.known |= dict.fromkeys(doubtful, Axis.MIXED)
        self._know_anywhere()
        return bool(doubtful)

    def _know_anywhere(self) -> None:
        self._anywhere.clear()
        for place, axis in self.known.items():
            whatever = (*place[:4], None)
            self._anywhere[whatever] = axis if self._anywhere.get(whatever, axis) is axis else Axis.MIXED

    @property
    def misled(self) -> bool:
        """Whether anything was assumed wrongly in the last lesson, so that it may not have met all there is."""
        return any(self.known[place] is not assumed for place, assumed in self._assumed.items())

    def forget(self) -> None:
        """Unlearn everything: lessons were given on a wrong idea of the inputs."""
        self.known.clear()
        self._anywhere.clear()
        self.complete = False

    def forget_assumptions(self) -> None:
        """At the begin of a round, and where a lesson fails."""
        self._assumed.clear()

    def varies(self, place: Place) -> bool:
        """Whether lessons saw what is met there change with the samples."""
        known = self.known if place[4] is not None else self._anywhere
        return known.get(place, Axis.CONSTANT) is not Axis.CONSTANT

    @property
    def learning(self) -> bool:
        """Whether the pass under way is one of a lesson, which may assume wrongly."""
        return self._seen is not None

    @property
    def folded(self) -> bool:
        """Whether anywhere a sample has several rows: how many depends on the shape of the inputs."""
        return any(self.shares.get(p, set()) - {0, 1} for p, a in self.known.items() if a in (Axis.MAJOR, Axis.MINOR))

    @contextmanager
    def watch(self) -> Iterator[dict[Place, list[Tensor]]]:
        self._seen = {}
        try:
            yield self._seen
        finally:
            self._seen = None


def _rows(fingerprint: Tensor, axis: Axis) -> int:
    return fingerprint.shape[1 if axis is Axis.SECOND else 0]


def _guess(x: Tensor, batch: int, from_batch: bool) -> Axis:
    """What to assume where it isn't known yet: values are right whatever it is, a right guess saves a second round."""
    if not from_batch and not x.is_floating_point():
        return Axis.CONSTANT  # positions, segment numbers
    return next((a for a in (Axis.MAJOR, Axis.SECOND) if a.fits(x.shape, batch)), Axis.CONSTANT)


def _by_shape(x: Tensor, batch: int, from_batch: bool) -> Axis:
    """For a place that no lesson has shown: only where the shape leaves no doubt."""
    if batch == 0 and x.dim() > 0:
        return Axis.MAJOR if x.shape[0] == 0 else Axis.SECOND
    first = from_batch and x.dim() > 0 and x.shape[0] == batch
    return Axis.MAJOR if first and not (x.dim() > 2 and x.shape[1] == batch) else Axis.MIXED


def _compare(first: list[Tensor], second: list[Tensor], sample: int) -> Axis:
    """The axis that all uses at one place agree on."""
    if len(first) != len(second):
        return Axis.MIXED
    found = {_changed(x, y, sample) for x, y in zip(first, second, strict=True)}
    return found.pop() if len(found) == 1 else Axis.MIXED


def _changed(x: Tensor, y: Tensor, sample: int) -> Axis:
    """From two fingerprints ``[d0, d1]`` of a tensor of two samples, of which ``sample`` differs."""
    if x.shape != y.shape:
        return Axis.MIXED
    scale = x.abs().nan_to_num(0, 0, 0).amax() if x.numel() else 0.0
    same = torch.isclose(x, y, rtol=1e-6, atol=float(scale) * 1e-9, equal_nan=True)
    if bool(same.all()):
        return Axis.CONSTANT
    rows = (~same).any(dim=1).nonzero().flatten().tolist()
    columns = (~same).any(dim=0).nonzero().flatten().tolist()
    length, width = x.shape
    even = length % 2 == 0
    candidates = []
    if even and all((r >= length // 2) == bool(sample) for r in rows):
        candidates.append(Axis.MAJOR)
    if even and length > 2 and all(r % 2 == sample for r in rows):
        candidates.append(Axis.MINOR)
    if width == 2 and columns == [sample]:
        candidates.append(Axis.SECOND)
    return candidates[0] if len(candidates) == 1 else Axis.MIXED


def _fingerprint(x: Tensor) -> Tensor:
    """``[d0, d1]``: one number for the entries of each index of the first two dimensions."""
    x = x.detach().double()
    x = x.reshape(x.shape[0], x.shape[1] if x.dim() > 1 else 1, -1) if x.dim() > 0 else x.reshape(1, 1, 1)
    weights = torch.cos(torch.arange(x.shape[2], dtype=torch.float64, device=x.device))
    return x @ weights
