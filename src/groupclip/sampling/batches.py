"""The batches of a run, drawn as its mechanism says. (Whether a step was taken on one of them: :mod:`groupclip.sampling.claims`.)

A Poisson batch varies in size, and may be empty: that is a step as well. The size of a batch is secret (under
add-or-remove adjacency it tells who is in), so nothing here prints or logs it.
"""

from collections.abc import Generator, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from groupclip.distributed.agreement import refusing, unanimous
from groupclip.distributed.ranks import Ranks, ranks
from groupclip.errors import PrivacyViolation
from groupclip.noise.keystream import KEY_BYTES, derive_key, new_key
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.claims import WHOLE, Drawn, Run
from groupclip.sampling.dealt import dealt as dealt_to
from groupclip.sampling.draws import drawn, parts_of
from groupclip.sampling.layouts import by_sample, by_user
from groupclip.sampling.readers import Collate, Piece, Reader
from groupclip.sampling.tables import as_records
from groupclip.sampling.workers import Workers, read_here, steps_read


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
    dealt: bool = True,
) -> "LogicalBatches":
    """Make :func:`logical_batches` of a mechanism whose sampling is "poisson" and whose unit is the sample.

    ``dataset``, ``mechanism``, ``microbatch``, ``start``, ``collate``, ``key``, ``num_workers``, ``prefetch`` and ``dealt`` are as
    there. It raises ValueError for another sampling or unit, and what that raises.
    """
    if mechanism.sampling != "poisson":
        raise ValueError(
            f"the mechanism was planned for sampling={mechanism.sampling!r}: use groupclip.logical_batches, which draws so"
        )
    return logical_batches(
        dataset, mechanism, microbatch, start=start, collate=collate, key=key, num_workers=num_workers, prefetch=prefetch,
        dealt=dealt,
    )  # fmt: skip


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
    dealt: bool = True,
) -> "LogicalBatches":
    """Make one :class:`LogicalBatch` per planned step; iterating it yields collated micro-batches, possibly none.

    Args:
        dataset: map-style (``len`` and ``[]``), with exactly ``mechanism.dataset_size`` samples (or users): a torch or Hugging
            Face data set, a list or an array; or a pandas or Arrow table, whose rows are dictionaries then.
        microbatch: most samples in one micro-batch. Changes memory and speed, never the result.
        users: whose each sample is, one entry a sample; needed where ``mechanism.unit`` is "user". Micro-batches are
            then ``[U, k, ..]``: see :mod:`groupclip.sampling.users`.
        samples_per_user: most of a user's samples that one step takes, chosen uniformly; all by default. Bounds memory;
            privacy doesn't need it.
        padded: yield :class:`groupclip.sampling.readers.Padded`, always as many micro-batches of exactly ``microbatch`` rows
            as hold the largest batch, so that neither shapes nor time tell its size. Needs a sampling with a largest batch.
        start: number of steps already released, when a run goes on (``engine.ledger.steps``).
        collate: list of samples -> micro-batch; by default ``torch.utils.data.default_collate``, and of dataclasses one dataclass.
        key: 32 bytes, for tests only: with a known key the batches are known. Steps on them are counted as those of a
            user's own sampling, and the statement says that it can't vouch for it.
        num_workers: processes that read the data set, ahead of the loop; by default the main process reads. They are told rows and
            nothing else, change no result, and end with the iterator. Data set and collate function must be picklable.
        prefetch: micro-batches that each worker has under way.
        dealt: on several processes, each gets its part of every batch. False: each gets all of it, as stages of a pipeline need it
            (:class:`groupclip.PrivateSchedule`).

    On several processes (after ``init_process_group``) each of them iterates, and gets its part of every batch: rank 0's key is
    sent to all, so there is one draw, which is dealt. All get as many micro-batches; some may hold no sample.

    Guarantee: the batches follow the law of ``mechanism.sampling``, independently over steps. Poisson:
        P(sample i in the batch of step t) = floor(q * 2^64) / 2^64, independently over all i and t.

    Raises:
        ValueError: another number of samples (or users) than ``mechanism.dataset_size``; ``start`` outside [0,
            mechanism.steps]; users given for a mechanism of samples, or not given for one of users.
        TypeError: a data set without length or index (a stream, a path, a dictionary of columns), or a DataLoader; when iterated,
            one that can't be sent to a worker.
    """

    def look() -> "LogicalBatches":
        return _looked_at(
            dataset, mechanism, microbatch, users, samples_per_user, padded, start, collate, key, dealt,
            Workers(num_workers, prefetch),
        )  # fmt: skip

    return refusing(look, ranks, BATCHES)


#: What the ranks decide on when they begin to iterate, in messages.
BATCHES = "batches"


