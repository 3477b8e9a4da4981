"""What is published with the weights (parameters, persistent buffers) must not be filled from samples by a forward pass.

Under vmap torch refuses to write a sample's tensor into one that isn't the sample's, and a tensor that a pass puts in a buffer's
place shows itself. Where samples run one at a time, what they leave is compared.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..autograd.tensors import PRIVATE_TYPES
from ..autograd.vmap import NATIVE, Part
from ..errors import PrivacyViolation, UnsupportedOperation
from ..nested import has_numbers, replaced, tensors_in
from ..walk import each_module, name_of, published_in, versions_in
from .attributes import SAMPLES, Constant, Disagree, Kept, agreed, constant, is_unchanged, refill
from .carried import Carried, written_into
from .outputs import Rows, joined, taken


class Published:
    """Guards what a model publishes during the runs of one pass.

    Args:
        model: the model.
        guarded: there is noise to come, so what is published is to be private.
    """

    def __init__(self, model: nn.Module, guarded: bool) -> None:
        self._model, self._guarded = model, guarded
        self.modules = each_module(model)
        self._buffers = {m: dict(m._buffers) for m in self.modules if m._buffers}
        self._versions = versions_in(self.modules)
        self._values: list[tuple[str, Tensor, Tensor]] | None = None  # name, tensor, copy of what it was
        self._left: list[Tensor] | None = None  # what the first sample left
        self._moved = True  # the last sample may have moved some of it
        self._kept: Kept | None = None  # on modules, before the first run
        self._carried = Carried(())  # what else a sample may write into

    def say_which_hooks_sleep(self) -> None:
        """Say, once for each class, that full backward hooks on modules don't run: torch ties them to tensors of the batch."""
        for module in self.modules:
            kind = type(module).__name__
            if (module._backward_hooks or module._backward_pre_hooks) and kind not in _said:
                _said.add(kind)
                _log.warning(
                    "a backward hook on a %s doesn't run while samples run side by side: they have no gradient of the batch in "
                    "common. Hooks on parameters do run, and see sums of clipped gradients",
                    kind,
                )

    # ---------------------------------------------------------------- under vmap

    def refuse_if_held(self, written: Tensor) -> None:
        """Refuse to write a sample's values into ``written``.

        Raises:
            PrivacyViolation: it is memory of something that is published.
        """
        if not self._guarded:
            return
        memory = written.untyped_storage().data_ptr()
        for name, tensor in published_in(self._model):
            if tensor is written or (memory and not tensor.is_meta and tensor.untyped_storage().data_ptr() == memory):
                self._refuse(name)

    def about_to_run(self) -> None:
        """Prepare a run: modules hold what they held before the first run."""
        if self._kept is None:
            self._kept = Kept(self.modules)
        else:
            self._kept.put_back_if_moved()

    def left_behind(self, part: Part) -> Left:
        """Return what a run left of its samples on modules. Buffers and containers get back what they held before."""
        found: Left = {}
        kept = self._kept
        assert kept is not None
        for module in self.modules:
            before = self._buffers.get(module, {})
            for name, value in module._buffers.items():
                if value is None:
                    continue
                if part.level == NATIVE:
                    if value is not before.get(name) and name in module._non_persistent_buffers_set:
                        found[module, name] = Rows(part.physical(value))
                elif part.holds(value):
                    if self._guarded and name not in module._non_persistent_buffers_set:
                        self._refuse(name_of(self._model, module, name))
                    found[module, name] = Rows(part.physical(value))
        for module, name, value in kept.now():
            if isinstance(value, Tensor) and self._is_left(part, value, kept.before(module, name)):
                found[module, name] = Rows(part.physical(value))
            elif type(value) in (list, dict):
                before = kept.content(value)
                old = {id(t) for t in tensors_in(before)}
                if any(self._is_left(part, t, t if id(t) in old else None) for t in tensors_in(value)):
                    found[module, name] = taken(part, value, lambda _: None)
                    refill(value, before)
                elif not is_unchanged(value, before):
                    found[module, name] = Constant(copy.copy(value))
            else:
                found[module, name] = Constant(value)
        return found

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Put modules back after an error inside: they hold what they held before the pass, and no samples of it."""
        try:
            yield
        except BaseException:
            self._moved = True  # by a sample that nobody has compared
            self.put_back()
            if self._kept is not None:
                self._kept.put_back()
            raise

    @staticmethod
    def _is_left(part: Part, value: Tensor, before: Tensor | None) -> bool:
        return value is not before and type(value) not in PRIVATE_TYPES and part.holds(value)

    def leave(self, parts: list[tuple[Part, Left]]) -> list[tuple[str, Any]]:
        """Put what the runs left on modules there as a run on the batch would have left it: a buffer has the last sample's.

        Returns:
            What was put on modules of samples, with its name.
        """
        left: list[tuple[str, Any]] = []
        for key in dict.fromkeys(key for _, kept in parts for key in kept):
            module, name = key
            having = [(part, kept[key]) for part, kept in parts if key in kept]
            if name in module._buffers:
                last = module._buffers[name] = having[-1][1].physical[-1].detach()
                by_themselves = len(having) > 1 and all(part.level == NATIVE for part, _ in having)
                if not by_themselves or not all(_equal(rows.physical[-1], last) for _, rows in having):
                    left.append((name_of(self._model, module, name), last))
                continue
            if self._is_constant(key, parts):
                continue
            having = [(part, found) for part, found in having if not isinstance(found, Constant)]
            if len(having) < len(parts):
                self._refuse_left(module, name, "a tensor in {}, and that of others none")
            value = _as_batch(having)
            left.append((name_of(self._model, module, name), value))
            held = module.__dict__.get(name)
            if type(held) in (list, dict):
                refill(held, value)
            else:
                setattr(module, name, value)
        return left

    def _is_constant(self, key: tuple[nn.Module, str], parts: list[tuple[Part, Left]]) -> bool:
        """Return whether what the parts left there isn't of the samples. It is there then.

        Raises:
            UnsupportedOperation: it isn't the samples', and not the same in all parts.
        """
        (module, name), kept = key, self._kept
        assert kept is not None
        before = kept.before(module, name)
        values = [constant(part, found.get(key, Constant(before))) for part, found in parts]
        if any(value is SAMPLES for value in values):
            return False
        try:
            value = agreed(values)
        except Disagree:
            if all(isinstance(found.get(key, Constant(before)), Constant) for _, found in parts):
                self._refuse_left(module, name, "another value in {} than that of others")
            return False
        held = module.__dict__.get(name)
        if type(held) in (list, dict) and type(value) is type(held):
            refill(held, value)
        elif held is not value:
            module.__dict__[name] = value
        return True

    def _refuse_left(self, module: nn.Module, name: str, what: str) -> None:
        raise UnsupportedOperation(
            f"the forward pass of some samples alone leaves {what.format(name_of(self._model, module, name))}: the losses "
            "would get what the samples that ran last left. Return it from forward() instead, with something in "
            "its place for every sample"
        )

    # ---------------------------------------------------------------- several runs

    def put_back_for_another_run(self) -> None:
        """Put buffers back before another run of the same pass.

        Raises:
            UnsupportedOperation: the run before moved a weight or a buffer in place, which would move again.
        """
        for module, buffers in self._buffers.items():
            module._buffers.update(buffers)
        for tensor, version in self._versions:
            if tensor._version != version:
                name = next(n for n, t in published_in(self._model) if t is tensor)
                raise UnsupportedOperation(
                    f"the forward pass changes {name!r}, and samples of this batch take different paths through the model, so "
                    "it would be changed more than once. Change it outside of forward(), after optimizer.step()"
                )

    def watch_closely(self, shared: Iterable[Any] = ()) -> None:
        """Watch by comparison from here on, ``shared`` too: samples run one at a time, and nothing else shows what they write."""
        if self._guarded:
            self._values = [(name, t, t.detach().clone()) for name, t in published_in(self._model)]
        known = {id(t) for _, t, _ in self._values or []} | {id(p) for m in self.modules for p in m._parameters.values()}
        self._carried = Carried([held for held in written_into(self.modules, shared) if id(held) not in known])

    def put_back(self) -> None:
        """Put everything back before the next sample, as it was before the first."""
        for module, buffers in self._buffers.items():
            module._buffers.update(buffers)
        self._carried.put_back()
        if not self._moved:
            return
        for _, tensor, value in self._values or []:
            with torch.no_grad():
                if not _equal(tensor.detach(), value):
                    tensor.data.copy_(value)

    def compare(self) -> None:
        """Compare what a sample left with what the others left.

        Raises:
            PrivacyViolation: it didn't; the model is as before the pass.
        """
        if self._values is None:
            return
        self._carried.compare()
        now = dict(published_in(self._model))
        left: list[Tensor] = []
        self._moved = False
        for name, tensor, value in self._values:
            held = now[name]
            same = _equal(held.detach(), value)
            left.append(value if same else held.detach().clone())
            self._moved = self._moved or held is not tensor or not same
        if self._left is None:
            self._left = left
            return
        for x, y, (name, _, _) in zip(left, self._left, self._values, strict=True):
            if x is not y and not _equal(x, y):
                self.put_back()
                self._refuse(name)

    def finish(self, runs: int) -> None:
        """End the pass after the last sample.

        Raises:
            PrivacyViolation: there was one only, and it left something: nothing shows that others would leave the same.
        """
        if self._values is not None:
            self._carried.forget_samples()
        if self._values is None or self._left is None or runs > 1:
            return
        for x, (name, _, value) in zip(self._left, self._values, strict=True):
            if not _equal(x, value):
                self.put_back()
                self._refuse(name)

    def _refuse(self, name: str) -> None:
        for module, buffers in self._buffers.items():
            module._buffers.update(buffers)
        kind = "buffer" if name in dict(self._model.named_buffers(remove_duplicate=False)) else "weight"
        raise PrivacyViolation(
            f"the forward pass fills the {kind} {name!r} with values that depend on the samples: state_dict() would publish "
            "them without noise. Register it as a buffer with persistent=False if the model does without it, or fill it from "
            "public data and put its module in eval mode"
        )


def _equal(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or not has_numbers(x):
        return x.shape == y.shape
    return torch.equal(x, y) or bool(torch.equal(x.nan_to_num(), y.nan_to_num()) and torch.equal(x.isnan(), y.isnan()))


_log = logging.getLogger("groupclip")
_said: set[str] = set()

#: (module, name) -> what a run left there.
Left = dict[tuple[nn.Module, str], Any]


def _as_batch(having: list[tuple[Part, Any]]) -> Any:
    """Return ``[B, ..]``; with a dimension for the samples put in front where a sample's doesn't begin with one."""

    def in_front(value: Any) -> Any:
        if isinstance(value, Rows) and value.physical.dim() > 1 and value.shape[0] != 1:
            return Rows(value.physical.unsqueeze(1))
        return value

    return joined([(part, replaced(value, in_front)) for part, value in having])
