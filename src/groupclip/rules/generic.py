"""The generic rule: any one operation, sample by sample, exact and slow.

The operation is replayed under ``vmap`` on each sample's slice of its operands, with the parameters shared; the
slices of its outputs must come out as the operation itself gave them, so an operation that mixes samples, or whose
sample axis was misread, is noticed. Then the same replay is differentiated in the backward pass.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.func import vjp, vmap

from ..call import Call, NotSplit
from ..layout import Axis
from ..operands import PrivateParameter, PrivateTensor
from ..persample.base import PerSample
from ..persample.dense import Dense

_log = logging.getLogger("groupclip")
_said: set[str] = set()


def run_by_sample(call: Call) -> Any:
    """Run the operation of ``call`` and tie its outputs to its private operands.

    Raises:
        NotSplit: no reading of the operands' dimensions reproduces the outputs sample by sample.
    """
    if call.batch == 0 or call.in_place:
        raise NotSplit
    leaves: list[Any] = []
    layout = _flatten((call.args, dict(call.kwargs)), leaves)
    privates = [i for i, v in enumerate(leaves) if call.is_private(v)]
    plain = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and i not in privates]
    choices = [_axes(call, leaves[i], i) for i in plain]
    if not any(None not in c for c in choices):
        raise NotSplit  # nothing here is the batch
    values = [call.value(v) for v in leaves]
    detached = [v.detach() if isinstance(v, Tensor) else v for v in values]

    func, batch = call.func, call.batch  # not ``call``: it holds the operands, and what is booked must not keep them

    def replay(shared: tuple[Tensor, ...], sliced: tuple[Tensor, ...], where: list[int]) -> tuple[Tensor, ...]:
        operands = list(detached)
        for index, value in zip([*privates, *where], [*shared, *sliced], strict=True):
            operands[index] = value
        replay_args, replay_kwargs = _unflatten(layout, operands)
        out = func(*replay_args, **replay_kwargs)
        outputs = tuple(o for o in (out if isinstance(out, (tuple, list)) else [out]) if o is not None)
        if not outputs or not all(isinstance(o, Tensor) for o in outputs):
            raise TypeError(f"{func} gives other things than tensors")
        return outputs

    for reading in itertools.islice(itertools.product(*choices), 32):
        where = [i for i, axis in zip(plain, reading, strict=True) if axis is not None]
        axes = [axis for axis in reading if axis is not None]
        if not axes:
            continue
        found = _reproduces(call, replay, [detached[i] for i in privates], [detached[i] for i in where], where, axes)
        if found is not None:
            break
    else:
        raise NotSplit
    # Only now: an operation that draws random numbers has been refused, and none of the model's were drawn.
    args, kwargs = _unflatten(layout, values)
    result = call.func(*args, **kwargs)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [o for o in outputs if o is not None]
    if any(o.is_inference() for o in tensors):
        raise NotSplit
    _say_once(call)
    kinds = [(o.shape, o.dtype, o.device) for o in tensors]
    shared = [detached[i] for i in privates]
    detached = [None if i in where else v for i, v in enumerate(detached)]  # those come as saved tensors

    def book(saved: Any, grads: Any) -> list[PerSample]:
        sliced = tuple(_split(t, axis, batch) for axis, t in zip(axes, saved, strict=True))
        cotangents = tuple(
            _split(torch.zeros(shape, dtype=dtype, device=device) if g is None else g, axis, batch)
            for axis, (shape, dtype, device), g in zip(found, kinds, grads, strict=True)
        )

        def one(slices: tuple[Tensor, ...], cotangent: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return vjp(lambda *values: replay(values, slices, where), *shared)[1](cotangent)

        return [Dense(g) for g in _each(batch, one, sliced, cotangents)]

    tapped = call.tap(tensors, [leaves[i] for i in where], [leaves[i] for i in privates], book)
    if not isinstance(result, (tuple, list)):
        return tapped[0]
    remaining = iter(tapped)
    items = [None if o is None else next(remaining) for o in outputs]
    return items if isinstance(result, list) else tuple(items)


def _axes(call: Call, x: Tensor, place: int) -> list[Axis | None]:
    """How the samples may lie in a plain tensor, the likeliest first; None: it is the same for all samples.

    Raises:
        NotSplit: it comes from the batch, and where its samples are isn't certain.
    """
    axis = call.axis(x, place)
    if axis is Axis.MIXED:
        if x.requires_grad:
            raise NotSplit
        axis = Axis.CONSTANT
    if axis is not Axis.CONSTANT:
        return [axis]
    # A constant; but an expanded mask has a row for each sample, which alone makes the shapes fit.
    return [None, *(a for a in (Axis.MAJOR, Axis.SECOND) if a.fits(x.shape, call.batch))]


def _split(x: Tensor, axis: Axis, batch: int) -> Tensor:
    """Samples in front, each keeping its own entries where they were: ``[B, ..]`` of the operation's own shapes."""
    x = axis.split(x, batch)  # [B, k, ..]; for SECOND [B, d0, ..] without the dimension that held the samples
    return x.unsqueeze(2) if axis is Axis.SECOND else x


