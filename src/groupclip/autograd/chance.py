"""Values that hang on random numbers of the pass: a path that they decide can't be taken together.

Samples that ran together and disagree run again, and would draw again: what was drawn before counted only if all agreed. So how
often a sample takes a path would hang on how many others there are (a layer that is dropped one time in five would be dropped one
time in twenty), and no threshold bounds that. So where such a value is read, samples run one at a time, whether they agree or not.

Values are followed from draw to read by the operations of torch that the model calls.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nested import tensors_in
from .operation import is_in_place


def _of(*places: tuple[Any, str]) -> frozenset[Any]:
    return frozenset(getattr(owner, name) for owner, names in places for name in names.split())


#: What may draw.
DRAWS = _of(
    (torch, "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial dropout "
     "dropout_ alpha_dropout feature_dropout feature_alpha_dropout native_dropout rrelu _standard_gamma _sample_dirichlet lstm gru "
     "rnn_tanh rnn_relu"),
    (F, "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu gumbel_softmax fractional_max_pool2d "
     "fractional_max_pool3d multi_head_attention_forward scaled_dot_product_attention"),
    (Tensor, "bernoulli bernoulli_ normal_ uniform_ random_ exponential_ cauchy_ geometric_ log_normal_ multinomial"),
    (torch.nn.init, "uniform_ normal_ trunc_normal_"),
)  # fmt: skip

#: Draws of numbers from 0 up to 1.
_UNIT_DRAWS = _of((torch, "rand rand_like"))

#: Asks for something that is no matter of chance, for all that is known.
_CERTAIN = _of((torch, "isnan isinf isfinite zeros_like ones_like"), (Tensor, "isnan isinf isfinite size dim numel"))

#: Results whose size, or whose truth, hangs on values.
SIZES = _of(
    (torch, "nonzero argwhere masked_select unique unique_consecutive bincount equal allclose"),
    (Tensor, "nonzero argwhere masked_select unique unique_consecutive bincount equal allclose __contains__"),
)
REPEATS = _of((torch, "repeat_interleave"), (Tensor, "repeat_interleave"))

_BELOW = _of((torch, "lt less"), (Tensor, "lt less __lt__"))
_FROM = _of((torch, "ge greater_equal"), (Tensor, "ge greater_equal __ge__"))
_ABOVE = _of((torch, "gt greater"), (Tensor, "gt greater __gt__"))
_UP_TO = _of((torch, "le less_equal"), (Tensor, "le less_equal __le__"))

_COMPARES = _BELOW | _FROM | _ABOVE | _UP_TO

#: What isn't marked for a marked argument, or not always.
UNUSUAL = _CERTAIN | _COMPARES

MARK = "_groupclip_chance"
ANY, _UNIT = 1, 2


class Chance:
    """Follows random numbers through one run.

    Attributes:
        drawn: whether any were drawn, so far: else there is nothing to follow.
    """

    def __init__(self) -> None:
        self.drawn = False

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, before: bytes | None, *, marked: bool) -> None:
        """Mark a result that hangs on random numbers.

        Args:
            before: the generator's state, if the operation may draw.
            marked: an argument hangs on them.
        """
        drawn = before is not None and _drew(before, args, kwargs, result)
        if drawn:
            self.drawn = True
        elif not marked or func in _CERTAIN or (func in _COMPARES and _is_certain(func, args)):
            return
        kind = _UNIT if drawn and func in _UNIT_DRAWS else ANY
        for tensor in (result,) if isinstance(result, Tensor) else tensors_in(result):
            setattr(tensor, MARK, kind)
        if func.__name__[-1] == "_" and is_in_place(func) and isinstance(args[0], Tensor):
            setattr(args[0], MARK, kind)


def decides(func: Any, args: Any, kwargs: Any, reads: Any) -> bool:
    """Return whether an operation with a marked argument lets random numbers decide what the model's code does next.

    Args:
        reads: operations that give a value to the host.
    """
    if func in reads or func in SIZES:
        return True
    if func in REPEATS:
        return is_marked((args[1:], kwargs))
    return any(map(_picks, args[1] if type(args[1]) is tuple else args[1:]))


def is_marked(value: Any) -> bool:
    """Return whether a tensor in it hangs on random numbers."""
    return any(MARK in t.__dict__ for t in tensors_in(value))


def _drew(before: bytes, args: Any, kwargs: Any, result: Any) -> bool:
    if kwargs.get("generator") is not None:
        return True
    for value in (result, *args):
        if isinstance(value, Tensor) and value.device.type not in _HERE:
            return True  # another generator: as good as any
    with torch._C._DisableTorchDispatch():
        return before != torch.default_generator.get_state().numpy().tobytes()


_HERE = ("cpu", "meta")


def _picks(index: Any) -> bool:
    """Return whether a part of an index, by chance, picks more or less."""
    if isinstance(index, slice):
        return is_marked((index.start, index.stop, index.step))
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) and MARK in index.__dict__


def _is_certain(func: Any, args: Any) -> bool:
    """Return whether a number from 0 up to 1 is compared with one that it never or always is below: a rate of zero."""
    if len(args) != 2 or not isinstance(args[1], (int, float)) or getattr(args[0], MARK, ANY) != _UNIT:
        return False
    rate = args[1]
    if func in _BELOW or func in _FROM:
        return rate <= 0 or rate >= 1
    return (func in _ABOVE or func in _UP_TO) and (rate < 0 or rate >= 1)