def _looked_at(
    dataset: Any, mechanism: Mechanism, microbatch: int, users: Sequence[Hashable] | None, samples_per_user: int | None,
    padded: bool, start: int, collate: Collate | None, key: bytes | None, dealt: bool, workers: Workers,
) -> "LogicalBatches":  # fmt: skip
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
    if padded and not dealt:
        raise ValueError(
            "padded=True with dealt=False: groupclip.PrivateSchedule fills micro-batches up itself; leave padded out"
        )
    records = as_records(dataset)
    size = len(records)
    if mechanism.unit == "client":
        raise ValueError(
            "the mechanism was planned for unit='client', and clients are chosen by groupclip.federated.PrivateAverage: plan for "
            "samples to draw batches of them"
        )
    if mechanism.unit == "user":
        reader: Reader = by_user(records, size, mechanism, microbatch, collate, users, samples_per_user, padded)
    else:
        reader = by_sample(records, size, mechanism, microbatch, collate, users, samples_per_user, padded)
    return LogicalBatches(mechanism, reader, start, key, workers, dealt)


class LogicalBatches:
    """The steps ``start .. mechanism.steps`` of a run; see :func:`logical_batches`. Its length is public."""

    def __init__(
        self, mechanism: Mechanism, reader: Reader, start: int, key: bytes | None, workers: Workers, dealt: bool = True
    ) -> None:
        self.mechanism = mechanism
        self.start = start
        self._reader = reader
        self._key = key
        self._workers = workers
        self._dealt = dealt

    def __len__(self) -> int:
        return self.mechanism.steps - self.start

    def __repr__(self) -> str:
        return f"LogicalBatches(steps {self.start}..{self.mechanism.steps} of {self.mechanism})"

    def __iter__(self) -> Generator["LogicalBatch", None, None]:
        # a new key for every pass: two passes under one key would draw the same batches
        key = new_key() if self._key is None else self._key
        together = ranks()
        if together is None:
            run = Run(self.mechanism, self.start, secret=self._key is None)
        else:
            unanimous(together, lambda: None, self._facts, BATCHES)
            key = together.from_first(key)
            part = (together.rank, together.size) if self._dealt else WHOLE
            name = derive_key(key, "groupclip/sampling/public name").hex()
            run = Run(self.mechanism, self.start, secret=self._key is None, part=part, public_name=name)
        parts = parts_of(self.mechanism, key=key)  # a sort of all indices: once for all steps
        plans = (
            self._plan(drawn(self.mechanism, key=key, step=step, parts=parts), key, step, together)
            for step in range(self.start, self.mechanism.steps)
        )
        try:
            with steps_read(self._reader, plans, self._workers) as steps:
                for step, (pieces, microbatches) in enumerate(steps, self.start):
                    # the local name keeps the batch alive for the claim until the next one is drawn
                    batch = LogicalBatch(run, step, pieces, microbatches, self._reader)
                    del pieces, microbatches
                    yield batch
        finally:
            run.over = True

    def _facts(self) -> dict[str, Any]:
        return {
            "the plan of the batches": self.mechanism.plan_hash,
            "the step that batches begin at": self.start,
            "the micro-batches": self._reader.layout,
            "the batches' key (given, or of chance)": self._key is not None,
            "dealt=": self._dealt,
        }

    def _plan(self, found: np.ndarray, key: bytes, step: int, together: Ranks | None) -> list[Piece]:
        if together is None or not self._dealt:
            return self._reader.plan(found, key=key, step=step)
        return dealt_to(found, together, lambda part: self._reader.plan(part, key=key, step=step))


class LogicalBatch:
    """The samples of one step, in micro-batches; may hold none. Can be iterated once. Its size is secret."""

    def __init__(self, run: Run, step: int, pieces: list[Piece], microbatches: Iterator[Any], reader: Reader) -> None:
        self.step = step
        self._pieces = pieces
        self._read, self._reader = microbatches, reader
        self._turn = 0
        self._drawn = Drawn(run, step, sum(p.units for p in pieces), sum(min(p.units, p.real) for p in pieces))

    def __repr__(self) -> str:
        return f"LogicalBatch(step={self.step})"

    def __iter__(self) -> Iterator[Any]:
        if self._drawn.begun:
            raise PrivacyViolation(
                f"the logical batch of step {self.step} is iterated twice: its samples would count twice in "
                "one step, and the noise covers one. Keep the micro-batches in a list if they are needed "
                "again; or call engine.discard() to give up what was computed of them, and then iterate over batch.again()"
            )
        self._drawn.begin()
        return self._microbatches(self._turn)

    def again(self, microbatch: int | None = None) -> "LogicalBatch":
        """Return the same samples from the first on, for a batch that failed half-way: after ``engine.discard()``.

        Leaving such a batch out, or drawing another in its place, would choose batches by what is in them.

        Args:
            microbatch: most samples (or users) in one micro-batch from now on, where memory was too small for more.

        Raises:
            ValueError: ``microbatch`` below 1.
        """
        if microbatch is not None:
            if isinstance(microbatch, bool) or not isinstance(microbatch, int) or microbatch < 1:
                raise ValueError(f"microbatch={microbatch!r} must be a whole number >= 1")
            self._pieces = [part for piece in self._pieces for part in piece.parts(microbatch)]
        self._turn += 1
        self._read = read_here(self._reader, self._pieces)
        self._drawn.give_back()
        return self

    def _microbatches(self, turn: int) -> Iterator[Any]:
        for piece, samples in zip(self._pieces, self._read, strict=True):
            if turn != self._turn:
                raise PrivacyViolation(
                    f"the logical batch of step {self.step} was begun again by again(): go on with the new iteration alone"
                )
            self._drawn.hand_out(samples, piece.numbers)
            yield samples
