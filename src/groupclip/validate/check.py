"""``groupclip.check``: neighbouring batches replayed on the user's own model and loss, against single samples.

The truth is plain torch: the model on a batch of ONE sample, before it is attached. Against it are held

- the losses: sample i's loss in a batch must be its loss alone, whichever other samples are there, in the whole batch that was
  given, its order shuffled, and in small ones (:mod:`groupclip.validate.values`);
- the clipped sums and norms of the attached model on that shuffled batch, in which all samples but a few weigh nothing, as if they
  were removed, and one has a loss a million times as large: they must be those of these samples' own gradients
  (:mod:`groupclip.validate.sums`);
- a sample zeroed out, or with its inputs a million times as large, may move no group's sum by more than its threshold.

Before that, passes on other samples show whether the model keeps anything of them (:mod:`groupclip.validate.memory`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..autograd.operation import SLOW, VMAP
from ..clipping.functions import Abadi
from ..engine.attach import attach
from ..errors import GroupClipError, PrivacyViolation
from ..partition.choose import partition
from ..partition.groups import Partition
from .coverage import Coverage, slow
from .memory import notes_on_memory
from .mixing import blame
from .reduced import what_is_wrong
from .replay import Losses, ReducedLoss, Replays, kept_gradients
from .report import CheckReport
from .samples import Batch, told
from .single import Sample, alone
from .sums import Sums
from .tolerance import Tolerance
from .values import ENLARGED, LARGE, ZEROED, another_order, keep_apart, stands
from .wording import listed

#: So many pairs of samples are looked at where something seems to be kept of single ones.
_PAIRS = 16

#: A group whose gradient is this small beside the whole is judged by the whole: there is only rounding in it.
_FLOOR = 1e-4


def check(
    model: nn.Module,
    loss_fn: Losses,
    batch: Any,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    *,
    samples: int = 3,
) -> CheckReport:
    """Check that ``model`` with this loss keeps samples apart, so that clipping bounds what each of them can do.

    Run it before a long run. Random draws are held still meanwhile (:mod:`groupclip.validate.draws`). The model (weights,
    gradients, buffers, attributes, mode), what the loss closes over, and the random number generators are left as they were.

    Args:
        model: as it will be attached, in training mode.
        loss_fn: ``loss_fn(model, *batch) -> [B]`` losses, one a sample; called as ``loss_fn(model, batch)`` if the batch is
            a mapping, a dataclass or a tensor.
        batch: an example of at least ``samples`` (and 2) samples: dimension 0 of its first tensor, and of whatever is as long;
            see :class:`groupclip.validate.samples.Batch`.
        groups: a :class:`Partition` or a style, as for :func:`groupclip.attach`.
        samples: how many of them to run alone, and compare with in batches: in the whole batch, where the others stand among
            them, and in small ones. The cost grows with it, and with the batch.

    Returns:
        A report with the coverage table: for each parameter its group, the operations that use it, how their samples are
        kept apart, and how norms are computed.

    Raises:
        PrivacyViolation: samples aren't kept apart, or the model keeps statistics of them: names the module, the loss or the
            buffer, and what to do.
        CoverageError, UnsupportedOperation, ValueError, TypeError: as :func:`groupclip.attach` and ``engine.backward``.

    The check sees what these samples and draws show. It proves nothing about branches that they don't take.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples={samples!r}: at least 2 are needed to see whether they mix")
    data = Batch(batch)
    if data.size < samples:
        raise ValueError(
            f"the batch has {data.size} samples, {samples} are asked for: pass a larger example or samples="
        )
    partition_ = groups if isinstance(groups, Partition) else partition(model, groups)
    with kept_gradients(model):
        attach(model, None, partition_, None).detach()  # refuses by name what can't train privately at all
        replays = Replays(model, loss_fn, samples)
        try:
            return _check_batch(replays, data, partition_)
        except Exception as error:
            broken = _fails_as_it_is(replays, data)
            if broken is None:
                raise
            raise ValueError(
                f"loss_fn(model, *batch) raises {type(broken).__name__} on the batch as it was given, so nothing can be said of "
                "single samples: make this call run first (the error above says what is wrong in it)"
            ) from (broken if isinstance(error, GroupClipError) else error)
        finally:
            replays.weights.restore(every=True)


