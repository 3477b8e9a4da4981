"""What to begin a private training with, from public facts alone: batch, steps, noise, learning rate, and why.

Two rules are behind it.

*The noise that counts.* T steps of noise ``sigma R / B`` move a weight by chance, T steps along the gradient move it on purpose, so
``sigma / (B sqrt(T))`` is the share of noise. Full batches have the least, and nothing else is as good for privacy. The advice is
the smallest batch that comes within a tenth of it: fewer samples a step cost less time, and still smaller ones waste privacy.
Where ``B / sigma`` is the same, so is the training, which is why a rehearsal on public data can be cheap (Sander et al. 2022).

*The learning rate.* It is chosen so that the noise of all steps together moves a weight by 0.1 (standard deviation), or 0.01 where
the weights were pretrained; in a linear model with a known number of inputs, so that it moves an output by 3. So ``lr * T`` grows
about in proportion to epsilon, the linear rule of Panda et al. 2022. The recipes of Tramer and Boneh 2021, De et al. 2022 and
Sander et al. 2022 move a weight by 0.05 to 0.15 (docs/advise.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from groupclip.arguments import positive, whole
from groupclip.privacy import accounting, calibration
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.spent import checked_delta, default_delta

#: What is trained -> steps to begin with, and the standard deviation by which noise moves a weight in all of them.
STARTS: dict[str, tuple[int, float]] = {"linear": (200, 0.1), "scratch": (1000, 0.1), "pretrained": (300, 0.01)}
OUTPUT = 3.0  # standard deviation by which noise moves an output of a linear model
WASTE = 1.1  # times the least share of noise
FEWEST = 20  # steps
MOMENTUM = 0.9
_SHRINK = 16  # of a rehearsal's batch


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a training may begin with.

    mechanism: the plan, calibrated.
    reach: by how much the noise of all steps moves a weight (standard deviation).
    lr_sgd: of SGD with momentum ``MOMENTUM``, for gradients that were clipped to R in all; lr_adam: of Adam and AdamW.
    noise_share: ``sigma / (B sqrt(T))``; least_share: that of full batches.
    rehearsal: (batch, noise multiplier) of a training on PUBLIC data that goes like this one, in a fraction of the time.
    """

    mechanism: Mechanism
    lr_sgd: float
    lr_adam: float
    noise_share: float
    least_share: float
    rehearsal: tuple[int, float]
    reach: float

    @property
    def epochs(self) -> float:
        """How often each sample is drawn, on average."""
        return self.mechanism.steps * self.mechanism.expected_batch_size / self.mechanism.dataset_size


def numbers(
    dataset_size: int, *, epsilon: float, delta: float | None = None, start: str = "scratch", threshold: float = 1.0,
    most_samples: float = math.inf, unit: str = "sample", inputs: int | None = None,
) -> Numbers:  # fmt: skip
    """Choose batch, steps, noise and learning rate.

    Args:
        dataset_size: n, taken as public.
        start: "linear" (a linear model, also on features of a frozen network), "scratch", or "pretrained" (fine-tuning).
        threshold: R, to which all groups together are clipped.
        inputs: of a linear model: how many numbers of about unit size it takes; None where that isn't known.
        most_samples: that all steps together may process: the time there is, over the time a sample takes.

    Raises:
        ValueError: an unknown start, or less time than for 20 steps on one sample.
    """
    n, target = whole("dataset_size", dataset_size, least=1), positive("epsilon", epsilon)
    delta = default_delta(n) if delta is None else checked_delta(delta)
    threshold = positive("threshold", threshold)
    if start not in STARTS:
        raise ValueError(f"start={start!r} is unknown; use one of {', '.join(STARTS)}")
    if not most_samples >= FEWEST:
        raise ValueError(f"most_samples={most_samples:g}: there is time for fewer than {FEWEST} samples in all; give more")
    steps, reach = STARTS[start]
    if inputs is not None:
        if start != "linear":
            raise ValueError(f"inputs={inputs} is about a linear model, and start={start!r}: leave it out")
        reach = OUTPUT / math.sqrt(whole("inputs", inputs, least=1))
    whole_batch = Mechanism(dataset_size=n, expected_batch_size=n, steps=steps, sampling="full-batch", unit=unit)
    batch = _smallest(n, steps, target, delta, _sigma(whole_batch, target, delta) / (n * math.sqrt(steps)), unit)
    if batch * steps > most_samples:  # fewer steps first, down to a quarter, then smaller batches
        fewer = max(FEWEST, min(steps, max(steps // 4, int(most_samples // batch))))
        batch = min(batch, max(1, int(most_samples // fewer)))
        steps = min(fewer, int(most_samples // batch))
    sampling = "full-batch" if batch == n else "poisson"
    plan = Mechanism(dataset_size=n, expected_batch_size=batch, steps=steps, sampling=sampling, unit=unit)
    plan = plan.calibrate(epsilon=target, delta=delta)
    assert plan.noise_multiplier is not None
    share = plan.noise_multiplier / (batch * math.sqrt(steps))
    small = max(1, batch // _SHRINK)
    return Numbers(
        mechanism=plan,
        lr_sgd=_round(reach * (1 - MOMENTUM) / (steps * share * threshold)),
        lr_adam=_round(reach / math.sqrt(steps)),
        noise_share=share,
        least_share=1 / (n * accounting.gaussian_mu(target, delta)),
        rehearsal=(small, plan.noise_multiplier * small / batch),
        reach=reach,
    )


def _smallest(n: int, steps: int, epsilon: float, delta: float, least: float, unit: str) -> int:
    """Return the smallest batch, of n and its halves, whose share of noise is within ``WASTE`` of the least."""
    batch = n
    while batch > 1:
        half = math.ceil(batch / 2)
        plan = Mechanism(dataset_size=n, expected_batch_size=half, steps=steps, unit=unit)
        if _sigma(plan, epsilon, delta) / (half * math.sqrt(steps)) > WASTE * least:
            break
        batch = half
    return batch


def _sigma(plan: Mechanism, epsilon: float, delta: float) -> float:
    """Return the noise that is enough, to some percent and in no time: what is reported is calibrated later."""

    def quick(sigma: float) -> float:
        found = accounting.guessed_epsilon(replace(plan, noise_multiplier=sigma).step, plan.steps, delta)
        return math.inf if found is None else found

    return calibration.enough_noise(quick, epsilon)


def _round(value: float) -> float:
    """Return two digits: more would pretend to be known."""
    return float(f"{value:.2g}")