def _reproduces(
    call: Call, replay: Callable[..., tuple[Tensor, ...]], shared: list[Tensor], operands: list[Tensor], where: list[int],
    axes: list[Axis],
) -> list[Axis] | None:  # fmt: skip
    """The sample axis of each output, if the replay gives every output slice by slice; else None.

    Tried with parameters moved at random: where they are zero or all alike, outputs may agree by chance in an order of the
    samples that isn't theirs, or although the operation mixes them.
    """
    sliced = tuple(_split(t, axis, call.batch) for axis, t in zip(axes, operands, strict=True))
    with torch.no_grad():
        for parameters in (tuple(map(_moved, shared)), tuple(shared)):
            try:
                # torch warns where vmap falls back to a loop; slow is what this rule is, and says.
                _functorch._set_vmap_fallback_warning_enabled(False)
                apart = _each(call.batch, lambda slices, p=parameters: replay(p, slices, where), sliced)
                together = replay(parameters, tuple(operands), where)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                return None  # shapes that don't fit, random numbers, or an operation that vmap can't split
            if not any(bool(torch.isnan(t).any()) for t in together):  # moved out of the operation's domain
                break
        found = [_axis_of(x, y, call.batch) for x, y in zip(together, apart, strict=True)]
        return None if None in found else [axis for axis in found if axis is not None]


def _each(batch: int, function: Callable[..., tuple[Tensor, ...]], *slices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``function`` of each sample's slices, results stacked. One sample needs no vmap, which can't split every operation."""
    if batch != 1:
        return vmap(function)(*slices)
    devices = sorted({t.device.index for group in slices for t in group if t.is_cuda})
    with torch.random.fork_rng(devices):
        return tuple(result.unsqueeze(0) for result in function(*(tuple(t[0] for t in group) for group in slices)))


def _axis_of(together: Tensor, apart: Tensor, batch: int) -> Axis | None:
    """Where the samples are in an output that is given as a whole and slice by slice."""
    fitting = (a for a in (Axis.MAJOR, Axis.SECOND, Axis.MINOR) if a.fits(together.shape, batch))
    return next((a for a in fitting if _same(_split(together, a, batch), apart)), None)


def _moved(parameter: Tensor) -> Tensor:
    """By as much as its own size, or by one where it is zero; the same in every pass."""
    generator = torch.Generator(parameter.device).manual_seed(0)
    if not parameter.numel():
        return parameter
    size = parameter.abs().float().square().mean().sqrt()
    size = torch.where(size > 0, size, torch.ones_like(size))  # no number is asked for: a plan runs on none
    noise = torch.randn(parameter.shape, dtype=torch.float32, device=parameter.device, generator=generator)
    return parameter + (size * noise).to(parameter.dtype)


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    tolerance = 1e-3 if torch.finfo(x.dtype).eps > 1e-8 else 1e-9
    if not x.numel():
        return True
    size = x.detach().abs().nan_to_num(0.0, 0.0, 0.0).amax()
    close = (x - y).abs() <= tolerance * (y.abs() + size)  # torch.isclose would take the size as a number
    return bool((close | (x == y) | (x.isnan() & y.isnan())).all())


def _say_once(call: Call) -> None:
    if call.name not in _said:
        _said.add(call.name)
        _log.info("no rule for %s: its per-sample gradients are computed one sample at a time (exact, slow)", call.name)


def _flatten(value: Any, leaves: list[Any]) -> Any:
    if isinstance(value, (PrivateParameter, PrivateTensor)) or not isinstance(value, (tuple, list, dict)):
        leaves.append(value)
        return len(leaves) - 1
    if isinstance(value, dict):
        return {k: _flatten(v, leaves) for k, v in value.items()}
    return (
        [_flatten(v, leaves) for v in value] if isinstance(value, list) else tuple(_flatten(v, leaves) for v in value)
    )


def _unflatten(layout: Any, leaves: list[Any]) -> Any:
    if isinstance(layout, int):
        return leaves[layout]
    if isinstance(layout, dict):
        return {k: _unflatten(v, leaves) for k, v in layout.items()}
    items = [_unflatten(v, leaves) for v in layout]
    return items if isinstance(layout, list) else tuple(items)
