"""Lessons: passes of a model over two samples of its batch, of which one changes each time.

Before its first pass the engine runs the model on samples ``(a, b)``, then on ``(a, a)`` and ``(b, a)``, and compares what
every parameter meets (:mod:`groupclip.layout`). A model that sorts its samples is seen to, for both orders are among them.
If what was assumed meanwhile was wrong, or the passes differ in more than numbers, it is done again on ``(a, b)``, ``(a, c)``,
``(b, c)`` and ``(b, a)``.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from .batch import replaced, tensors_in
from .layout import Layouts, Place
from .published import Published
from .snapshot import Snapshot

#: What was assumed wrongly in one round may hide places until the next (a constant that turns out to be derived).
_ROUNDS = 4

#: Among how many samples of the batch to look for two that differ.
_CANDIDATES = 16

#: Of random, numpy and torch: with these, the first permutation of two that each draws is a swap, so that a model that shuffles
#: its samples is seen to (tests hold them to it).
_SEEDS = (1, 2, 5)

_log = logging.getLogger("groupclip")


class _UnderWay(threading.local):
    lessons = 0


_under_way = _UnderWay()


def computed_again_later() -> bool:
    """Whether this is a lesson, in a re-entrant checkpoint: a real pass records gradients there in its backward pass."""
    frame = sys._getframe() if _under_way.lessons else None
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
        frame = frame.f_back
    return False


class Companions:
    """Inputs beside the first that are as long as the batch: samples of it (masks, labels), or so long by chance (a support set).

    Where a model runs either way, only a batch of another size can tell. Inputs go by their number.
    """

    def __init__(self) -> None:
        self._of_batch: dict[int, bool] = {}
        self._doubtful: dict[int, int] = {}  # input -> its length when the doubt arose

    def look(self, tensors: list[Tensor]) -> bool:
        """Whether the inputs of this pass settle a doubt: what was learnt meanwhile must be learnt again then."""
        batch = tensors[0].shape[0] if tensors else 0
        settled = {
            n: tensors[n].shape[0] == batch
            for n, length in self._doubtful.items()
            if n < len(tensors) and length != batch
        }
        self._of_batch |= settled
        for n in settled:
            del self._doubtful[n]
        return bool(settled)

    def may_be_cut(self, tensors: list[Tensor]) -> list[Tensor]:
        """The first input, and others that are as long unless they are known to be no samples."""
        batch = tensors[0].shape[0] if tensors else 0
        return [t for n, t in enumerate(tensors) if t.shape[0] == batch and self._of_batch.get(n, True)]

    def unsettled(self, tensors: list[Tensor]) -> list[int]:
        """Those of which nothing is known."""
        return [
            n for n, t in enumerate(tensors) if n > 0 and t.shape[0] == tensors[0].shape[0] and n not in self._of_batch
        ]

    def doubt(self, n: int, length: int) -> None:
        """A model runs whether input ``n`` is cut with the batch or not."""
        if n not in self._doubtful:
            self._doubtful[n] = length
            _log.warning(
                "input %d is as long as the batch, and the model runs whether its rows are taken for samples or not: until a batch "
                "of another size tells, gradients are computed one sample at a time where it is used: exact, and slow",
                n + 1,
            )


@dataclass(frozen=True)
class Lesson:
    """What came of a lesson, besides what ``layouts`` was taught."""

    given: bool
    of_samples: frozenset[str] = frozenset()  # buffers and weights that the model fills from its batch


def learn(
    model: nn.Module, layouts: Layouts, companions: Companions, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Lesson:
    """Give ``layouts`` a lesson: passes over two samples of the inputs, of which one changes each time.

    The model (weights, buffers, attributes, modes) and random number generators are left as they were. A model that can't run
    on two samples is no error: places that stay unknown go the slow way.

    Args:
        model: the attached model.
        layouts: is taught.
        companions: is told of inputs that may or may not be samples.
        run: ``run(args, kwargs)`` makes a forward pass with gradients recorded, and throws it away.
        args, kwargs: of the forward pass that is about to be made.

    Returns:
        What came of it; none is given where the batch can't teach anything (one sample, or samples that are alike).
    """
    tensors = [t for t in tensors_in((args, kwargs)) if t.dim() > 0]
    batch = tensors[0].shape[0] if tensors else 0
    samples = companions.may_be_cut(tensors)
    # Those that differ from sample 0 in the most inputs: in their length too, if lengths differ.
    others = sorted(range(1, min(batch, _CANDIDATES)), key=lambda i: -_differing(samples, 0, i))[:2]
    if not others or _differing(samples, 0, others[0]) == 0:
        return Lesson(given=False)

    devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    # If the model can't run on two samples, an input that isn't of the batch may be as long as it by chance (positions). The
    # first tensor is the batch by contract.
    first, *rest = map(id, samples)
    several = {id(t) for t in samples if t.dim() > 1}
    cuts = dict.fromkeys((frozenset((first, *rest)), frozenset(several | {first}), frozenset((first,))))
    snapshot = Snapshot(model)
    published = Published(model, snapshot.written)
    for cut in cuts:
        passes = _Passes(run, args, kwargs, cut, devices, snapshot, published)
        met = _teach(layouts, passes, others)
        layouts.failed = met is None
        if met is not None:
            _look_beside(layouts, companions, passes, tensors, met)
            if published.changed and not published.of_samples:  # a maximum may be sample 0's in all of them
                passes.look_only(layouts, (others[0], others[0]))
            break
    return Lesson(given=True, of_samples=frozenset(published.of_samples))


@dataclass(frozen=True)
class _Passes:
    """Forward passes on some samples of the inputs.

    Attributes:
        cut: ids of the inputs whose dimension 0 is the sample.
        snapshot: of the model before the lesson.
        published: is looked at after each pass.
    """

    run: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cut: frozenset[int]
    devices: list[int]
    snapshot: Snapshot
    published: Published

    def meet(self, layouts: Layouts, samples: tuple[int, ...]) -> dict[Place, list[Tensor]] | None:
        """What parameters meet in a pass on these samples; None if the model can't be run on them."""

        def change(value: Any) -> Any:
            if id(value) not in self.cut:
                return value
            return value.detach()[list(samples)].requires_grad_(value.requires_grad)

        args, kwargs = replaced((self.args, dict(self.kwargs)), change)
        with same_random_numbers(self.devices), self.snapshot.restored(), layouts.watch() as met:
            _under_way.lessons += 1
            try:
                self.run(args, kwargs)
            except Exception as error:
                # The real pass that follows raises it too, unless two samples are the reason. Its text may quote data.
                _log.debug("the model can't run on two samples: %s", type(error).__name__)
                return None
            finally:
                _under_way.lessons -= 1
            self.published.look()  # not above: a fault of ours is no model that can't run
        return met

    def look_only(self, layouts: Layouts, samples: tuple[int, ...]) -> None:
        """A pass for what it leaves behind alone."""
        complete = layouts.complete
        self.meet(layouts, samples)
        layouts.complete = complete


