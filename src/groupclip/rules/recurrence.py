"""One direction of one recurrent layer: values by torch's own operation, and a backward pass that shows each step.

Torch's operation hides what a weight gradient is made of. But outputs are states, so all that a step read is known once
they are: gates are computed again for all steps in one product, and gradients go back step by step in closed form. What
comes out are the gradients of the gates' inputs: p, which ``W_ih x + b_ih`` gave, and r, which ``W_hh h + b_hh`` gave. So
the T uses of a weight are one use of T positions.

Rows of all steps lie one after another, ``[N, ..]``, as in a packed sequence: ``sizes[t]`` samples take part in step t, the
first ones, in an order in which sequences don't get longer.

Source: the equations in the documentation of ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``; gates in torch's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

TANH, RELU, GRU, LSTM = "rnn_tanh", "rnn_relu", "gru", "lstm"
GATES = {TANH: 1, RELU: 1, GRU: 3, LSTM: 4}


@dataclass(frozen=True)
class Steps:
    """Says how many samples take part in each step, and in which direction the steps go."""

    sizes: tuple[int, ...]
    backwards: bool

    @property
    def order(self) -> list[slice]:
        """The rows of each step, in the order in which states are computed."""
        ends = accumulate(self.sizes)  # not by torch: in a pass without numbers (groupclip.memory) there would be none
        rows = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        return rows[::-1] if self.backwards else rows

    def before(self, states: Tensor, first: Tensor) -> Tensor:
        """Return ``[N, H]``: the state that each row started from, of the states that came out and the first ones ``[B, H]``."""
        previous, state = torch.empty_like(states), first[:0]
        for rows in self.order:
            state = previous[rows] = _entering(state, first, rows.stop - rows.start)
            state = states[rows]
        return previous


def _entering(state: Tensor, first: Tensor, size: int) -> Tensor:
    """Return the states of ``size`` samples: those who have ended leave, and those who begin now bring their first one."""
    return state[:size] if len(state) >= size else torch.cat([state, first[len(state) : size]])


@dataclass(frozen=True, eq=False)
class Weights:
    """Holds one direction: ``w_ih [G H, d]``, ``w_hh [G H, H']``, biases ``[G H]`` or None; ``w_hr [H', H]`` of a projection."""

    w_ih: Any
    w_hh: Any
    b_ih: Any
    b_hh: Any
    w_hr: Any

    def given(self) -> list[Any]:
        return [w for w in (self.w_ih, self.w_hh, self.b_ih, self.b_hh, self.w_hr) if w is not None]


def attach_gradients(
    kind: str, steps: Steps, x: Tensor, first: tuple[Tensor, ...], values: Sequence[Tensor], weights: Weights,
    hooks: Sequence[Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the values of one direction, differentiable.

    Args:
        kind: of cell.
        steps: see there.
        x: ``[N, d]`` inputs; first: initial states, hidden ``[B, H']`` and, of an LSTM, cell ``[B, H]``.
        values: outputs ``[N, H']``, and last states like ``first``; computed without autograd.
        weights: their values; no gradient goes there.
        hooks: tensors whose gradients are wanted: p and r, ``[N, G H]``; with a projection also ``[N, H + H']``, whose
            gradient is the projection's input next to the gradient of its output.
    """
    return _Recurrence.apply(kind, steps, weights, len(first), x, *first, *values, *hooks)  # pyright: ignore[reportReturnType]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, steps: Steps, weights: Weights, states: int, x: Tensor, *tensors: Tensor) -> Any:
        first, values, hooks = tensors[:states], tensors[states : 2 * states + 1], tensors[2 * states + 1 :]
        ctx.kind, ctx.steps, ctx.states, ctx.hooks, ctx.own = kind, steps, states, len(hooks), weights
        given = weights.given()
        ctx.save_for_backward(x, values[0], *first, *given)
        return tuple(v.detach() for v in values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, out, *rest = (t.to(grads[0].dtype) for t in ctx.saved_tensors)
        first, given = rest[: ctx.states], iter(rest[ctx.states :])
        own: Weights = ctx.own
        weights = Weights(
            *(None if w is None else next(given) for w in (own.w_ih, own.w_hh, own.b_ih, own.b_hh, own.w_hr))
        )
        slopes = _slopes(ctx.kind, ctx.steps, x, out, first, weights)
        p, r, projection, starts = _back(ctx.kind, ctx.steps, slopes, weights, grads[0], grads[1:])
        hooks = [p, r] if projection is None else [p, r, projection]
        return None, None, None, None, p @ weights.w_ih, *starts, *[None] * (1 + ctx.states), *hooks[: ctx.hooks]


@dataclass(frozen=True, eq=False)
class _Slopes:
    """Holds the slopes of all rows. The gradient of r is ``s * recurrent``, that of p is ``s * inputs``.

    With s the gradient of the new state, once for each gate; for an LSTM that of the cell for the gates that make it, and
    that of the hidden state for the last. ``keep``: of the new state (LSTM: cell) with respect to the old one, apart from r.
    ``cell``: of an LSTM's output with respect to its cell. ``unprojected``: what a projection reads.
    """

    recurrent: Tensor
    inputs: Tensor
    keep: Tensor | None = None
    cell: Tensor | None = None
    unprojected: Tensor | None = None


def _slopes(kind: str, steps: Steps, x: Tensor, out: Tensor, first: Sequence[Tensor], weights: Weights) -> _Slopes:
    if kind in (TANH, RELU):
        slope = 1 - out * out if kind == TANH else (out > 0).to(out.dtype)
        return _Slopes(slope, slope)
    previous = steps.before(out, first[0])
    p, r = F.linear(x, weights.w_ih, weights.b_ih), F.linear(previous, weights.w_hh, weights.b_hh)
    if kind == GRU:
        reset, update = torch.sigmoid(p[:, : 2 * out.shape[1]] + r[:, : 2 * out.shape[1]]).chunk(2, 1)
        new = torch.tanh(p[:, 2 * out.shape[1] :] + reset * r[:, 2 * out.shape[1] :])
        d_new = (1 - update) * (1 - new * new)
        d_update = (previous - new) * update * (1 - update)
        d_reset = d_new * r[:, 2 * out.shape[1] :] * reset * (1 - reset)
        return _Slopes(
            torch.cat([d_reset, d_update, d_new * reset], 1), torch.cat([d_reset, d_update, d_new], 1), update
        )
    i, f, g, o = (p + r).chunk(4, 1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    fresh, cells, before, cell = i * g, torch.empty_like(f), torch.empty_like(f), first[1][:0]
    for rows in steps.order:
        before[rows] = cell = _entering(cell, first[1], rows.stop - rows.start)
        cell = torch.addcmul(fresh[rows], f[rows], cell)
        cells[rows] = cell
    bent = torch.tanh(cells)
    slopes = torch.cat([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)], 1)
    return _Slopes(slopes, slopes, f, o * (1 - bent * bent), o * bent)


def _back(
    kind: str, steps: Steps, slopes: _Slopes, weights: Weights, grad: Tensor, last: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return gradients of p, r, of a projection (see :func:`attach_gradients`), and of the first states.

    Args:
        grad: ``[N, H']`` of the outputs; last: of the last states.
    """
    gates, totals = GATES[kind], torch.empty_like(grad)
    r = torch.empty_like(slopes.recurrent)
    starts = [torch.zeros_like(state) for state in last]
    carried = [state[:0] for state in last]  # gradients of the states that the steps gone so far started from
    for rows in reversed(steps.order):
        size = rows.stop - rows.start
        for start, old in zip(starts, carried, strict=True):
            start[size : len(old)] = old[size:]  # of samples that began after this step
        carried = [_entering(old, state, size) for old, state in zip(carried, last, strict=True)]
        hidden = grad[rows] + carried[0]
        totals[rows] = hidden
        if kind == LSTM:
            assert slopes.cell is not None and slopes.keep is not None
            made = hidden if weights.w_hr is None else hidden @ weights.w_hr
            cell = torch.addcmul(carried[1], made, slopes.cell[rows])
            r[rows] = torch.cat([cell, cell, cell, made], 1) * slopes.recurrent[rows]
            carried = [r[rows] @ weights.w_hh, cell * slopes.keep[rows]]
        else:
            r[rows] = hidden.repeat(1, gates) * slopes.recurrent[rows]
            older = r[rows] @ weights.w_hh
            carried = [older if slopes.keep is None else torch.addcmul(older, hidden, slopes.keep[rows])]
    for start, old in zip(starts, carried, strict=True):
        start[: len(old)] = old
    p = totals.repeat(1, gates) * slopes.inputs if kind == GRU else r
    if weights.w_hr is None:
        return p, r, None, starts
    assert slopes.unprojected is not None
    return p, r, torch.cat([slopes.unprojected, totals], 1), starts
