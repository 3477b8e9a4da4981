"""Every operation that uses a private parameter goes to a rule that keeps samples apart.

``attach`` gives each trainable parameter the class :class:`PrivateParameter`, in place (:mod:`groupclip.autograd.tensors`). Its
``__torch_function__`` sends every operation to :func:`dispatch`, which knows five ways:

1. *derivation*: an operation on parameters alone (``w.t()``, ``1 + w``, a position embedding) gives a :class:`PrivateTensor`,
   which is in turn private until it meets a sample;
2. a *rule* (:mod:`groupclip.rules`) for the operation on all samples of a part: closed forms, fast;
3. *spreading*: each sample gets the parameter expanded for it, and its gradient comes out instantiated: any operation, exact;
4. *copies*, where a sample runs by itself: what comes out of its graph is its gradient (:mod:`groupclip.autograd.own`);
5. beside the model's own forward pass, where nothing tells whose rows are whose: credit by loss (:mod:`groupclip.autograd.beside`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

from ..errors import UnsupportedOperation
from ..nested import PLAIN_TYPES, instances_in, replaced, tensors_in
from ..persample.base import PerSample
from ..persample.dense import Dense
from .beside import use_beside
from .derived import derive
from .operation import DERIVED, RULE, SLOW, VMAP, Call, NotSplit, is_in_place, tape_of
from .own import LOOKUPS, run_on_own
from .reads import run
from .tap import tap
from .tensors import PASSIVE, PRIVATE_TYPES, Private, PrivateParameter, PrivateTensor, send_uses_to, targets
from .vmap import NATIVE, NestedLevel, Part, hooks_on_saved, natively


class Rule(Protocol):
    """Runs an operation on all samples of a part: it is called as the operation is, with the :class:`Call` in front.

    It runs natively, and takes and returns physical tensors (samples in dimension 0). It raises :class:`NotSplit` where it has no
    closed form.
    """

    def __call__(self, call: Call, /, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]: ...


class WrittenOut(Protocol):
    """Writes an operation in terms of others, and returns its result as the model sees it; or raises :class:`NotSplit`."""

    def __call__(self, call: Call, /, *args: Any, **kwargs: Any) -> Any: ...


class Check(Protocol):
    """Refuses an operation that would break the guarantee, by an error; is called as the operation is."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> None: ...


#: operation -> its rule.
RULES: dict[Any, Rule] = {}

#: operation -> the same operation in terms of others, for functions of torch that hide several behind one.
WRITTEN_OUT: dict[Any, WrittenOut] = {}

#: operation -> what is checked whatever way the operation goes.
CHECKS: dict[Any, Check] = {}

#: Entry by entry, or moving entries: autograd itself sums an expanded parameter's gradient for each sample, at no extra cost.
_ENTRYWISE: set[Any] = {
    torch.add, Tensor.add, Tensor.add_, torch.sub, Tensor.sub, Tensor.sub_, torch.subtract, Tensor.subtract, torch.rsub,
    Tensor.__rsub__, torch.mul, Tensor.mul, Tensor.mul_, torch.multiply, Tensor.multiply, torch.div, Tensor.div, Tensor.div_,
    torch.true_divide, Tensor.true_divide, torch.divide, Tensor.divide, Tensor.__rdiv__, torch.prelu, F.prelu, Tensor.prelu,
    torch.cat, torch.concat, torch.concatenate, torch.stack, torch.where, Tensor.where, Tensor.__setitem__,
}  # fmt: skip

_PROPERTIES = ("__get__", "__set__", "__delete__")  # shape, grad, data, T ..


