"""Turn the units that a step drew into micro-batches of samples.

A unit is what the guarantee protects and what is clipped as one: a sample, or a user with all of its samples.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import TensorDataset

from groupclip.distributed.agreement import digest
from groupclip.sampling.collated import collated
from groupclip.sampling.draws import subset

Collate = Callable[[list[Any]], Any]


class Padded(NamedTuple):
    """A micro-batch of one physical size. Multiply the losses by ``weights``: what fills it up must not count."""

    samples: Any
    weights: Tensor
    """``[microbatch]``: 1 for a sample of the batch, 0 for filling."""


@dataclass(frozen=True)
class Piece:
    """Says what one micro-batch will hold: rows of the data set, and how many units the engine will see in it."""

    rows: list[int]
    units: int
    real: int  # the rows after these many fill it up

    @property
    def numbers(self) -> list[int]:
        """The units, each by its first row."""
        return self.rows[:: len(self.rows) // self.units] if self.units else []

    def parts(self, most: int) -> "list[Piece]":
        """Return the same in pieces of at most ``most`` units."""
        each = len(self.rows) // max(1, self.units)
        if not self.units:
            return [self]
        found = []
        for first in range(0, self.units, most):
            rows = self.rows[first * each : (first + most) * each]
            real = min(max(self.real - first * each, 0), len(rows))
            found.append(Piece(rows, len(rows) // each, real))
        return found


class Reader(Protocol):
    """Plans the micro-batches of a step, and says how they are read: rows fetched, by whatever process, then laid out."""

    @property
    def fetch(self) -> "Fetch": ...

    @property
    def layout(self) -> str:
        """Say in short how units become micro-batches: several processes must have the same."""
        ...

    def plan(self, drawn: np.ndarray, *, key: bytes, step: int) -> list[Piece]: ...

    def laid_out(self, piece: Piece, samples: Any) -> Any:
        """Return the micro-batch made of what :attr:`fetch` gave for the rows of ``piece``."""
        ...


class BySample:
    """Micro-batches of at most ``microbatch`` samples."""

    def __init__(self, dataset: Any, microbatch: int, collate: Collate | None) -> None:
        self.fetch, self._microbatch = Fetch(dataset, collate), microbatch
        self.layout = f"microbatch={microbatch}"

    def plan(self, drawn: np.ndarray, *, key: bytes, step: int) -> list[Piece]:
        parts = [drawn[first : first + self._microbatch] for first in range(0, len(drawn), self._microbatch)]
        return [Piece(part.tolist(), len(part), len(part)) for part in parts]

    def laid_out(self, piece: Piece, samples: Any) -> Any:
        return samples


class InPaddedBatches:
    """Always as many micro-batches, each of exactly ``microbatch`` rows, as hold the largest batch.

    So shapes, memory and the number of passes are public. The filling is row 0 of the data set with weight 0.
    """

    def __init__(self, dataset: Any, microbatch: int, collate: Collate | None, largest: int) -> None:
        self.fetch, self._microbatch, self._largest = Fetch(dataset, collate), microbatch, largest
        self.layout = f"microbatch={microbatch}, padded to {largest}"

    def plan(self, drawn: np.ndarray, *, key: bytes, step: int) -> list[Piece]:
        size = self._microbatch
        parts = [drawn[first : first + size].tolist() for first in range(0, self._largest, size)]
        return [Piece(part + [0] * (size - len(part)), size, len(part)) for part in parts]

    def laid_out(self, piece: Piece, samples: Any) -> Padded:
        weights = torch.zeros(len(piece.rows))
        weights[: piece.real] = 1.0
        return Padded(samples, weights)


class ByUser:
    """Micro-batches ``[U, k, ..]``: U users who have k samples each, at most ``microbatch`` samples unless k is larger.

    Users with as many samples share a micro-batch, so nothing is padded.
    """

    def __init__(
        self, dataset: Any, microbatch: int, collate: Collate | None, users: Sequence[Hashable], most: int | None
    ) -> None:
        self.fetch, self._microbatch, self._most = Fetch(dataset, collate), microbatch, most
        self._rows: dict[Hashable, list[int]] = {}
        for row, user in enumerate(users):
            self._rows.setdefault(user, []).append(row)
        self._order = list(self._rows)  # user i of the sampler: by first appearance

    @property
    def layout(self) -> str:
        whose = digest(list(self._rows.values()))  # without the users' names
        return f"microbatch={self._microbatch}, samples_per_user={self._most}, rows of the users {whose}"

    @property
    def users(self) -> int:
        return len(self._order)

    def plan(self, drawn: np.ndarray, *, key: bytes, step: int) -> list[Piece]:
        by_count: dict[int, list[list[int]]] = {}
        for user in drawn.tolist():
            rows = self._rows[self._order[user]]
            if self._most is not None:
                rows = subset(np.array(rows), self._most, key=key, label=f"user {user}/step {step}").tolist()
            by_count.setdefault(len(rows), []).append(rows)
        pieces = []
        for count, owned in sorted(by_count.items()):
            together = max(1, self._microbatch // count)
            for first in range(0, len(owned), together):
                part = owned[first : first + together]
                rows = [row for rows in part for row in rows]
                pieces.append(Piece(rows, len(part), len(rows)))
        return pieces

    def laid_out(self, piece: Piece, samples: Any) -> Any:
        count = len(piece.rows) // max(1, piece.units)

        def by_user(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != len(piece.rows):
                raise TypeError(
                    "a micro-batch of users must be made of tensors with one row a sample; the collate function gave "
                    f"{type(leaf).__name__}. Pass collate= that returns tensors"
                )
            return leaf.unflatten(0, (piece.units, count))

        return tree_map(by_user, samples)


@runtime_checkable
class _FetchesMany(Protocol):
    """torch's own protocol for data sets that fetch a list of samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]: ...


@dataclass(frozen=True)
class Fetch:
    """Rows of a data set as one collated micro-batch. Can be sent to another process if data set and collate function can."""

    dataset: Any
    collate: Collate | None

    def __call__(self, rows: list[int]) -> Any:
        if not rows:  # what a row looks like, and none of it
            return tree_map(lambda leaf: leaf[:0] if isinstance(leaf, Tensor) and leaf.dim() else leaf, self([0]))
        if type(self.dataset) is TensorDataset and self.collate is None:
            # what default_collate gives for the tuples of a TensorDataset, by one index per tensor
            return [tensor[rows] for tensor in self.dataset.tensors]
        joined = collated if self.collate is None else self.collate
        if isinstance(self.dataset, _FetchesMany):
            return joined(self.dataset.__getitems__(rows))
        return joined([self._item(row) for row in rows])

    def _item(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except Exception as error:
            error.add_note(f"groupclip was reading item {row} of the data set")
            raise
