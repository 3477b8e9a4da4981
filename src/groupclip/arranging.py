"""Operations that arrange rows: what is noted of each in the record of a course, and which entries went where."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import instances_in
from .layout import Axis


class _Size(enum.Enum):
    """Stands for numbers that follow from the size of tensors, in the record of a course."""

    ANY = "any"


class Moved:
    """Entries that went from one tensor to another.

    Args:
        source, target: the tensors.
        route: ``route(s, t)``, for tensors of the shapes of source and target, gives two tensors of equal shape: the entries of
            ``s`` that moved, and those of ``t`` that they went to.
    """

    def __init__(
        self, source: Tensor, target: Tensor, route: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        self.source, self.target, self._route = source, target, route

    def keeps(self, source: Axis, target: Axis, batch: int) -> bool:
        """Whether every entry came from the sample to which the place where it went belongs."""
        if not (source.fits(self.source.shape, batch) and target.fits(self.target.shape, batch)):
            return False
        came, went = self._route(_samples(self.source, source, batch), _samples(self.target, target, batch))
        return bool((came == went).all())


class Move:
    """A call of an operation that moves entries, and its result."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result

    @property
    def target(self) -> Tensor:
        """What was written into, as it is now."""
        return self.result if isinstance(self.result, Tensor) else self.args[0]

    def argument(self, place: int, name: str) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


def _samples(x: Tensor, axis: Axis, batch: int) -> Tensor:
    """The number of the sample that each entry of ``x`` belongs to, in the shape of ``x``, without a copy for each entry."""
    if axis is Axis.SECOND:
        rows = torch.arange(batch, device=x.device)
        return rows.view(1, -1, *[1] * (x.dim() - 2)).expand(x.shape)
    rows = torch.arange(x.shape[0], device=x.device)
    rows = rows % batch if axis is Axis.MINOR else rows // max(1, x.shape[0] // batch)
    return rows.view(-1, *[1] * (x.dim() - 1)).expand(x.shape)


# ---------------------------------------------------------------- operations that move entries


def _read(move: Move) -> Iterator[Moved]:
    """``x[index]``, ``index_select``, ``gather``, ``take_along_dim``, ``masked_select``."""
    x, *rest = move.args
    yield Moved(x, move.result, lambda s, t: (move.func(s, *rest, **move.kwargs), t))


def _looked_up(move: Move) -> Iterator[Moved]:
    """``F.embedding`` in a table that isn't private."""
    ids, table = move.argument(0, "input"), move.argument(1, "weight")
    yield Moved(table, move.result, lambda s, t: (s[ids], t))


def _ordered(move: Move) -> Iterator[Moved]:
    """``sort`` and ``topk``."""
    x, (values, indices) = move.args[0], move.result
    if x.dim() == 0:
        return
    dim = {"topk": move.argument(2, "dim"), "sort": move.argument(1, "dim")}[move.func.__name__]
    dim = x.dim() - 1 if dim is None or isinstance(dim, bool) else dim % x.dim()
    yield Moved(x, values, lambda s, t: (s.gather(dim, indices), t))


def _packed(move: Move) -> Iterator[Moved]:
    x, lengths, first = move.args[:3]
    yield Moved(
        x, move.result[0], lambda s, t: (torch._VF._pack_padded_sequence(s.float(), lengths, first)[0].long(), t)
    )  # pyright: ignore


