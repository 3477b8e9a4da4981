"""Which units enter the batch of a step: pure functions of a secret key and the step.

Poisson sampling: each unit independently with probability q. Cyclic Poisson sampling, for b bands: from one of b parts of the
data in turn, each unit of it with probability b q. Truncated: Poisson, but at most a given number, chosen uniformly among those
drawn. Without replacement: a uniform subset of a given size. A batch chosen otherwise (shuffled, in order, weighted) is another
mechanism, with less privacy at the same noise (Chua et al. 2024).

The words come from AES-256 in counter mode: who could guess which samples a step used would be outside the guarantee.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from groupclip.noise.keystream import Keystream
from groupclip.privacy.mechanism import Mechanism

_CHUNK = 1 << 20  # words drawn at a time: 8 MiB


def drawn(mechanism: Mechanism, *, key: bytes, step: int, parts: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """Return the indices in [0, dataset_size) that enter the batch of ``step``, ascending. Secret.

    With bands, those of one part of the data: number ``step`` mod bands.

    Args:
        parts: what :func:`parts_of` returns for this plan and this key, if that is known.
    """
    size = mechanism.dataset_size
    if mechanism.band_count > 1:
        dealt = parts_of(mechanism, key=key) if parts is None else parts
        part = dealt[step % mechanism.band_count]
        return part[draw(len(part), mechanism.part_rate, key=key, step=step)]
    match mechanism.sampling:
        case "full-batch":
            return np.arange(size)
        case "without-replacement":
            return subset(np.arange(size), int(mechanism.expected_batch_size), key=key, label=f"subset/step {step}")
        case "truncated-poisson":
            assert mechanism.max_batch_size is not None
            found = draw(size, mechanism.sample_rate, key=key, step=step)
            return subset(found, mechanism.max_batch_size, key=key, label=f"truncation/step {step}")
        case _:
            return draw(size, mechanism.sample_rate, key=key, step=step)


def draw(size: int, rate: float, *, key: bytes, step: int) -> np.ndarray:
    """Return the indices in [0, size) that a Poisson sample at ``rate`` holds, ascending.

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


def parts_of(mechanism: Mechanism, *, key: bytes) -> tuple[np.ndarray, ...]:
    """Deal the indices in [0, dataset_size) into as many parts as there are bands, each ascending; none with one band. Secret.

    They are dealt once under a key, uniformly at random; parts differ by one index at most. The guarantee holds for any deal
    that doesn't look at the data; a random one keeps parts alike.
    """
    count, size = mechanism.band_count, mechanism.dataset_size
    if count == 1:
        return ()
    order = np.argsort(Keystream(key, "groupclip/sampling/deal").words(size), kind="stable")
    return tuple(np.sort(order[first::count]) for first in range(count))


def subset(indices: np.ndarray, most: int, *, key: bytes, label: str) -> np.ndarray:
    """Return a uniform subset of ``most`` of ``indices``, in their order; all of them where there are no more.

    Those with the smallest words. A tie at the border is drawn again, so that the law is exactly uniform.
    """
    if len(indices) <= most:
        return indices
    stream = Keystream(key, f"groupclip/sampling/{label}")
    while True:
        words = stream.words(len(indices))
        border = np.partition(words, most - 1)[most - 1]
        chosen = words <= border
        if int(chosen.sum()) == most:
            return indices[chosen]
