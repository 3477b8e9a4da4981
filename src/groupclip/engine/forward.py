"""What happens when the attached model is called: every sample runs alone (:mod:`groupclip.alone.run`)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..alone.arrangement import Arrangement
from ..alone.as_written import as_written
from ..alone.attributes import Kept
from ..alone.inputs import Inputs, Roles, fresh
from ..alone.outputs import NoRows
from ..alone.run import Alone
from ..alone.sequences import Sequences
from ..autograd.pass_state import Tape, in_backward, refuse_reentry
from ..autograd.saved import hooks_checked
from ..distributed.stages import check_no_schedule
from ..errors import GroupClipError, PrivacyViolation, UnsupportedOperation
from ..nested import has_numbers, tensors_in
from .checks import check_caller, check_coverage, where_read
from .views import Views


class Forward:
    """The forward passes of one attached model.

    Args:
        model: the model.
        tape: of the engine.
        private: gives the parameters the class by which their uses are seen.
        noise_to_come: there is a mechanism: what the model holds after training is to be private.
        views: rows that are one sample.
    """

    def __init__(
        self, model: nn.Module, tape: Tape, private: Callable[[], None], *, noise_to_come: bool, views: Views
    ) -> None:
        self._model, self._tape, self._show_private, self._views = model, tape, private, views if views.count > 1 else None
        self._alone, tape.guarded = Alone(model, tape, noise_to_come=noise_to_come), noise_to_come
        self._roles, self._arrangement = Roles(guarded=noise_to_come), Arrangement(self._probe)
        self.check_call: Callable[[], None] = check_no_schedule  # what may call it; others of a training on several processes
        self._cut: frozenset[int] = frozenset()

    def call(self, module: nn.Module, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, or a copy that carries its entrance; ``inner`` is the call that it would have been without the engine."""
        if not torch.is_grad_enabled() or self._tape.inside_here:
            return inner(*args, **kwargs)
        check_caller(module)
        return self.record(inner, args, kwargs)

    def record(self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that records gradients."""
        self._show_private()  # also after a step that failed half-way
        check_caller(self._model)
        self.check_call()
        check_coverage(self._model, self._cut)
        if in_backward():  # a checkpoint around the model computes it again
            refuse_reentry()
            return self._run(inner, self._read(args, kwargs), self._arrangement)
        with self._tape.forward_pass():
            inputs = self._read(args, kwargs)
            self._tape.begin_forward(inputs.batch, shapes_of((inputs.args, inputs.kwargs)))
            self._tape.tell((inputs.args, inputs.kwargs))
            try:
                return self._run(inner, inputs, self._arrangement)
            except NoRows as error:
                raise UnsupportedOperation(f"{error}{where_read(inputs.batch, self._tape.shapes)}") from None

    def per_sample(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call any function of the samples."""
        if self._tape.aside:
            return function(*args)
        self._show_private()
        tensors = [t for t in tensors_in(args) if t.dim() > 0]
        lengths = sorted({t.shape[0] for t in tensors})
        if len(lengths) != 1:
            raise ValueError(
                f"per_sample takes tensors whose dimension 0 is the sample, all of one length, and got lengths {lengths}: what "
                "isn't of the samples belongs into the function itself"
            )
        plain = self._views is None
        if plain:
            Sequences().check(args, {}, lengths[0], None)
        inputs = Inputs(args, {}, frozenset(map(id, tensors)), lengths[0]) if plain else self._read(args, {})
        self.check_call()
        check_caller(self._model)
        check_coverage(self._model, self._cut)
        with self._tape.forward_pass():
            self._tape.begin_forward(inputs.batch, shapes_of(inputs.args))
            self._tape.tell(inputs.args)
            return self._run(function, inputs)

    @contextmanager
    def on(self, inputs: tuple[Any, ...]) -> Iterator[None]:
        """Let what is computed inside be of these inputs: see :meth:`groupclip.Engine.forward_on`."""
        if self._tape.aside:
            yield
            return
        self._show_private()
        if not torch.is_grad_enabled():
            yield
            return
        if self._views is not None:
            raise GroupClipError(
                f"engine.forward_on takes every row for a sample, and with views={self._views.count} one is several rows: compute "
                "the losses in a function of the samples, engine.per_sample(function, inputs)"
            )
        self.check_call()
        check_caller(self._model)
        check_coverage(self._model, self._cut)
        tensors = [t for t in tensors_in(inputs) if t.dim() > 0]
        if not tensors:
            raise PrivacyViolation(
                "engine.forward_on was given no tensor with a batch dimension: pass the samples, a tensor whose first dimension is "
                "the sample"
            )
        with self._tape.forward_pass():
            self._tape.begin_forward(tensors[0].shape[0], shapes_of(inputs))
            self._tape.tell(inputs)
            yield

    def keep_in_front(self, *, outputs: bool) -> None:
        """Take every input that is as long as the batch for samples.

        Args:
            outputs: refuse those whose samples don't lie in dimension 0: whoever gets them knows of no samples.
        """
        self._roles.tries = False
        self._arrangement.tries = not outputs

    def keep_in_step(self, cut: frozenset[int]) -> None:
        """Run the model as often as every other rank does: its parameters are put together by all of them.

        Args:
            cut: ids of the parameters that the model holds between passes.
        """
        self._cut = cut
        self._roles.tries = self._arrangement.tries = False
        self._alone.in_step = self._tape.in_step = True

    def knows_as(self, other: Forward) -> None:
        """Take over what passes of a like model on like batches found out, with another engine."""
        self._roles = other._roles
        self._arrangement.knows_as(other._arrangement)
        self._alone.knows_as(other._alone)

    def by_sample(self, losses: Tensor) -> Tensor:
        """Return losses as ``[B]``: with views, the mean of each sample's."""
        return losses if self._views is None else self._views.means(losses, self._tape.last_batch())

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        if self._views is None:
            return self._roles.read(args, kwargs, self._probe)
        inputs = self._views.read(args, kwargs)
        Sequences().check(args, kwargs, inputs.batch, None)
        return inputs

    def _run(self, function: Callable[..., Any], inputs: Inputs, arrangement: Arrangement | None = None) -> Any:
        with as_written(), hooks_checked() if self._tape.guarded else nullcontext():
            # a model's own loss is the reduction that was declared, as it is for a batch; a function's is one for each sample
            reduction = "none" if arrangement is None else self._tape.loss_reduction
            if self._views is not None:  # which say where the samples lie
                return self._alone.run(self._views.over(function), inputs, None, reduction)
            return self._alone.run(function, inputs, arrangement, reduction)

    def _probe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = fresh((args, kwargs))
        with torch.no_grad(), torch.random.fork_rng(), undone(self._model):
            return self._model.forward(*args, **kwargs)


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Buffers and attributes are put back; a weight that moves in a forward pass is refused."""
    buffers = [(m, dict(m._buffers)) for m in model.modules() if m._buffers]
    values = [(b, b.clone()) for b in model.buffers() if not b.is_inference()]
    versions = [(name, p, p._version) for name, p in model.named_parameters()]
    kept = Kept(list(model.modules()))
    try:
        yield
    finally:
        kept.put_back()
        for module, held in buffers:
            module._buffers.update(held)
        for buffer, value in values:
            if has_numbers(buffer) and not torch.equal(buffer.nan_to_num(), value.nan_to_num()):
                buffer.data.copy_(value)
    for name, param, version in versions:
        if param._version != version:
            raise UnsupportedOperation(
                f"the forward pass changes the weight {name!r}, and it takes more than one tensor, so which of them hold "
                "samples can't be tried out without changing it more than once. Change the weight outside of forward(), "
                "after optimizer.step()"
            )


def shapes_of(inputs: Any) -> tuple[tuple[int, ...], ...]:
    """Read the shapes of the tensors that may hold samples."""
    return tuple(tuple(t.shape) for t in tensors_in(inputs) if t.dim() > 0)


_CALL = nn.Module._wrapped_call_impl.__code__


def check_class(model: nn.Module) -> None:
    """Check that calls of the model come here before any code of its class.

    Raises:
        UnsupportedOperation: its class has a ``__call__`` of its own.
    """
    own = type(model).__call__
    if own is not nn.Module.__call__ and not own.__module__.startswith("torch."):
        raise UnsupportedOperation(
            f"the class {type(model).__name__} has a __call__ of its own, which is given whole batches before samples are told "
            "apart: move what it does into forward(), or attach a module that calls this one in its forward()"
        )


class Entrance:
    """Stands where torch keeps a module's compiled call, so that calls of the attached model come here first.

    Copies and pickles of a module leave it out: the engine isn't part of the model.
    """

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        self._model, self._forward = weakref.ref(model), weakref.ref(forward)
        self.before = model.__dict__.get("_compiled_call_impl")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward, module = self._forward(), self._find_module()
        inner = self.before if self.before is not None else module._call_impl
        return inner(*args, **kwargs) if forward is None else forward.call(module, inner, args, kwargs)

    def _find_module(self) -> nn.Module:
        """Return the module whose call this is: replicas and shallow copies carry all that the model does, this too."""
        frame = None if torch.compiler.is_compiling() else sys._getframe(2)  # compilers know of no frames
        while frame is not None:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                if module.__dict__.get("_compiled_call_impl") is self:
                    return module
            frame = frame.f_back
        model = self._model()
        assert model is not None
        return model

    def open(self) -> None:
        """Let calls of the model come here."""
        model = self._model()
        assert model is not None
        model._compiled_call_impl = self  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Let them go as before."""
        model = self._model()
        if model is not None and model.__dict__.get("_compiled_call_impl") is self:
            del model._compiled_call_impl
            if self.before is not None:
                model._compiled_call_impl = self.before


class Passed:
    """Hook before the model's forward: a call that didn't come by the entrance is refused."""

    def __init__(self, entrance: Entrance | None, tape: Tape | None) -> None:
        self._entrance = None if entrance is None else weakref.ref(entrance)
        self._tape = None if tape is None else weakref.ref(tape)

    def __call__(self, module: nn.Module, _: Any) -> None:
        entrance = None if self._entrance is None else self._entrance()
        tape = None if self._tape is None else self._tape()
        if entrance is None or tape is None or not torch.is_grad_enabled() or tape.inside_here:
            return
        check_caller(module)
        raise UnsupportedOperation(
            "the model was compiled in place, or its class took over its call, after groupclip.attach, so its samples can't be run "
            "alone: call model.compile() before attaching, or use torch.compile(model)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Passed:
        return Passed(None, None)

    def __reduce__(self) -> Any:
        return (Passed, (None, None))
