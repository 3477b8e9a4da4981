"""Adam whose second moment is corrected for the noise (Tang et al. 2024, DP-AdamBC): post-processing of what a step releases.

A private gradient is g + n, with n of variance (s / B)^2. Adam divides by the root of an average of squares, which are larger by
that variance on average: under much noise all coordinates are divided by nearly the same number. Here the variance, which is
public, is subtracted first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import GroupClipError

if TYPE_CHECKING:
    from .engine import Engine


class NoiseAwareAdam(Optimizer):
    """Adam on private gradients, with the noise's variance taken out of the second moment; without noise it is AdamW.

    Make it, attach, and call :meth:`follow`. What is divided by is at least what noise alone would leave by chance: one standard
    deviation of the average of its squares.

    Args:
        params: as of any optimizer of torch.
        lr: learning rate. Steps are larger than Adam's at the same one, because what they are divided by is smaller.
        betas: of the averages of gradients and of their squares, each in [0, 1).
        eps: added to what is divided by.
        weight_decay: is decoupled from the gradient, as in AdamW.

    Raises:
        ValueError: naming the argument.
    """

    _engine: Engine | None = None
    _variances: dict[int, float] | None = None  # of the step under way, by id of a parameter

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        for name, value, fits in (
            ("lr", lr, lr >= 0), ("betas", betas, all(0 <= beta < 1 for beta in betas)), ("eps", eps, eps >= 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
        ):  # fmt: skip
            if not fits:
                raise ValueError(f"{name}={value!r}: betas lie in [0, 1), and the others are 0 or more")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.register_step_pre_hook(_note)  # before the engine's, after which adaptive thresholds have moved

    def follow(self, engine: Engine) -> None:
        """Take the noise of every step from this engine, which was attached with this optimizer.

        Raises:
            ValueError: an engine of another optimizer, one that adds no noise, or one whose noise is correlated over steps.
            GroupClipError: a detached one.
        """
        engine._require_attached()
        if engine.optimizer is not self:
            raise ValueError(
                "the engine was attached with another optimizer: follow the one of groupclip.attach(model, optimizer, ..)"
            )
        if engine.mechanism is None:
            raise ValueError(
                "the engine clips alone (mechanism=None), so its gradients have no noise to correct for: use AdamW"
            )
        if engine.mechanism.band_count > 1:
            raise ValueError(
                f"bands={engine.mechanism.bands}: with correlated noise a step's variance isn't that of engine.noise_stds. "
                "Plan with bands=1, or use AdamW or SGD"
            )
        self._engine = engine

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step on private gradients.

        Raises:
            GroupClipError: before :meth:`follow`, after the engine was detached, or on a copy of this optimizer.
        """
        if closure is not None:
            raise ValueError("closure: a private step takes none")
        if self._variances is None:
            raise GroupClipError(_UNKNOWN)  # a copy, which has no hooks
        variances, self._variances = self._variances, None
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    _update(param, param.grad, self.state[param], group, variances[id(param)])

    def second_moment(self, param: Tensor) -> Tensor:
        """Return the estimate of the squared gradient of ``param`` without noise, before it is bounded below: its shape."""
        state = self.state[param]
        (betas,) = (group["betas"] for group in self.param_groups if any(p is param for p in group["params"]))
        return (state["exp_avg_sq"] - state["noise"]) / (1 - betas[1] ** state["step"])


def _note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Note the variances of the step that begins."""
    assert isinstance(optimizer, NoiseAwareAdam)
    engine = optimizer._engine
    if engine is None or engine.mechanism is None:
        raise GroupClipError(_UNKNOWN)  # before the engine counts the step
    engine._require_attached()
    batch, stds, groups = engine.mechanism.expected_batch_size, engine.noise_stds, engine.partition
    named = {name: param for name, param in engine.model.named_parameters() if param.requires_grad}
    optimizer._variances = {id(param): (stds[groups.group_of(name)] / batch) ** 2 for name, param in named.items()}


def _update(param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any], variance: float) -> None:
    if not state:
        state.update(step=0, noise=0.0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
    first, second = group["betas"]
    state["step"] += 1
    state["noise"] = second * state["noise"] + (1 - second) * variance  # weighed as the squares are
    state["exp_avg"].lerp_(grad, 1 - first)
    state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
    left, of_first = 1 - second ** state["step"], 1 - first ** state["step"]
    least = state["noise"] / left * _by_chance(second, state["step"])
    square = ((state["exp_avg_sq"] - state["noise"]) / left).clamp_(min=least)
    param.mul_(1 - group["lr"] * group["weight_decay"])
    param.addcdiv_(state["exp_avg"], square.sqrt_().add_(group["eps"]), value=-group["lr"] / of_first)


def _by_chance(beta: float, step: int) -> float:
    """Return the standard deviation of the average of so many squares of noise of variance 1."""
    kept = beta**step
    return math.sqrt(2 * (1 - beta) / (1 + beta) * (1 + kept) / (1 - kept))


_UNKNOWN = "NoiseAwareAdam doesn't know the noise of this step: call optimizer.follow(engine) after groupclip.attach"
