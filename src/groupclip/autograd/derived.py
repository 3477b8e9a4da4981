"""Tensors that depend on parameters but not on the batch: derived now, pulled back when their gradients are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..nested import replaced, tensors_in
from ..persample.base import PerSample
from ..persample.pulled import Pulled
from .gate import Gate, Target
from .operation import Call
from .pass_state import Tape
from .slot import Slot
from .tensors import PrivateTensor


@dataclass(frozen=True, eq=False)
class Root:
    """A parameter that a derived tensor depends on, with the gate and the stand-in of that time."""

    slot: Slot
    gate: Gate
    leaf: Tensor

    def require_open(self) -> None:
        if self.gate.token is None:  # closed, or dropped with a pass that was thrown away
            raise UnsupportedOperation(
                f"a tensor computed from {self.slot.name} in an earlier pass is used again after its backward; "
                "compute it anew in every forward pass instead of keeping it on the model (or in parametrize.cached())"
            )


@dataclass(frozen=True, eq=False)
class Derived:
    """Holds what a :class:`PrivateTensor` carries.

    Attributes:
        shadow: its value with the graph down to the roots' leaves, cut off from everything else.
        native: its value as the rest of the model sees it: no gradient to parameters; to activations where it used any.
        roots: the parameters behind it.
        isometric: its entries are entries of the one root, moved, picked, cast, or with constants added; none is there twice.
        tape: of the engine.
    """

    shadow: Tensor
    native: Tensor
    roots: tuple[Root, ...]
    isometric: bool
    tape: Tape

    def targets(self) -> list[Target]:
        def puller(root: Root) -> Callable[[PerSample], PerSample]:
            return lambda samples: Pulled(samples, self.shadow, root.leaf, self.isometric)

        for root in self.roots:
            root.require_open()
        return [Target(root.slot, root.gate, puller(root)) for root in self.roots]


#: Operations that move, pick or cast entries, none of them twice, if a lone private operand comes first.
_ISOMETRIC: set[Any] = {
    torch.t, torch.transpose, torch.permute, torch.reshape, torch.squeeze, torch.unsqueeze, torch.flatten, torch.clone,
    torch.swapaxes, torch.movedim, Tensor.t, Tensor.transpose, Tensor.permute, Tensor.reshape, Tensor.view,
    Tensor.squeeze, Tensor.unsqueeze, Tensor.flatten, Tensor.unflatten, Tensor.contiguous, Tensor.clone, Tensor.to,
    Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type, Tensor.type_as, Tensor.view_as,
    Tensor.movedim, Tensor.swapaxes, Tensor.T.__get__, Tensor.mT.__get__,  # pyright: ignore[reportAttributeAccessIssue]
    torch.chunk, torch.split, torch.tensor_split, torch.hsplit, torch.vsplit, torch.dsplit, torch.narrow, torch.select,
    torch.unbind, torch.diagonal, torch.flip, torch.roll, Tensor.chunk, Tensor.split, Tensor.tensor_split, Tensor.hsplit,
    Tensor.vsplit, Tensor.dsplit, Tensor.narrow, Tensor.select, Tensor.unbind, Tensor.diagonal, Tensor.flip, Tensor.roll,
}  # fmt: skip
_SHIFTS: set[Any] = {torch.add, Tensor.add, torch.sub, Tensor.sub}


def derive(call: Call) -> Any:
    """Run the operation of ``call`` on parameters alone; tensors that depend on them come back private."""
    if call.in_place:
        _refuse_in_place(call)
    roots = _roots(call)
    before = [(p._derived.shadow, p._derived.shadow._version) for p in call.privates if type(p) is PrivateTensor]
    leaves = {id(root.slot.param): root.leaf for root in roots}
    shadow_args, shadow_kwargs = replaced((call.args, call.kwargs), lambda v: _shadow(v, leaves))
    native_args, native_kwargs = replaced((call.args, call.kwargs), call.value)
    upstream = any(t.requires_grad for t in tensors_in((native_args, native_kwargs)))
    if upstream:
        # Activations take part: their own gradient needs a second, native run on the same random numbers.
        devices = sorted({t.device.index for t in tensors_in((native_args, native_kwargs)) if t.is_cuda})
        with torch.random.fork_rng(devices):
            shadow = call.func(*shadow_args, **shadow_kwargs)
        native = call.func(*native_args, **native_kwargs)
    else:
        native = shadow = call.func(*shadow_args, **shadow_kwargs)
    for tensor, version in before:
        if tensor._version != version:  # F.relu(w, inplace=True), or by a name that doesn't tell
            _refuse_in_place(call)
    if not upstream and len(call.privates) == 1 and shadow is _shadow(call.privates[0], leaves):
        return call.privates[0]  # nothing was to be done: w.to(the same dtype), w.contiguous()
    isometric = _is_isometric(call)

    def wrap(shadowed: Any, natural: Any) -> Any:
        if isinstance(shadowed, Tensor):
            if not shadowed.requires_grad:
                return natural
            plain = natural if upstream else shadowed.detach()
            # The imaginary part of a gradient doesn't come to a parameter, and doesn't count.
            real = isometric and not shadowed.is_complex()
            return _private(Derived(shadowed, plain, roots, real, call.tape))
        if isinstance(shadowed, (tuple, list)):
            items = [wrap(s, n) for s, n in zip(shadowed, natural, strict=True)]
            if isinstance(shadowed, list):
                return items
            # torch's named results (torch.max(..)) take one iterable, as do tuples.
            return type(shadowed)(items)
        return natural

    return wrap(shadow, native)


def _refuse_in_place(call: Call) -> NoReturn:
    raise UnsupportedOperation(
        f"{call.name} changes a tensor in place that depends on {_names(call)}; write it out of place (y = x + .. "
        "instead of x.add_(..), F.relu(x) without inplace=True), so that per-sample gradients can follow it"
    )


def _private(derived: Derived) -> Tensor:
    tensor = Tensor._make_subclass(PrivateTensor, derived.native.detach(), True)
    tensor._derived = derived
    names = ", ".join(root.slot.name for root in derived.roots)

    def leaked(grad: Tensor) -> None:
        raise UnsupportedOperation(
            f"a tensor computed from {names} is used by an operation that groupclip can't see (a custom autograd.Function or "
            "compiled code called with it). Use ordinary torch operations there, or freeze the parameters before attaching"
        )

    tensor.register_hook(leaked)
    return tensor


def _roots(call: Call) -> tuple[Root, ...]:
    roots: dict[Slot, Root] = {}
    for private in call.privates:
        if isinstance(private, PrivateTensor):
            for root in private._derived.roots:
                root.require_open()
                roots[root.slot] = root
        else:
            slot = private._slot
            assert slot is not None
            gate = slot.group.open_gate()
            roots.setdefault(slot, Root(slot, gate, gate.leaf(slot)))
    return tuple(roots.values())


def _is_isometric(call: Call) -> bool:
    if len(call.privates) != 1:
        return False
    private = call.privates[0]
    if isinstance(private, PrivateTensor) and not private._derived.isometric:
        return False
    if call.func is F.embedding:  # positions, types: entries of the table, maybe one several times
        ids, _, *more = call.args
        padding = more[0] if more else call.kwargs.get("padding_idx")
        return padding is None and isinstance(ids, Tensor) and not ids.is_meta and ids.unique().numel() == ids.numel()
    if not call.args or call.args[0] is not private:
        return False
    others = [*call.args[1:], *call.kwargs.values()]
    if call.func in _SHIFTS:
        return not any(isinstance(o, Tensor) for o in others) and not call.kwargs
    if call.func is Tensor.__getitem__:
        index = others[0] if isinstance(others[0], tuple) else (others[0],)
        # Numbers and slices; lists and tensors may name an entry twice.
        return all(i is None or i is Ellipsis or type(i) in (int, slice) for i in index)
    return call.func in _ISOMETRIC


def _shadow(value: Any, leaves: dict[int, Tensor]) -> Any:
    if isinstance(value, PrivateTensor):
        return value._derived.shadow
    if isinstance(value, Tensor):
        return leaves.get(id(value), value.detach())
    return value


def _names(call: Call) -> str:
    return ", ".join(root.slot.name for root in _roots(call))
