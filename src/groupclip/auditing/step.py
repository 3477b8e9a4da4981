"""White-box audit of one step: the engine's own step, many times, on two neighbouring batches.

Both batches hold the same made-up samples; one of them holds a canary as well, whose loss is scaled until its clipped
gradient is as far from nothing, in units of the noise, as the clip function lets it be. What the optimizer gets (``p.grad``
after the engine's hook) is projected on the canary's clipped gradient, each group over the variance of its noise: by
Neyman and Pearson's lemma no attacker who sees that gradient does better against Gaussian noise.

The rule that says "the canary was in" is fixed before the first noise is drawn: a projection above the middle of the two
clipped sums' own. So all trials count, and there is no threshold to correct for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import whole
from ..clipping.adaptive import Adaptive
from ..clipping.functions import ClipFunction, bounded_factors
from ..engine.attach import attach
from ..engine.engine import Engine
from ..errors import GroupClipError
from ..noise.sources import NoiseSource
from ..partition.groups import Partition
from ..privacy.mechanism import Mechanism
from ..privacy.spent import default_delta
from ..privacy.thresholds import Thresholds
from ..validate.replay import Losses
from ..validate.samples import Batch
from .report import StepAudit
from .statistics import enough_trials, epsilon_at_least, mu_at_least
from .unstated import nothing_stated

#: Trials that are taken where no number is given.
LEAST, MOST = 200, 20_000

#: Scales that are tried for the canary's loss, in multiples of the one that brings its gradient to the threshold.
_SCALES = tuple(2.0**k for k in range(-12, 13))
_AS_GOOD = 0.999


def audit(
    model: nn.Module,
    loss_fn: Losses,
    batch: Any,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    mechanism: Mechanism,
    *,
    clip: str | ClipFunction = "automatic",
    thresholds: Thresholds = 1.0,
    allocation: str | Mapping[str, float] = "equal",
    noise: NoiseSource | None = None,
    trials: int | None = None,
    confidence: float = 0.999,
    delta: float | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> StepAudit:
    """Bound from below how distinguishable the engine's step makes one sample; compare it with what the plan claims at most.

    Args:
        model: not attached; a copy of it is audited, at its present weights.
        loss_fn: ``loss_fn(model, *batch) -> [B]``, as for :func:`groupclip.check`.
        batch: at least 2 samples that need NO protection (made up, or public): the last is the canary. The report tells
            about them, and about no others.
        groups, mechanism, clip, thresholds, allocation, noise: as for :func:`groupclip.attach`.
        trials: steps taken on each of the two batches; the cost is a step's on that batch. By default as many as notice noise
            that is too small by a factor of 2 with probability 95 %, between 200 and 20,000.
        confidence: probability with which each bound in the report holds at least: a sound step is reported as a
            violation with probability ``1 - confidence`` at most.
        delta: for the figures in epsilon; ``default_delta`` of the plan's data set by default.
        progress: called with the number of trials that were taken on both batches.

    The neighbours are those of the plan: the canary is added (add-or-remove-one), or there with no loss against there
    (zero-out), or replaced by one with the opposite gradient (replace-one). No sampling is involved: the canary is in every
    batch of its world. So what is bounded is the step that the accountant's figure starts from, not the sampling.

    Raises:
        GroupClipError: the canary has no gradient in any group, or moves nothing after clipping.
        ValueError, TypeError, PrivacyViolation: arguments that don't fit, also as :func:`groupclip.attach`.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be in [0.5, 1)")
    if isinstance(thresholds, Adaptive):
        raise ValueError(
            "Adaptive thresholds move with the noise from step to step, so no two trials are of one step: give thresholds, "
            "e.g. the ones at which a run starts"
        )
    if mechanism.band_count > 1:
        raise ValueError(
            f"bands={mechanism.bands}: the noise of a step is correlated with that of others, so a step by itself shows nothing "
            "of the plan; use groupclip.audit_run, which audits a whole run"
        )
    delta = default_delta(mechanism.dataset_size) if delta is None else delta
    claimed = 1 / mechanism.step.one_sided
    if trials is None:
        trials = usual_trials(mechanism, confidence)
    trials = whole("trials", trials, least=10)
    network = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.0)  # weights stay
    plan = replace(mechanism, steps=2 * trials)
    with nothing_stated():
        engine = attach(
            network, optimizer, groups, plan, clip=clip, thresholds=thresholds, allocation=allocation, noise=noise
        )
    errors = [0, 0]
    try:
        step = _Step(engine, loss_fn, Batch(batch))
        worlds = step.worlds(mechanism.adjacency)
        with nothing_stated():
            for trial in range(trials):
                for world, weights in enumerate(worlds.weights):
                    step.backward(weights)
                    optimizer.step()
                    taken_for_in = worlds.project(step.gradients(), mechanism.expected_batch_size) > 0
                    optimizer.zero_grad()
                    errors[world] += taken_for_in != bool(world)
                progress(trial + 1)
    finally:
        engine.detach()
    false_alarms, misses = errors
    return StepAudit(
        trials=trials,
        confidence=confidence,
        delta=delta,
        false_alarms=false_alarms,
        misses=misses,
        mu_claimed=claimed,
        mu_of_canary=worlds.distance,
        mu_lower=mu_at_least(false_alarms, misses, trials, confidence),
        mu_ceiling=mu_at_least(0, 0, trials, confidence),
        epsilon_any_noise=epsilon_at_least(false_alarms, misses, trials, delta, confidence),
        steps=mechanism.steps,
        groups=len(engine.partition),
        secure_noise=engine.noise.secure,
    )


