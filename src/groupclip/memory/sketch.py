"""Running a model without numbers: on meta tensors that pass for tensors of another device.

No weight and no activation has memory, so any model fits and a pass takes about the time that Python needs for it. What
a pass asks of the numbers themselves is answered as in an ordinary step: every sample is finite, no terms cancel, all
ids differ. A model that asks for more (a number, the rows where a mask is true) can't be run so, and an error says where.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..autograd.dispatch import dispatch
from ..autograd.pass_state import in_backward
from ..autograd.tensors import PrivateParameter, PrivateTensor
from ..errors import UnsupportedOperation
from ..nested import instances_in, replaced, tensors_in
from .blame import asking_module, needs, without_numbers
from .blanks import META, blank
from .integers import CPU, FACTORIES, READ, Integers

aten = torch.ops.aten


class _Answers(TorchDispatchMode):
    """Runs everything on the meta device, and answers what can't be known without numbers."""

    def __init__(self, integers: Integers) -> None:
        super().__init__()
        self._integers = integers
        self._constants = WeakTensorKeyDictionary()  # real tensors that the model holds or makes, and their blanks
        self._untrue: set[int] = set()  # storages that say whether any entry is true
        self._outputs: dict[Any, Any] = {}  # of operations that were run on such operands before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In a backward pass, a pretence would answer for the tensors that are looked at here.
        with torch._C.DisableTorchFunction():
            return self._answer(func, args, dict(kwargs or {}))

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = META
        if self._integers.computable(func, list(tensors_in((args, kwargs)))):
            return func(*args, **(kwargs if asked is None else {**kwargs, "device": CPU}))
        given = args, kwargs
        self._integers.spoil(func, args, kwargs)
        args, kwargs = self._blank(args), self._blank(kwargs)
        place = READ.get(func.overloadpacket)
        if place is not None:
            if not self._integers.known(given[0][place]):
                raise UnsupportedOperation(needs("the lengths of sequences"))
            return func(*args[:place], given[0][place], *args[place + 1 :], **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._number(given[0][0])
        if func is aten.nonzero.default:
            if not in_backward():
                raise UnsupportedOperation(needs("to know which entries of a tensor aren't zero"))
            return args[0].new_empty(0, args[0].dim(), dtype=torch.int64)
        if func is aten._unique2.default:
            x = args[0]
            one = x.new_empty(x.numel())
            return one, x.new_empty(x.shape, dtype=torch.int64), x.new_empty(0, dtype=torch.int64)
        if func is aten.equal.default:
            raise UnsupportedOperation(needs("to know whether two tensors are equal"))
        if func.overloadpacket is aten.any:
            found = func(*args, **kwargs)
            self._untrue.add(found.untyped_storage()._cdata)
            weakref.finalize(found.untyped_storage(), self._untrue.discard, found.untyped_storage()._cdata)
            return found
        if func.overloadpacket in FACTORIES:
            blank_one = self._blank(func(*args, **kwargs))
            made = self._integers.made(func, given[0], {**kwargs, "device": asked}, blank_one)
            return blank_one if made is None else made
        key = _key(func, args, kwargs)
        if key is None:
            return self._blank(func(*args, **kwargs))
        if key not in self._outputs:
            out = self._blank(func(*args, **kwargs))
            operands = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
            if any(t.untyped_storage()._cdata in operands for t in tensors_in(out)):
                _ALIASING[func] = True  # its schema doesn't say so: _unsafe_view
                return out
            self._outputs[key] = replaced(out, _recipe)
            return out
        return _make(self._outputs[key])

    def _blank(self, value: Any) -> Any:
        if all(t.is_meta or _is_number(t) for t in tensors_in(value)):
            return value
        return replaced(value, lambda v: self._blank_of(v) if isinstance(v, Tensor) else v)

    def _blank_of(self, x: Tensor) -> Tensor:
        if x.is_meta or _is_number(x):
            return x
        if x not in self._constants:
            self._constants[x] = blank(x)
        return self._constants[x]

    def _number(self, x: Tensor) -> Any:
        if not x.is_meta and x.dim() == 0:
            return x.item()
        if x.dtype == torch.bool:  # all are finite; none is doubtful
            return x.untyped_storage()._cdata not in self._untrue
        raise UnsupportedOperation(needs("a number of a tensor"))


def _is_number(x: Tensor) -> bool:
    """Return a real scalar, which may meet tensors of any device. One of integers may be an index, which mayn't."""
    return x.dim() == 0 and x.is_floating_point()


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what the shapes of the outputs depend on; None for an operation that returns its operands or views of them."""
    if func not in _ALIASING:
        schema = func._schema
        _ALIASING[func] = func.namespace != "aten" or any(
            a.alias_info is not None for a in (*schema.arguments, *schema.returns)
        )
    if _ALIASING[func]:
        return None
    try:
        key = (func, _facts(args), _facts(tuple(kwargs.items())))
        hash(key)
    except TypeError:
        return None
    return key


_ALIASING: dict[Any, bool] = {}


def _facts(value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.is_meta:
            return value.dtype, "number"
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(_facts(v) for v in value)
    return type(value), value


class _Recipe(tuple[Any, Any, torch.dtype]):
    """Shape, strides and dtype."""


def _recipe(value: Any) -> Any:
    return _Recipe((value.shape, value.stride(), value.dtype)) if isinstance(value, Tensor) else value


def _make(value: Any) -> Any:
    if isinstance(value, _Recipe):
        return torch.empty_strided(value[0], value[1], dtype=value[2], device=META)
    return type(value)(_make(v) for v in value) if isinstance(value, (tuple, list)) else value


#: What autocast runs in the lower precision, on the CPU and on CUDA alike.
_LOWERED: set[Any] = {
    F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, torch.addmm,
    torch.baddbmm, F.conv1d, F.conv2d, F.conv3d, F.scaled_dot_product_attention,
}  # fmt: skip
_MOVES: set[Any] = {Tensor.to, Tensor.cpu, Tensor.cuda}
_FROM_LISTS: set[Any] = {torch.tensor, torch.as_tensor}
_READINGS: set[Any] = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
_FLASH = 1


class _Pretence(TorchFunctionMode):
    """Makes meta tensors pass for tensors of ``device``: for code that asks, for attention kernels, for autocast."""

    def __init__(self, device: torch.device, integers: Integers) -> None:
        super().__init__()
        self._device, self._integers = device, integers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            asking = asking_module()
            if asking == "torch.nn.utils.rnn" and self._integers.known(args[0]):
                return CPU  # lengths of packed sequences lie there, whatever the device
            # Checkpoints compare devices, of which they have read some in the midst of an operation, where no mode is on.
            return META if asking == "torch.utils.checkpoint" else self._device
        if func == Tensor.is_meta.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        if func == Tensor.is_cuda.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return self._device.type == "cuda"
        if func in _MOVES:
            args, kwargs = _stay(args), {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
            if func is not Tensor.to or (len(args) == 1 and not kwargs):
                return args[0]
        if func in _FROM_LISTS and isinstance(args[0] if args else kwargs.get("data"), (list, tuple, np.ndarray)):
            return func(*args, **{**kwargs, "device": "cpu"})  # on the meta device, its numbers would be gone at once
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "cpu":
            kwargs = {**kwargs, "device": META}  # torch would wake the device up
        if func in _READINGS and not self._integers.readable(args[0]):
            raise UnsupportedOperation(needs("the numbers of a tensor"))
        if func is Tensor.backward:
            with self:  # checkpoints run the model again in there
                return _backward(*args, **kwargs)
        private = next(instances_in((args, kwargs), (PrivateParameter, PrivateTensor)), None)
        if private is not None and torch._C._is_torch_function_enabled():
            with self:  # rules ask for devices too, and call the functions below on plain tensors
                return dispatch(func, args, kwargs)
        if func in _LOWERED and torch.is_autocast_enabled(self._device.type):
            lower = torch.get_autocast_dtype(self._device.type)
            args, kwargs = replaced((args, dict(kwargs)), lambda v: _lower(v, lower))
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return the kernel that torch would take on the device: what it saves differs by a T x T matrix."""
        grown = (query, key, value, attn_mask)
        choice = _fused_choice(self._device, grown, dropout_p, is_causal, scale, enable_gqa)
        if choice != _FLASH or self._device.type != "cpu":
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            shut, open_ = (aten.scalar_tensor(v, dtype=query.dtype) for v in (float("-inf"), 0.0))
            attn_mask = torch.where(attn_mask, open_, shut)
            del shut, open_
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]


