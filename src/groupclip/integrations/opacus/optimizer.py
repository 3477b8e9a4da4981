"""The optimizer that ``make_private`` returns: the user's own behind it, whose step waits for the end of the logical batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.engine import Engine
from ...errors import PrivacyViolation

_FIXED = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")


class PrivateOptimizer(Optimizer):
    """Stands for the optimizer of an attached model: its groups, state and hooks are that one's. make_private makes it.

    Args:
        optimizer: the user's own, whose steps are private.
        engine: that makes them so.
        max_grad_norm: R, or one number for each parameter.
        loss_reduction: "mean": gradients are divided by the expected batch size; "sum": they aren't.

    ``noise_multiplier``, ``max_grad_norm``, ``expected_batch_size`` and ``loss_reduction`` can be read and not be changed.
    """

    def __init__(self, optimizer: Optimizer, engine: Engine, max_grad_norm: float | list[float], loss_reduction: str) -> None:
        assert engine.mechanism is not None
        plan = engine.mechanism
        facts = (plan.noise_multiplier, max_grad_norm, plan.expected_batch_size, loss_reduction)
        self.__dict__.update(original_optimizer=optimizer, _engine=engine, **dict(zip(_FIXED, facts, strict=True)))
        self._skip: deque[bool] = deque()
        self._within = False  # a step was left out: the logical batch goes on
        self.step_hook: Callable[[PrivateOptimizer], Any] | None = None
        optimizer.register_step_pre_hook(self._before)

    def __getattr__(self, name: str) -> Any:
        if name == "original_optimizer":  # not made yet: a copy under way
            raise AttributeError(name)
        return getattr(self.original_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED:
            raise PrivacyViolation(
                f"optimizer.{name} can't be changed: noise, clipping and epsilon were made from it. Make the model private again "
                "with another one (docs/migration.md), or let gc.Adaptive move the thresholds in a loop of your own"
            )
        if name in ("param_groups", "state", "defaults"):
            setattr(self.original_optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        return repr(self.original_optimizer)

    @property
    def params(self) -> list[nn.Parameter]:
        """The trainable parameters of the optimizer."""
        return [p for group in self.original_optimizer.param_groups for p in group["params"] if p.requires_grad]

    def attach_step_hook(self, fn: Callable[[PrivateOptimizer], Any]) -> None:
        """Let ``fn(optimizer)`` be called in each step, once gradients are private and before they are applied."""
        self.step_hook = fn

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Say by ``do_skip`` whether the next :meth:`step` is left out, because its samples are a part of the logical batch."""
        self._skip.append(do_skip)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a private step, or none where the logical batch goes on.

        Args:
            closure: is called once, before the step; it may compute the gradients.

        Returns:
            What the closure gives.

        Raises:
            BudgetExceeded, PrivacyViolation, CoverageError: as a step of an attached optimizer.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._within = bool(self._skip and self._skip.popleft())
        if not self._within:
            self.original_optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless the logical batch goes on."""
        if not self._within:
            self.original_optimizer.zero_grad(set_to_none)

    def give_up(self) -> None:
        """Forget a logical batch that wasn't brought to its end, and what it was to skip."""
        self._skip.clear()
        if self._within:
            self._within = False
            self._engine.discard()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the user's own optimizer."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it into the user's own optimizer."""
        self.original_optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the user's own optimizer. What isn't the model's is refused in the next step."""
        self.original_optimizer.add_param_group(param_group)

    def _before(self, *_: Any) -> None:
        """Hear, in a step, that the gradients are private by now."""
        if self.loss_reduction == "sum":
            size = float(self.expected_batch_size)
            for param in self.params:
                if param.grad is not None:
                    param.grad.mul_(size)
        if self.step_hook is not None:
            self.step_hook(self)
