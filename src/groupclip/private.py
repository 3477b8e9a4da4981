"""Private parameters: every operation that uses a parameter is seen, and goes to a rule that keeps samples apart.

``attach`` gives each trainable parameter the class :class:`PrivateParameter`, in place. Its ``__torch_function__``
sends every operation to :func:`dispatch`, which knows three ways:

1. a *rule* (:mod:`groupclip.rules`) for the operation: closed forms, fast;
2. the *generic rule*: the one operation, sample by sample under ``vmap``, checked against its own output;
3. *derivation*: an operation on parameters alone (``w.t()``, ``1 + w``, a position embedding without a batch
   dimension) gives a :class:`PrivateTensor`, which is in turn private until it meets the batch: as one tensor for all
   samples, or lined up with them row by row (:mod:`groupclip.aligned`). What none of this can split by sample is
   derived too: exact in every case, and slow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .aligned import meet
from .batch import instances_in, replaced, tensors_in
from .derived import Derived, derive
from .errors import CoverageError, UnsupportedOperation
from .gate import Slot, Target, tap
from .layout import Axis, Place
from .lesson import computed_again_later
from .persample.base import PerSample
from .persample.pulled import Row
from .tape import Tape


class PrivateParameter(nn.Parameter):
    """A trainable parameter whose every use is seen. Made by ``groupclip.attach``, undone by ``engine.detach``."""

    _slot: Slot | None = None  # None on a deep copy: a parameter without an engine

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: int) -> Any:
        # Pickled as the plain parameter that it is: the engine isn't part of the model.
        with torch._C.DisableTorchFunctionSubclass():
            return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateParameter:
        if id(self) not in memo:
            with torch._C.DisableTorchFunctionSubclass():
                memo[id(self)] = PrivateParameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]


class PrivateTensor(Tensor):
    """A tensor that was computed from private parameters without the batch, and not yet met it."""

    _derived: Derived

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


Private = PrivateParameter | PrivateTensor
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


_log = logging.getLogger("groupclip")
_said: set[str] = set()


#: How an operation was split by sample, for those who observe a pass.
RULE = "rule"  # in closed form
VMAP = "vmap"  # the one operation, sample by sample
DERIVED = "derived"  # on parameters alone: followed until it meets the batch
SLOW = "one by one"  # it met the batch, and samples couldn't be told apart: pulled back one sample at a time


class NotSplit(Exception):
    """A rule found no sample axis in this call: let the next way try."""


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
        if not all(tape.knows_batch for p in privates for tape in _tapes(p)):
            return _fact(func, args, kwargs, privates)
        return _split(Call(func, args, kwargs, privates))


def _fact(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private]) -> Any:
    """Outside a pass: what carries no gradient (``torch.equal``, ``p.tolist()``) is as good as any; the rest is refused."""
    own = {id(p): p.detach().requires_grad_(True) for p in privates}
    result = func(*replaced(args, lambda v: own.get(id(v), v)), **replaced(dict(kwargs), lambda v: own.get(id(v), v)))
    if any(t.requires_grad for t in tensors_in(result)):
        Call(func, args, kwargs, privates)  # refuses: an unknown batch, or parameters of two engines
    return result


def _split(call: Call) -> Any:
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
        return call.seen(call.derive(), SLOW if call.met_batch else DERIVED)


class Call:
    """One operation with private operands, and what rules do with it.

    ``samples_first``: ids of operands that are known to hold the samples in dimension 0, whatever lessons say.
    """

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private],
        samples_first: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.func, self.args, self.kwargs, self.privates = func, args, kwargs, privates
        self._samples_first, self._saw_batch = samples_first, False
        tapes = {id(tape): tape for p in privates for tape in _tapes(p)}
        if len(tapes) > 1:
            raise CoverageError(
                f"{self.name} uses parameters of models attached to different engines: attach one model that holds both"
            )
        self.tape: Tape = next(iter(tapes.values()))
        self.batch = self.tape.require_batch()

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", str(self.func))

    @property
    def in_place(self) -> bool:
        """Whether the operation changes its first operand."""
        return self.name == "__setitem__" or (self.name.endswith("_") and not self.name.endswith("__"))

    @staticmethod
    def is_private(value: object) -> bool:
        return isinstance(value, (PrivateParameter, PrivateTensor)) and value.requires_grad

    def value(self, operand: Any) -> Any:
        """The operand as autograd may see it: no gradient goes to a parameter from here."""
        if isinstance(operand, PrivateTensor):
            return operand._derived.native
        if isinstance(operand, PrivateParameter):
            return operand.detach()
        return operand

    def activation(self, operand: Any, place: int = 0) -> tuple[Tensor, Axis]:
        """The operand as a batch of activations, and where its samples are.

        Args:
            operand: of the operation.
            place: which operand it is, if the operation has several that may be activations.

        Raises:
            NotSplit: it doesn't come from the batch, or where its samples are isn't certain.
        """
        axis = self.axis(operand, place)  # a private tensor's is nowhere, until it meets the batch
        if axis in (Axis.CONSTANT, Axis.MIXED):
            raise NotSplit
        return operand, axis

    def axis(self, operand: Any, place: int) -> Axis:
        """Where the samples are in an operand that isn't private."""
        if self.is_private(operand) or not isinstance(operand, Tensor) or operand.dim() == 0:
            return Axis.CONSTANT
        if id(operand) in self._samples_first:
            return Axis.MAJOR
        from_batch = operand.requires_grad or self.tape.inputs.holds(operand)
        where = self._where(operand, place)
        axis = self.tape.layouts.axis(where, operand, self.batch, from_batch, shown=self.tape.shown)
        self._saw_batch |= self.tape.layouts.varies(where)
        return axis

    def _where(self, operand: Tensor, place: int) -> Place:
        first = self.privates[0]
        slot = first._derived.roots[0].slot if isinstance(first, PrivateTensor) else first._slot
        assert slot is not None
        return slot.name, self.func, place, operand.dim(), self.tape.led_here

    def plain(self) -> list[Tensor]:
        """The operands that aren't private."""
        return [t for t in instances_in((self.args, self.kwargs), Tensor) if not self.is_private(t)]

    def plain_axes(self) -> list[Axis]:
        """Where the samples are in each of them, for an operation that no rule splits."""
        return [self.axis(t, _unruled(i, t)) for i, t in enumerate(self.plain())]

    def show_operands(self) -> None:
        """In a lesson: what is met by computed parameters, even if a rule never asks for it.

        The same operation may be used several times, and other shapes send other uses past the rules: each must have been seen.
        """
        if any(isinstance(p, PrivateTensor) for p in self.privates):
            for i, t in enumerate(self.plain()):
                if t.dim() > 0 and id(t) not in self._samples_first:
                    self.tape.layouts.met(self._where(t, _unruled(i, t)), t)

    def aligned_rows(self, operand: Private) -> Tensor:
        """A private operand with the same number of rows a sample, that the operation lines up with the batch, as activations."""
        if isinstance(operand, PrivateTensor) and operand._derived.rows is not None:
            try:
                return operand._derived.rows()
            except NotSplit:
                pass
        batch = self.batch

        def book(saved: Any, grads: Any) -> list[PerSample]:
            rows = Axis.MAJOR.split(grads[0], batch)
            return [Row(rows, torch.arange(batch, device=rows.device), batch)]

        return self.tap([self.value(operand)], [], [operand], book)[0]

    def lined_up(self, rows: Mapping[int, Tensor], others: Sequence[Tensor]) -> Any:
        """The same operation with activations ``rows`` for some private operands; they and ``others`` hold the samples first."""
        args, kwargs = replaced((self.args, dict(self.kwargs)), lambda v: rows.get(id(v), v))
        remaining = [p for p in self.privates if id(p) not in rows]
        if not remaining:
            return self.seen(self.func(*args, **kwargs), RULE)
        first = frozenset(map(id, [*rows.values(), *others]))
        return _split(Call(self.func, args, kwargs, remaining, first))

    def tap(
        self,
        outputs: list[Tensor],
        saved: list[Tensor],
        operands: list[Any],
        book: Callable[[Any, Any], list[PerSample]],
    ) -> tuple[Tensor, ...]:
        """Tie outputs to the private operands: ``book`` gives one :class:`PerSample` for each of ``operands``."""
        return tap(outputs, saved, [targets(o) for o in operands], book)

    @property
    def complex(self) -> bool:
        """Whether complex numbers take part: the rules' closed forms are those of real ones."""
        return any(t.is_complex() for t in instances_in((self.args, self.kwargs), Tensor))

    @property
    def met_batch(self) -> bool:
        """Whether the batch takes part: tensors that gradients are recorded for, or what lessons saw to vary with it."""
        if self._saw_batch:
            return True
        return any(t.requires_grad and not self.is_private(t) for t in instances_in((self.args, self.kwargs), Tensor))

    def seen(self, result: Any, way: str) -> Any:
        """Tell who observes the pass how this operation was split; gives ``result`` back."""
        if self.tape.observer is not None and not self.tape.layouts.learning:  # a lesson may assume wrongly
            names = [slot.name for p in self.privates for slot in slots(p)]
            self.tape.observer.used(names, self.name, way)
        return result

    def say_slow(self) -> None:
        """Say, once for each operation, that samples of the batch couldn't be told apart here."""
        if self.met_batch and self.name not in _said and not self.tape.layouts.learning:
            _said.add(self.name)
            _log.warning(
                "%s: the samples don't lie along one dimension of what a parameter meets here, so gradients from here on are "
                "computed one sample at a time: exact, and slow",
                self.name,
            )

    def derive(self) -> Any:
        """Run the operation on stand-ins of the parameters, and keep the graph for the way back."""
        return derive(self)


