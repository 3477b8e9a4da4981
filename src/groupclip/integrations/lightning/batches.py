"""The loader of a private ``Trainer.fit``: each item is one logical batch, drawn as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

from ...errors import PrivacyViolation
from ...privacy.mechanism import Mechanism
from ...sampling.batches import logical_batches
from ...sampling.readers import Collate
from ..epochs import Step, Steps, steps_in_an_epoch


class PrivateBatches:
    """Stands in the place of ``DataLoader(dataset, batch_size=..)`` in ``Trainer.fit`` or ``train_dataloader``.

    An epoch has as many batches as draw every record once on average. A batch may hold no record.

    Args:
        dataset: map-style (``len`` and ``[]``), with exactly ``mechanism.dataset_size`` records.
        mechanism: the plan, calibrated.
        microbatch: most records in one piece of a batch: memory and speed alone.
        collate: list of records -> piece; ``torch.utils.data.default_collate`` by default.
        num_workers, prefetch: processes that read ahead, and pieces that each has under way.
        key: 32 bytes, for tests only: with a known key no epsilon is claimed.

    Raises:
        ValueError, TypeError: as :func:`groupclip.logical_batches`.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        mechanism: Mechanism,
        microbatch: int = 64,
        *,
        collate: Collate | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        key: bytes | None = None,
    ) -> None:
        self.dataset, self.mechanism = dataset, mechanism

        def drawn(start: int) -> Any:
            return logical_batches(
                dataset, mechanism, microbatch, start=start, collate=collate, key=key, num_workers=num_workers,
                prefetch=prefetch,
            )  # fmt: skip

        drawn(0)  # refuses what can't be
        self._drawn = drawn
        self._steps: Steps | None = None

    def __len__(self) -> int:
        return steps_in_an_epoch(self.mechanism)

    def __iter__(self) -> Iterator[Step]:
        if self._steps is None:
            raise PrivacyViolation(
                "PrivateBatches are drawn for a private run: add PrivateTraining(..) to the callbacks of the Trainer"
            )
        yield from self._steps

    def begin(self, start: int, charge: Callable[[], object]) -> None:
        """Draw from step ``start`` on; ``charge`` is called before each batch."""
        self._steps = Steps(self._drawn(start), len(self), start, charge)

    def end(self) -> None:
        """End the workers that read ahead; nothing is drawn until :meth:`begin`."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
