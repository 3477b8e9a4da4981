"""What happens when the attached model is called: coverage, the lesson on layouts, and the batch of the pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .admission import check_caller, check_coverage
from .batch import tensors_in
from .gate import Group
from .layout import learn
from .tape import Tape, in_backward

#: A model whose control flow differs from pass to pass may meet new places for a while; then it has been shown enough.
_LESSONS = 8


class Forward:
    """The forward passes of one attached model.

    Args:
        model: the model.
        tape: of the engine.
        groups: of the engine.
        private: gives the parameters the class by which their uses are seen.
    """

    def __init__(self, model: nn.Module, tape: Tape, groups: list[Group], private: Callable[[], None]) -> None:
        self._model, self._tape, self._groups, self._show_private = model, tape, groups, private
        self._lessons = 0
        self._shapes: set[tuple[torch.Size, ...]] = set()  # of the inputs that lessons were given on

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._show_private()  # also after a step that failed half-way
        if torch.is_grad_enabled() and not in_backward():
            check_caller(module)
            check_coverage(self._model)
            self._tape.enter()
            shape = tuple(t.shape[1:] for t in tensors_in((args, kwargs)))
            unseen = self._tape.layouts.folded and shape not in self._shapes
            if (unseen or not self._tape.layouts.complete) and self._lessons < _LESSONS:
                self._learn(args, kwargs, shape)
        self._tape.begin_forward((args, kwargs))

    def end(self) -> None:
        self._tape.leave()

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[torch.Size, ...]) -> None:
        """See :mod:`groupclip.layout`. Nothing of these passes is left: gates, inputs and batch are as before."""
        pending = [group.gate for group in self._groups]  # of a pass whose backward is to come
        for group in self._groups:
            group.gate = None
        batch = self._tape.batch
        try:
            given = learn(self._model, self._tape.layouts, self._run, args, kwargs)
            if given:
                self._lessons += shape in self._shapes  # again on a shape that should have taught all there is
                self._shapes.add(shape)
        finally:
            self._tape.batch = batch
            for group, gate in zip(self._groups, pending, strict=True):
                group.gate = gate

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tape.begin_forward((args, kwargs))
        try:
            self._model.forward(*args, **kwargs)
        finally:
            self._tape.end_forward()
            self._tape.inputs.forget()
            for group in self._groups:
                group.drop_gate()


class Watch:
    """Hooks on the attached model. A copy or a pickle of the model carries an empty watch: the engine isn't part of it."""

    def __init__(self, forward: Forward | None) -> None:
        self._forward = None if forward is None else weakref.ref(forward)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = self._forward() if self._forward is not None else None
        if forward is not None:
            forward.begin(module, args, kwargs)

    def after(self, *_: Any) -> None:
        forward = self._forward() if self._forward is not None else None
        if forward is not None:
            forward.end()

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return Watch(None)

    def __reduce__(self) -> Any:
        return (Watch, (None,))
