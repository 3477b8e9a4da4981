"""Poisson sampling: each sample enters each step's batch independently with probability q.

That is what the accountants assume. Shuffled, fixed-size or padded batches are another mechanism, with less
privacy at the same noise (Chua et al. 2024). A Poisson batch varies in size, and may be empty: that is a step
as well.

The uniforms come from AES-256 in counter mode under a key of the operating system's randomness: who could
guess which samples a step used would be outside the guarantee. The size of a batch is secret too (under
add-or-remove adjacency it tells who is in), so nothing here prints or logs it.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence, Sized
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from groupclip.errors import PrivacyViolation
from groupclip.keystream import KEY_BYTES, Keystream, new_key
from groupclip.mechanism import Mechanism

Collate = Callable[[list[Any]], Any]

_CHUNK = 1 << 20  # uniforms drawn at a time: 8 MiB


def poisson_batches(
    dataset: Dataset[Any] | Sequence[Any],
    mechanism: Mechanism,
    microbatch: int = 64,
    *,
    start: int = 0,
    collate: Collate | None = None,
    key: bytes | None = None,
) -> "PoissonBatches":
    """One :class:`LogicalBatch` per planned step; iterating it yields collated micro-batches, possibly none.

    Args:
        dataset: map-style (``len`` and ``[]``), with exactly ``mechanism.dataset_size`` samples.
        microbatch: most samples in one micro-batch. Changes memory and speed, never the result.
        start: number of steps already released, when a run goes on (``engine.ledger.steps``).
        collate: list of samples -> micro-batch; ``torch.utils.data.default_collate`` by default.
        key: 32 bytes, for tests only: with a known key the batches are known and nothing is private.

    Guarantee: P(sample i in the batch of step t) = floor(q * 2^64) / 2^64, independently over all i and t.

    Raises:
        ValueError: another length than ``mechanism.dataset_size``; ``start`` outside [0, mechanism.steps].
        TypeError: a data set without length or index.
    """
    return PoissonBatches(dataset, mechanism, microbatch, start=start, collate=collate, key=key)


class PoissonBatches:
    """The steps ``start .. mechanism.steps`` of a run; see :func:`poisson_batches`. Its length is public."""

    def __init__(
        self,
        dataset: Any,
        mechanism: Mechanism,
        microbatch: int,
        *,
        start: int,
        collate: Collate | None,
        key: bytes | None,
    ) -> None:
        _check_dataset(dataset, mechanism)
        if isinstance(microbatch, bool) or not isinstance(microbatch, int):
            raise TypeError(f"microbatch={microbatch!r} must be a whole number (int)")
        if microbatch < 1:
            raise ValueError(f"microbatch={microbatch} must be >= 1")
        if isinstance(start, bool) or not isinstance(start, int):
            raise TypeError(f"start={start!r} must be a whole number (int)")
        if not 0 <= start <= mechanism.steps:
            raise ValueError(
                f"start={start} must be in [0, {mechanism.steps}], the planned steps; pass "
                "engine.ledger.steps to go on"
            )
        if key is not None and (not isinstance(key, bytes) or len(key) != KEY_BYTES):
            raise ValueError(f"key must be {KEY_BYTES} bytes; leave it out unless this is a test")
        self.mechanism = mechanism
        self.start = start
        self._fetch = _fetcher(dataset, collate)
        self._microbatch = microbatch
        self._key = key

    def __len__(self) -> int:
        return self.mechanism.steps - self.start

    def __repr__(self) -> str:
        return f"PoissonBatches(steps {self.start}..{self.mechanism.steps} of {self.mechanism})"

    def __iter__(self) -> Iterator["LogicalBatch"]:
        # a new key for every pass: two passes under one key would draw the same batches
        key = new_key() if self._key is None else self._key
        run = _Run(self.mechanism)
        for step in range(self.start, self.mechanism.steps):
            indices = draw(self.mechanism.dataset_size, self.mechanism.sample_rate, key=key, step=step)
            # the local name keeps the batch alive for claim() until the next one is drawn
            batch = LogicalBatch(run, step, indices, self._fetch, self._microbatch)
            del indices
            yield batch


class LogicalBatch:
    """The samples of one step, in micro-batches; may hold none. Can be iterated once. Its size is secret."""

    def __init__(
        self,
        run: "_Run",
        step: int,
        indices: np.ndarray,
        fetch: Callable[[list[int]], Any],
        microbatch: int,
    ) -> None:
        self.step = step
        self._run = run
        self._indices = indices
        self._fetch = fetch
        self._microbatch = microbatch
        self._handed_out = 0
        self._begun = False
        self._claimed_by: set[int] = set()
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
        for first in range(0, len(self._indices), self._microbatch):
            chosen = self._indices[first : first + self._microbatch].tolist()
            samples = self._fetch(chosen)
            self._handed_out += len(chosen)
            yield samples

    def _is_whole(self, samples: int) -> bool:
        """All of its samples are handed out, they are ``samples`` many, and no later batch was begun."""
        current = self.step >= self._run.newest_begun
        return current and self._handed_out == len(self._indices) == samples


class _Run:
    """One pass over the steps of one mechanism."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.newest_begun = -1


