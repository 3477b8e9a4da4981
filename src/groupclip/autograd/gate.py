"""The gate of a group: where autograd itself says that a group's backward pass is complete, and clipping happens.

A group has at most one open gate. The gate is an autograd node between the group's parameters and every use of them:
a use (:func:`tap`) depends on the gate's *token*, so autograd runs the gate's backward once, after all uses of the
group that are in the graph. Then norms are known, factors are computed, the sum of clipped gradients is formed and
handed to the parameters, and what was booked is freed. That is Algorithm 1 of the paper with "l is the first layer of
the m-th group" decided by the engine instead of by a list of layers: right for tied weights, reused modules, unused
branches and any order of execution.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import GroupClipError, PrivacyViolation, UnsupportedOperation
from ..persample.base import PerSample
from ..persample.combine import combine
from ..persample.norms import AUTO, LAST
from .cells import cells_of, placed
from .clipped import clipped
from .own import Own
from .pass_state import ELSEWHERE, INSIDE, Tape, in_backward
from .slot import Slot
from .vmap import Part, below

#: Autograd runs ready nodes by descending sequence number. A gate must go before everything below it, or the group
#: would keep its memory to the end of the pass.
_FIRST = 2**63


@dataclass(eq=False)
class Group:
    """The running side of one group of the partition."""

    name: str
    threshold: float
    tape: Tape
    slots: list[Slot]
    gate: Gate | None = None

    @cached_property
    def last(self) -> Slot | None:
        """The weight whose norms may come last: the group ends when it has been booked. It has most of the numbers of one layer."""
        layers = {slot.name.rpartition(".")[0] for slot in self.slots}
        largest = max(self.slots, key=lambda slot: slot.param.numel())
        most = 2 * largest.param.numel() > sum(slot.param.numel() for slot in self.slots)
        return largest if most and len(layers) == 1 else None

    def open_gate(self) -> Gate:
        """Return the gate that uses of this group depend on now: it stays open until its backward."""
        gate = self.gate
        if gate is not None:
            return gate
        with _opening:  # threads of one forward pass share the gate: what a sample does in two would be clipped apart
            if self.gate is not None:
                return self.gate
            if in_backward() and self.name in self.tape.ended:
                raise PrivacyViolation(
                    f"group {self.name!r} was clipped already when a checkpoint used it again in the backward pass: it would be "
                    "clipped in parts. This happens where a tensor is computed from a parameter in one segment and used in another "
                    "(T5's position bias): freeze that parameter, or leave the first segment without a checkpoint"
                )
            self.gate = Gate(self)
            return self.gate

    def drop_gate(self) -> None:
        """Forget a gate whose backward never came (a forward pass that was thrown away)."""
        if self.gate is not None:
            self.gate.forget()
            self.gate = None


class Gate:
    """One opening of a group: what has been booked since, and the token that uses depend on."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.closed = False
        self.permitted_in = -1  # the backward pass whose gradients are known to be the losses'
        self._booked: dict[Slot, list[tuple[Part, PerSample]]] = {}
        self._uses: dict[Slot, list[weakref.ref[Any]]] = {}
        self._leaves: dict[Slot, Tensor] = {}
        self._targets: dict[Slot, list[Target]] = {}
        self._owns: dict[Part, Own] = {}
        self._own_of: dict[tuple[int, int], Own] = {}  # (batch, row) -> of a sample that runs by itself
        self._making = threading.Lock()
        self._clipped: list[tuple[Part, Tensor]] = []  # samples that are clipped already, with their norms
        self._sums: dict[Slot, Tensor] = {}  # of them
        self.token: Tensor | None = _open(self, *[slot.param for slot in group.slots])
        assert self.token is not None and self.token.grad_fn is not None
        self.token.grad_fn._set_sequence_nr(_FIRST)  # pyright: ignore[reportAttributeAccessIssue]

    def leaf(self, slot: Slot) -> Tensor:
        """Return a stand-in for the parameter, from which tensors that depend on parameters alone are derived."""
        if slot not in self._leaves:
            self._leaves[slot] = slot.stand_in()
        return self._leaves[slot]

    def targets(self, slot: Slot) -> list[Target]:
        """Return where the gradients of a use of the parameter itself go."""
        if slot not in self._targets:
            self._targets[slot] = [Target(slot, self)]
        return self._targets[slot]

    def forget(self) -> None:
        """Let go of what refers to the gate, so that what it holds is freed at once: no use follows any more."""
        self.token = None
        self._targets.clear()
        self._owns.clear()
        self._own_of.clear()

    def own(self, part: Part) -> Own:
        """Return the copies of the parameters of a sample that runs by itself: the same in all calls of a pass.

        A sample is clipped when the gradients of its copies are complete; a second set of copies would be clipped apart.
        """
        found = self._owns.get(part)
        if found is None:
            with self._making:
                key = (part.batch, part.row)
                found = self._own_of.get(key)
                if found is None:
                    found = self._own_of[key] = Own(self, part)
                else:
                    found.require_current()
                self._owns[part] = found
        return found

    def expect(self, slot: Slot, use: weakref.ref[Any]) -> None:
        """Announce a use of the parameter whose backward is to come."""
        self._uses.setdefault(slot, []).append(use)

    def permit(self) -> None:
        """Check that a use may book its gradients, before anything is booked.

        Raises:
            PrivacyViolation: the gradients that arrive aren't those of the losses.
        """
        task = torch._C._current_graph_task_id()
        if self.permitted_in == task and not self.closed:
            return
        if self.permitted_in != -1 and not self.closed and self._holds_something():
            raise PrivacyViolation(
                f"an earlier backward pass through group {self.group.name!r} failed half-way, and what it clipped would be added "
                "to this one's: call engine.discard(), and run the forward pass again"
            )
        self.group.tape.require_permission()
        if self.closed:
            self.close()  # raises: a second backward
        token = self.token
        if token is not None and not torch._C._will_engine_execute_node(token.grad_fn):  # pyright: ignore
            raise PrivacyViolation(
                f"a gradient through group {self.group.name!r} was asked for that isn't a gradient of the training loss "
                "(torch.autograd.grad, for adversarial examples or penalties): both would be clipped together. For "
                f"adversarial examples, {ELSEWHERE}. A penalty on gradients is one of the model's outputs. {INSIDE}"
            )
        self.permitted_in = task

    def _holds_something(self) -> bool:
        return bool(self._booked or self._clipped) or any(own.has_booked for own in self._own_of.values())

    def book(self, slot: Slot, part: Part, grads: PerSample) -> None:
        """Keep the gradients of the samples of a part by one use. A lone use is normed at once: it keeps what is smaller."""
        if self.is_lone(slot):
            method = LAST if slot is self.group.last and slot.method == AUTO else slot.method
            self._booked[slot] = [(part, grads.settle(method))]
        else:
            self._booked.setdefault(slot, []).append((part, grads))

    def book_own(self, part: Part, uses: dict[Slot, list[PerSample]]) -> None:
        """Clip a sample that ran by itself, all of whose gradients are in ``uses``; it waits for what it did beside others."""
        if not part.batch or self._is_beside_others(part.row):
            for slot, found in uses.items():
                self._booked.setdefault(slot, []).extend((part, grads) for grads in found)
            return
        grads = {slot: combine(uses.pop(slot)) for slot in list(uses)}
        self._clipped.append((part, self._clip(grads, part.batch, self._sums)))

    def _is_beside_others(self, row: int) -> bool:
        """Return whether the sample is in a use of several samples together, in another call of the pass."""
        for uses in self._uses.values():
            for reference in uses:
                use = reference()
                if use is not None and (use.part.rows is None or bool((use.part.rows == row).any())):
                    return True
        return False

    def _clip(self, grads: dict[Slot, PerSample], batch: int, totals: dict[Slot, Tensor]) -> Tensor:
        """Return the norms of samples; their sums of clipped gradients are added to ``totals``. ``grads`` is emptied."""
        tape = self.group.tape
        if tape.observer is not None:
            for slot, samples in grads.items():
                tape.observer.normed(slot.name, samples.method)
        return clipped(grads, tape.clip, self.group.threshold, tape.scale(batch), totals)

    def is_lone(self, slot: Slot) -> bool:
        """Return whether the use of the parameter that is about to be booked is its only one."""
        if slot in self._booked:
            return False
        uses = self._uses.get(slot, ())
        return len(uses) <= 1 or sum(use() is not None for use in uses) <= 1  # some were thrown away

    def close(self) -> list[Tensor | None]:
        """Clip: the sums of clipped gradients of the group's parameters (None where a parameter wasn't used)."""
        if self.closed:
            raise GroupClipError(
                f"a second backward went through the forward pass of group {self.group.name!r}: its samples were clipped and "
                "freed in the first. Sum the losses and call engine.backward once, or run the forward pass again"
            )
        self.closed = True
        self.forget()
        if self.group.gate is self:
            self.group.gate = None
        tape = self.group.tape
        tape.ended.add(self.group.name)
        cells, apart, totals = cells_of(self._booked), self._clipped, self._sums
        self._booked.clear()
        self._clipped, self._sums = [], {}
        sizes = set(map(_batch, cells))
        if apart:
            sizes.update(part.batch for part, _ in apart)
        if not sizes:
            return [None] * len(self.group.slots)
        if len(sizes) > 1:
            raise PrivacyViolation(
                f"group {self.group.name!r} was used with batches of different sizes {sorted(sizes)} in one backward pass; "
                "each loss must come from forward passes over the same samples"
            )
        norms = [placed(apart)] if apart else []
        while cells:
            cell = cells.pop(0)
            grads: dict[Slot, PerSample] = {}
            for slot in list(cell.uses):
                uses = cell.uses.pop(slot)  # what is joined is freed
                grads[slot] = uses[0] if len(uses) == 1 else combine(uses)
                del uses  # or the last of them would live through the clipping
            found = self._clip(grads, cell.batch, totals)
            norms.append(found if cell.rows is None else cell.placed(found))
        tape.report(self.group.name, norms[0] if len(norms) == 1 else torch.stack(norms).sum(dim=0))
        return [
            slot.deliver(totals.pop(slot).reshape(slot.param.shape)) if slot in totals else None
            for slot in self.group.slots
        ]


