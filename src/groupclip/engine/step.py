"""One step of the optimizer, made private: noise, division by the expected batch size, one event in the ledger."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..autograd.gate import Slot
from ..autograd.slot import Left, called_by_scaler, holds_something, several_processes
from ..clipping.budget import GroupNoise
from ..errors import GroupClipError, PrivacyViolation
from ..noise.sources import NoiseSource
from ..privacy.ledger import Ledger
from ..sampling.claims import Owner
from ..sampling.marks import Marks, marks
from .checks import check_optimizer
from .processes import check_alone
from .unmoved import Unmoved

_log = logging.getLogger("groupclip")

#: After something went wrong in a logical batch. One that is drawn and has no step is no batch of the plan's sampling any more.
AGAIN = (
    "call engine.discard() and backpropagate all micro-batches of this logical batch again (keep them in a list), or give it up: "
    "the next step counts as your own sampling then"
)


class PrivateStep:
    """What lies between the clipped sums in ``p.grad`` and ``optimizer.step``.

    Args:
        slots: the private parameters.
        ledger: of the run; None for clipping alone (no noise, no accounting).
        noise: its source.
        amounts: of the noise, by group; and the thresholds, which may move after a step.
        plain: called when the gradients are private; shows the optimizer plain parameters.
        private: called after the step; undoes ``plain``.
    """

    def __init__(
        self, slots: list[Slot], ledger: Ledger | None, noise: NoiseSource, amounts: GroupNoise,
        plain: Callable[[], None], private: Callable[[], None],
    ) -> None:  # fmt: skip
        self._slots, self._ledger, self._noise, self._amounts = slots, ledger, noise, amounts
        self._show_plain, self._show_private = plain, private
        self._seen: Counter[str] = Counter()  # group -> samples since the last step: secret
        self._acting: Counter[str] = Counter()  # group -> those of them whose gradient isn't zero: secret
        for slot in slots:
            slot.keeps_wide = ledger is not None
        self._weights = Unmoved(slots)
        self._broken = self._warned = False
        self._own_passes: set[int] = set()  # of the user's own backward that began and haven't ended
        self._owner = None if ledger is None else Owner(ledger.mechanism)
        self._called: Marks | None = None  # what the model was last called with: secret
        self._passes: list[Marks] = []  # what it was called with in the passes since the last step: secret

    def saw(self, group: str, norms: Tensor) -> None:
        """A group clipped samples of the logical batch, whose gradients there have these norms ``[B]``."""
        self._seen[group] += len(norms)
        if self._ledger is not None:  # a pass that no step follows may be of tensors without numbers (groupclip.memory)
            self._acting[group] += int(((norms > 0) & torch.isfinite(norms)).sum())

    def called(self, batch: Tensor) -> None:
        """The model is called with this batch, and gradients are recorded."""
        self._called = marks(batch) if self._owner is not None and self._owner.draws() else None

    def passed(self) -> None:
        """A backward pass of the last call adds to the logical batch."""
        if self._called is not None:
            self._passes.append(self._called)
            self._called = None

    def seen(self) -> tuple[Counter[str], Counter[str]]:
        """What :meth:`back_to` goes back to when a backward pass fails: its samples may come again. Secret."""
        return self._seen.copy(), self._acting.copy()

    def back_to(self, seen: tuple[Counter[str], Counter[str]]) -> None:
        """Forget the samples of the backward pass that failed."""
        self._seen, self._acting = seen

    @property
    def training(self) -> str:
        """A name of chance, which a state carries on; empty without a plan."""
        return "" if self._owner is None else self._owner.training

    def resumed(self, steps: int, training: str) -> None:
        """A state that counts so many steps was loaded: batches of later steps that were drawn in this process come again.

        Args:
            training: the name in that state; empty if it is of an older version.
        """
        if self._owner is not None and steps:
            self._owner.resumed_at = steps
            self._owner.training = training or self._owner.training

    def leave(self) -> None:
        """The engine is detached."""
        if self._owner is not None:
            self._owner.leave()

    @property
    def under_way(self) -> bool:
        """Whether samples were clipped since the last step."""
        return bool(self._seen) or self._broken

    def own_pass(self) -> None:
        """In a backward pass that isn't ``engine.backward``'s, before anything of it lands: checked as that is.

        What it leaves is whole if it comes to its end. One that failed half-way is found out by the step.
        """
        task = torch._C._current_graph_task_id()
        if task in self._own_passes:
            return
        if not self._own_passes:  # not one inside another (a re-entrant checkpoint)
            self.check_accumulation()
        self._own_passes.add(task)
        self.passed()
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._own_passes.discard(task))

    def broke(self) -> None:
        """A backward pass failed half-way, and ``p.grad`` holds a part of its samples."""
        self._broken = True

    def discard(self) -> None:
        """Forget the logical batch under way."""
        for slot in self._slots:
            slot.param.grad = slot.left = slot.wide = None
        self._forget()
        self._weights.forget()
        self._amounts.discard()
        self._broken = False
        self._own_passes.clear()

    def check_accumulation(self) -> None:
        """Whether gradients may be added to ``p.grad`` now.

        Raises:
            PrivacyViolation: it holds a part of a failed backward pass, or something that the engine didn't leave there.
            GroupClipError: it holds the last step's private gradient.
        """
        if self._broken:
            raise PrivacyViolation(_BROKEN)
        self._check_fresh()
        self._check_untouched()
        if self._ledger is not None:
            _require_unmoved(self._weights.moved_since_first())
        self._give_up_what_was_cleared()
        for slot, grad in self._gradients():
            if slot.left is not None and not slot.left.stands(grad):
                slot.left = slot.wide = None  # cleared by zero_grad

    def check_landed(self) -> None:
        """After a backward pass: whether the clipped sums stand in ``p.grad``.

        Raises:
            PrivacyViolation: a hook of the user's changed one or took it away.
        """
        if several_processes():  # they were averaged meanwhile
            for slot, grad in self._gradients():
                slot.left = Left.of(grad)
        gone = [slot.name for slot, grad in self._gradients() if slot.left is not None and not slot.left.stands(grad)]
        if self._ledger is not None and gone:
            raise PrivacyViolation(
                f"in the backward pass, a hook changed the clipped gradient of {_some(gone)} or took it away, before it had noise; "
                "such a hook may look at gradients and no more: an optimizer step in it, or a clip, would be without noise"
            )

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Optimizer pre-step hook. The event is counted when the noise is added: from then on the gradient is released."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is not None:
            raise PrivacyViolation(
                "optimizer.step was called with a closure: the gradients that it computes would be applied without noise. "
                "Call engine.backward first and then optimizer.step() without arguments"
            )
        if self._broken or self._own_passes:
            raise PrivacyViolation(_BROKEN)
        check_optimizer(
            optimizer,
            {s.name: s.param for s in self._slots if s.param.requires_grad},
            frozen=[s.param for s in self._slots if not s.param.requires_grad],  # since attach
        )
        if self._ledger is not None and self._owner is not None:
            check_alone()  # again: the group may have been made since
            if called_by_scaler():
                raise PrivacyViolation(f"optimizer.step was called by a GradScaler: {_SCALER}")
            self._check_fresh()
            self._check_untouched()
            _require_unmoved(self._weights.moved_at_step())
            self._ledger.check()
            self._give_up_what_was_cleared()
            self._owner.check_filling(_most(self._seen), _most(self._acting))
            self._check_finite()
            # Counted first: whatever interrupts what follows, no noise is added that isn't counted.
            if self._owner.resumed_at is not None:  # batches lost in a crash may have been counted since
                self._owner.resumed_at = self._ledger.steps
            own = self._owner.claim(_most(self._seen), self._passes)
            self._ledger.record("groupclip" if own else "user")
            if not own:
                self._say_whose_sampling()
            self._make_private(self._ledger.mechanism.expected_batch_size)
        self._forget()
        self._show_plain()

    def _forget(self) -> None:
        """The samples since the last step: released by now, or given up."""
        self._seen.clear()
        self._acting.clear()
        self._passes.clear()

    def _give_up_what_was_cleared(self) -> None:
        """``zero_grad`` before the step gives samples up: the noise is for whole batches, so what remains isn't one.

        Raises:
            PrivacyViolation: some of the gradients were cleared, and others hold the same samples still.
        """
        sums = [(slot, grad) for slot, grad in self._gradients() if slot.left is not None and not slot.left.released]
        sums = [(slot, grad) for slot, grad in sums if slot.param.requires_grad]  # freezing takes the gradient away
        cleared = [slot.name for slot, grad in sums if slot.left is not None and not slot.left.stands(grad)]
        if not cleared or self._ledger is None:
            return
        if len(cleared) < len(sums):
            raise PrivacyViolation(
                f"p.grad of {_some(cleared)} was cleared before the step, and others hold the samples of this logical batch still. "
                "Clear all of them by optimizer.zero_grad() after the step, or freeze a parameter with requires_grad_(False)"
            )
        for slot, _ in sums:
            slot.left = slot.wide = None
        self._forget()
        self._amounts.discard()

    def _say_whose_sampling(self) -> None:
        """Once an engine, in its first such step: the statement would say it when all is spent."""
        if self._owner is None or self._warned:
            return
        self._warned = True
        if self._owner.draws():
            _log.warning(f"{_NOT_ONE_BATCH}. {_YOUR_OWN}")
        else:
            _log.warning(
                f"a step was on a batch that groupclip didn't draw. {_YOUR_OWN}: draw batches by "
                "groupclip.logical_batches(dataset, mechanism)"
            )

    def _check_fresh(self) -> None:
        for slot, grad in self._gradients():
            if slot.left is not None and slot.left.released and slot.left.stands(grad) and holds_something(grad):
                raise GroupClipError(
                    "p.grad still holds the private gradient of the last step: call optimizer.zero_grad() before the next "
                    "logical batch, or it would be added to the new one"
                )

    def _check_untouched(self) -> None:
        if self._ledger is None:
            return
        changed = [
            slot.name
            for slot, grad in self._gradients()
            if not (slot.left is not None and slot.left.stands(grad)) and holds_something(grad)
        ]
        if changed:
            raise PrivacyViolation(
                f"p.grad of {_some(changed)} isn't what the last backward pass left there, so the noise wouldn't fit it. Leave "
                "gradients alone until optimizer.step: no scaling, no clip_grad_norm_ (inf writes them anew too, as the Trainer of "
                "Hugging Face does in every step: docs/huggingface.md has a loop to use instead). If it was a GradScaler: "
                f"{_SCALER}. To go on, {AGAIN}"
            )

    def _gradients(self) -> Iterator[tuple[Slot, Tensor | None]]:
        with torch._C.DisableTorchFunctionSubclass():
            gradients = [slot.param.grad for slot in self._slots]
        return zip(self._slots, gradients, strict=True)

    def _check_finite(self) -> None:
        sums = [slot.sum_in(grad) for slot, grad in self._gradients() if grad is not None]
        if not _are_finite(sums):
            raise PrivacyViolation(
                "a summed gradient isn't finite, though every sample was bounded: the sum is too large for its dtype. Call "
                "engine.discard() to give up this logical batch, and attach again with a smaller threshold or float32 parameters"
            )

    def _make_private(self, expected_batch_size: float) -> None:
        stds = self._amounts.stds
        sums: list[tuple[Slot, Tensor, Tensor]] = []  # gradients, and what is released: for half-precision ones wider
        for slot in self._slots:
            if not slot.param.requires_grad:
                slot.param.grad = slot.wide = None  # frozen since: it takes no part, and what came before has no noise
                continue
            if slot.param.grad is None:  # unused in this step, or an empty batch: noise all the same
                slot.param.grad, slot.wide = torch.zeros_like(slot.param.data), None
            grad = slot.param.grad
            sums.append((slot, grad, slot.sum_in(grad)))
        for slot, _, total in sums:
            self._noise.add_(total, stds[slot.group.name])
        # Not in one loop: after each operation of theirs, torch's threads keep the processors busy for a while.
        for slot, grad, total in sums:
            total.div_(expected_batch_size)
            if total is not grad:
                grad.copy_(total)  # rounded once, and it is private by now
            slot.wide = None
            slot.left = Left.of(grad, released=True)
        self._amounts.advance(expected_batch_size)
        for slot in self._slots:
            slot.group.threshold = self._amounts.thresholds[slot.group.name]

    def after(self, *_: Any) -> None:
        """Optimizer post-step hook."""
        for slot, grad in self._gradients():
            slot.left = Left.of(grad, released=True)
        if self._ledger is not None:
            self._weights.release()
        self._show_private()


def _require_unmoved(moved: list[str]) -> None:
    if moved:
        raise PrivacyViolation(
            f"the weights of {_some(moved)} moved since the first backward pass of this logical batch, and not by the attached "
            "optimizer's step (sharpness-aware minimisation, adversarial weights, an update by hand, weights that were loaded or "
            "averaged): the gradients of the batch have no noise yet, so neither has what moved by them. Move weights between "
            "optimizer.step() and the next backward pass alone. To go on, put them back as they were and call engine.discard(), "
            "which gives this logical batch up"
        )


def _most(counts: Counter[str]) -> int:
    return max(counts.values(), default=0)


def _some(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:3]) + (" .." if len(names) > 3 else "")


_NOT_ONE_BATCH = (
    "a step was not on exactly one whole logical batch: samples of it were left out (a micro-batch skipped, or zero_grad() between "
    "micro-batches, which belongs after the step), others or the same ones twice were there, it had a step already, or batches "
    "before it had none, of this iterator or of another one of the plan (take a step on every one, empty ones too; where one "
    "fails, call engine.discard() and iterate over batch.again())"
)
_YOUR_OWN = (
    "It counts as your own sampling, and no epsilon is stated unless you answer for it by sampling_vouched_by_user=True"
)
_SCALER = (
    "it would divide the clipped sum after the fact, and skip a step by looking at gradients without noise. Do without it: "
    "bfloat16 needs none, and for float16 give engine.backward a constant loss_scale"
)


def _are_finite(tensors: list[Tensor]) -> bool:
    """Asked of the device once, without a tensor as large as any of them."""
    if not tensors:
        return True
    ends = [end.to(tensors[0].device, torch.float64) for t in tensors if t.numel() for end in torch.aminmax(t)]
    return not ends or bool(torch.isfinite(torch.stack(ends)).all())



_BROKEN = (
    f"an earlier backward pass of this logical batch failed half-way, so p.grad holds a part of its samples; {AGAIN}"
)
