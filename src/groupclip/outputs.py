"""The outputs of the model: those of single samples, put together as if the batch had been run as one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .batch import is_record, replaced
from .errors import UnsupportedOperation
from .operands import PrivateTensor
from .reads import key_of
from .together import Part


@dataclass(frozen=True, eq=False)
class Rows:
    """One tensor of the outputs, of every sample of a part: ``[size, *logical]``."""

    physical: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of one sample's."""
        return self.physical.shape[1:]


def taken(part: Part, outputs: Any, spread: Callable[[Tensor], Tensor | None]) -> Any:
    """The outputs with :class:`Rows` for tensors that differ from sample to sample. To be called natively.

    Args:
        part: what they are of.
        outputs: nested tuples, lists, mappings and dataclasses; other objects are left as they are.
        spread: gives a tensor that was computed from parameters alone ``[size, ..]``; None for any other.
    """

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return value
        rows = spread(value)
        if rows is None and part.holds(value) and not isinstance(value, PrivateTensor):
            rows = part.physical(value)
        return value if rows is None else Rows(rows if part.batch else rows[:0])

    return replaced(outputs, change)


def joined(parts: list[tuple[Part, Any]]) -> Any:
    """The outputs of a batch from those of its parts.

    Raises:
        UnsupportedOperation: a tensor whose dimension 0 isn't the sample, or outputs of samples that don't go together.
    """
    return _join([part for part, _ in parts], [outputs for _, outputs in parts], "the output")


def _join(parts: list[Part], found: list[Any], name: str) -> Any:
    first = found[0]
    if any(isinstance(f, Rows) for f in found):
        return _joined_rows(parts, found, name)
    if isinstance(first, Tensor):
        return first
    if isinstance(first, Mapping):
        _require_alike(name, [tuple(f) for f in found])
        joined_ = {k: _join(parts, [f[k] for f in found], f"output {k!r}") for k in first}
        if type(first) is dict:
            return joined_
        if not isinstance(first, MutableMapping):
            return joined_
        again = copy.copy(first)
        for k, v in joined_.items():
            again[k] = v
        return again
    if isinstance(first, (tuple, list)) and not isinstance(first, torch.Size):
        _require_alike(name, [len(f) for f in found])
        items = [_join(parts, list(item), f"output {i}") for i, item in enumerate(zip(*found, strict=True))]
        if isinstance(first, list):
            return items
        if type(first) is tuple:
            return tuple(items)
        return type(first)(*items) if isinstance(getattr(type(first), "_fields", None), tuple) else type(first)(items)
    if is_record(first):
        again = copy.copy(first)
        for field in first.__dataclass_fields__:
            object.__setattr__(again, field, _join(parts, [getattr(f, field) for f in found], f"output {field!r}"))
        return again
    if isinstance(first, (bool, int, float, str, type(None))):
        _require_alike(name, [key_of(f) for f in found])
    return first


def _require_alike(name: str, keys: list[Any]) -> None:
    if any(key != keys[0] for key in keys):
        raise UnsupportedOperation(
            f"{name} isn't of the same kind for all samples, so a batch of it can't be made: return one tensor for every sample, or "
            "compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )


def _joined_rows(parts: list[Part], found: list[Any], name: str) -> Tensor:
    rows = [f.physical if isinstance(f, Rows) else part.each(f) for part, f in zip(parts, found, strict=True)]
    shapes = {tuple(x.shape[1:]) for x in rows}
    if len(shapes) > 1:
        raise UnsupportedOperation(
            f"{name} has another shape for one sample than for another ({', '.join(map(str, sorted(shapes)))}): each sample runs by "
            "itself, as a batch of one. Pad to a length that doesn't depend on the batch (pad_packed_sequence takes total_length), "
            "or compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )
    x = rows[0] if len(rows) == 1 else torch.cat(rows)[_order(parts).to(rows[0].device)]
    if x.dim() == 1:
        return x
    if x.shape[1] != 1:
        raise UnsupportedOperation(
            f"{name} has shape {tuple(x.shape[1:])} for one sample (a batch of one), so dimension 0 isn't the sample: it can't be told "
            "how the rows of a batch would lie. Return tensors with the sample in dimension 0 (x.transpose(0, 1), "
            "x.view(batch, -1, ..)), or compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )
    return x.flatten(0, 1)


def _order(parts: list[Part]) -> Tensor:
    """Where each sample's row is among the rows of all parts."""
    rows = torch.cat([torch.arange(part.batch) if part.rows is None else part.rows.cpu() for part in parts])
    order = torch.empty_like(rows)
    order[rows] = torch.arange(len(rows))
    return order

