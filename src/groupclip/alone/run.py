"""Runs a function with every sample alone, and all that can at once.

All samples of a batch run together under vmap (:mod:`groupclip.autograd.vmap`): each as a batch of one, none in sight of another.
Where they take different paths, those on one path run together, from the beginning. What can't be run so is run one sample at a
time, without vmap: exact, slow, and said. A function is never given more than one sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from ..autograd.dispatch import dispatch, spread
from ..autograd.pass_state import REENTRY, Tape
from ..autograd.reads import Reads
from ..autograd.stops import Differ, NeedsOwn, Position
from ..autograd.tensors import PrivateTensor
from ..autograd.vmap import NATIVE, Part, natively, side_by_side
from ..clipping.functions import LossReduction
from ..errors import GroupClipError, UnsupportedOperation
from .arrangement import Arrangement
from .escaped import mark
from .inputs import Inputs, Unchanged
from .outputs import joined, taken
from .published import Published
from .remembered import Remembered
from .weights import Weights

_log = logging.getLogger("groupclip")
_said: set[str] = set()

Function = Callable[..., Any]


class Alone:
    """Runs functions of one attached model.

    Args:
        model: the model.
        tape: of the engine: is told which samples a use of a parameter is of.
        noise_to_come: what the model holds after training is to be private: no pass may fill it from samples.
    """

    def __init__(self, model: nn.Module, tape: Tape, *, noise_to_come: bool) -> None:
        self._model, self._tape, self._noise_to_come = model, tape, noise_to_come
        tape.watch = self._watched
        self._own: set[Position] = set()  # where the model makes constant tensors that it writes samples into
        self._following = False  # it does, and where it makes them isn't known yet
        self._tries = Tries()
        self._remembered = Remembered()  # of earlier passes
        self._weights = Weights(model, ())  # during this one
        self.in_step = False  # with other ranks: one run a pass

    def knows_as(self, other: Alone) -> None:
        """Take over what was found out of a like model."""
        self._own, self._following = other._own, other._following

    def run(
        self, function: Function, inputs: Inputs, arrangement: Arrangement | None = None, reduction: LossReduction = "none"
    ) -> Any:
        """Run ``function`` on the batch and return its outputs.

        Args:
            function: of the inputs.
            inputs: of all samples.
            arrangement: where the samples lie in its outputs; None: in dimension 0.
            reduction: of a number that it computes itself, as a model's own loss; ``none``: one for each sample.

        Raises:
            UnsupportedOperation: the outputs of single samples can't be put together; or the function must run again, and it has
                changed its inputs.
            PrivacyViolation: the function fills what is published from samples.
        """
        published, unchanged = Published(self._model, self._noise_to_come), Unchanged(inputs)
        published.say_which_hooks_sleep()
        self._weights = weights = Weights(self._model, published.modules)
        together = not inputs.batch or self._tries.is_due()
        waiting: list[list[int] | None] = [None] if together else []  # samples that go together
        slow: list[int] = [] if together else list(range(inputs.batch))
        failed: tuple[str, str] | None = None  # where all at once did, and why
        done: list[tuple[Part, Any]] = []
        again = False
        while waiting:
            rows = waiting.pop()
            if again:
                unchanged.require()
                weights.require_unmoved()
            again = True
            if done or rows is not None:
                published.put_back_for_another_run()
            try:
                done.append(self._together(function, inputs, rows, published))
            except Differ as differ:
                self._stay_in_step("samples take different paths through it")
                groups = _by_key(rows, differ.keys)
                if differ.outside or len(groups) == 1:
                    slow += [row for group in groups for row in group]
                    if differ.by_chance:
                        failed = failed or (_module_of(self._model, differ), "random numbers decide on its path")
                else:
                    waiting += groups
            except NeedsOwn as needs:
                self._stay_in_step("it writes samples into a constant tensor")
                published.refuse_if_held(needs.written)
                if not self._following:
                    self._following = True
                    waiting.append(rows)
                elif needs.made_at is not None and needs.made_at not in self._own:
                    self._own.add(needs.made_at)
                    waiting.append(rows)
                else:
                    slow += list(range(inputs.batch)) if rows is None else rows
            except (GroupClipError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                _refuse_reentry(error)
                if not inputs.batch or self.in_step:
                    raise
                # The error of the model itself, if it is one, comes again from a sample alone.
                slow += list(range(inputs.batch)) if rows is None else rows
                failed = failed or (_module_of(self._model, error), f"{type(error).__name__} in torch.vmap")
        if slow:
            unchanged.require()
        done += self._one_by_one(function, inputs, sorted(slow), published, others=bool(done))
        if slow and len(done) + together > 1:
            weights.require_unmoved()
        if together:
            self._tries.tell(in_vain=len(slow) == inputs.batch > 0)
        if failed is not None:
            _say_slow(*failed)
        with natively(), published.whole():
            where = arrangement and arrangement.of(inputs)
            outputs = joined([(part, out) for part, (out, _) in done], where, reduction)
            left = published.leave([(part, kept) for part, (_, kept) in done])
            if len(done) > 1:
                mark((outputs, left))
                self._tape.ran_in_parts = True
        if self._noise_to_come and left:
            self._remembered.add(left)
        return outputs

    def _stay_in_step(self, why: str) -> None:
        if self.in_step:
            raise UnsupportedOperation(
                f"the model must run several times on this batch ({why}), and it is cut over ranks, which put it together for one "
                "run: the others would wait for ever. Change the model so that one run does (a batch padded by a token or more "
                "has one path), or use DistributedDataParallel, under which each rank runs by itself"
            )

    def _together(
        self, function: Function, inputs: Inputs, rows: list[int] | None, published: Published
    ) -> tuple[Part, Any]:
        size = max(1, inputs.batch) if rows is None else len(rows)
        with side_by_side(size) as level:
            index = None if rows is None else torch.tensor(rows)
            part = Part(index, size, inputs.batch, level)
            with self._tape.on(part), self._watched(part) as reads:
                with natively():
                    args, kwargs = inputs.of(part)
                published.about_to_run()
                with published.whole():
                    outputs = reads.run_on(function, args, kwargs)
            with published.whole():
                return part, self._took(part, outputs, published)

    def _watched(self, part: Part) -> Reads:
        own = self._own if self._following else None
        check = self._remembered.refuse_use if self._remembered else None
        return Reads(part, own, dispatch, self._tape.follow_checkpoint, check, self._weights.about_to_give_memory)

    def _one_by_one(
        self, function: Function, inputs: Inputs, rows: list[int], published: Published, others: bool
    ) -> list[tuple[Part, Any]]:
        done = []
        if rows:
            published.watch_closely(inputs.shared())
        for n, row in enumerate(rows):
            if n or others:
                published.put_back()
            part = Part(torch.tensor([row]), 1, inputs.batch, NATIVE)
            with self._tape.on(part), self._watched(part):
                args, kwargs = inputs.of(part)
                published.about_to_run()
                with published.whole():
                    try:
                        outputs = function(*args, **kwargs)
                    except Exception as error:
                        error.add_note(
                            "(groupclip runs every sample by itself, as a batch of one: this came of one sample)"
                        )
                        raise
                with published.whole():
                    done.append((part, self._took(part, outputs, published)))
            published.compare()
        published.finish(len(rows) + others)
        return done

    def _took(self, part: Part, outputs: Any, published: Published) -> tuple[Any, Any]:
        """Return the outputs, and what the pass left on the modules, with the samples in front."""
        with natively(), self._tape.on(part):

            def spread_private(value: Tensor) -> Tensor | None:
                if (
                    isinstance(value, PrivateTensor)
                    and value.requires_grad
                    and (value.dim() == 0 or value.shape[0] == 1)
                ):
                    return spread(part, value)
                return None

            return taken(part, outputs, spread_private), published.left_behind(part)


class Tries:
    """When to try whether samples run together. Where it was in vain several times in a row, it is tried ever more rarely.

    It is a matter of time alone: one at a time is exact as well.
    """

    _RAREST = 64  # passes

    def __init__(self) -> None:
        self._in_vain = 0  # in a row
        self._left = 0  # passes until the next try

    def is_due(self) -> bool:
        """Return whether this pass is to try."""
        self._left = max(0, self._left - 1)
        return self._left == 0

    def tell(self, *, in_vain: bool) -> None:
        """Tell how it went."""
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self._left = min(2 ** max(0, self._in_vain - 1), self._RAREST)


def _refuse_reentry(error: Exception) -> None:
    """Raises UnsupportedOperation where ``error`` is vmap's refusal of a re-entrant checkpoint."""
    trace = error.__traceback__
    while trace is not None and isinstance(error, RuntimeError) and "setup_context" in str(error):
        if trace.tb_frame.f_code is checkpoint.checkpoint.__code__:
            raise UnsupportedOperation(REENTRY) from None
        trace = trace.tb_next


def _by_key(rows: list[int] | None, keys: list[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row, key in zip(range(len(keys)) if rows is None else rows, keys, strict=True):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _module_of(model: nn.Module, error: BaseException) -> str:
    """Return the innermost module of the model in which the error was raised."""
    names = {id(module): name for name, module in model.named_modules()}
    where, trace = type(model).__name__, error.__traceback__
    while trace is not None:
        name = names.get(id(trace.tb_frame.f_locals.get("self")))
        if name:
            where = f"{type(trace.tb_frame.f_locals['self']).__name__} ({name})"
        trace = trace.tb_next
    return where


def _say_slow(where: str, why: str) -> None:
    """Say, once for each module, that its samples run one at a time. The text of the error may quote data: it isn't said."""
    if where not in _said:
        _said.add(where)
        _log.warning(
            "%s can't be run on all samples at once (%s), so they are run one at a time: exact, and slow",
            where,
            why,
        )
