"""A micro-batch from a list of records: what torch's ``default_collate`` makes, and of dataclasses one dataclass."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import default_collate

from groupclip.nested import is_record


def collated(records: list[Any]) -> Any:
    """Return the records as one, with the sample in dimension 0 of each tensor.

    Args:
        records: tensors, arrays, numbers, texts, and tuples, lists, dictionaries or dataclasses of them, all of one kind.

    Raises:
        TypeError: a value that can't be put together (None, an image); it is named.
    """
    first = records[0]
    if is_record(first):
        together = copy.copy(first)
        for name in first.__dataclass_fields__:
            object.__setattr__(together, name, collated([getattr(record, name) for record in records]))
        return together
    return default_collate(records)
