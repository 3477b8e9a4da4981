"""The claim that a step was taken on exactly one whole batch that groupclip drew, in turn.

What was drawn is known to the plan and not to one iterator: a batch that had no step was left out, also if the sampler was begun
anew. Which one is left out may depend on what is in it, and epsilon is for batches that nothing but chance chose.
"""

import bisect
import itertools
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.marks import HandedOut, Likeness, Marks, compare

#: The part of a run of which every rank has all: of its batches, which were drawn together, nothing is dealt.
WHOLE = (0, 1)
_KEPT = 4  # logical batches of a run whose rows are remembered beside the present one's


class Run:
    """One pass over the steps of one mechanism, from ``start``. Secret: under a key that nobody was given."""

    def __init__(
        self, mechanism: Mechanism, start: int, *, secret: bool, part: tuple[int, int] | None = None, public_name: str = ""
    ) -> None:
        self.mechanism, self.start, self.secret = mechanism, start, secret
        self.part = part  # (rank, ranks): its batches are this rank's part of those of all; None: drawn here
        self.public_name = public_name  # that the parts of one run have in common
        self.newest_begun = -1
        self.over = False  # its iterator ended, or was given up
        self.drawn: list[int] = []  # numbers of its batches, which rise
        self.latest: deque[HandedOut] = deque(maxlen=_KEPT)
        self.trainings: set[str] = set()  # that stepped on its batches, or were alone when these were drawn
        self._done: dict[int, int] = {}  # number of an engine -> how many of them are behind it
        with _lock:
            _runs[:] = [run for run in _runs if not run._is_settled()]
            _runs.append(self)

    @property
    def is_nobodys(self) -> bool:
        """Whether no engine has stepped on a batch of it."""
        return not self._done

    def is_of(self, owner: int) -> bool:
        return owner in self._done

    def leaves_out(self, batch: "Drawn", owner: int) -> bool:
        """Return whether batches before this one, drawn since the owner was attached, had no step of it."""
        return self._position(batch) > self._behind(owner)

    def done_with(self, batch: "Drawn", owner: int) -> None:
        self._done[owner] = max(self._done.get(owner, 0), self._position(batch) + 1)

    def was_left(self, owner: int, alone: bool) -> bool:
        """Return whether the owner, who steps on another run's batch, has left this one with batches that had no step.

        A run that nobody has stepped on may be another engine's that is about to, unless it is over or the owner is ``alone``.
        """
        if not self.secret or self._behind(owner) >= len(self.drawn):
            return False
        return self.is_of(owner) or (self.is_nobodys and (self.over or alone))

    def was_begun_again(self, step: int, owner: int, training: str) -> bool:
        """Return whether batches from ``step`` on, drawn before the owner was attached, had a step of nobody: they come again now.

        Those of another training are nothing to this one.
        """
        before = bisect.bisect_left(self.drawn, owner)
        if not self.secret or max(self._done.values(), default=0) >= before:
            return False
        if self.start + before == step and not self.trainings:  # all of them are counted, and who else would count them
            self.trainings.add(training)
        return self.start + before > step and (not self.trainings or training in self.trainings)

    def settle(self, owner: int) -> None:
        """Count what was left out, once."""
        self._done[owner] = len(self.drawn)

    def _behind(self, owner: int) -> int:
        return max(self._done.get(owner, 0), bisect.bisect_right(self.drawn, owner))

    def _position(self, batch: "Drawn") -> int:
        return bisect.bisect_left(self.drawn, batch.number)

    def _is_settled(self) -> bool:
        return self.over and (not self.drawn or min(self._done.values(), default=0) >= len(self.drawn))


class Drawn:
    """Holds what is known of one logical batch. It lives as long as the batch.

    Args:
        run: whose it is.
        step: of the plan.
        units: samples (or users) that the engine will see in all of its micro-batches.
        acting: how many of them don't only fill it up.
    """

    def __init__(self, run: Run, step: int, units: int, acting: int) -> None:
        self.run, self.step, self.units, self.acting = run, step, units, acting
        self.begun = False
        self.handed_out = 0
        self.rows = HandedOut()
        self.claimed_by: set[int] = set()
        self.number = self.touched = next(_numbers)
        self.before = tuple(run.latest)
        run.latest.append(self.rows)
        run.drawn.append(self.number)
        with _lock:
            _live.add(self)
            there = {owner.training for owner in _joined if owner.mechanism == run.mechanism}
        if len(there) == 1:
            run.trainings |= there

    def begin(self) -> None:
        self.begun, self.touched = True, next(_numbers)
        self.run.newest_begun = max(self.run.newest_begun, self.step)

    def hand_out(self, samples: Any, units: Sequence[int]) -> None:
        self.handed_out += len(units)
        self.touched = next(_numbers)
        if self.run.secret:
            self.rows.add(samples, units)

    def give_back(self) -> None:
        """It begins again."""
        self.begun, self.handed_out = False, 0
        self.rows.clear()

    def is_whole(self, units: int) -> bool:
        """Return whether all of its units are handed out, they are ``units`` many, and no later batch was begun."""
        current = self.step >= self.run.newest_begun
        return current and self.handed_out == self.units == units