def _unruled(n: int, operand: Tensor) -> int:
    """The number of an operand where no rule gives it one: masks and activations in the same place are not the same."""
    return 100 + 2 * n + operand.requires_grad


def slots(operand: Private) -> list[Slot]:
    """The parameters behind a private operand."""
    if isinstance(operand, PrivateTensor):
        return [root.slot for root in operand._derived.roots]
    assert operand._slot is not None
    return [operand._slot]


def targets(operand: Private) -> list[Target]:
    """Where the per-sample gradients of a private operand go."""
    if isinstance(operand, PrivateTensor):
        return operand._derived.targets()
    slot = operand._slot
    assert slot is not None
    return [Target(slot, slot.group.open_gate(), lambda samples: samples)]


def _tapes(private: Private) -> Iterator[Tape]:
    if isinstance(private, PrivateTensor):
        yield private._derived.tape
    elif private._slot is None:
        raise CoverageError(
            "a private parameter without an engine is used with gradients: this model is a deep copy of an attached one. "
            "Copy the model before attaching, call groupclip.attach on the copy, or use it under torch.no_grad()"
        )
    else:
        yield private._slot.group.tape


__all__ = ["RULES", "Call", "NotSplit", "Private", "PrivateParameter", "PrivateTensor", "dispatch", "targets"]