def _fails_as_it_is(replays: Replays, data: Batch) -> Exception | None:
    """Return what the model or the loss raises by itself, whatever is done to the batch."""
    state = replays.state()
    try:
        with torch.no_grad():
            replays.loss(data.pick(*range(data.size)))
    except Exception as error:
        return error
    finally:
        state.restore()
    return None


def _check_batch(replays: Replays, data: Batch, groups: Partition) -> CheckReport:
    """Check the batch as it reads; if that fails, leave numbers of positions that are as long as the batch whole."""
    try:
        return _judge(replays, data, groups)
    except Exception as error:
        positions = data.positions
        if not positions:
            raise
        whole = Batch(data.given, shared=frozenset(positions))
        try:
            report = _judge(replays, whole, groups)
        except Exception as second:
            # A refusal tells more than whatever the model raises if what it needs as long as the batch is left whole.
            raise (error if isinstance(error, GroupClipError) else second) from None
        note = f"{told(positions)} of the batch counts positions, and is of no sample: it was left whole"
        return dataclasses.replace(report, warnings=(*report.warnings, note))


def _judge(replays: Replays, data: Batch, groups: Partition) -> CheckReport:
    """Let first passes serve several comparisons. If anything is found wrong then, find it with passes for each."""
    quick = _Check(replays, data, groups, every=False)
    try:
        return quick.run()
    except Exception:
        if quick.compared:  # there was nothing to share
            raise
    return _Check(replays, data, groups, every=True).run()


class _Leaves(Exception):
    """A large batch leaves something, as a small one doesn't."""