def _written(move: Move) -> Iterator[Moved]:
    """``y[index] = x``, ``index_put``."""
    _, index, source = move.args[:3]
    if not isinstance(source, Tensor) or source.dim() == 0 or move.kwargs.get("accumulate"):
        return
    where = tuple(index) if move.func.__name__.startswith("index_put") else index

    def route(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        went = t[where]
        return s.broadcast_to(went.shape), went

    yield Moved(source, move.target, route)


def _scattered(move: Move) -> Iterator[Moved]:
    """``scatter``, ``scatter_add``, ``index_copy``, ``index_add``, ``masked_scatter``."""
    name = move.func.__name__.rstrip("_")
    if name == "masked_scatter":
        mask, source = move.argument(1, "mask"), move.argument(2, "source")

        def route(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            went = t[mask.broadcast_to(t.shape)]
            return s.flatten()[: len(went)], went
    else:
        dim, index = move.argument(1, "dim"), move.argument(2, "index")
        source = move.argument(3, "source" if name.startswith("index") else "src")
        if not isinstance(source, Tensor):
            return

        def route(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            if name.startswith("index"):
                return s, t.index_select(dim, index)
            return s[tuple(map(slice, index.shape))], t.gather(dim, index)

    if isinstance(source, Tensor) and source.dim() > 0:
        yield Moved(source, move.target, route)


# ---------------------------------------------------------------- what is noted of each operation


def _numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Dimensions, shifts, equations: whatever isn't a tensor."""
    kept = [_static(a) for a in args if not isinstance(a, Tensor)]
    return (*kept, *((k, _static(v)) for k, v in sorted(kwargs.items()) if not isinstance(v, Tensor)))


def _static(value: Any) -> Any:
    if isinstance(value, (bool, int, str, float, type(None))):
        return value
    if isinstance(value, (tuple, list)) and not any(isinstance(v, Tensor) for v in value):
        return tuple(map(_static, value))
    return _Size.ANY


def _dimensions(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Of operations whose numbers are sizes, which change with the batch: how many dimensions go in and come out.

    None where they are as many: then no dimension went elsewhere, or the number of rows of each sample shows it.
    """
    before, *after = (t.dim() for t in instances_in((args[:1], result), Tensor))
    return None if after == [before] else (before, *after)


def _moved(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """That it took place. Where entries went is looked at itself."""
    return ()


def _last_number(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """``split(x, sizes, dim)``: not the sizes."""
    return _numbers(args[2:], {k: v for k, v in kwargs.items() if k == "dim"}, result)


def _pattern(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """``x[i, :, mask]``: which row, or the kinds of what is in the index."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if index and isinstance(index[0], int):
        return Row(index[0], tuple(map(type, index[1:])))
    return tuple(map(type, index)) if any(not isinstance(i, slice) for i in index) else None


@dataclass(frozen=True)
class Row:
    """``x[number, ..]``, and the kinds of what else is in the index."""

    number: int
    others: tuple[type, ...]


Arranges = tuple[Callable[..., Any], Callable[[Move], Iterator[Moved]] | None]


def _arranging() -> dict[Any, Arranges]:
    found: dict[Any, Arranges] = {}

    def name(names: str, kind: Callable[..., Any], moves: Any = None) -> None:
        for n in names.split():
            for owner in (torch, Tensor):
                if n in dir(owner):
                    found[getattr(owner, n)] = (kind, moves)

    name(
        "transpose swapaxes swapdims permute movedim moveaxis t adjoint transpose_ t_ squeeze unsqueeze squeeze_ unsqueeze_",
        _numbers,
    )
    name(
        "flatten cat concat concatenate stack hstack vstack dstack chunk unbind flip fliplr flipud roll rot90", _numbers
    )
    name("sum mean amax amin prod logsumexp einsum tensordot diagonal diag_embed cumsum", _numbers)
    name(
        "view reshape expand expand_as view_as reshape_as unflatten repeat unfold as_strided broadcast_to narrow tile select",
        _dimensions,
    )
    name("split tensor_split split_with_sizes", _last_number)
    name("repeat_interleave", _dimensions)
    name("index_select gather take_along_dim masked_select", _moved, _read)
    name("sort topk", _numbers, _ordered)
    name("index_put index_put_", _moved, _written)
    name("scatter scatter_ scatter_add scatter_add_ index_copy index_copy_ index_add index_add_ masked_scatter masked_scatter_",
         _moved, _scattered)  # fmt: skip
    found[torch._VF._pack_padded_sequence] = (_moved, _packed)  # pyright: ignore[reportAttributeAccessIssue]
    found[torch._VF._pad_packed_sequence] = (_moved, None)  # pyright: ignore[reportAttributeAccessIssue]
    found[Tensor.__getitem__] = (_pattern, _read)
    found[Tensor.__setitem__] = (_pattern, _written)
    found[F.embedding] = (_moved, _looked_up)
    for view in (Tensor.T, Tensor.mT, Tensor.H, Tensor.mH):  # pyright: ignore
        found[view.__get__] = (_moved, None)  # pyright: ignore[reportAttributeAccessIssue]
    return found


ARRANGES = _arranging()
