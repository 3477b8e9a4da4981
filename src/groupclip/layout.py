"""Where the samples lie in each tensor that meets a parameter: learnt by changing one sample, not guessed from shapes.

``[B, T, d]`` and ``[T, B, d]`` look alike when T = B; ``[2B, d]`` may hold two rows of each sample, one after the other
(sample-major) or view by view (sample-minor); a constant table may be as long as the batch. Read wrongly, rows would
be clipped as if they were samples. So before its first pass the engine runs the model on two samples ``(a, b)``, then on
``(a, a)`` and ``(b, a)``, and compares what every parameter meets: the entries that changed from one pass to the next are
those of the sample that changed. A model that sorts its samples is seen to, for both orders are among them. If what was
assumed meanwhile was wrong, or the passes differ in more than numbers, it is done again on ``(a, b)``, ``(a, c)``, ``(b, c)``
and ``(b, a)``.

The limit: a model that arranges its batch in a way that these samples don't show: by the size of the batch, by a flag that is
set later, by values (a sort in which they tie, ragged rows of which they have equally many).
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .batch import replaced, tensors_in

#: Which of the two samples changes from each pass of a lesson to the next.
_CHANGED = (1, 0, 1)

#: What was assumed wrongly in one round may hide places until the next (a constant that turns out to be derived).
_ROUNDS = 4

#: Among how many samples of the batch to look for two that differ.
_CANDIDATES = 16

#: Of random, numpy and torch: with these, the first permutation of two that each draws is a swap, so that a model that shuffles
#: its samples is seen to (tests hold them to it).
_SEEDS = (1, 2, 5)

_log = logging.getLogger("groupclip")


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


#: A place where a tensor meets a parameter: (parameter, operation, which operand, its number of dimensions).
Place = tuple[str, Any, int, int]


@dataclass
class Layouts:
    """What has been learnt, and what a pass under way shows."""

    known: dict[Place, Axis] = field(default_factory=dict)
    shares: dict[Place, set[int]] = field(default_factory=dict)  # entries of dimension 0 that each sample had there
    complete: bool = False  # no pass has met an unknown place since the last lesson
    failed: bool = False  # the model can't run on two samples of its batch: nothing is read off shapes then
    _seen: dict[Place, list[Tensor]] | None = None
    _assumed: dict[Place, Axis] = field(default_factory=dict)

    def axis(self, place: Place, x: Tensor, batch: int, from_batch: bool) -> Axis:
        """Where the samples are in ``x``; MIXED if that isn't certain.

        Args:
            place: where it meets a parameter.
            x: the tensor.
            batch: B.
            from_batch: it is a view of an input, or gradients are recorded for it: it is no constant.
        """
        axis = self.known.get(place)
        if self._seen is not None:
            self._seen.setdefault(place, []).append(_fingerprint(x))
            self.shares.setdefault(place, set()).add(x.shape[0] // batch)
            if axis is None:
                axis = self._assumed.setdefault(place, _guess(x, batch, from_batch))
        if axis is Axis.CONSTANT and x.requires_grad:
            # It isn't: the samples of the lesson were alike here, or multiplied by zero. Another lesson may show more.
            self.complete, axis = False, Axis.MIXED
        if axis is None:
            self.complete = False
            axis = Axis.MIXED if self.failed and batch > 1 else _by_shape(x, batch, from_batch)
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

    def _learnt(self, passes: list[dict[Place, list[Tensor]]]) -> None:
        """Take in what the passes of one lesson met; each differs from the one before in one sample."""
        for place in set().union(*passes):
            met = [p.get(place, []) for p in passes]
            found = {_compare(x, y, changed) for x, y, changed in zip(met, met[1:], _CHANGED, strict=False)}
            axis = found.pop() if len(found) == 1 else Axis.MIXED
            before = self.known.get(place, axis)
            self.known[place] = axis if before in (axis, Axis.CONSTANT) else Axis.MIXED
        self.complete = True

    @property
    def _misled(self) -> bool:
        """Whether anything was assumed wrongly in the last lesson, so that it may not have met all there is."""
        return any(self.known[place] is not assumed for place, assumed in self._assumed.items())

    def varies(self, place: Place) -> bool:
        """Whether lessons saw what is met there change with the samples."""
        return self.known.get(place, Axis.CONSTANT) is not Axis.CONSTANT

    @property
    def learning(self) -> bool:
        """Whether the pass under way is one of a lesson, which may assume wrongly."""
        return self._seen is not None

    @property
    def folded(self) -> bool:
        """Whether anywhere a sample has several rows: how many depends on the shape of the inputs."""
        return any(self.shares.get(p, set()) - {0, 1} for p, a in self.known.items() if a in (Axis.MAJOR, Axis.MINOR))

    @contextmanager
    def _watch(self) -> Iterator[dict[Place, list[Tensor]]]:
        self._seen = {}
        try:
            yield self._seen
        finally:
            self._seen = None


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


def learn(model: nn.Module, layouts: Layouts, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Give ``layouts`` a lesson: passes over two samples of the inputs, of which one changes each time.

    The model (buffers, attributes, modes) and random number generators are left as they were. A model that can't run
    on two samples is no error: places that stay unknown go the slow way.

    Args:
        model: the attached model.
        run: ``run(args, kwargs)`` makes a forward pass with gradients recorded, and throws it away.
        args, kwargs: of the forward pass that is about to be made.

    Returns:
        Whether a lesson was given: False where the batch can't teach anything (one sample, or samples that are alike).
    """
    tensors = [t for t in tensors_in((args, kwargs)) if t.dim() > 0]
    batch = tensors[0].shape[0] if tensors else 0
    samples = [t for t in tensors if t.shape[0] == batch]
    # Those that differ from sample 0 in the most inputs: in their length too, if lengths differ.
    others = sorted(range(1, min(batch, _CANDIDATES)), key=lambda i: -_differing(samples, 0, i))[:2]
    if not others or _differing(samples, 0, others[0]) == 0:
        return False

    devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    # If the model can't run on two samples, an input that isn't of the batch may be as long as it by chance (positions). The
    # first tensor is the batch by contract.
    first, *rest = map(id, samples)
    several = {id(t) for t in samples if t.dim() > 1}
    for cut in dict.fromkeys((frozenset((first, *rest)), frozenset(several | {first}), frozenset((first,)))):
        passes = _Passes(model, run, args, kwargs, cut, devices)
        layouts.failed = not _teach(layouts, passes, others)
        if not layouts.failed:
            break
    return True


