"""Which samples: marks of the rows that were handed out, and of those that a model was called with.

A mark is a number made of a row's bits (of some of them, where a row is long). Equal rows have equal marks, on every device; so
rows that were only moved, cut or put in another order are known again, and rows that were computed with are not.
"""

import enum
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from groupclip.nested import tensors_in

_MOST = 256  # elements of a row that are looked at, spread over it evenly
_DISTINCT = 0.9  # of the samples: among rows that repeat in the data, which is which can't be told
_FEW = 8  # rows of a logical batch: something computed from fewer may be equal to others by chance


class Marks(NamedTuple):
    """Holds the marks of one tensor. They are secret: they are functions of single samples."""

    kind: tuple[torch.Size, torch.dtype]
    """Shape and dtype of a row."""
    rows: Tensor
    """``[B]`` int64, on the tensor's device: it isn't waited for."""

    def counted(self) -> "Counter[tuple[Any, int]]":
        return Counter((self.kind, mark) for mark in self.rows.tolist())


def marks(tensor: Tensor) -> Marks | None:
    """Compute a mark of each row of dimension 0; None if there are no rows, or no memory to look at."""
    if tensor.dim() == 0 or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad():
        rows = tensor.detach()
        length = rows[0].numel()
        every = max(1, length // _MOST)
        if rows.is_contiguous():
            chosen = rows.reshape(len(rows), length)[:, ::every]
        elif rows.dim() == 1:
            chosen = rows.unsqueeze(1)
        else:  # without a copy of all
            places = torch.unravel_index(torch.arange(0, length, every, device=rows.device), rows.shape[1:])
            chosen = rows[(slice(None), *places)]
        bits = chosen.contiguous().view(torch.uint8).to(torch.int64)
        return Marks((tensor.shape[1:], tensor.dtype), (bits * _weights(bits.shape[1], bits.device)).sum(1))


@functools.lru_cache(maxsize=64)
def _weights(length: int, device: torch.device) -> Tensor:
    """Return fixed odd numbers that make different bits unlikely to amount to the same."""
    generator = torch.Generator().manual_seed(length)
    return (torch.randint(-(2**62), 2**62, (length,), generator=generator) * 2 + 1).to(device)


class HandedOut:
    """The rows of one logical batch's micro-batches, by the place of the tensor in them. Secret."""

    def __init__(self) -> None:
        self.units: set[int] = set()  # which samples (or users): the number of the first row of each in the data set
        self._places: dict[int, list[Marks]] = {}
        self._counted: dict[int, Counter[tuple[Any, int]]] = {}

    def add(self, samples: Any, units: Sequence[int]) -> None:
        """Note that a micro-batch of these ``units`` is handed out."""
        self.units.update(units)
        for place, tensor in enumerate(tensors_in(samples)):
            found = marks(tensor) if tensor.dim() > 0 and len(tensor) == len(units) else None
            if found is not None:
                self._places.setdefault(place, []).append(found)
                self._counted.pop(place, None)

    def clear(self) -> None:
        self.units.clear()
        self._places.clear()
        self._counted.clear()

    def places_of(self, kinds: set[Any]) -> list[int]:
        """Places with a tensor whose rows have one of these shapes and dtypes."""
        return [place for place, found in self._places.items() if any(m.kind in kinds for m in found)]

    def counted(self, place: int) -> "Counter[tuple[Any, int]]":
        """Return how often each row was handed out at this place."""
        if place not in self._counted:
            self._counted[place] = _together(self._places.get(place, ()))
        return self._counted[place]


class Likeness(enum.Enum):
    """Says how the rows that passes were called with compare with those of a logical batch."""

    OTHER = "rows of others, or some rows more than once"
    UNKNOWN = "computed from samples, or few, or rows of which many are equal"
    SAME = "its rows, each once"


def compare(passes: Sequence[Marks], handed: HandedOut, before: Sequence[HandedOut]) -> Likeness:
    """Return whether a step's passes were on the samples of a logical batch.

    Args:
        passes: of the tensor that each pass was called with.
        handed: of the logical batch.
        before: of logical batches before it, whose samples may have come in the place of its own.
    """
    called = _together(passes)
    places = handed.places_of({p.kind for p in passes})
    if any(called == handed.counted(place) for place in places):
        return Likeness.SAME
    units = handed.units.union(*(h.units for h in before))
    for place in places:
        own = handed.counted(place)
        known = set(own).union(*(h.counted(place) for h in before))
        told_apart = len(known) >= _DISTINCT * len(units) and own.total() >= _FEW
        if told_apart and called.total() == own.total() and known.issuperset(called):
            return Likeness.OTHER
    return Likeness.UNKNOWN


def _together(tensors: Iterable[Marks]) -> "Counter[tuple[Any, int]]":
    found: Counter[tuple[Any, int]] = Counter()
    for tensor in tensors:
        found.update(tensor.counted())
    return found