class Owner:
    """One engine, as its plan knows it.

    Attributes:
        since: its number. Batches with smaller numbers were drawn before it was attached, and are of another engine's run.
        training: a name that engines have in common where one goes on from the state of another. Chance alone chose it.
        resumed_at: steps that were counted when a state was loaded, and no step was taken since; None where none was.
        claimed: the batch that :meth:`fits` found last.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.since = next(_numbers)
        self.training = uuid.uuid4().hex
        self.resumed_at: int | None = None
        self.claimed: Drawn | None = None
        self._found: tuple[list[Drawn], list[Run]] = [], []  # by the last look: under way, and left out
        with _lock:
            _joined.add(self)

    def leave(self) -> None:
        """It is detached."""
        with _lock:
            _joined.discard(self)

    @property
    def alone(self) -> bool:
        with _lock:
            return sum(other.mechanism == self.mechanism for other in _joined) == 1

    def fits(self, samples: int, passes: Sequence[Marks] = ()) -> bool:
        """Is a step that saw ``samples`` samples, in these ``passes``, on a logical batch of groupclip's? :meth:`claim` claims it.

        True if a logical batch of this mechanism, under a secret key, is in use, wholly handed out, of exactly ``samples``
        samples, not yet claimed, and none that was drawn before it was left out. So a step on half a batch, on a batch plus other
        samples, a second step on one batch, or the first one after batches that had none counts as the user's own sampling.
        Where the model was called with rows as they were handed out, they must be the rows of this batch, each once; where it
        was called with something computed from them, their number alone is compared.
        """
        owner = self.since
        fitting = {b: compare(passes, b.rows, b.before) for b in self._candidates(samples) if b.run.secret}
        in_turn = [b for b, alike in fitting.items() if alike is not Likeness.OTHER and not b.run.leaves_out(b, owner)]
        if in_turn:  # those of other runs of the plan may be as large: they are other engines' to claim
            used = [max(in_turn, key=lambda b: (fitting[b] is Likeness.SAME, b.run.is_of(owner), b.touched))]
        else:  # whatever this step was on, those under way are not left out by the next
            under_way = [b for b in _in_use() if b.begun and b.run.mechanism == self.mechanism and b.number > owner]
            used = [b for b in under_way if b.run.is_of(owner) or b.run.is_nobodys]
        left = self._left({b.run for b in used})
        self.claimed = used[0] if in_turn else None
        self._found = used, left
        if in_turn and not left:  # one that can't be charged may come again or be given up: what is in it decides neither
            used[0].run.done_with(used[0], owner)
        return bool(in_turn) and not left

    def claim(self) -> None:
        """Claim what :meth:`fits` found, when the step is counted: one that couldn't be counted may be taken again."""
        (used, left), self._found = self._found, ([], [])
        self.resumed_at = None
        for run in left:
            run.settle(self.since)
        for batch in used:
            batch.claimed_by.add(self.since)
            batch.run.done_with(batch, self.since)
            batch.run.trainings.add(self.training)

    def check_dealt(self, part: tuple[int, int]) -> None:
        """Check that batches under way are this rank's ``part`` of batches of all ranks, or :data:`WHOLE` ones.

        Raises:
            PrivacyViolation: each rank draws from the whole data set for itself, or batches are dealt and shouldn't be.
        """
        for batch in _in_use():
            ours = batch.begun and batch.run.mechanism == self.mechanism and batch.number > self.since
            if ours and part == WHOLE != batch.run.part:
                raise PrivacyViolation(
                    "this logical batch wasn't drawn for all ranks together, or it was dealt to them, and every stage of a "
                    "pipeline takes all samples of one draw: give groupclip.logical_batches dealt=False, and begin to iterate "
                    "over it after init_process_group, on every rank"
                )
            if ours and batch.run.part != part:
                raise PrivacyViolation(
                    "this logical batch isn't this rank's part of one that was dealt to all ranks (it was drawn before "
                    "init_process_group, or in another group), so a sample may be in the batches of several ranks and weigh "
                    "several times in one step. Begin to iterate over groupclip.logical_batches after init_process_group, on "
                    "every rank, without dealt=False"
                )

    def draws(self) -> bool:
        """Return whether a logical batch of its mechanism, drawn under a secret key since it was attached, is in use."""
        return any(b.run.secret and b.run.mechanism == self.mechanism and b.number > self.since for b in _in_use())

    def check_filling(self, samples: int, acting: int) -> None:
        """Check that rows which only fill a batch up (``padded=True``) have no weight in a step that saw ``samples`` samples.

        Args:
            acting: how many of them had a gradient other than zero.

        Raises:
            PrivacyViolation: more than the batch has samples.
        """
        for batch in self._candidates(samples):
            if acting > batch.acting:
                raise PrivacyViolation(
                    "rows that only fill a padded batch up have a gradient: they repeat one sample of the data set, which would "
                    "count many times in a step whose noise covers one. Multiply the losses by the weights of the micro-batch, and "
                    "call engine.discard() to give up this logical batch"
                )
            return

    def _candidates(self, samples: int) -> "Iterator[Drawn]":
        """Yield the logical batches that a step may have been taken on, the earliest first."""
        for batch in sorted(_in_use(), key=lambda batch: batch.step):
            ours = batch.run.mechanism == self.mechanism and batch.number > self.since
            if ours and self.since not in batch.claimed_by and batch.is_whole(samples):
                yield batch

    def _left(self, used: set[Run]) -> list[Run]:
        """Runs of this plan whose batches have no step: beside the ``used`` ones, and after a loaded state in these too."""
        with _lock:
            runs = [run for run in _runs if run.mechanism == self.mechanism]
        left = [run for run in runs if run not in used and run.was_left(self.since, self.alone)]
        if self.resumed_at is not None:
            left += [run for run in runs if run.was_begun_again(self.resumed_at, self.since, self.training)]
        return left


_live: "weakref.WeakSet[Drawn]" = weakref.WeakSet()
_joined: "weakref.WeakSet[Owner]" = weakref.WeakSet()
_runs: list[Run] = []
_numbers = itertools.count()
_lock = threading.Lock()  # engines of several threads look at what is in use


def _in_use() -> list[Drawn]:
    with _lock:
        return list(_live)