class _Check:
    """One run of :func:`check`; ``every``: each comparison has passes of its own."""

    def __init__(self, replays: Replays, data: Batch, groups: Partition, every: bool) -> None:
        self.replays, self.data, self.groups, self.samples = replays, data, groups, replays.total
        self.every, self.coverage = every, Coverage()
        self.tolerance = Tolerance.of(torch.float64)  # until dtypes are known
        self.notes: list[str] = []
        self.beside: float | None = None  # the loss of sample 0 with the last one beside it, if it is known
        self.compared = True  # whether what different samples leave was compared, not only that a pass leaves nothing

    def run(self) -> CheckReport:
        everyone, last = range(self.samples), self.samples - 1
        self._keep_nothing()
        singles = [alone(self.replays, self.data.pick(i), i, self.groups) for i in everyone]
        self._keep_nothing_of_any(singles)
        self.tolerance = Tolerance.of(max((s.dtype for s in singles), key=lambda d: torch.finfo(d).eps))
        order = another_order(self.data.size, self.samples)
        whole, *_ = [self._losses_keep_apart(round_, singles, order) for round_ in self.replays.rounds]
        self.notes += stands(self.replays, self.data, singles[0].loss, self.beside, self.tolerance)
        large = self._large(singles[last], last)
        engine = attach(self.replays.model, None, self.groups, None, clip=Abadi(), thresholds=self._thresholds(singles))
        engine._tape.observer = self.coverage
        sums = Sums(engine, self.replays, self.data, self.tolerance)
        sums.right += ["losses in the whole batch, its order shuffled", "losses beside other samples"]
        self.replays.tape = engine._tape
        try:
            known = {**dict(enumerate(singles)), last: large}
            losses = sums.equal(
                "the whole batch, its order shuffled, one loss a million times as large",
                order,
                [known.get(i) for i in order],
            )
            del known, large, singles[1:]  # whose gradients are each as large as the model
            self._losses_as_attached(order, whole, losses)
            for what, times in ((ZEROED, 0.0), (ENLARGED, LARGE)):
                replayed = times == 0 or self.data.has_real_inputs
                if replayed and not any(note.endswith(what) for note in self.notes):
                    sums.bounded(what, times, singles[0])
        finally:
            engine.detach()
            self.replays.tape = None
        return CheckReport(self.coverage.rows(self.groups), tuple(sums.right), tuple(self._warnings() + sums.notes))

    def _keep_nothing(self) -> None:
        """Neither model nor loss may keep what samples left, and be saved or go on with it. Learns what a pass draws."""
        orders = [(0, self.samples - 1), (1, 0)] if self.samples > 2 else [(0, 1), (1, 1), (0, 0)]
        pairs, one = [self.data.pick(*order) for order in orders], self.data.pick(0)
        try:
            rehearsed = self.replays.rehearse(pairs, one, 0, self.every)
        except ReducedLoss:
            raise what_is_wrong(self.replays, self.data) from None
        self.compared = len(rehearsed.traces) > 1
        self.beside = None if self.every else rehearsed.loss
        self.notes += notes_on_memory(self.replays, pairs, rehearsed.traces, 0)
        for round_ in self.replays.rounds[1:]:
            traces = self.replays.rehearse(pairs, one, round_).traces
            self.notes += [n for n in notes_on_memory(self.replays, pairs, traces, round_) if n not in self.notes]

    def _keep_nothing_of_any(self, singles: list[Sample]) -> None:
        """Do :meth:`_keep_nothing` for all samples, if what single ones left behind raises a suspicion: a count of something
        may be the same for a few of them.
        """
        if self.notes or not any(singles[0].left.differing(s.left) for s in singles[1:]):
            return
        pairs = [self.data.pick(i, j) for i in range(self.samples) for j in range(self.samples)][:_PAIRS]
        self.notes += notes_on_memory(self.replays, pairs, self.replays.left_behind(pairs, 0), 0)

    # ------------------------------------------------------------------ the truth

    def _large(self, sample: Sample, i: int) -> Sample:
        """Return a sample with a large loss, which half precision may not hold."""
        if self.tolerance.is_full:
            return sample.scaled(LARGE)
        return alone(self.replays, self.data.pick(i), i, self.groups, times=LARGE)

    def _thresholds(self, singles: list[Sample]) -> dict[str, float]:
        """Half the smallest norm that a group has, so that every sample is clipped."""
        whole = max(sum(norm**2 for norm in sample.norms.values()) ** 0.5 for sample in singles)
        if not 0 < whole < float("inf"):
            raise ValueError(
                "the gradients of these samples are zero or not finite, so there is nothing to compare: pass others"
            )
        return {m: max(0.5 * min(s.norms[m] for s in singles), _FLOOR * whole) for m in self.groups.names}

    # ------------------------------------------------------------------ the comparisons

    def _losses_keep_apart(self, round_: int, singles: list[Sample], order: list[int]) -> list[float]:
        """Check that a sample's loss in a batch is its loss alone. Return the losses of the whole batch."""
        everyone, script = range(self.samples), self.replays.scripts[round_]
        own = {i: single.loss for i, single in enumerate(singles)}
        if round_ or script.differs_elsewhere:
            own = {i: self._loss_alone(i, round_) for i in everyone}
        orders = [order]
        if script.ordered or script.differs_elsewhere or script.chance:  # what is drawn may say what is done
            orders += [list(everyone), [self.samples - 1, 0]]
        look = not self.compared
        whole, *_ = [keep_apart(self.replays, self.data, each, round_, own, self.tolerance, look) for each in orders]
        losses, left = whole
        if left:
            raise _Leaves
        return losses

    def _losses_as_attached(self, order: list[int], plain: list[float], attached: list[float]) -> None:
        """Return the losses of all samples, which the attached model runs alone; not only of those that were looked at."""
        if self.replays.scripts[0].differs_elsewhere:  # in the attached model all draw the same
            return
        if not all(self.tolerance.loss(here, own) for here, own in zip(plain, attached, strict=True)):
            raise PrivacyViolation(blame(self.replays, self.data, 0, order))

    def _loss_alone(self, sample: int, round_: int) -> float:
        with self.replays.alike([sample], round_), torch.no_grad():
            return float(self.replays.loss_of_one(self.data.pick(sample)))

    def _warnings(self) -> list[str]:
        rows = self.coverage.rows(self.groups)
        found = [
            f"{operation} has no closed form for {listed(names)}: exact, slower"
            for operation, names in slow(rows, [VMAP]).items()
        ]
        found += [
            f"{operation}: samples couldn't be told apart where {listed(names)} is used: exact, one sample at a time"
            for operation, names in slow(rows, [SLOW]).items()
        ]
        unused = [r.parameter for r in rows if not r.operations or not r.norm]
        if unused:
            found.append(f"no gradient reached {listed(unused)} in these passes: it would be trained on noise alone")
        return found + self.notes
