"""The batches of a run, drawn as its mechanism says, and the claim that a step was taken on one of them.

A Poisson batch varies in size, and may be empty: that is a step as well. The size of a batch is secret (under
add-or-remove adjacency it tells who is in), so nothing here prints or logs it.
"""

import bisect
import itertools
import threading
import weakref
from collections.abc import Generator, Hashable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from groupclip.draws import drawn
from groupclip.errors import PrivacyViolation
from groupclip.keystream import KEY_BYTES, new_key
from groupclip.mechanism import Mechanism
from groupclip.naming import check_users
from groupclip.reading import BySample, ByUser, Collate, InPaddedBatches, Piece, Reader
from groupclip.workers import Workers, steps_read


def poisson_batches(
    dataset: Dataset[Any] | Sequence[Any],
    mechanism: Mechanism,
    microbatch: int = 64,
    *,
    start: int = 0,
    collate: Collate | None = None,
    key: bytes | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
) -> "LogicalBatches":
    """:func:`logical_batches` of a mechanism whose sampling is "poisson" and whose unit is the sample."""
    if mechanism.sampling != "poisson":
        raise ValueError(
            f"the mechanism was planned for sampling={mechanism.sampling!r}: use groupclip.logical_batches, which draws so"
        )
    return logical_batches(
        dataset, mechanism, microbatch, start=start, collate=collate, key=key, num_workers=num_workers, prefetch=prefetch
    )


def logical_batches(
    dataset: Dataset[Any] | Sequence[Any],
    mechanism: Mechanism,
    microbatch: int = 64,
    *,
    users: Sequence[Hashable] | None = None,
    samples_per_user: int | None = None,
    padded: bool = False,
    start: int = 0,
    collate: Collate | None = None,
    key: bytes | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
) -> "LogicalBatches":
    """One :class:`LogicalBatch` per planned step; iterating it yields collated micro-batches, possibly none.

    Args:
        dataset: map-style (``len`` and ``[]``), with exactly ``mechanism.dataset_size`` samples (or users).
        microbatch: most samples in one micro-batch. Changes memory and speed, never the result.
        users: whose each sample is, one entry a sample; needed where ``mechanism.unit`` is "user". Micro-batches are
            then ``[U, k, ..]``: see :mod:`groupclip.users`.
        samples_per_user: most of a user's samples that one step takes, chosen uniformly; all by default. Bounds memory;
            privacy doesn't need it.
        padded: yield :class:`groupclip.reading.Padded`, always as many micro-batches of exactly ``microbatch`` rows
            as hold the largest batch, so that neither shapes nor time tell its size. Needs a sampling with a largest batch.
        start: number of steps already released, when a run goes on (``engine.ledger.steps``).
        collate: list of samples -> micro-batch; ``torch.utils.data.default_collate`` by default.
        key: 32 bytes, for tests only: with a known key the batches are known. Steps on them are counted as those of a
            user's own sampling, and the statement says that it can't vouch for it.
        num_workers: processes that read the data set, ahead of the loop; by default the main process reads. They are told rows and
            nothing else, change no result, and end with the iterator. Data set and collate function must be picklable.
        prefetch: micro-batches that each worker has under way.

    Guarantee: the batches follow the law of ``mechanism.sampling``, independently over steps. Poisson:
        P(sample i in the batch of step t) = floor(q * 2^64) / 2^64, independently over all i and t.

    Raises:
        ValueError: another number of samples (or users) than ``mechanism.dataset_size``; ``start`` outside [0,
            mechanism.steps]; users given for a mechanism of samples, or not given for one of users.
        TypeError: a data set without length or index; when iterated, one that can't be sent to a worker.
    """
    workers = Workers(num_workers, prefetch)
    if isinstance(microbatch, bool) or not isinstance(microbatch, int):
        raise TypeError(f"microbatch={microbatch!r} must be a whole number (int)")
    if microbatch < 1:
        raise ValueError(f"microbatch={microbatch} must be >= 1")
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"start={start!r} must be a whole number (int)")
    if not 0 <= start <= mechanism.steps:
        raise ValueError(
            f"start={start} must be in [0, {mechanism.steps}], the planned steps; pass engine.ledger.steps to go on"
        )
    if key is not None and (not isinstance(key, bytes) or len(key) != KEY_BYTES):
        raise ValueError(f"key must be {KEY_BYTES} bytes; leave it out unless this is a test")
    size = _length(dataset)
    if mechanism.unit == "user":
        reader: Reader = _by_user(dataset, size, mechanism, microbatch, collate, users, samples_per_user, padded)
    else:
        reader = _by_sample(dataset, size, mechanism, microbatch, collate, users, samples_per_user, padded)
    return LogicalBatches(mechanism, reader, start, key, workers)