def _look_beside(
    layouts: Layouts, companions: Companions, passes: _Passes, tensors: list[Tensor], met: dict[Place, list[Tensor]]
) -> None:
    """Run the model on rows of the batch beside another number of rows of an input that is as long as it.

    If it runs, what has not as many rows as the batch in some place depends on the other input alone.
    """
    batch = tensors[0].shape[0]
    rows = (0, 1, 0)[: 3 if batch == 2 else 2]
    for n in companions.unsettled(tensors):
        if id(tensors[n]) not in passes.cut:
            continue
        beside = replace(passes, cut=passes.cut - {id(tensors[n])}).meet(layouts, rows)
        if beside is not None and layouts.doubt(met, beside, len(rows)):
            companions.doubt(n, batch)


def _teach(layouts: Layouts, passes: _Passes, others: list[int]) -> dict[Place, list[Tensor]] | None:
    """The rounds of a lesson: what its last pass met; None if a pass couldn't be made."""
    met: list[dict[Place, list[Tensor]]] = []
    for round_ in range(_ROUNDS):
        layouts.forget_assumptions()
        a, b = (0, others[0]) if round_ % 2 == 0 else (others[0], 0)
        path = [(a, b), (a, a), (b, a)]
        if round_ > 0 and len(others) == 2:
            path[1:2] = [(a, others[1]), (b, others[1])]
        met = []
        for pair in path:
            one = passes.meet(layouts, pair)
            if one is None:
                layouts.forget_assumptions()
                return None
            met.append(one)
        if round_ == 0 and len(others) == 2 and not _alike(met):
            continue  # the same sample twice may not look like a batch: without padding, say
        layouts.take_in(met)
        if not layouts.misled:
            break
    return met[-1]


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
