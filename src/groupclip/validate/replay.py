"""Passes that can be compared: on chosen samples, with the same random draws, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..batch import replaced, tensors_in
from ..layout import same_random_numbers, unchanged

Losses = Callable[..., Tensor]


class Batch:
    """The user's example batch, from which samples can be taken.

    Args:
        data: the arguments of the loss function after the model (a tuple or list), or its one argument (a mapping or a
            tensor). In every tensor as long as the first, dimension 0 is the sample.
    """

    def __init__(self, data: Any) -> None:
        self.data = (data,) if isinstance(data, (Mapping, Tensor)) else tuple(data)
        tensors = [t for t in tensors_in(self.data) if t.dim() > 0]
        if not tensors:
            raise TypeError("the batch holds no tensor with a batch dimension; pass e.g. (inputs, labels)")
        self.size = tensors[0].shape[0]

    def _each(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        def of(value: Any) -> Any:
            own = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == self.size
            return change(value.detach()) if own else value

        return replaced(self.data, of)

    def pick(self, *samples: int) -> tuple[Any, ...]:
        """The samples with these indices, in this order."""
        return self._each(lambda t: t[list(samples)])

    def changed(self, samples: Sequence[int], *, times: Mapping[int, float]) -> tuple[Any, ...]:
        """As :meth:`pick`, the sample at position ``i`` of the result with its real entries multiplied by ``times[i]``
        (and by zero, with all its entries).
        """

        def change(t: Tensor) -> Tensor:
            t = t[list(samples)]
            for i, factor in times.items():
                if t.is_floating_point() or factor == 0:
                    t[i] = t[i] * factor if factor else torch.zeros_like(t[i])
            return t

        return self._each(change)

    @property
    def has_real_inputs(self) -> bool:
        return any(t.is_floating_point() and t.dim() > 0 and t.shape[0] == self.size for t in tensors_in(self.data))


class ConstantDraws(TorchDispatchMode):
    """Random numbers of torch replaced by constants, so that a sample is treated alike in every batch and place.

    Dropout keeps everything, a uniform number is a little below the middle of its range, a normal one half a deviation above
    the mean, an integer the lowest. A random permutation moves every sample, so that a model that mixes samples at random
    does mix them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.half = False  # whether anything was computed in half precision (autocast, say)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = _DRAWS.get(func.overloadpacket)
        result = func(*args, **kwargs) if draw is None else draw(func, args, kwargs)
        self.half = self.half or (isinstance(result, Tensor) and result.dtype in (torch.bfloat16, torch.float16))
        return result


def _in_place(value: Callable[[Sequence[Any], Mapping[str, Any]], Any]) -> Callable[..., Any]:
    return lambda func, args, kwargs: args[0].fill_(value(args[1:], kwargs))


def _filled(value: float) -> Callable[..., Any]:
    """For factories and ``*_like``: the operation is run for its shape, dtype and device."""
    return lambda func, args, kwargs: func(*args, **kwargs).fill_(value)


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: float) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _middle(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    low, high = _given(args, kwargs, 0, "from", 0.0), _given(args, kwargs, 1, "to", 1.0)
    return low + _UNIFORM * (high - low)


def _above_mean(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    return _given(args, kwargs, 0, "mean", 0.0) + _given(args, kwargs, 1, "std", 1.0) / 2


def _normal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    result = func(*args, **kwargs)
    return result.zero_().add_(_above_mean(args, kwargs))


def _deranged(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    return func(*args, **kwargs).sort().values.roll(1)


def _lowest(place: int) -> Callable[..., Any]:
    """For random integers: the lowest, which stands at this place of the arguments where it is given."""

    def fill(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        low = args[place] if "low" in func._overloadname else 0
        return func(*args, **kwargs).fill_(low)

    return fill


_UNIFORM = 0.47  # not one half: `rand < 0.5` keeps
_aten = torch.ops.aten
_DRAWS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_: _in_place(lambda args, kwargs: 1),
    _aten.bernoulli: _filled(1.0),
    _aten.uniform_: _in_place(_middle),
    _aten.normal_: _in_place(_above_mean),
    _aten.normal: _normal,
    _aten.rand: _filled(_UNIFORM),
    _aten.rand_like: _filled(_UNIFORM),
    _aten.randint: _lowest(0),
    _aten.randint_like: _lowest(1),
    _aten.randn: _filled(0.5),
    _aten.randn_like: _filled(0.5),
    _aten.exponential_: _in_place(lambda args, kwargs: 1.0),
    _aten.randperm: _deranged,
    _aten.native_dropout: lambda func, args, kwargs: (args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)),
}


@contextmanager
def comparable(model: nn.Module) -> Iterator[ConstantDraws]:
    """Inside, every pass draws the same numbers; after it, model and generators are as they were."""
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with same_random_numbers(devices), unchanged(model), ConstantDraws() as draws:
        yield draws


@contextmanager
def kept_gradients(model: nn.Module) -> Iterator[None]:
    """The user's ``p.grad`` put aside, and put back."""
    held = [(p, p.grad) for p in model.parameters()]
    for p, _ in held:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in held:
            p.grad = grad