class LogicalBatches:
    """The steps ``start .. mechanism.steps`` of a run; see :func:`logical_batches`. Its length is public."""

    def __init__(
        self, mechanism: Mechanism, reader: Reader, start: int, key: bytes | None, workers: Workers
    ) -> None:
        self.mechanism = mechanism
        self.start = start
        self._reader = reader
        self._key = key
        self._workers = workers

    def __len__(self) -> int:
        return self.mechanism.steps - self.start

    def __repr__(self) -> str:
        return f"LogicalBatches(steps {self.start}..{self.mechanism.steps} of {self.mechanism})"

    def __iter__(self) -> Generator["LogicalBatch", None, None]:
        # a new key for every pass: two passes under one key would draw the same batches
        key = new_key() if self._key is None else self._key
        run = _Run(self.mechanism, secret=self._key is None)
        plans = (
            self._reader.plan(drawn(self.mechanism, key=key, step=step), key=key, step=step)
            for step in range(self.start, self.mechanism.steps)
        )
        with steps_read(self._reader, plans, self._workers) as steps:
            for step, (pieces, microbatches) in enumerate(steps, self.start):
                # the local name keeps the batch alive for claim() until the next one is drawn
                batch = LogicalBatch(run, step, pieces, microbatches)
                run.drawn.append(batch._number)
                del pieces, microbatches
                yield batch


class LogicalBatch:
    """The samples of one step, in micro-batches; may hold none. Can be iterated once. Its size is secret."""

    def __init__(self, run: "_Run", step: int, pieces: list[Piece], microbatches: Iterator[Any]) -> None:
        self.step = step
        self._run = run
        self._pieces = pieces
        self._read = microbatches
        self._handed_out = 0
        self._begun = False
        self._claimed_by: set[int] = set()
        self._number = next(_numbers)
        with _lock:
            _live.add(self)

    def __repr__(self) -> str:
        return f"LogicalBatch(step={self.step})"

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise PrivacyViolation(
                f"the logical batch of step {self.step} is iterated twice: its samples would count twice in "
                "one step, and the noise covers one. Keep the micro-batches in a list if they are needed "
                "again"
            )
        self._begun = True
        self._run.newest_begun = max(self._run.newest_begun, self.step)
        return self._microbatches()

    def _microbatches(self) -> Iterator[Any]:
        for piece, samples in zip(self._pieces, self._read, strict=True):
            self._handed_out += piece.units
            yield samples

    def _is_whole(self, units: int) -> bool:
        """All of its units are handed out, they are ``units`` many, and no later batch was begun."""
        current = self.step >= self._run.newest_begun
        return current and self._handed_out == sum(piece.units for piece in self._pieces) == units


class _Run:
    """One pass over the steps of one mechanism. Secret: under a key that nobody was given."""

    def __init__(self, mechanism: Mechanism, *, secret: bool) -> None:
        self.mechanism = mechanism
        self.secret = secret
        self.newest_begun = -1
        self.drawn: list[int] = []  # numbers of its batches, which rise
        self._done: dict[int, int] = {}  # owner -> how many of them are behind it

    def leaves_out(self, batch: "LogicalBatch", owner: int, since: int) -> bool:
        """Whether batches before this one, drawn after ``since``, had no step of the owner."""
        done = max(self._done.get(owner, 0), bisect.bisect_right(self.drawn, since))
        return self._position(batch) > done

    def done_with(self, batch: "LogicalBatch", owner: int) -> None:
        self._done[owner] = max(self._done.get(owner, 0), self._position(batch) + 1)

    def _position(self, batch: "LogicalBatch") -> int:
        return bisect.bisect_left(self.drawn, batch._number)


_live: "weakref.WeakSet[LogicalBatch]" = weakref.WeakSet()
_numbers = itertools.count()
_lock = threading.Lock()  # engines of several threads look at what is in use


def _in_use() -> list[LogicalBatch]:
    with _lock:
        return list(_live)


def drawn_so_far() -> int:
    """A number that logical batches drawn from now on exceed: see ``since`` of :func:`claim`."""
    return next(_numbers)


def claim(mechanism: Mechanism, owner: int, samples: int, since: int = -1) -> bool:
    """Was a step of ``owner`` (an engine's id) that saw ``samples`` samples taken on a groupclip logical
    batch?

    True if a logical batch of this mechanism, under a secret key, is in use, wholly handed out, of exactly ``samples`` samples,
    not yet claimed by ``owner``, and none before it was left out; it is claimed then. A batch that was drawn before ``since``
    (when the owner was attached) is of another engine's run. So a step on half a batch, on a batch plus other
    samples, a second step on one batch, or the first one after batches that had none (which ones may depend on what was in
    them) counts as the user's own sampling.
    """
    fitting = [b for b in _candidates(mechanism, owner, samples, since) if b._run.secret]
    # Other runs of the same plan (of other threads) may have a batch of the same size: it is theirs to claim all the same.
    in_turn = [b for b in fitting if not b._run.leaves_out(b, owner, since)]
    under_way = [b for b in _in_use() if b._begun and b._run.mechanism == mechanism and b._number > since]
    used = in_turn or under_way  # whatever this step was on, those under way are not left out by the next
    for batch in used:
        batch._claimed_by.add(owner)
        batch._run.done_with(batch, owner)
    return bool(in_turn)


