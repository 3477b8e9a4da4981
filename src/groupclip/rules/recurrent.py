"""``nn.RNN``, ``nn.GRU``, ``nn.LSTM`` and their cells: layer by layer, each direction with gradients of its own steps.

The values are torch's own, and so are the numbers that dropout between layers draws. The samples of a packed sequence come
in the order of their lengths. Which sample is which is noted when the layer is called (:func:`note_order`), or learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakTensorKeyDictionary

from ..call import Call, NotSplit
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..persample.outer import Outer
from ..private import RULES, dispatch
from .ragged import Ragged
from .recurrence import GATES, GRU, LSTM, RELU, TANH, Steps, Weights, attach_gradients

#: From rows of all steps ``[N, f]`` to those of each sample ``[B, T, f]``.
_BySample = Callable[[Tensor], Tensor]

_orders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def note_order(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Hook before a recurrent layer: keeps which sample is which in a packed sequence, as long as its data live."""
    given = args[0] if args else kwargs.get("input")
    if isinstance(given, PackedSequence) and given.sorted_indices is not None:
        _orders[given.data] = given.sorted_indices


def _layers(kind: str) -> Callable[..., Any]:
    function = getattr(torch, kind)

    def rule(call: Call, input: Any, *args: Any) -> Any:
        if isinstance(args[2], (list, tuple)):  # a packed sequence
            sizes, states, params, biased, depth, dropout, train, double = args
            first = False
        else:
            states, params, biased, depth, dropout, train, double, first = args
            sizes = None
        states = tuple(states) if kind == LSTM else (states,)
        if sizes is not None:
            rows, steps, by_sample = _packed(call, input, sizes)
        else:
            rows, steps, by_sample = _padded(call, input, first)
        states = _states(call, states, sizes is not None)
        directions = 2 if double else 1
        each = _weights(call, params, biased, directions * depth)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(depth):
            own = slice(layer * directions, (layer + 1) * directions)
            begin = tuple(state[own] for state in states)

            def run(rows: Tensor, begin: tuple[Tensor, ...] = begin, own: slice = own) -> tuple[Tensor, ...]:
                values = [call.value(w) for weights in each[own] for w in weights.given()]
                given = begin if kind == LSTM else begin[0]
                if sizes is not None:
                    return function(rows, sizes, given, values, biased, 1, 0.0, False, double)
                data = rows.view(len(steps), steps[0], rows.shape[1])
                out, *last = function(data, given, values, biased, 1, 0.0, False, double, False)
                return out.flatten(0, 1), *last

            outs, last = _layer(call, kind, steps, rows, begin, each[own], run, by_sample)
            ends += last
            rows = outs
            if dropout and train and layer < depth - 1:
                rows = _dropped(rows, dropout, None if sizes is not None else steps)
        final = [torch.stack(state) for state in zip(*ends, strict=True)]
        if sizes is None:
            rows = rows.view(len(steps), steps[0], rows.shape[1])
            rows = rows.transpose(0, 1) if first else rows
        return rows, *final

    return rule


