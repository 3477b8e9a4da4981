"""What stands in the ``p.grad`` of the private parameters, and whether the engine left it so.

Between the backward passes of a logical batch and its step, a clipped sum has no noise yet. What changes it, takes it away or
lets it stay too long is found out here, for all parameters in one look.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..autograd.slot import Left, Slot, at_the_very_end, several_processes
from ..distributed.shards import local
from ..errors import GroupClipError, PrivacyViolation

#: After something went wrong in a logical batch. One that is drawn and has no step is no batch of the plan's sampling any more.
AGAIN = (
    "call engine.discard() and backpropagate all micro-batches of this logical batch again (keep them in a list), or give it up: "
    "the next step counts as your own sampling then"
)


#: A private parameter, the gradient in it, and whether that is the one that the engine left there, unchanged.
Found = tuple[Slot, Tensor | None, bool]


class Custody:
    """Watches over the gradients of one engine.

    Args:
        slots: the private parameters.
        noise_to_come: what is found changed is refused; else it is the user's own business.
    """

    def __init__(self, slots: Sequence[Slot], *, noise_to_come: bool) -> None:
        self._slots, self._noise_to_come = slots, noise_to_come
        self.averaged = True  # by a wrapper, in several processes
        self.changed: list[Tensor] = []  # flags on the devices: whether lengths were others when they were looked at
        for slot in slots:
            slot.keeps_wide = noise_to_come

    def look(self) -> list[Found]:
        """Return what is there now."""
        found: list[Found] = []
        with torch._C.DisableTorchFunctionSubclass():
            for slot in self._slots:
                kept, left = slot.kept, slot.left
                grad = kept.grad
                # written out: it is asked some times a step of every parameter
                stands = left is not None and grad is not None and left.grad() is grad and left.version == grad._version
                if stands and kept is not slot.param:
                    stands = kept.is_as_noted
                found.append((slot, grad, stands))
        return found

    def check(self, found: Sequence[Found]) -> Mapping[Slot, Tensor]:
        """Check that more may be added to the gradients, or noise. Return the lengths of those that were looked at.

        Raises:
            GroupClipError: one is the last step's private gradient.
            PrivacyViolation: one isn't what the engine left there.
        """
        old = [grad for slot, grad, stands in found if stands and slot.left is not None and slot.left.released]
        if any(_hold_something(old)):
            raise GroupClipError(
                "p.grad still holds the private gradient of the last step: call optimizer.zero_grad() before the next "
                "logical batch, or it would be added to the new one"
            )
        if not self._noise_to_come:
            return {}
        others = [(slot.name, grad) for slot, grad, stands in found if not stands and grad is not None]
        held = _hold_something([grad for _, grad in others])
        changed = [name for (name, _), holds in zip(others, held, strict=True) if holds]
        if changed:
            raise PrivacyViolation(
                f"p.grad of {some(changed)} isn't what the last backward pass left there, so the noise wouldn't fit it. Leave "
                "gradients alone until optimizer.step: no scaling, no clip_grad_norm_ (inf writes them anew too, as the Trainer of "
                "Hugging Face does in every step: docs/huggingface.md has a loop to use instead). If it was a GradScaler: "
                f"{SCALER}. To go on, {AGAIN}"
            )
        return self._look_at_lengths(found)

    def was_given_up(self, found: Sequence[Found]) -> bool:
        """Return whether ``zero_grad`` cleared the sums of this logical batch before its step. They are forgotten then.

        Raises:
            PrivacyViolation: some of the gradients were cleared, and others hold the same samples still.
        """
        sums = [(slot, stands) for slot, _, stands in found if slot.left is not None and not slot.left.released]
        sums = [(slot, stands) for slot, stands in sums if slot.kept.requires_grad]  # freezing takes the gradient away
        cleared = [slot.name for slot, stands in sums if not stands]
        if not cleared or not self._noise_to_come:
            return False
        if len(cleared) < len(sums):
            raise PrivacyViolation(
                f"p.grad of {some(cleared)} was cleared before the step, while other gradients still hold the samples of this "
                "logical batch. Clear all gradients by optimizer.zero_grad() after the step, or freeze a parameter with "
                "requires_grad_(False)"
            )
        for slot, _ in sums:
            slot.left = slot.wide = None
        return True

    def check_landed(self) -> None:
        """Check, after a backward pass, that the clipped sums stand in ``p.grad``.

        Raises:
            PrivacyViolation: a hook of the user's changed one or took it away.
        """
        if self.averaged and several_processes():  # meanwhile
            self.note()
        found = self.look()
        self._take_lengths(found)
        gone = [slot.name for slot, _, stands in found if slot.left is not None and not stands]
        if self._noise_to_come and gone:
            raise PrivacyViolation(
                f"in the backward pass, a hook changed the clipped gradient of {some(gone)} or took it away, before it had noise; "
                "such a hook may look at gradients and no more: an optimizer step in it, or a clip, would be without noise"
            )

    def note_at_the_end(self) -> None:
        """Note, in a backward pass of the user's: processes may average gradients when it is complete."""
        if self.averaged and several_processes():
            at_the_very_end(self.note)
        at_the_very_end(lambda: self._take_lengths(self.look()))

    def _take_lengths(self, found: Sequence[Found]) -> None:
        """Take the lengths of what was left, to see whether its numbers change. The device isn't waited for."""
        if self._noise_to_come:
            held = [(slot, grad) for slot, grad, stands in found if stands and grad is not None and slot.length is None]
            for (slot, _), length in zip(held, _lengths([grad for _, grad in held]), strict=True):
                slot.length = length

    def _look_at_lengths(self, found: Sequence[Found]) -> Mapping[Slot, Tensor]:
        """See whether lengths are others than those that were taken; return them. The device isn't waited for."""
        held = [(slot, grad) for slot, grad, stands in found if stands and grad is not None and slot.length is not None]
        lengths = dict(zip([slot for slot, _ in held], _lengths([grad for _, grad in held]), strict=True))
        alike: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
        for slot, now in lengths.items():
            then = slot.length
            if then is not None and then.dtype == now.dtype and then.device == now.device:  # else it was cast, or moved
                alike.setdefault((now.dtype, now.device), []).append((then, now))
        for pairs in alike.values():
            then, now = (torch.stack(side) for side in zip(*pairs, strict=True))
            self.changed.append(((now - then).abs() > _ROUNDING * (now + then)).any())
        return lengths

    def require_lengths(self) -> None:
        """Check that no number was changed.

        Raises:
            PrivacyViolation: the numbers of a gradient were changed.
        """
        if any(bool(flag) for flag in self.changed):
            raise PrivacyViolation(
                "numbers in p.grad were changed since the backward pass (p.grad.data, or NumPy on its memory), so the noise "
                f"wouldn't fit them. Leave gradients alone until optimizer.step. To go on, {AGAIN}"
            )

    def note(self, *, released: bool = False) -> None:
        """Note that the gradients are as the engine left them. ``released``: the noise is in them."""
        if released:
            self.changed.clear()
        with torch._C.DisableTorchFunctionSubclass():
            for slot in self._slots:
                grad, slot.length = slot.kept.grad, None
                slot.left = None if grad is None else Left(weakref.ref(grad), grad._version, released)
                if slot.kept is not slot.param:
                    slot.kept.note()

    def drop(self) -> None:
        """Clear all of them."""
        self.changed.clear()
        for slot in self._slots:
            slot.kept.grad = slot.left = slot.wide = slot.length = None


#: Of lengths, relative: another number of threads adds up otherwise.
_ROUNDING = 1e-4


def _lengths(grads: Sequence[Tensor]) -> Sequence[Tensor]:
    return torch._foreach_norm([grad if type(grad) is Tensor else local(grad) for grad in grads], 2) if grads else ()  # pyright: ignore[reportPrivateImportUsage]


def _hold_something(grads: Sequence[Tensor | None]) -> list[bool]:
    """Tell of each whether it isn't zero: ``zero_grad(set_to_none=False)`` leaves zeros. The device is asked once."""
    anything = [grad.detach().any() for grad in grads if grad is not None]
    return torch.stack([one.to(anything[0].device) for one in anything]).tolist() if anything else []


def some(names: list[str]) -> str:
    """Return the first of them, for a message."""
    return ", ".join(repr(name) for name in names[:3]) + (" .." if len(names) > 3 else "")


SCALER = (
    "it would divide the clipped sum after the fact, and skip a step by looking at gradients without noise. Do without it: "
    "bfloat16 needs none, and for float16 give engine.backward a constant loss_scale"
)