def in_use(mechanism: Mechanism, since: int = -1) -> bool:
    """Whether a logical batch of this mechanism, drawn under a secret key after ``since``, is in use."""
    return any(b._run.secret and b._run.mechanism == mechanism and b._number > since for b in _in_use())


def check_filling(mechanism: Mechanism, owner: int, samples: int, acting: int, since: int = -1) -> None:
    """Whether rows that only fill a batch up (``padded=True``) are without weight in a step that saw ``samples`` samples.

    Args:
        acting: how many of them had a gradient other than zero. Others as for :func:`claim`.

    Raises:
        PrivacyViolation: more than the batch has samples.
    """
    for batch in _candidates(mechanism, owner, samples, since):
        if acting > sum(min(piece.units, piece.real) for piece in batch._pieces):
            raise PrivacyViolation(
                "rows that only fill a padded batch up have a gradient: they repeat one sample of the data set, which would count "
                "many times in a step whose noise covers one. Multiply the losses by the weights of the micro-batch, and call "
                "engine.discard() to give up this logical batch"
            )
        return


def _candidates(mechanism: Mechanism, owner: int, samples: int, since: int) -> "Iterator[LogicalBatch]":
    """The logical batches that a step may have been taken on, the earliest first."""
    for batch in sorted(_in_use(), key=lambda batch: batch.step):
        ours = batch._run.mechanism == mechanism and batch._number > since and owner not in batch._claimed_by
        if ours and batch._is_whole(samples):
            yield batch


def _by_sample(
    dataset: Any, size: int, mechanism: Mechanism, microbatch: int, collate: Collate | None,
    users: Sequence[Hashable] | None, samples_per_user: int | None, padded: bool,
) -> Reader:  # fmt: skip
    if users is not None or samples_per_user is not None:
        raise ValueError(
            "users= and samples_per_user= need a mechanism that was planned for users: Mechanism(unit='user', "
            "dataset_size=number of users, ..)"
        )
    if size != mechanism.dataset_size:
        raise ValueError(
            f"the data set holds {size} samples, the mechanism was planned for "
            f"dataset_size={mechanism.dataset_size}: the sample rate would be wrong. Build the Mechanism "
            "with dataset_size=len(dataset), and calibrate again"
        )
    if not padded:
        return BySample(dataset, microbatch, collate)
    if mechanism.sampling == "poisson":
        raise ValueError(
            "padded=True with sampling='poisson': such a batch has no largest size but the whole data set; plan with "
            "sampling='truncated-poisson' and adjacency='zero-out'"
        )
    largest = mechanism.expected_batch_size if mechanism.max_batch_size is None else mechanism.max_batch_size
    return InPaddedBatches(dataset, microbatch, collate, int(largest))


def _by_user(
    dataset: Any, size: int, mechanism: Mechanism, microbatch: int, collate: Collate | None,
    users: Sequence[Hashable] | None, samples_per_user: int | None, padded: bool,
) -> Reader:  # fmt: skip
    if users is None:
        raise ValueError("the mechanism was planned for unit='user': pass users=, whose each sample is")
    if len(users) != size:
        raise ValueError(
            f"users has {len(users)} entries for {size} samples: give one a sample, in the data set's order"
        )
    check_users(users)
    if padded:
        raise ValueError("padded=True isn't available for users: their micro-batches have the shapes of their users")
    if samples_per_user is not None and samples_per_user < 1:
        raise ValueError(f"samples_per_user={samples_per_user} must be >= 1")
    reader = ByUser(dataset, microbatch, collate, users, samples_per_user)
    if reader.users != mechanism.dataset_size:
        raise ValueError(
            f"the samples are of {reader.users} users, the mechanism was planned for "
            f"dataset_size={mechanism.dataset_size}: the sample rate would be wrong. Build the Mechanism with "
            "dataset_size=number of users, and calibrate again"
        )
    return reader


def _length(dataset: Any) -> int:
    if isinstance(dataset, DataLoader):
        raise TypeError(
            f"the data set is a DataLoader, whose {type(dataset.sampler).__name__} chooses its own batches (shuffled, in order, "
            "weighted), while the plan's epsilon is for batches drawn here: pass loader.dataset, and drop the loader"
        )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError(
            f"{type(dataset).__name__} can't be Poisson-sampled: a stream has no index, and each sample has "
            "to be drawn independently of the others; load it into a map-style data set (len and [])"
        )
    return len(dataset)
