"""One step of the optimizer, made private: noise, division by the expected batch size, one event in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .admission import check_optimizer
from .errors import GroupClipError, PrivacyViolation
from .gate import Slot
from .ledger import Ledger
from .noise import NoiseSource
from .sampling import claim


class PrivateStep:
    """What lies between the clipped sums in ``p.grad`` and ``optimizer.step``.

    Args:
        slots: the private parameters.
        ledger: of the run; None for clipping alone (no noise, no accounting).
        noise: its source.
        std: standard deviation of the noise on every coordinate of the sum.
        plain: called when the gradients are private; shows the optimizer plain parameters.
        private: called after the step; undoes ``plain``.
    """

    def __init__(
        self, slots: list[Slot], ledger: Ledger | None, noise: NoiseSource, std: float,
        plain: Callable[[], None], private: Callable[[], None],
    ) -> None:  # fmt: skip
        self._slots, self._ledger, self._noise, self._std = slots, ledger, noise, std
        self._show_plain, self._show_private = plain, private
        self._seen: Counter[str] = Counter()  # group -> samples since the last step: secret
        self._broken = False
        self._released: dict[str, tuple[Tensor, int]] = {}  # private gradients that zero_grad has not cleared yet

    def saw(self, group: str, samples: int) -> None:
        """A group clipped so many samples of the logical batch."""
        self._seen[group] += samples

    def broke(self) -> None:
        """A backward pass failed half-way, and ``p.grad`` holds a part of its samples."""
        self._broken = True

    def discard(self) -> None:
        """Forget the logical batch under way."""
        for slot in self._slots:
            slot.param.grad = None
        self._seen.clear()
        self._released.clear()
        self._broken = False

    def check_accumulation(self) -> None:
        """Whether gradients may be added to ``p.grad`` now.

        Raises:
            PrivacyViolation: it holds a part of a failed backward pass.
            GroupClipError: it holds the last step's private gradient.
        """
        if self._broken:
            raise PrivacyViolation(_BROKEN)
        for slot in self._slots:
            if slot.name in self._released:
                grad, version = self._released[slot.name]
                if slot.param.grad is grad and grad._version == version:
                    raise GroupClipError(
                        "p.grad still holds the private gradient of the last step: call optimizer.zero_grad() before the next "
                        "engine.backward, or it would be added to the new one"
                    )
        self._released.clear()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Optimizer pre-step hook. The event is counted when the noise is added: from then on the gradient is released."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is not None:
            raise PrivacyViolation(
                "optimizer.step was called with a closure: the gradients that it computes would be applied without noise. "
                "Call engine.backward first and then optimizer.step() without arguments"
            )
        if self._broken:
            raise PrivacyViolation(_BROKEN)
        check_optimizer(optimizer, {s.name: s.param for s in self._slots if s.param.requires_grad})
        if self._ledger is not None:
            self._ledger.check()
            self._make_private(self._ledger.mechanism.expected_batch_size)
            own = claim(self._ledger.mechanism, id(self), max(self._seen.values(), default=0))
            self._ledger.record("groupclip" if own else "user")
        self._seen.clear()
        self._show_plain()

    def _make_private(self, expected_batch_size: float) -> None:
        if not all(bool(torch.isfinite(s.param.grad).all()) for s in self._slots if s.param.grad is not None):
            raise PrivacyViolation(
                "a summed gradient isn't finite, though every sample was bounded: something changed p.grad after the backward "
                "pass. Call engine.discard() to give up this logical batch"
            )
        for slot in self._slots:
            if not slot.param.requires_grad:
                continue  # frozen since: it takes no part
            if slot.param.grad is None:  # unused in this step, or an empty batch: noise all the same
                slot.param.grad = torch.zeros_like(slot.param.data)
            self._noise.add_(slot.param.grad, self._std)
            slot.param.grad.div_(expected_batch_size)

    def after(self, *_: Any) -> None:
        """Optimizer post-step hook."""
        grads = [(slot.name, slot.param.grad) for slot in self._slots]
        self._released = {name: (grad, grad._version) for name, grad in grads if grad is not None}
        self._show_private()


_BROKEN = (
    "an earlier backward pass of this logical batch failed half-way, so p.grad holds a part of its samples; call "
    "engine.discard() to give the logical batch up, and go on with the next one"
)
