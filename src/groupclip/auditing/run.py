"""One-run audit of private training: canaries beside the data, an attacker who sees every released gradient.

A canary that is out stays in its place with a loss of zero: it adds nothing to any sum, so what is released has the law
that it has without it, and the number of samples stays the plan's.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from ..clipping.adaptive import Adaptive
from ..clipping.functions import ClipFunction
from ..engine.attach import attach
from ..engine.engine import Engine
from ..nested import replaced
from ..noise.sources import NoiseSource
from ..partition.groups import Partition
from ..privacy.composition import composed_epsilon
from ..privacy.mechanism import Mechanism
from ..privacy.spent import default_delta
from ..privacy.thresholds import Thresholds
from ..privacy.toeplitz import coefficients
from ..sampling.batches import logical_batches
from ..validate.replay import Losses
from .canaries import CanaryAudit
from .crafted import Crafted
from .report import RunAudit
from .unstated import nothing_stated


def audit_run(
    model: nn.Module,
    loss_fn: Losses,
    dataset: Dataset[Any] | Sequence[Any],
    canaries: int,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    mechanism: Mechanism | Sequence[Mechanism],
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    *,
    clip: str | ClipFunction = "automatic",
    thresholds: Thresholds | Adaptive = 1.0,
    allocation: str | Mapping[str, float] = "equal",
    noise: NoiseSource | None = None,
    microbatch: int = 64,
    guesses: int | None = None,
    confidence: float = 0.95,
    delta: float | None = None,
    progress: Callable[[int], None] = lambda step: None,
) -> RunAudit:
    """Train once with random canaries, and bound the run's epsilon from below by what an attacker guesses of them.

    Args:
        model: not attached; a copy of it is trained, and thrown away.
        loss_fn: ``loss_fn(model, *batch) -> [B]``.
        dataset: the samples to train on; each a tuple of what ``loss_fn`` takes. Nothing about them is reported.
        canaries: m, made up: losses that are linear in a few parameters each. Half of them will be in.
        groups, clip, thresholds, allocation, noise: as for :func:`groupclip.attach`.
        mechanism: the plan, for ``len(dataset) + canaries`` samples. Several: trainings one after another, on the same data and
            canaries, each from the weights of the one before, as a budget has them. What they spend together is audited.
        optimizer: parameters -> the optimizer, e.g. ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        microbatch: most samples held at once.
        guesses, confidence: see :class:`CanaryAudit`; fixed before the run.
        delta: of the bound and of the claim; ``default_delta`` of the plan's data set by default.
        progress: called with the number of each step that was taken.

    The claim that is audited is the plan's, by its sampling; under replace-one, canaries come and go, which shows less than a
    replacement would.

    Raises:
        ValueError, TypeError, PrivacyViolation: as :func:`groupclip.attach` and :func:`groupclip.logical_batches`.
    """
    plans = [mechanism] if isinstance(mechanism, Mechanism) else list(mechanism)
    if any(plan.unit != "sample" for plan in plans):
        raise ValueError("a plan of users can't be audited by single canaries: plan with unit='sample'")
    if len({plan.adjacency for plan in plans}) != 1:
        raise ValueError("several trainings need a plan each, of one adjacency: figures of different neighbours don't add up")
    delta = default_delta(plans[0].dataset_size) if delta is None else delta
    game = CanaryAudit(canaries=canaries, guesses=guesses, delta=delta, confidence=confidence)
    claimed = plans[0].epsilon(delta=delta) if len(plans) == 1 else _together(plans, delta)
    game.warn_if_idle(claimed)
    coins = game.coins()
    network = copy.deepcopy(model)
    stepper = optimizer([p for p in network.parameters() if p.requires_grad])
    joined, scores, before = _Joined(dataset, canaries), torch.zeros(canaries, dtype=torch.float64), 0
    for plan in plans:
        with nothing_stated():
            engine = attach(
                network, stepper, groups, plan, clip=clip, thresholds=thresholds, allocation=allocation, noise=noise
            )
        scores += _played(engine, stepper, joined, coins, loss_fn, microbatch, partial(_told, progress, before))
        before += plan.steps
    return game.verdict(coins, scores, epsilon=claimed)


def _played(
    engine: Engine, stepper: Optimizer, joined: _Joined, coins: Tensor, loss_fn: Losses, microbatch: int,
    progress: Callable[[int], None],
) -> Tensor:  # fmt: skip
    """Train, and return the score ``[m]`` of each canary. The engine is detached then."""
    network, plan = engine.model, engine.mechanism
    assert plan is not None
    sides = _Sides(plan)
    try:
        device = next(network.parameters()).device
        crafted = Crafted(engine, len(coins))
        for batch in logical_batches(joined, plan, microbatch):
            for sample, canary in batch:
                own, rest = canary[canary >= 0], canary < 0
                if bool(rest.any()):
                    inputs = replaced(
                        tuple(sample), lambda v, rest=rest: v[rest].to(device) if isinstance(v, Tensor) else v
                    )
                    engine.backward(loss_fn(network, *inputs))
                if len(own):  # in a pass of their own, in which norms of picked coordinates have a closed form
                    engine.backward(crafted.losses(engine, own.to(device), coins[own].to(device)))
            stepper.step()
            sides.add(crafted.scores(_released(network), engine))
            stepper.zero_grad()
            progress(batch.step + 1)
    finally:
        engine.detach()
    return sides.total


class _Sides:
    """Sums how far each step's release lies on the canaries' sides. Correlated noise is taken apart first, as anybody can.

    With ``C W = Z`` the releases ``G + W`` tell as much as ``C G + Z``, in which the noise of steps is independent: the sum is of
    those, each weighed by what a canary that is in every batch moves it.
    """

    def __init__(self, plan: Mechanism) -> None:
        self._column = coefficients(plan.steps, plan.band_count)
        self._latest: deque[Tensor] = deque(maxlen=len(self._column))
        self.total: Tensor = torch.zeros((), dtype=torch.float64)

    def add(self, scores: Tensor) -> None:
        """Take the scores ``[m]`` of a step."""
        self._latest.appendleft(scores)
        shares = list(zip(self._column, self._latest, strict=False))
        apart = torch.stack([share * earlier for share, earlier in shares]).sum(0)
        self.total = self.total + apart * math.fsum(share for share, _ in shares)


def _together(plans: Sequence[Mechanism], delta: float) -> float:
    return composed_epsilon([(plan.step, plan.rounds()) for plan in plans], [], [], delta)[0]


def _told(progress: Callable[[int], None], before: int, step: int) -> None:
    progress(before + step)


class _Joined(Dataset[Any]):
    """The samples, each with -1; then the canaries with their numbers, in the shape of the first sample."""

    def __init__(self, samples: Any, canaries: int) -> None:
        self._samples, self._canaries = samples, canaries

    def __len__(self) -> int:
        return len(self._samples) + self._canaries

    def __getitem__(self, index: int) -> tuple[tuple[Any, ...], int]:
        canary = index - len(self._samples)
        if canary < 0:
            return tuple(self._samples[index]), -1
        return tuple(self._samples[0]), canary


def _released(model: nn.Module) -> dict[str, Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        return {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