@dataclass(frozen=True)
class _Passes:
    """Forward passes on some samples of the inputs.

    Attributes:
        cut: ids of the inputs whose dimension 0 is the sample.
    """

    model: nn.Module
    run: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cut: frozenset[int]
    devices: list[int]

    def meet(self, layouts: Layouts, samples: tuple[int, int]) -> dict[Place, list[Tensor]] | None:
        """What parameters meet in a pass on two samples; None if the model can't be run on them."""

        def change(value: Any) -> Any:
            if id(value) not in self.cut:
                return value
            return value.detach()[list(samples)].requires_grad_(value.requires_grad)

        args, kwargs = replaced((self.args, dict(self.kwargs)), change)
        with same_random_numbers(self.devices), unchanged(self.model), layouts._watch() as met:
            try:
                self.run(args, kwargs)
            except Exception as error:
                # The real pass that follows raises it too, unless two samples are the reason. Its text may quote data.
                _log.debug("the model can't run on two samples: %s", type(error).__name__)
                return None
        return met


def _teach(layouts: Layouts, passes: _Passes, others: list[int]) -> bool:
    """The rounds of a lesson; False if a pass couldn't be made."""
    for round_ in range(_ROUNDS):
        layouts._assumed.clear()
        a, b = (0, others[0]) if round_ % 2 == 0 else (others[0], 0)
        path = [(a, b), (a, a), (b, a)]
        if round_ > 0 and len(others) == 2:
            path[1:2] = [(a, others[1]), (b, others[1])]
        met: list[dict[Place, list[Tensor]]] = []
        for pair in path:
            one = passes.meet(layouts, pair)
            if one is None:
                layouts._assumed.clear()
                return False
            met.append(one)
        if round_ == 0 and len(others) == 2 and not _alike(met):
            continue  # the same sample twice may not look like a batch: without padding, say
        layouts._learnt(met)
        if not layouts._misled:
            break
    return True


def _differing(samples: list[Tensor], i: int, j: int) -> int:
    """In how many inputs sample j is another than sample i."""
    return sum(not torch.equal(t[i], t[j]) for t in samples)


@contextmanager
def same_random_numbers(devices: list[int]) -> Iterator[None]:
    """The same draws in every pass of a lesson, and none that anybody notices afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(_SEEDS[0])
    np.random.seed(_SEEDS[1])
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(_SEEDS[2])
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _alike(passes: list[dict[Place, list[Tensor]]]) -> bool:
    """Whether every pass met tensors of the same shapes at the same places."""
    shapes = [{place: [x.shape for x in met] for place, met in p.items()} for p in passes]
    return all(s == shapes[0] for s in shapes)


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


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back buffers and attributes of every module that the pass changes (caches, counters, running statistics)."""
    states = [(m.__dict__, {k: _copied(v) for k, v in m.__dict__.items()}) for m in model.modules()]
    buffers = {b: b.detach().clone() for b in model.buffers()}
    try:
        yield
    finally:
        for attributes, before in states:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            for name, (value, content) in before.items():
                _restore(value, content)
                attributes[name] = value
        with torch.no_grad():
            for buffer, content in buffers.items():
                if not torch.equal(buffer, content):
                    buffer.copy_(content)


def _copied(value: Any) -> tuple[Any, Any]:
    """The value, and its content if it is a plain container (whose identity others may rely on)."""
    return value, value.copy() if isinstance(value, (dict, list, set)) else None


def _restore(value: Any, content: Any) -> None:
    if isinstance(value, (dict, set)):
        value.clear()
        value.update(content)
    elif isinstance(value, list):
        value[:] = content
