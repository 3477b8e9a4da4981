"""Samples that run together and never meet: one level of ``torch.vmap``.

Under the level the model sees one sample (as a batch of one), whatever it does with it: it can't roll, sort or shuffle what
it doesn't see. Torch carries the samples beside it, in a dimension of their own, exactly. Here that dimension is taken off
and put on again, for rules that work on all samples at once.

A tensor of the model is *logical*: of one sample. The tensor behind it is *physical*: ``[size, *logical]``, samples first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.vmap import lazy_load_decompositions  # pyright: ignore[reportPrivateImportUsage]

from .copies import Copies

NATIVE = 0  # the level of a sample that runs by itself, without vmap


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of a batch that run together.

    Attributes:
        rows: ``[size]`` which samples of the batch; None: all, in order.
        size: how many.
        batch: B.
        level: of vmap; :data:`NATIVE` where one sample runs by itself.
        by_itself: one sample runs by itself, without vmap.
        copies: in the place of views, in the run under way.
    """

    rows: Tensor | None
    size: int
    batch: int
    level: int
    by_itself: bool = field(init=False)
    copies: Copies = field(init=False, default_factory=Copies)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_itself", self.level == NATIVE and self.rows is not None)

    @cached_property
    def row(self) -> int:
        """Which sample of the batch it is that runs by itself."""
        assert self.rows is not None and self.size == 1
        return int(self.rows)

    def holds(self, x: Tensor) -> bool:
        """Return whether a logical tensor differs from sample to sample; what one sample runs on by itself is its own."""
        return self.level == NATIVE or functorch.is_batchedtensor(x)

    def physical(self, x: Tensor) -> Tensor:
        """Return ``[size, *logical]``, of a tensor that :meth:`holds`. To be called natively."""
        if self.level == NATIVE:
            return x.unsqueeze(0)
        if functorch.maybe_get_level(x) != self.level:
            raise NestedLevel
        value, at = functorch.get_unwrapped(x), functorch.maybe_get_bdim(x)
        return value if at == 0 else value.movedim(at, 0)

    def logical(self, x: Tensor) -> Tensor:
        """Return what the model sees of ``x [size, ..]``."""
        return x.squeeze(0) if self.level == NATIVE else functorch._add_batch_dim(x, 0, self.level)

    def each(self, x: Tensor) -> Tensor:
        """Return ``[size, *shape]`` of a tensor that is the same for all samples, without copying it."""
        return x.expand(self.size, *x.shape)

    @property
    def on_top(self) -> bool:
        """Whether the model is in no transform of its own."""
        top = functorch.peek_interpreter_stack()
        return top is None if self.level == NATIVE else top is not None and top.level() == self.level


class NestedLevel(Exception):
    """A tensor is inside a transform (vmap, grad) of the model's own."""


class natively:
    """Runs operations inside on physical tensors, below every transform."""

    __slots__ = ("_levels",)

    def __enter__(self) -> None:
        self._levels = levels = []
        while functorch.peek_interpreter_stack() is not None:
            levels.append(functorch.pop_dynamic_layer_stack())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._levels:
            functorch.push_dynamic_layer_stack(self._levels.pop())


@contextmanager
def side_by_side(size: int) -> Iterator[int]:
    """Run operations inside on one sample, for ``size`` of them at once; random numbers are drawn for each. Give the level."""
    lazy_load_decompositions()
    functorch._set_vmap_fallback_warning_enabled(False)
    level = functorch._vmap_increment_nesting(size, "different")
    try:
        yield level
    finally:
        functorch._vmap_decrement_nesting()


def is_inside_a_transform() -> bool:
    """Return whether a transform of torch.func is under way."""
    return functorch.peek_interpreter_stack() is not None


#: Of True: the innermost hooks on what autograd saves: a checkpoint's, or None.
hooks_on_saved: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks  # pyright: ignore[reportAttributeAccessIssue]


class below:
    """Gives code inside a backward pass plain tensors below every transform, and full precision.

    A backward pass may run inside autocast, which would compute norms from half-precision products.
    """

    __slots__ = ("_device", "_undo")

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        plain = torch._C.DisableTorchFunctionSubclass()
        plain.__enter__()
        self._undo: list[Any] = [plain]
        if functorch.peek_interpreter_stack() is not None:
            self._add(natively())
        if torch.is_autocast_enabled(self._device):
            self._add(torch.autocast(self._device, enabled=False))

    def _add(self, context: Any) -> None:
        context.__enter__()
        self._undo.append(context)

    def __exit__(self, *error: Any) -> None:
        while self._undo:
            self._undo.pop().__exit__(*error)
