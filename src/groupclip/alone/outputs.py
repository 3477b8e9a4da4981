"""The outputs of the model: those of single samples, put together as if the batch had been run as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..autograd.one_by_one import key_of
from ..autograd.tensors import PrivateParameter, PrivateTensor, slots
from ..autograd.vmap import NATIVE, Part
from ..clipping.functions import LossReduction
from ..errors import UnsupportedOperation
from ..nested import PLAIN_TYPES, has_numbers, is_record, replaced, tensors_in


class Rows:
    """One tensor of the outputs, of every sample of a part: ``[size, *logical]``."""

    def __init__(self, physical: Tensor) -> None:
        self.physical = physical

    @property
    def shape(self) -> torch.Size:
        """The shape that one sample has."""
        return self.physical.shape[1:]


def taken(part: Part, outputs: Any, spread: Callable[[Tensor], Tensor | None]) -> Any:
    """Return the outputs with :class:`Rows` for tensors that differ from sample to sample. To be called natively.

    Args:
        part: what they are of.
        outputs: nested tuples, lists, mappings and dataclasses; other objects are left as they are.
        spread: gives a tensor that was computed from parameters alone ``[size, ..]``; None for any other.
    """

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor):
            _refuse_hidden(part, value)
            return value
        if isinstance(value, nn.Parameter):
            return value
        rows = spread(value)
        if rows is None and part.holds(value) and not isinstance(value, PrivateTensor):
            rows = part.physical(value)
        return value if rows is None else Rows(rows if part.batch else rows[:0])

    return replaced(outputs, change)


def _refuse_hidden(part: Part, value: Any) -> None:
    """Refuse an object that isn't looked into: it may hold tensors of samples, which couldn't be put together."""
    held = value if isinstance(value, (set, frozenset)) else getattr(value, "__dict__", None)
    if type(value) in PLAIN_TYPES or held is None or isinstance(value, (type, nn.Module)):
        return
    for tensor in tensors_in(list(held) if isinstance(held, (set, frozenset)) else held):
        if part.holds(tensor) and (part.level != NATIVE or tensor.requires_grad):
            raise UnsupportedOperation(
                f"the model returns an object of {type(value).__name__} that holds tensors of the samples, and only tuples, lists, "
                "mappings and dataclasses of tensors can be put together to a batch: return its tensors and make it behind the "
                "call, or compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
            )


#: From the tensors of a sample's outputs, in order, to the dimension of each in which the samples of a batch lie.
Where = Callable[[list[Rows | None]], list[int]]


def joined(parts: list[tuple[Part, Any]], where: Where | None = None, reduction: LossReduction = "none") -> Any:
    """Return the outputs of a batch from those of its parts.

    Args:
        parts: each with what was :func:`taken` of it.
        where: see :data:`Where`; None: samples lie in dimension 0.
        reduction: of a number that the model computes itself, as its own loss; ``none``: one for each sample.

    Raises:
        UnsupportedOperation: a tensor whose dimension 0 isn't the sample, or outputs of samples that don't go together.
    """
    leaves = (
        [_joined_rows(parts, found, n) for n, found in enumerate(zip(*(flat(out) for _, out in parts), strict=True))]
        if _alike([out for _, out in parts])
        else []
    )
    dims = None
    if where is not None and any(isinstance(x, Rows) and is_doubtful(x, reduction) for x in leaves):
        dims = where([x if isinstance(x, Rows) else None for x in leaves])
    merged = iter(
        [
            _merged(x, n, 0 if dims is None else dims[n], reduction) if isinstance(x, Rows) else x
            for n, x in enumerate(leaves)
        ]
    )
    return _filled(parts[0][1], merged)


def is_doubtful(rows: Rows, reduction: LossReduction) -> bool:
    """Return whether a sample's tensor doesn't say by itself where the samples of a batch lie: by one dimension of 1, in front.

    A number may be of the sample, or of the batch as the model's own loss is: that matters where one is to be made of all.
    """
    shape = rows.shape
    return (shape[0] != 1 or 1 in shape[1:]) if shape else reduction != "none"


def flat(outputs: Any) -> list[Any]:
    """Return the tensors in outputs, in order; objects that aren't looked into aren't among them."""
    found: list[Any] = []

    def note(value: Any) -> Any:
        if isinstance(value, (Tensor, Rows)):
            found.append(value)
        return value

    replaced(outputs, note)
    return found


def _filled(outputs: Any, merged: Iterator[Any]) -> Any:
    return replaced(outputs, lambda v: next(merged) if isinstance(v, (Tensor, Rows)) else v)


def _alike(outputs: list[Any]) -> bool:
    """Return whether outputs are of one kind but for their tensors.

    Raises:
        UnsupportedOperation: they aren't.
    """
    kinds = [_kind(o) for o in outputs]
    if any(kind != kinds[0] for kind in kinds):
        raise UnsupportedOperation(
            "the model's output isn't of the same kind for all samples, so that of a batch can't be made: return one tensor "
            "for every sample, or compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )
    return True


def _kind(value: Any) -> Any:
    if isinstance(value, (Tensor, Rows)):
        return "tensor"
    if isinstance(value, Mapping):
        return [(key_of(k), _kind(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        return [_kind(v) for v in value]
    if is_record(value):
        return [(name, _kind(getattr(value, name))) for name in value.__dataclass_fields__]
    return key_of(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value)


def _joined_rows(parts: list[tuple[Part, Any]], found: Sequence[Any], n: int) -> Any:
    """Join one of the outputs over all parts; a tensor that is the same for all samples stays as it is."""
    if not any(isinstance(f, Rows) for f in found) and all(same(found[0], f) for f in found):
        return found[0]
    rows = [f.physical if isinstance(f, Rows) else part.each(f) for (part, _), f in zip(parts, found, strict=True)]
    shapes = {tuple(x.shape[1:]) for x in rows}
    if len(shapes) > 1:
        raise UnsupportedOperation(
            f"output {n} has another shape for one sample than for another ({', '.join(map(str, sorted(shapes)))}): each "
            "sample runs by itself, as a batch of one. Pad to a length that doesn't depend on the batch (pad_packed_sequence "
            "takes total_length), "
            "or compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )
    if len(rows) == 1:
        return Rows(rows[0])
    return Rows(torch.cat(rows)[_order([part for part, _ in parts]).to(rows[0].device)])


def same(x: Tensor, y: Tensor) -> bool:
    """Return whether samples on two paths got the same constant: of the same parameters, if of any. To be called natively."""
    if x is y:
        return True
    if type(x) is not type(y) or isinstance(x, PrivateParameter) or x.shape != y.shape or x.dtype != y.dtype:
        return False
    if isinstance(x, PrivateTensor) and slots(x) != slots(y):  # pyright: ignore[reportArgumentType]
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return not has_numbers(x) or bool(((x == y) | ((x != x) & (y != y))).all())


#: In place of a dimension: a sample has several rows in dimension 0, one sample after another, or the first of all samples first.
MAJOR, MINOR = -1, -2
ONE_NUMBER = -3  # for all samples


class NoRows(UnsupportedOperation):
    """It isn't known where the samples of a batch lie in an output."""