def _cell(kind: str) -> Callable[..., Any]:
    function = getattr(torch, f"{kind}_cell")

    def rule(call: Call, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = tuple(hx) if kind == LSTM else (hx,)
        axis = _of_rows(call, input, states)
        if any(call.is_private(state) for state in states) and (axis is Axis.MINOR or len(input) != call.batch):
            raise NotSplit
        states = tuple(call.aligned_rows(state) if call.is_private(state) else state for state in states)
        weights = Weights(w_ih, w_hh, b_ih, b_hh, None)
        _refuse_computed(call, weights)

        def run(rows: Tensor) -> tuple[Tensor, ...]:
            given = states if kind == LSTM else states[0]
            found = function(rows, given, *(call.value(w) for w in (w_ih, w_hh, b_ih, b_hh)))
            hidden, *cell = found if kind == LSTM else (found,)
            return hidden, hidden.unsqueeze(0).clone(), *(c.unsqueeze(0) for c in cell)

        begin = tuple(state.unsqueeze(0) for state in states)
        batch = call.batch

        def by_sample(rows: Tensor) -> Tensor:
            return axis.split(rows, batch)

        _, [last] = _layer(call, kind, [len(input)], input, begin, [weights], run, by_sample)
        return last if kind == LSTM else last[0]

    return rule


def _of_rows(call: Call, input: Any, states: Sequence[Any]) -> Axis:
    """Where the samples are in the rows of a cell: its input and its states line up, and either may be a constant."""
    # A state of zeros to begin with is no batch: its place is another than that of the states that come out.
    found = {call.axis(input, 0)} | {call.axis(s, 2 * i + (2 if s.requires_grad else 1)) for i, s in enumerate(states)}
    found -= {Axis.CONSTANT}
    if call.is_private(input) or input.dim() != 2 or len(found) != 1 or found & {Axis.SECOND, Axis.MIXED}:
        raise NotSplit
    return found.pop()


def _layer(
    call: Call, kind: str, sizes: Sequence[int], rows: Tensor, begin: tuple[Tensor, ...], each: Sequence[Weights],
    run: Callable[[Tensor], tuple[Tensor, ...]], by_sample: _BySample,
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:  # fmt: skip
    """One layer: its outputs ``[N, directions H]``, and the last states of each direction."""
    with torch.no_grad():
        out, *last = run(rows)
    width = out.shape[1] // len(each)
    outs: list[Tensor] = []
    ends: list[tuple[Tensor, ...]] = []
    for i, weights in enumerate(each):
        steps, first = Steps(tuple(sizes), backwards=i == 1), tuple(state[i] for state in begin)
        values = (out[:, i * width : (i + 1) * width], *(state[i] for state in last))
        hooks = _hooks(call, kind, steps, weights, rows, values[0], first[0], by_sample)
        plain = Weights(
            *(call.value(w) for w in (weights.w_ih, weights.w_hh, weights.b_ih, weights.b_hh, weights.w_hr))
        )
        found = attach_gradients(kind, steps, rows, first, values, plain, hooks)
        outs.append(found[0])
        ends.append(found[1:])
    # Copied, for the steps are computed again from the outputs, and models do apply in-place activations to them.
    return torch.cat(outs, 1), ends


def _hooks(
    call: Call,
    kind: str,
    steps: Steps,
    weights: Weights,
    rows: Tensor,
    out: Tensor,
    first: Tensor,
    by_sample: _BySample,
) -> tuple[Tensor, ...]:
    """Tensors by whose gradients the weights of one direction are booked; nobody reads their values."""
    names = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
    used = [name for name in names if call.is_private(getattr(weights, name))]
    if not used:
        return ()
    height = weights.w_hh.shape[0]
    widths = [height, height] + ([] if weights.w_hr is None else [height // GATES[kind] + out.shape[1]])
    empty = [out.new_zeros(()).expand(len(out), width) for width in widths]

    def book(saved: Any, grads: Any) -> list[PerSample]:
        x, states, start = saved
        p, r = by_sample(grads[0]), by_sample(grads[1])
        wide = torch.promote_types(p.dtype, torch.float32)
        booked: dict[str, PerSample] = {"b_ih": Dense(p.sum(1, dtype=wide)), "b_hh": Dense(r.sum(1, dtype=wide))}
        if "w_ih" in used:
            booked["w_ih"] = Outer(by_sample(x), p)
        if "w_hh" in used:
            booked["w_hh"] = Outer(by_sample(steps.before(states, start.to(states.dtype))), r)
        if "w_hr" in used:
            projected, g = by_sample(grads[2]).split([height // GATES[kind], states.shape[1]], dim=2)
            booked["w_hr"] = Outer(projected, g)
        return [booked[name] for name in used]

    return call.tap(empty, [rows, out, first], [getattr(weights, name) for name in used], book)


def _padded(call: Call, input: Any, first: bool) -> tuple[Tensor, list[int], _BySample]:
    """Rows of all steps, how many in each, and the way back, for sequences ``[T, R, d]`` or ``[R, T, d]``."""
    x, axis = call.activation(input)
    if x.dim() != 3:
        raise NotSplit
    if not first:
        x = x.transpose(0, 1)
        if axis is not Axis.SECOND and call.batch != 1:
            raise NotSplit
        axis = Axis.MAJOR
    if not axis.fits(x.shape, call.batch) and call.batch != 0:
        raise NotSplit
    count, length = x.shape[:2]
    batch = call.batch

    def by_sample(rows: Tensor) -> Tensor:
        split = axis.split(rows.view(length, count, rows.shape[1]).transpose(0, 1), batch)  # [B, k, T, f]
        return split.reshape(batch, split.shape[1] * length, split.shape[3])

    return x.transpose(0, 1).reshape(length * count, x.shape[2]), [count] * length, by_sample


def _packed(call: Call, input: Any, sizes: Tensor) -> tuple[Tensor, list[int], _BySample]:
    """The same for the data of a packed sequence, ``[N, d]``."""
    if call.is_private(input) or int(sizes[0]) != call.batch:
        raise NotSplit
    counts = sizes.tolist()
    where = torch.cat([torch.arange(n) for n in counts]).to(input.device)
    order = _orders.get(input)
    steps = torch.arange(len(counts)).repeat_interleave(sizes).to(input.device)
    ragged = Ragged(where if order is None else order[where], steps, call.batch, len(counts))
    if order is None and call.batch > 1:
        # Sorted by the loader, or in the model? Samples of unequal length show it, and only they.
        lengths = torch.bincount(ragged.owner).double().requires_grad_()
        if call.axis(lengths[None, :, None], 2) is not Axis.SECOND:
            raise NotSplit
    ragged.check(call, input, 1)
    return input, counts, ragged.padded


def _states(call: Call, states: tuple[Any, ...], packed: bool) -> tuple[Tensor, ...]:
    """Initial states ``[layers, R, H]``: those that are learnt, with a column for each sample."""
    found = []
    for state in states:
        if call.is_private(state):
            if packed or state.shape[1] != call.batch:
                raise NotSplit
            state = call.aligned_rows(dispatch(Tensor.transpose, (state, 0, 1), {})).transpose(0, 1)
        found.append(state)
    return tuple(found)


def _weights(call: Call, params: Sequence[Any], biased: bool, count: int) -> list[Weights]:
    own = len(params) // count
    found = []
    for i in range(count):
        w_ih, w_hh, *others = params[i * own : (i + 1) * own]
        b_ih, b_hh = others[:2] if biased else (None, None)
        w_hr = others[2 if biased else 0 :]
        found.append(Weights(w_ih, w_hh, b_ih, b_hh, w_hr[0] if w_hr else None))
        _refuse_computed(call, found[-1])
    return found


def _refuse_computed(call: Call, weights: Weights) -> None:
    """Weights computed from the batch need a gradient of their own, which isn't made here."""
    if any(call.value(w).requires_grad for w in weights.given()):
        raise NotSplit


def _dropped(rows: Tensor, p: float, steps: list[int] | None) -> Tensor:
    """In the shape in which torch's own operation draws."""
    if steps is None:
        return F.dropout(rows, p)
    return F.dropout(rows.view(len(steps), steps[0], rows.shape[1]), p).flatten(0, 1)


for _kind in (TANH, RELU, GRU, LSTM):
    RULES[getattr(torch, _kind)] = _layers(_kind)
    RULES[getattr(torch, f"{_kind}_cell")] = _cell(_kind)
