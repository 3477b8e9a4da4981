"""What happens when the attached model is called: coverage, the lesson on layouts, and the batch of the pass."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .admission import check_caller, check_coverage
from .batch import tensors_in
from .course import Course
from .errors import PrivacyViolation
from .gate import Group
from .lesson import Companions, learn
from .operands import PrivateParameter, PrivateTensor
from .tape import Tape, in_backward

#: A model whose control flow differs from pass to pass may meet new places for a while; after so many lessons, they become rare.
_LESSONS = 8


class Forward:
    """The forward passes of one attached model.

    Args:
        model: the model.
        tape: of the engine.
        groups: of the engine.
        private: gives the parameters the class by which their uses are seen.
        noise_to_come: there is a mechanism: what the model holds after training is to be private.
    """

    def __init__(
        self, model: nn.Module, tape: Tape, groups: list[Group], private: Callable[[], None], *, noise_to_come: bool
    ) -> None:
        self._noise_to_come = noise_to_come
        self._model, self._tape, self._groups, self._show_private = model, tape, groups, private
        self._lessons = self._passes = 0
        self._given = False  # a lesson on the inputs of the pass under way, or of one before
        self._open = _Open()
        self._companions = Companions()
        self._course = Course(tape.layouts, (PrivateParameter, PrivateTensor))
        self._shapes: set[tuple[torch.Size, ...]] = set()  # of the inputs that lessons were given on

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recording = torch.is_grad_enabled() and not in_backward()
        self._open.passes.append(recording)
        self._show_private()  # also after a step that failed half-way
        if not recording:
            return
        check_caller(module)
        check_coverage(self._model)
        self._tape.enter()
        self._passes += 1
        if self._companions.look([t for t in tensors_in((args, kwargs)) if t.dim() > 0]):
            self._tape.layouts.forget()
        self._learn_if_due(args, kwargs)
        self._tape.begin_forward((args, kwargs))
        self._tape.tell((args, kwargs))
        self._follow()

    def end(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        passes = self._open.passes
        if passes and passes.pop() and not any(passes) and self._tape.entered_here:
            self._course.end()
            self._tape.course = None
            if (
                result is not None and self._given
            ):  # no exception; and another lesson, for what this pass met that no other has
                self._learn_if_due(args, kwargs)
            self._tape.leave()

    def call(self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of the model. Hooks see its end but by KeyboardInterrupt, SystemExit and their like, which is seen here."""
        depth = len(self._open.passes)
        try:
            return inner(*args, **kwargs)
        except BaseException:
            while len(self._open.passes) > depth:
                self.end(args, kwargs, None)
            raise

    def _follow(self) -> None:
        """Let the course be followed, unless the model is compiled: then other operations are run than in a lesson."""
        if self._tape.batch is not None and not compiled(self._model):
            self._tape.course = self._course
            self._course.begin(self._tape.batch)

    def _learn_if_due(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape = tuple(t.shape[1:] for t in tensors_in((args, kwargs)))
        unseen = self._tape.layouts.folded and shape not in self._shapes
        due = self._lessons < _LESSONS or self._passes & (self._passes - 1) == 0
        if (unseen or not self._tape.layouts.complete) and due:
            self._learn(args, kwargs, shape)

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[torch.Size, ...]) -> None:
        """See :mod:`groupclip.layout`. Nothing of these passes is left: gates, inputs and batch are as before."""
        pending = [group.gate for group in self._groups]  # of a pass whose backward is to come
        for group in self._groups:
            group.gate = None
        batch = self._tape.batch
        try:
            lesson = learn(self._model, self._tape.layouts, self._companions, self._run, args, kwargs)
            self._given = lesson.given
            if lesson.given:
                self._lessons += shape in self._shapes  # again on a shape that should have taught all there is
                self._shapes.add(shape)
        finally:
            self._tape.batch = batch
            for group, gate in zip(self._groups, pending, strict=True):
                group.gate = gate
        if lesson.of_samples and self._noise_to_come:
            name = min(lesson.of_samples)
            kind = "buffer" if name in dict(self._model.named_buffers(remove_duplicate=False)) else "weight"
            raise PrivacyViolation(
                f"the forward pass fills the {kind} {name!r} with values that depend on the samples: state_dict() would publish "
                "them without noise. Register it as a buffer with persistent=False if the model does without it, or fill it from "
                "public data and put its module in eval mode"
            )

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tape.begin_forward((args, kwargs))
        self._follow()
        try:
            self._model.forward(*args, **kwargs)
        finally:
            self._course.end()
            self._tape.course = None
            self._tape.end_forward()
            self._tape.inputs.forget()
            for group in self._groups:
                group.drop_gate()


class _Open(threading.local):
    """The forward passes that this thread is in, the innermost last: whether each records gradients."""

    def __init__(self) -> None:
        self.passes: list[bool] = []


def compiled(model: nn.Module) -> bool:
    """Whether the model's forward pass under way is run by ``torch.compile``."""
    call = model._compiled_call_impl
    if call is not None and not (isinstance(call, Entrance) and call.before is None):
        return True
    frame = sys._getframe() if "torch._dynamo" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_globals["__name__"] == "torch._dynamo.eval_frame":
            return True
        frame = frame.f_back
    return False


_CALL = nn.Module._wrapped_call_impl.__code__


class Entrance:
    """Stands where torch keeps a module's compiled call, which copies and pickles of the module leave out."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        self._model, self._forward = weakref.ref(model), weakref.ref(forward)
        self.before: Any = model._compiled_call_impl
        model._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward()
        inner = self._called()._call_impl if self.before is None else self.before
        return inner(*args, **kwargs) if forward is None else forward.call(inner, args, kwargs)

    def _called(self) -> nn.Module:
        """The module whose call this is: replicas and shallow copies carry all that the model does, this too."""
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                if module.__dict__.get("_compiled_call_impl") is self:
                    return module
            frame = frame.f_back
        model = self._model()
        assert model is not None
        return model

    def remove(self) -> None:
        model = self._model()
        if model is not None and model.__dict__.get("_compiled_call_impl") is self:
            del model._compiled_call_impl
            if self.before is not None:
                model._compiled_call_impl = self.before


class Watch:
    """Hooks on the attached model. A copy or a pickle of the model carries an empty watch: the engine isn't part of it."""

    def __init__(self, forward: Forward | None) -> None:
        self._forward = None if forward is None else weakref.ref(forward)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = self._forward() if self._forward is not None else None
        if forward is not None:
            forward.begin(module, args, kwargs)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        forward = self._forward() if self._forward is not None else None
        if forward is not None:
            forward.end(args, kwargs, result)

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return Watch(None)

    def __reduce__(self) -> Any:
        return (Watch, (None,))