def usual_trials(mechanism: Mechanism, confidence: float) -> int:
    """Return how many trials :func:`audit` takes where no number is given."""
    return max(LEAST, enough_trials(1 / mechanism.step.one_sided, 2.0, confidence, MOST))


@dataclass(frozen=True, eq=False)
class _Worlds:
    """Two neighbouring batches, and the rule that tells their noisy sums apart.

    weights: of the losses, without and with the canary. direction: by parameter. middle: of the two projections.
    distance: of the two clipped sums, over the noise.
    """

    weights: tuple[Tensor, Tensor]
    direction: Mapping[str, Tensor]
    middle: float
    distance: float

    def project(self, gradients: Mapping[str, Tensor], expected_batch_size: float) -> float:
        """Return how far released gradients lie on the canary's side; 0 is the middle."""
        return _inner(self.direction, gradients) * expected_batch_size - self.middle


class _Step:
    """One engine, and the samples that it steps on."""

    def __init__(self, engine: Engine, loss_fn: Losses, batch: Batch) -> None:
        if batch.size < 2:
            raise ValueError(
                f"the batch has {batch.size} samples: at least 2 are needed, of which the last is the canary"
            )
        self._engine, self._loss_fn, self._batch = engine, loss_fn, batch

    def backward(self, weights: Tensor) -> None:
        """Take one backward pass on the samples, their losses weighted; ``[B - 1]`` weights leave the canary out."""
        losses = self._loss_fn(self._engine.model, *self._batch.pick(*range(len(weights))))
        self._engine.backward(losses * weights.to(losses))

    def gradients(self) -> dict[str, Tensor]:
        """Return what stands in ``p.grad``: of a parameter that took no part, zeros."""
        with torch._C.DisableTorchFunctionSubclass():
            return {
                name: torch.zeros_like(p.data) if p.grad is None else p.grad.detach()
                for name, p in self._engine.model.named_parameters()
                if p.requires_grad
            }

    def worlds(self, adjacency: str) -> _Worlds:
        """Return the two batches, with the canary's loss at the scale that sets their clipped sums furthest apart."""
        scale = self._scale()
        ones = torch.ones(self._batch.size - 1)
        inside = torch.cat([ones, torch.tensor([scale])])
        outside = {
            "add-or-remove-one": ones,
            "zero-out": torch.cat([ones, torch.tensor([0.0])]),
            "replace-one": torch.cat([ones, torch.tensor([-scale])]),
        }[adjacency]
        without, with_ = self._clipped_sum(outside), self._clipped_sum(inside)
        stds, groups = self._engine.noise_stds, self._engine.partition
        variance = {name: stds[group] ** 2 for group in groups.names for name in groups[group]}
        moved = {name: with_[name] - without[name] for name in with_}
        direction = {name: moved[name] / variance[name] for name in moved}
        middle = (_inner(direction, without) + _inner(direction, with_)) / 2
        return _Worlds((outside, inside), direction, middle, math.sqrt(_inner(direction, moved)))

    def _scale(self) -> float:
        """Return the largest of those that are as good as the best: a group that is NOT clipped then shows all the more."""
        engine = self._engine
        self.backward(torch.ones(self._batch.size))
        norms = {group: norms[-1].double() for group, norms in engine.unsafe_norms().items() if norms[-1] > 0}
        engine.discard()
        if not norms:
            raise GroupClipError(
                "the canary (the batch's last sample) has no gradient in any group, so nothing could be shown; use another "
                "sample, or weights at which its loss has a gradient"
            )

        def distance(scale: float) -> float:
            moved = {}
            for group, norm in norms.items():
                scaled, bound = norm * scale, engine.thresholds[group]
                moved[group] = float(scaled * bounded_factors(engine.clip, scaled, bound, torch.float64))
            return math.hypot(*(moved[group] / engine.noise_stds[group] for group in norms))

        at_threshold = max(engine.thresholds[group] / float(norm) for group, norm in norms.items())
        found = {at_threshold * times: distance(at_threshold * times) for times in _SCALES}
        return max(scale for scale, moved in found.items() if moved >= _AS_GOOD * max(found.values()))

    def _clipped_sum(self, weights: Tensor) -> dict[str, Tensor]:
        self.backward(weights)
        found = {name: grad.double() for name, grad in self.gradients().items()}
        self._engine.discard()
        return found


def _inner(direction: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> float:
    return math.fsum(float(direction[name].flatten() @ gradients[name].double().flatten()) for name in direction)