def dispatch(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run ``func`` on arguments of which some are private."""
    with torch._C.DisableTorchFunctionSubclass():
        if func in PASSIVE or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        privates: list[Private] = []
        plain: list[Tensor] = []
        _sort(args, privates, plain)
        if kwargs:
            _sort(kwargs.values(), privates, plain)
        if not privates:
            return func(*args, **kwargs)
        if func.__name__ in _PROPERTIES:
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor) or not result.requires_grad:
                return result
        if func is Tensor.backward:
            raise UnsupportedOperation(
                "backward() on a tensor that was computed without telling samples apart; call engine.backward(losses) with "
                "the per-sample losses themselves"
            )
        tape = tape_of(privates, func)
        check = CHECKS.get(func)
        if check is not None:
            check(*args, **kwargs)
        part = tape.part
        if part is None:
            return use_beside(tape, func, args, kwargs, privates)
        if part.level and not tape.inside_here:  # another thread's: samples are run one at a time then
            raise RuntimeError(
                "a parameter is used by another thread than the one whose forward pass is under way: there its samples are "
                "side by side"
            )
        if hooks_on_saved(True) is not None:
            tape.follow_checkpoint()
        if part.level == NATIVE and plain and func not in LOOKUPS and not is_in_place(func):
            slots = {id(p): p._slot for p in privates if type(p) is PrivateParameter and p._slot is not None}
            if all(id(p) in slots for p in privates):  # no tensor that was derived from parameters
                if tape.observer is not None:
                    tape.observer.used([slot.name for slot in slots.values()], func.__name__, SLOW)
                return run_on_own(part, func, args, kwargs, slots)
        return split(Call(tape, part, func, args, kwargs, privates, plain))


def _sort(values: Iterable[Any], privates: list[Private], plain: list[Tensor]) -> None:
    """Sort the tensors in arguments into private ones and others."""
    for value in values:
        kind = type(value)
        if kind in PRIVATE_TYPES:
            if value.requires_grad:
                privates.append(value)
        elif kind in PLAIN_TYPES:
            continue
        elif isinstance(value, Tensor):
            plain.append(value)
        elif kind is tuple or kind is list:
            _sort(value, privates, plain)
        else:
            for tensor in tensors_in(value):
                _sort((tensor,), privates, plain)


def split(call: Call) -> Any:
    """Run the operation by the first way that keeps its samples apart."""
    part, func = call.part, call.func
    written_out, rule = WRITTEN_OUT.get(func), RULES.get(func)
    for tensor in call.plain:
        if part.level == NATIVE or is_batchedtensor(tensor):
            break
    else:
        with natively():
            call.tell(DERIVED)
            return derive(call)
    if written_out is not None:
        try:
            return written_out(call, *call.args, **call.kwargs)
        except NotSplit:
            pass
    if rule is not None and part.on_top and not call.complex:
        try:
            with natively():
                result = rule(call, *call.args, **call.kwargs)
                result = part.logical(result) if isinstance(result, Tensor) else tuple(map(part.logical, result))
            call.tell(RULE)
            return result
        except (NotSplit, NestedLevel):
            pass
    return _run_spread(call)


def dispatch_or_run(call: Call, func: Any, *args: Any) -> Any:
    """Run an operation in which another is written out, with private operands or without."""
    if any(True for _ in instances_in(args, (PrivateParameter, PrivateTensor))):
        return dispatch(func, args, {})
    return run(call.part, func, args, {})


def _run_spread(call: Call) -> Any:
    """Run any operation, each sample with the parameters expanded for it."""
    if call.in_place and call.is_private(call.args[0]):
        raise UnsupportedOperation(
            f"{call.name} changes a parameter in place, or a tensor computed from parameters alone; write it out of place "
            "(y = x + .. instead of x.add_(..)), so that per-sample gradients can follow it"
        )
    part = call.part
    with natively():
        own = {id(p): part.logical(spread(part, p)) for p in call.privates}
    args, kwargs = replaced((call.args, dict(call.kwargs)), lambda v: own.get(id(v), v))
    call.tell(RULE if call.func in _ENTRYWISE else VMAP)
    return run(part, call.func, args, kwargs)


def spread(part: Part, operand: Private) -> Tensor:
    """Return ``[size, *shape]``: the operand for each sample, with the gradient of each to come. To be called natively."""
    value = operand._derived.native if isinstance(operand, PrivateTensor) else operand.detach()
    return tap(part, [part.each(value)], [], [targets(operand)], _instantiated)[0]


def _instantiated(saved: Any, grads: Any) -> list[PerSample]:
    return [Dense(grads[0])]


send_uses_to(dispatch)
