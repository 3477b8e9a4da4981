"""The loader that ``make_private`` returns: each item is one whole batch, drawn as the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, default_collate

from ...engine.engine import Engine
from ...errors import PrivacyViolation
from ...sampling.batches import LogicalBatch, LogicalBatches, logical_batches
from ...sampling.tables import as_records


class PrivateLoader:
    """Yields Poisson batches, as many an epoch as the loader that it was made from had. It is no ``DataLoader``.

    Args:
        loader: gives data set, batch size, collate function and number of workers; it is kept as ``loader``.
        engine: of the model that trains on the batches.

    A batch may hold no sample: its tensors have zero rows then, and it is a step as well.
    """

    def __init__(self, loader: DataLoader[Any], engine: Engine) -> None:
        assert engine.mechanism is not None and engine.ledger is not None
        self.loader, self.dataset = loader, cast(Any, loader.dataset)
        self._records = as_records(loader.dataset)
        self.batch_size = loader.batch_size
        self.sample_rate = engine.mechanism.sample_rate
        self.collate_fn = loader.collate_fn
        self.num_workers = loader.num_workers
        self._prefetch = loader.prefetch_factor or 2
        self._length = len(loader)
        self._mechanism, self._ledger = engine.mechanism, engine.ledger
        self._microbatch = 0
        self._drawn: Iterator[LogicalBatch] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for logical in self.logical(len(self.dataset)):
            batch = next(iter(logical), None)
            yield self.empty() if batch is None else batch

    def logical(self, microbatch: int) -> Iterator[LogicalBatch]:
        """Yield the batches of one epoch, each in micro-batches of at most so many samples.

        Raises:
            BudgetExceeded: the plan is spent.
        """
        for _ in range(self._length):
            self._ledger.check()
            if self._drawn is None or microbatch != self._microbatch:
                self._microbatch, self._drawn = microbatch, iter(self._draw(microbatch))
            batch = next(self._drawn, None)
            if batch is None:
                raise PrivacyViolation(
                    f"batches were drawn for all {self._mechanism.steps} planned steps, and some had no step: leave no batch out "
                    "(an empty one needs a step too), or plan more epochs"
                )
            yield batch

    def begin_again(self) -> None:
        """Draw afresh from where the ledger stands: a state was loaded."""
        self._drawn = None

    def empty(self) -> Any:
        """Return a batch of no sample, of the same tensors."""

        def cut(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
                return leaf[:0]
            raise TypeError(
                f"collate_fn gives a batch that holds {type(leaf).__name__}, of which there is no empty one: Poisson batches may "
                "hold no sample. Let it give tensors whose first dimension is the sample, in lists, tuples or dictionaries"
            )

        return tree_map(cut, self.collate_fn([self._records[0]]))

    def _draw(self, microbatch: int) -> LogicalBatches:
        collate = None if self.collate_fn is default_collate else self.collate_fn
        return logical_batches(
            self._records, self._mechanism, microbatch, start=self._ledger.steps, collate=collate,
            num_workers=self.num_workers, prefetch=self._prefetch,
        )  # fmt: skip