def _fused_choice(
    device: torch.device, tensors: Any, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> int:
    """Ask torch, with tensors of one sample whose memory is never touched."""
    with torch._C._DisableTorchDispatch():
        real = []
        for t in tensors:
            if t is None:
                real.append(None)
                continue
            shape = (1, *t.shape[1:]) if t.dim() == 4 else t.shape
            r = torch.empty(shape, dtype=t.dtype, device=device)
            real.append(r.requires_grad_(True) if t.requires_grad and r.is_floating_point() else r)
        choice: Any = torch._fused_sdp_choice  # pyright: ignore[reportPrivateImportUsage]
        return choice(*real, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _backward(
    tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Do what ``Tensor.backward`` does, without the part that leaves the mode."""
    if inputs is not None or create_graph:
        raise UnsupportedOperation("a plan follows plain backward passes only: without inputs= and create_graph=")
    start = torch.ones_like(tensor) if gradient is None else gradient
    _engine_run_backward(
        (tensor,), (start,), bool(retain_graph), False, (), allow_unreachable=True, accumulate_grad=True
    )


def _stay(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of ``.to``, without the device."""
    return tuple(a for i, a in enumerate(args) if i == 0 or not isinstance(a, (torch.device, str, int, type(None))))


def _lower(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
        return value.to(dtype)
    return value


def answering() -> TorchDispatchMode:
    """Run operations on blank tensors, inside, without numbers; real scalars stay real."""
    return _Answers(Integers())


@contextmanager
def sketching(device: torch.device) -> Iterator[None]:
    """Run operations on blank tensors, inside, as they would run on ``device``, without numbers."""
    with without_numbers(), ExitStack() as stack:
        stack.enter_context(torch.device(META))
        integers = Integers()
        stack.enter_context(_Answers(integers))
        stack.enter_context(_Pretence(device, integers))
        yield


__all__ = ["answering", "sketching"]
