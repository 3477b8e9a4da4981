"""Every operation that uses a private parameter goes to a rule that keeps samples apart.

``attach`` gives each trainable parameter the class :class:`PrivateParameter`, in place (:mod:`groupclip.operands`). Its
``__torch_function__`` sends every operation to :func:`dispatch`, which knows three ways:

1. a *rule* (:mod:`groupclip.rules`) for the operation: closed forms, fast;
2. the *generic rule*: the one operation, sample by sample under ``vmap``, checked against its own output;
3. *derivation*: an operation on parameters alone (``w.t()``, ``1 + w``, a position embedding without a batch
   dimension) gives a :class:`PrivateTensor`, which is in turn private until it meets the batch: as one tensor for all
   samples, or lined up with them row by row (:mod:`groupclip.aligned`). What none of this can split by sample is
   derived too: exact in every case, and slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .aligned import meet
from .batch import instances_in, replaced, tensors_in
from .call import DERIVED, RULE, SLOW, VMAP, Call, NotSplit
from .derived import derive
from .errors import UnsupportedOperation
from .lesson import computed_again_later
from .operands import Private, PrivateParameter, PrivateTensor, tapes

Rule = Callable[..., Any]

#: operation -> rule(call, *args, **kwargs). Rules raise :class:`NotSplit` where they can't split the operation.
RULES: dict[Any, Rule] = {}

#: Operations that return facts, or tensors cut off from autograd: run as they are.
_PASSIVE: set[Any] = {
    Tensor.detach, Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous,
    Tensor.requires_grad_, Tensor.register_hook, Tensor.is_floating_point, Tensor.is_complex, Tensor.data_ptr,
    Tensor.untyped_storage, Tensor.element_size, Tensor.get_device, Tensor.__len__, Tensor.__repr__, Tensor.__hash__,
    Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad, Tensor.__format__, Tensor.__reduce_ex__,
    Tensor.is_shared, Tensor.share_memory_, torch._has_compatible_shallow_copy_type,  # pyright: ignore[reportPrivateImportUsage]
}  # fmt: skip


def dispatch(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run ``func`` on arguments of which some are private."""
    with torch._C.DisableTorchFunctionSubclass():
        if func in _PASSIVE:
            return func(*args, **kwargs)
        if not torch.is_grad_enabled():
            if not computed_again_later():
                return func(*args, **kwargs)
            with torch.enable_grad():
                return dispatch(func, args, kwargs)
        privates = [p for p in instances_in((args, kwargs), (PrivateParameter, PrivateTensor)) if p.requires_grad]
        if not privates:
            return func(*args, **kwargs)
        if func.__name__ in ("__get__", "__set__", "__delete__"):  # properties: shape, grad, data, T ..
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor) or not result.requires_grad or func == Tensor.grad.__get__:  # pyright: ignore
                return result
        if func is Tensor.backward:
            raise UnsupportedOperation(
                "backward() on a tensor that was computed without telling samples apart; call engine.backward(losses) with "
                "the per-sample losses themselves"
            )
        if not all(tape.knows_batch for p in privates for tape in tapes(p)):
            return _fact(func, args, kwargs, privates)
        return split(Call(func, args, kwargs, privates))


def _fact(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private]) -> Any:
    """Outside a pass: what carries no gradient (``torch.equal``, ``p.tolist()``) is as good as any; the rest is refused."""
    own = {id(p): p.detach().requires_grad_(True) for p in privates}
    result = func(*replaced(args, lambda v: own.get(id(v), v)), **replaced(dict(kwargs), lambda v: own.get(id(v), v)))
    if any(t.requires_grad for t in tensors_in(result)):
        Call(func, args, kwargs, privates)  # refuses: an unknown batch, or parameters of two engines
    return result


def split(call: Call) -> Any:
    """The first way that keeps the samples of this operation apart."""
    from .rules.generic import run_by_sample  # here: rules import this module

    if call.tape.layouts.learning:
        call.show_operands()
    rule = RULES.get(call.func)
    if rule is not None and not call.complex:
        try:
            result = rule(call, *call.args, **call.kwargs)
            return call.seen(result, DERIVED if any(map(call.is_private, tensors_in(result))) else RULE)
        except NotSplit:
            pass
    try:
        return call.seen(run_by_sample(call), VMAP)
    except NotSplit:
        pass
    try:
        return meet(call)
    except NotSplit:
        call.say_slow()
        return call.seen(derive(call), SLOW if call.met_batch else DERIVED)
