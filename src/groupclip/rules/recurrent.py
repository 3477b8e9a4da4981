"""``nn.RNN``, ``nn.GRU``, ``nn.LSTM`` and their cells: layer by layer, each direction with gradients of its own steps.

The values are torch's own. Rows of all steps of all samples lie one after another, samples innermost: a packed sequence of one
sample becomes that of all samples of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES, spread
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..persample.outer import Outer
from .recurrence import GATES, GRU, LSTM, RELU, TANH, Steps, Weights, attach_gradients


def _innermost(x: Tensor) -> Tensor:
    """Turn ``[size, N, f]`` into rows ``[N * size, f]``."""
    return x.transpose(0, 1).flatten(0, 1)


def _outermost(rows: Tensor, size: int) -> Tensor:
    """Turn ``[N * size, f]`` into ``[size, N, f]``."""
    return rows.unflatten(0, (-1, size) if size else (0, 0)).transpose(0, 1)


def _layers(kind: str) -> Callable[..., Any]:
    function = getattr(torch, kind)

    def rule(call: Call, input: Any, *args: Any) -> Any:
        if isinstance(args[2], (list, tuple)):  # a packed sequence
            sizes, states, params, biased, depth, dropout, train, double = args
            first = False
        else:
            states, params, biased, depth, dropout, train, double, first = args
            sizes = None
        frame: tuple[int, int] | None = None  # steps, sequences of a sample; a packed sequence has none
        size = call.size
        x = call.samples(input)
        if size == 0:
            raise NotSplit
        if sizes is None:  # [size, T, N, d], or batch first
            x = x.transpose(1, 2) if first else x
            length, count = frame = (x.shape[1], x.shape[2])
            rows, steps = _innermost(x.flatten(1, 2)), [count * size] * length
        else:
            rows, steps = _innermost(x), [n * size for n in _agree_on_sizes(call, sizes)]
        states = _states(call, tuple(states) if kind == LSTM else (states,))
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
                    return function(rows, torch.tensor(steps), given, values, biased, 1, 0.0, False, double)
                data = rows.view(len(steps), steps[0], rows.shape[1])
                out, *last = function(data, given, values, biased, 1, 0.0, False, double, False)
                return out.flatten(0, 1), *last

            outs, last = _layer(call, kind, steps, rows, begin, each[own], run)
            ends += last
            rows = outs
            if dropout and train and layer < depth - 1:
                rows = rows if sizes is not None else rows.view(len(steps), steps[0], -1)  # as torch's own layer draws
                rows = F.dropout(rows, dropout).view(-1, rows.shape[-1])
        # [layers, N * size, H] to [size, layers, N, H]
        final = [torch.stack(state).unflatten(1, (-1, size)).permute(2, 0, 1, 3) for state in zip(*ends, strict=True)]
        out = _outermost(rows, size)
        if frame is not None:
            out = out.unflatten(1, frame)
            out = out.transpose(1, 2) if first else out
        return out, *final

    return rule


def _cell(kind: str) -> Callable[..., Any]:
    function = getattr(torch, f"{kind}_cell")

    def rule(call: Call, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        x = call.samples(input)  # [size, N, d]
        size = call.size
        if x.dim() != 3 or size == 0:
            raise NotSplit
        states = tuple(_innermost(_of_each(call, state)) for state in (tuple(hx) if kind == LSTM else (hx,)))
        weights = Weights(w_ih, w_hh, b_ih, b_hh, None)
        _refuse_computed(call, weights)

        def run(rows: Tensor) -> tuple[Tensor, ...]:
            given = states if kind == LSTM else states[0]
            found = function(rows, given, *(call.value(w) for w in (w_ih, w_hh, b_ih, b_hh)))
            hidden, *cell = found if kind == LSTM else (found,)
            return hidden, hidden.unsqueeze(0).clone(), *(c.unsqueeze(0) for c in cell)

        begin = tuple(state.unsqueeze(0) for state in states)
        rows = _innermost(x)
        _, [last] = _layer(call, kind, [len(rows)], rows, begin, [weights], run)
        found = tuple(_outermost(state, size) for state in last)
        return found if kind == LSTM else found[0]

    return rule


def _layer(
    call: Call, kind: str, sizes: Sequence[int], rows: Tensor, begin: tuple[Tensor, ...], each: Sequence[Weights],
    run: Callable[[Tensor], tuple[Tensor, ...]],
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:  # fmt: skip
    """Return one layer: its outputs ``[N, directions H]``, and the last states of each direction."""
    with torch.no_grad():
        out, *last = run(rows)
    width = out.shape[1] // len(each)
    outs: list[Tensor] = []
    ends: list[tuple[Tensor, ...]] = []
    for i, weights in enumerate(each):
        steps, first = Steps(tuple(sizes), backwards=i == 1), tuple(state[i] for state in begin)
        values = (out[:, i * width : (i + 1) * width], *(state[i] for state in last))
        hooks = _hooks(call, kind, steps, weights, rows, values[0], first[0])
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
) -> tuple[Tensor, ...]:
    """Tensors by whose gradients the weights of one direction are booked; nobody reads their values."""
    names = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
    used = [name for name in names if call.is_private(getattr(weights, name))]
    if not used:
        return ()
    height = weights.w_hh.shape[0]
    widths = [height, height] + ([] if weights.w_hr is None else [height // GATES[kind] + out.shape[1]])
    empty = [out.new_zeros(()).expand(len(out), width) for width in widths]

    size = call.size

    def by_sample(rows: Tensor) -> Tensor:
        return _outermost(rows, size)

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


def _agree_on_sizes(call: Call, sizes: Any) -> list[int]:
    """Return how many sequences of a sample take part in each step: the same for all samples that run together."""
    if not call.holds(sizes):
        return sizes.tolist()
    found = call.samples(sizes)
    if not bool((found == found[0]).all()):
        raise NotSplit
    return found[0].tolist()


def _of_each(call: Call, state: Any) -> Tensor:
    """Return a state of all samples; one that is learnt is expanded for each."""
    return spread(call.part, state) if call.is_private(state) else call.samples(state)


def _states(call: Call, states: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Initial states ``[layers, N * size, H]``, from ``[layers, N, H]`` of each sample."""
    return tuple(_of_each(call, state).permute(1, 2, 0, 3).flatten(1, 2) for state in states)


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
    """Refuse weights computed from the batch: they need a gradient too, which isn't made here."""
    if any(call.value(w).requires_grad for w in weights.given()):
        raise NotSplit


for _kind in (TANH, RELU, GRU, LSTM):
    RULES[getattr(torch, _kind)] = _layers(_kind)
    RULES[getattr(torch, f"{_kind}_cell")] = _cell(_kind)
