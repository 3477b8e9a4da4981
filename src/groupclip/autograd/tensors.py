"""The tensors whose every use is seen: private parameters, and what is computed from them before the batch is met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor, nn

from ..errors import CoverageError
from .gate import Target
from .pass_state import ELSEWHERE, Tape
from .slot import Slot

if TYPE_CHECKING:
    from .derived import Derived


#: Runs an operation on private operands: set by :mod:`groupclip.autograd.dispatch`, which works on these classes.
_dispatch: list[Any] = []


def send_uses_to(dispatch: Any, untraced: Any = None) -> None:
    """Send every operation that uses a private operand to ``dispatch(func, args, kwargs)``.

    Where a compiler looks, it goes to ``untraced``.
    """
    _dispatch[:] = [dispatch, untraced or dispatch]


#: Operations that return facts, or tensors cut off from autograd: run as they are.
PASSIVE: set[Any] = {
    Tensor.detach, Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous,
    Tensor.requires_grad_, Tensor.register_hook, Tensor.is_floating_point, Tensor.is_complex, Tensor.data_ptr,
    Tensor.untyped_storage, Tensor.element_size, Tensor.get_device, Tensor.__len__, Tensor.__repr__, Tensor.__hash__,
    Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad, Tensor.__format__, Tensor.__reduce_ex__,
    *(getattr(Tensor, name).__get__ for name in ("grad", "requires_grad", "shape", "dtype", "device", "ndim", "layout", "is_meta")),
    getattr(Tensor, "grad").__set__,  # noqa: B009
    Tensor.is_shared, Tensor.share_memory_, torch._has_compatible_shallow_copy_type,  # pyright: ignore[reportPrivateImportUsage]
}  # fmt: skip


class _Seen:
    """Its every use as a tensor is seen."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PASSIVE:  # what optimizers ask of every parameter
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _dispatch[torch.compiler.is_dynamo_compiling()](func, args, kwargs or {})


class PrivateParameter(_Seen, nn.Parameter):
    """A trainable parameter whose every use is seen. Made by ``groupclip.attach``, undone by ``engine.detach``."""

    _slot: Slot | None = None  # None on a deep copy: a parameter without an engine

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Pickled as the plain parameter that it is: the engine isn't part of the model.
        with torch._C.DisableTorchFunctionSubclass():
            return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateParameter:
        if id(self) not in memo:
            with torch._C.DisableTorchFunctionSubclass():
                memo[id(self)] = PrivateParameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]


class PrivateTensor(_Seen, Tensor):
    """A tensor that was computed from private parameters without the batch, and not yet met it."""

    _derived: Derived


Private = PrivateParameter | PrivateTensor

#: For ``type(x) in``: torch answers ``isinstance(x, nn.Parameter)`` in Python.
PRIVATE_TYPES = frozenset({PrivateParameter, PrivateTensor})


def slots(operand: Private) -> list[Slot]:
    """Return the parameters behind a private operand."""
    if isinstance(operand, PrivateTensor):
        return [root.slot for root in operand._derived.roots]
    assert operand._slot is not None
    return [operand._slot]


def targets(operand: Private) -> list[Target]:
    """Return where the per-sample gradients of a private operand go."""
    if isinstance(operand, PrivateTensor):
        return operand._derived.targets()
    slot = operand._slot
    assert slot is not None
    return slot.group.open_gate().targets(slot)


def tapes(private: Private) -> Iterator[Tape]:
    if isinstance(private, PrivateTensor):
        yield private._derived.tape
    elif private._slot is None:
        raise CoverageError(
            "a private parameter without an engine is used with gradients: this model is a deep copy of an attached one. "
            "To train the copy, call groupclip.attach on the copy; to look at its outputs, torch.no_grad(). For gradients that "
            f"aren't training's, {ELSEWHERE}"
        )
    else:
        yield private._slot.group.tape
