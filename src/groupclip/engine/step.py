"""One step of the optimizer, made private: noise, division by the expected batch size, one event in the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..autograd.sharded import Turns
from ..autograd.slot import Slot, called_by_scaler
from ..clipping.budget import GroupNoise
from ..distributed.ranks import Ranks
from ..errors import PrivacyViolation
from ..noise.sources import NoiseSource
from ..privacy.ledger import Ledger
from ..sampling.claims import Owner
from .checks import check_optimizer
from .custody import AGAIN, SCALER, Custody, Found, some
from .factorised import add_noise, factorised
from .samples import SamplesSeen
from .together import Together, check_ranks
from .unmoved import Unmoved

_log = logging.getLogger("groupclip")


class PrivateStep:
    """Turns the clipped sums in ``p.grad`` into private gradients before ``optimizer.step``.

    Args:
        slots: the private parameters.
        ledger: of the run; None for clipping alone (no noise, no accounting).
        noise: its source.
        amounts: of the noise, by group; and the thresholds, which may move after a step.
        plain: called when the gradients are private; shows the optimizer plain parameters.
        private: called after the step; undoes ``plain``.
    """

    def __init__(
        self, slots: Sequence[Slot], ledger: Ledger | None, noise: NoiseSource, amounts: GroupNoise,
        plain: Callable[[], None], private: Callable[[], None],
    ) -> None:  # fmt: skip
        self._slots, self._ledger, self._noise, self._amounts = slots, ledger, noise, amounts
        self._show_plain, self._show_private = plain, private
        self._custody, self._weights = Custody(slots, noise_to_come=ledger is not None), Unmoved(slots)
        self._broken = self._warned = self.released = False  # released: has any step of this engine's own been counted?
        self._own_passes: set[int] = set()  # of the user's own backward that began and haven't ended
        self._owner = None if ledger is None else Owner(ledger.mechanism)
        self.samples = SamplesSeen(self._owner)
        self._together: Together | None = None
        self._turns: Turns | None = None
        self._factorised = None if ledger is None else factorised(ledger.mechanism)

    @property
    def training(self) -> str:
        """A name of chance, which a state carries on; empty without a plan."""
        return "" if self._owner is None else self._owner.training

    @property
    def ranks(self) -> Ranks | None:
        """Those that step together with this one; None where it trains alone."""
        return None if self._together is None else self._together.ranks

    def join(self, ranks: Ranks, training: str, turns: Turns | None, *, staged: bool) -> None:
        """Step together with the other ranks of a training of this name of chance. ``turns``: of parameters cut over them."""
        assert self._ledger is not None and self._owner is not None
        self._owner.training = training
        own = self._ledger, self._owner, self._amounts, self._slots, self._noise
        self._together = Together(ranks, *own, staged=staged)
        self._amounts.shared_by(self._together)
        self._custody.averaged = False
        self._turns = turns

    def resumed(self, steps: int, training: str) -> None:
        """Hear that a state of so many steps was loaded: batches of later steps that were drawn in this process come again.

        Args:
            training: the name in that state; empty if it is of an older version.
        """
        if self._owner is not None and steps:
            self._owner.resumed_at = steps
            self._owner.training = training or self._owner.training

    def leave(self) -> None:
        """Hear that the engine is detached."""
        if self._owner is not None:
            self._owner.leave()

    @property
    def under_way(self) -> bool:
        """Whether samples were clipped since the last step."""
        return bool(self.samples.counts) or self._broken

    def own_pass(self) -> None:
        """Check a backward pass that isn't ``engine.backward``'s as that is checked, before anything of it lands.

        A pass that comes to its end leaves whole sums. The step finds out a pass that failed half-way.
        """
        task = torch._C._current_graph_task_id()
        if task in self._own_passes:
            return
        if not self._own_passes:  # not one inside another (a re-entrant checkpoint)
            self.check_accumulation()
        self._own_passes.add(task)
        self._custody.note_at_the_end()
        if self._turns is not None:
            torch.autograd.Variable._execution_engine.queue_callback(self._turns.finish)
        self.samples.passed()
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._own_passes.discard(task))

    def broke(self) -> None:
        """Hear that a backward pass failed half-way, so that ``p.grad`` holds a part of its samples."""
        self._broken = True

    def discard(self) -> None:
        """Forget the logical batch under way."""
        self._custody.drop()
        if self._turns is not None:
            self._turns.forget()
        self.samples.forget()
        self._weights.forget()
        self._amounts.discard()
        self._broken = False
        self._own_passes.clear()

    def check_accumulation(self) -> None:
        """Check that gradients may be added to ``p.grad`` now.

        Raises:
            PrivacyViolation: it holds a part of a failed backward pass, or something that the engine didn't leave there.
            GroupClipError: it holds the last step's private gradient.
        """
        if self._broken:
            raise PrivacyViolation(_BROKEN)
        found = self._custody.look()
        self._custody.check(found)
        if self._ledger is not None:
            _require_unmoved(self._weights.moved_since_first())
        self._give_up_what_was_cleared(found)
        for slot, _, stands in found:
            if not stands and slot.left is not None:
                slot.left = slot.wide = None  # cleared by zero_grad

    def check_landed(self) -> None:
        """Check, after a backward pass, that the clipped sums stand in ``p.grad``.

        Raises:
            PrivacyViolation: a hook of the user's changed one or took it away.
        """
        self._custody.check_landed()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Optimizer pre-step hook. The event is counted when the noise is added: from then on the gradient is released."""
        if self._together is None:
            found = self._checked(optimizer, args, kwargs)
        else:
            check_ranks(self._together.ranks)  # or nobody can be asked
            found = self._together.check(partial(self._checked, optimizer, args, kwargs))
        if self._ledger is not None and self._owner is not None:
            # Counted first: whatever interrupts what follows, no noise is added that isn't counted.
            if self._owner.resumed_at is not None:  # batches lost in a crash may have been counted since
                self._owner.resumed_at = self._ledger.steps
            own = self._owner.fits(self.samples.most, self.samples.passes)
            own = own if self._together is None else self._together.is_claimed(own)
            kept, claimed = self._factorised, self._owner.claimed if own else None
            anew = kept is not None and kept.begins(claimed, self._slots, self._ledger)
            self._ledger.record("groupclip" if own else "user", anew=anew)
            self._owner.claim()  # only now: a step that couldn't be charged may come again
            self.released = True
            self._say_whose_sampling(own)
            self._make_private(found, self._ledger.mechanism.expected_batch_size)
        self.samples.forget()
        self._show_plain()

    def _checked(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Found]:
        """Check what the step is about to do; release nothing."""
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
            {s.name: s.moved for s in self._slots if s.kept.requires_grad},
            frozen=[s.moved for s in self._slots if not s.kept.requires_grad],  # since attach
        )
        if self._ledger is None or self._owner is None:
            return []
        check_ranks(None if self._together is None else self._together.ranks)  # again: a group may have been made since
        if called_by_scaler():
            raise PrivacyViolation(f"optimizer.step was called by a GradScaler: {SCALER}")
        found = self._custody.look()
        self._check_batch(self._ledger, self._owner, found, self._custody.check(found))
        return found

    def _give_up_what_was_cleared(self, found: Sequence[Found]) -> bool:
        """Give up what ``zero_grad`` cleared before the step: the noise is for whole batches, so what remains isn't one."""
        given_up = self._custody.was_given_up(found)
        if given_up:
            self.samples.forget()
            self._amounts.discard()
        return given_up

    def _say_whose_sampling(self, own: bool) -> None:
        """Once an engine, in its first step that isn't on its ``own`` batch: the statement would say it when all is spent."""
        if own or self._owner is None or self._warned:
            return
        self._warned = True
        if self._owner.draws():
            _log.warning(f"{_NOT_ONE_BATCH}. {_YOUR_OWN}")
        else:
            _log.warning(
                f"a step was on a batch that groupclip didn't draw. {_YOUR_OWN}: draw batches by "
                "groupclip.logical_batches(dataset, mechanism)"
            )

    def _check_batch(self, ledger: Ledger, owner: Owner, found: Sequence[Found], lengths: Mapping[Slot, Tensor]) -> None:
        """Check what the step is about to release. Whatever the device has to be asked for in a step is asked here, at once."""
        there = [(slot, grad) for slot, grad, _ in found if grad is not None]
        sums = [grad if slot.wide is None else slot.sum_in(grad) for slot, grad in there]
        known = [lengths.get(slot) if slot.wide is None else None for slot, _ in there]
        acting, finite, moved = self.samples.ask(sums, [*self._weights.seem_moved(), *self._custody.changed], known)
        if moved:
            _require_unmoved(self._weights.moved_at_step())
            self._custody.require_lengths()
        ledger.check()
        owner.check_filling(self.samples.most, 0 if self._give_up_what_was_cleared(found) else acting)
        if not finite:
            raise PrivacyViolation(
                "a summed gradient isn't finite, though every sample was bounded: the sum is too large for its dtype. Call "
                "engine.discard() to give up this logical batch, and attach again with a smaller threshold or float32 parameters"
            )

    def _make_private(self, found: Sequence[Found], expected_batch_size: float) -> None:
        stds = self._amounts.stds
        sums: list[tuple[Slot, Tensor, Tensor]] = []  # gradients, and what is released: for half-precision ones wider
        for slot, grad, _ in found:
            if not slot.kept.requires_grad:
                slot.kept.grad = slot.wide = None  # frozen since: it takes no part, and what came before has no noise
                continue
            if grad is None:  # unused in this step, or an empty batch: noise all the same
                grad = slot.kept.grad = torch.zeros_like(slot.kept.data)
                slot.wide = None
            sums.append((slot, grad, grad if slot.wide is None else slot.sum_in(grad)))
        if self._together is None:
            add_noise(self._noise, [(slot, total) for slot, _, total in sums], stds, self._slots, self._factorised)
            # Not in one loop: after each operation of theirs, torch's threads keep the processors busy for a while.
            if sums:
                torch._foreach_div_([total for _, _, total in sums], expected_batch_size)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self._broken = True  # until all of it is private
            self._together.release([(slot, total, stds[slot.group.name]) for slot, _, total in sums], expected_batch_size)
            self._broken = False
        for slot, grad, total in sums:
            if total is not grad:
                grad.copy_(total)  # rounded once, and it is private by now
            slot.wide = None
        self._custody.note(released=True)
        self._amounts.advance(expected_batch_size)
        for slot in self._slots:
            slot.group.threshold = self._amounts.thresholds[slot.group.name]

    def after(self, *_: Any) -> None:
        """Optimizer post-step hook."""
        self._custody.note(released=True)
        if self._ledger is not None:
            self._weights.release()
        if self._turns is not None:
            self._turns.take_apart()
        self._show_private()


def _require_unmoved(moved: list[str]) -> None:
    if moved:
        raise PrivacyViolation(
            f"the weights of {some(moved)} moved since the first backward pass of this logical batch, and not by the attached "
            "optimizer's step (sharpness-aware minimisation, adversarial weights, an update by hand, weights that were loaded or "
            "averaged). The gradients of the batch have no noise yet, so what moved by them has no noise either. Move weights only "
            "between optimizer.step() and the next backward pass. To go on, put the weights back as they were and call "
            "engine.discard(), which gives this logical batch up"
        )


_NOT_ONE_BATCH = (
    "a step was not on exactly one whole logical batch: samples of it were left out (a micro-batch skipped, or zero_grad() between "
    "micro-batches, which belongs after the step), others or the same ones twice were there, it had a step already, or batches "
    "before it had none, of this iterator or of another one of the plan (take a step on every one, empty ones too; where one "
    "fails, call engine.discard() and iterate over batch.again())"
)
_YOUR_OWN = "It counts as your own sampling, and no epsilon is stated unless you vouch for it by sampling_vouched_by_user=True"
_BROKEN = f"an earlier backward pass of this logical batch failed half-way, so p.grad holds a part of its samples; {AGAIN}"