_opening = threading.Lock()
_batch = attrgetter("batch")


@dataclass(frozen=True, eq=False)
class Target:
    """Says where the per-sample gradients of one operand go: to a parameter, as they are or pulled back to it."""

    slot: Slot
    gate: Gate
    pull: Callable[[PerSample], PerSample] | None = None


class _GateNode(torch.autograd.Function):
    """Parameters in, an empty token out; backward waits for every use and then closes the gate."""

    @staticmethod
    def forward(ctx: Any, gate: Gate, *params: Tensor) -> Tensor:
        ctx.gate = gate
        ctx.materialize_grads = False
        device = params[0].device
        ctx.device = device.type
        return torch.empty(0, dtype=params[0].dtype, device=device)

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _close_once(ctx, _) if torch.is_grad_enabled() else _close(ctx, _)


def _close(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
    with below(ctx.device):
        sums = ctx.gate.close()
        for slot, total, connected in zip(ctx.gate.group.slots, sums, ctx.needs_input_grad[1:], strict=True):
            if total is not None and not connected:
                raise UnsupportedOperation(
                    f"{slot.name!r} was frozen when its group was first used, and unfrozen before its own use: its gradient can't "
                    "reach it. Freeze and unfreeze between backward and forward (engine.discard() gives a forward pass up)"
                )
        return (None, *sums)


_close_once = once_differentiable(_close)  # under create_graph: what comes out has no graph, and says so

#: As _GateNode.apply, below every transform.
_open: Callable[..., Tensor] = super(torch.autograd.Function, _GateNode).apply  # pyright: ignore[reportAttributeAccessIssue]
