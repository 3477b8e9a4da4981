"""Private tensors with a row for every sample, that an operation lines up with the batch: activations from there on.

A class token expanded over the batch, position scores repeated for every sample, a relative bias plus a mask of all
windows: such a tensor depends on parameters alone, but what lines up row by row with the samples of an activation has
gradients of sample i in rows of sample i only. Whether an operation does line up is tried out, on random numbers: values
at hand (zeros, equal rows) may agree by chance.

Until it meets an activation a tensor's dimension 0 is nothing but a dimension, however long: a position table may have as
many rows as there are samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.func import vmap

from .batch import replaced
from .call import Call, NotSplit
from .layout import Axis
from .operands import PrivateTensor

if TYPE_CHECKING:
    from .derived import Rows


def meet(call: Call) -> Any:
    """Run an operation that lines up private tensors with the samples of an activation.

    Raises:
        NotSplit: none does, or it isn't certain where the activations' samples are.
    """
    fitting = [p for p in call.privates if isinstance(p, PrivateTensor) and Axis.MAJOR.fits(p.shape, call.batch)]
    if not fitting or call.batch == 0 or call.in_place:
        raise NotSplit
    plain, axes = call.plain(), call.plain_axes()
    if any(axis is Axis.MIXED and t.requires_grad for axis, t in zip(axes, plain, strict=True)):
        raise NotSplit
    activations = [t for axis, t in zip(axes, plain, strict=True) if axis is Axis.MAJOR]
    if not activations or not _row_by_row(call, [*fitting, *activations]):
        raise NotSplit
    return call.lined_up({id(p): call.aligned_rows(p) for p in fitting}, activations)


def carried(call: Call) -> Rows | None:
    """How to read the result of an operation on tensors with rows as activations: None if none has."""
    batch = call.batch
    with_rows = [p for p in call.privates if isinstance(p, PrivateTensor) and p._derived.rows is not None]
    plain = call.plain()
    if batch == 0 or any(t.requires_grad for t in plain):
        return None
    constants = [t for t in plain if t.dim() > 1 and Axis.MAJOR.fits(t.shape, batch)]
    if not with_rows and not constants:
        return None

    def rows() -> Tensor:
        if not _row_by_row(call, [*with_rows, *constants]):
            raise NotSplit
        result = call.lined_up({id(p): call.aligned_rows(p) for p in with_rows}, constants)
        if not isinstance(result, Tensor) or call.is_private(result):
            raise NotSplit
        return result

    return rows


def _row_by_row(call: Call, lined_up: Sequence[Tensor]) -> bool:
    """Whether sample i's rows of the result come from sample i's rows of ``lined_up``, in order: tried on random numbers."""
    generator: dict[torch.device, torch.Generator] = {}

    def drawn(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.detach()
        source = generator.setdefault(x.device, torch.Generator(x.device).manual_seed(0))
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=source)

    batch, own = call.batch, {id(t): None for t in lined_up}
    shared = {id(p): drawn(call.value(p)) for p in call.privates if id(p) not in own}
    values = [drawn(call.value(t)) for t in {id(t): t for t in lined_up}.values()]

    def run(*rows: Tensor) -> Any:
        stand_ins = shared | dict(zip(own, rows, strict=True))
        args, kwargs = replaced(
            (call.args, dict(call.kwargs)),
            lambda v: stand_ins.get(id(v), v.detach() if isinstance(v, Tensor) else v),
        )
        return call.func(*args, **kwargs)

    with torch.no_grad():
        try:
            _functorch._set_vmap_fallback_warning_enabled(False)
            # First apart: where random numbers are asked for, vmap refuses before any is drawn.
            apart = vmap(run)(*(Axis.MAJOR.split(v, batch) for v in values))
            together = run(*values)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return False  # shapes that don't fit, random numbers, or an operation that vmap can't split
        if not isinstance(together, Tensor) or not Axis.MAJOR.fits(together.shape, batch):
            return False
        return _same(Axis.MAJOR.split(together, batch), apart)


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    return bool(torch.isclose(x, y, rtol=tolerance, atol=tolerance).all())