def _merged(rows: Rows, n: int, dim: int, reduction: LossReduction) -> Tensor:
    """Return ``[.., B, ..]``, the samples in dimension ``dim``, in which one sample has 1; or see :data:`MAJOR`."""
    x = rows.physical
    if x.dim() == 1:
        if dim != ONE_NUMBER or reduction == "none" or not x.is_floating_point():
            return x
        return x.mean() if reduction == "mean" else x.sum()
    if dim == MAJOR or len(x) == 1:
        return x.flatten(0, 1)
    if dim == MINOR:
        return x.transpose(0, 1).flatten(0, 1)
    if x.shape[1 + dim] != 1:
        raise NoRows(
            f"output {n} has shape {tuple(rows.shape)} for one sample (a batch of one), so dimension 0 isn't the sample: it "
            "can't be told how the rows of a batch would lie. Return tensors with the sample in dimension 0 (x.transpose(0, "
            "1), x.unflatten(0, (batch, -1)); x.squeeze(-1) in the place of x.squeeze(), which takes the batch of one away), or "
            "compute the losses in a function of the samples alone: engine.per_sample(function, inputs)"
        )
    return x.flatten(0, 1) if dim == 0 else x.squeeze(1 + dim).movedim(0, dim)


def _order(parts: list[Part]) -> Tensor:
    """Return where each sample's row is among the rows of all parts."""
    rows = torch.cat([torch.arange(part.batch) if part.rows is None else part.rows.cpu() for part in parts])
    order = torch.empty_like(rows)
    order[rows] = torch.arange(len(rows))
    return order