_live: "weakref.WeakSet[LogicalBatch]" = weakref.WeakSet()


def claim(mechanism: Mechanism, owner: int, samples: int) -> bool:
    """Was a step of ``owner`` (an engine's id) that saw ``samples`` samples taken on a groupclip logical
    batch?

    True if a logical batch of this mechanism is in use, wholly handed out, of exactly ``samples`` samples,
    and not yet claimed by ``owner``; it is claimed then. So a step on half a batch, on a batch plus other
    samples, or a second step on one batch counts as the user's own sampling.
    """
    batches = sorted(_live, key=lambda batch: batch.step)
    for batch in batches:
        if batch._run.mechanism == mechanism and owner not in batch._claimed_by and batch._is_whole(samples):
            batch._claimed_by.add(owner)
            return True
    return False


def draw(size: int, rate: float, *, key: bytes, step: int) -> np.ndarray:
    """The indices in [0, size) that enter the batch of ``step``, ascending. Secret.

    Element i of the step's stream of 64-bit integers is compared with floor(rate * 2^64): no rounding, so no
    bias.
    """
    threshold = int(Fraction(rate) * 2**64)
    if threshold >= 2**64:
        return np.arange(size)
    # a stream of its own for every step: what a step draws doesn't depend on where the run began
    stream = Keystream(key, f"groupclip/sampling/step {step}")
    found = []
    for first in range(0, size, _CHUNK):
        count = min(_CHUNK, size - first)
        found.append(np.flatnonzero(stream.words(count) < np.uint64(threshold)) + first)
    return np.concatenate(found)


@runtime_checkable
class _FetchesMany(Protocol):
    """torch's own protocol for data sets that fetch a list of samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]: ...


def _fetcher(dataset: Any, collate: Collate | None) -> Callable[[list[int]], Any]:
    """indices -> collated micro-batch."""
    if type(dataset) is TensorDataset and collate is None:
        # what default_collate gives for the tuples of a TensorDataset, by one index per tensor
        return lambda indices: [tensor[indices] for tensor in dataset.tensors]
    joined = default_collate if collate is None else collate
    if isinstance(dataset, _FetchesMany):
        return lambda indices: joined(dataset.__getitems__(indices))
    return lambda indices: joined([dataset[index] for index in indices])


def _check_dataset(dataset: Any, mechanism: Mechanism) -> None:
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError(
            f"{type(dataset).__name__} can't be Poisson-sampled: a stream has no index, and each sample has "
            "to be drawn independently of the others; load it into a map-style data set (len and [])"
        )
    size = len(dataset)
    if size != mechanism.dataset_size:
        raise ValueError(
            f"the data set holds {size} samples, the mechanism was planned for "
            f"dataset_size={mechanism.dataset_size}: the sample rate would be wrong. Build the Mechanism "
            "with dataset_size=len(dataset), and calibrate again"
        )
