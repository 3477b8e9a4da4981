"""What a pass without numbers does know: the integers that a program makes itself, and those of one example batch.

Positions, lengths, offsets and orders are small, and what runs next often hangs on them: a packed sequence has as many steps as
its longest sample. So small tensors of integers or truth values keep their numbers, and so does what is computed from them
alone. Whatever meets a tensor without numbers has none.
"""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..nested import tensors_in

aten = torch.ops.aten

#: Entries of a tensor that keeps its numbers; and of all operands together, multiplied, for what is computed from them.
_MOST, _MOST_TOGETHER = 2**16, 2**20

CPU = torch.device("cpu")

#: Operations that make a tensor from plain numbers, or one that torch itself writes numbers into.
FACTORIES: frozenset[Any] = frozenset({
    aten.arange, aten.zeros, aten.ones, aten.full, aten.eye, aten.tril_indices, aten.triu_indices, aten.lift_fresh, aten.empty,
    aten.new_zeros, aten.new_ones, aten.new_full, aten.zeros_like, aten.ones_like, aten.full_like,
})  # fmt: skip

#: Operations of which torch reads these operands itself, whatever their device.
READ: dict[Any, int] = {aten._pack_padded_sequence: 1, aten._pack_padded_sequence_backward: 2}


def small(x: Tensor) -> bool:
    """Return whether it is of a kind and size that keeps its numbers."""
    return not x.is_floating_point() and not x.is_complex() and x.numel() <= _MOST


class Integers:
    """Knows which tensors have numbers that can be told."""

    def __init__(self) -> None:
        self._spoilt: set[int] = set()  # storages into which something without numbers was written

    def known(self, x: Tensor) -> bool:
        """Return whether its numbers can be told."""
        return small(x) and self.readable(x)

    def readable(self, x: Tensor) -> bool:
        """Return whether it has numbers of any kind, and those it has are right."""
        return x.is_cpu and x.untyped_storage()._cdata not in self._spoilt

    def computable(self, func: Any, operands: list[Tensor]) -> bool:
        """Return whether an operation on these can be run on numbers: all are known, and no random number is drawn."""
        return (
            len(operands) > 0
            and all(map(self.known, operands))
            and prod(max(1, t.numel()) for t in operands) <= _MOST_TOGETHER
            and torch.Tag.nondeterministic_seeded not in func.tags
        )

    def made(self, func: Any, args: Any, kwargs: dict[str, Any], like: Any) -> Tensor | None:
        """Return what a factory makes, with its numbers; None if it isn't small or no integers.

        Args:
            func, args, kwargs: the operation.
            like: its result without numbers.
        """
        if func is aten.lift_fresh.default:
            return args[0] if args[0].is_cpu and args[0].dim() > 0 and small(args[0]) else None
        if func.overloadpacket not in FACTORIES or like.dim() == 0 or not small(like):
            return None
        if func.overloadpacket is aten.empty and kwargs["device"] != CPU:
            return None  # nothing will be written there
        return func(*args, **{**kwargs, "device": CPU})

    def spoil(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Spoil a row: an operation is about to write something without numbers into it."""
        given = [*zip(func._schema.arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        for argument, value in given:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tensors_in(value):
                if self.readable(tensor):
                    storage = tensor.untyped_storage()
                    self._spoilt.add(storage._cdata)
                    weakref.finalize(storage, self._spoilt.discard, storage._cdata)


__all__ = ["CPU", "FACTORIES", "READ", "Integers", "small"]
