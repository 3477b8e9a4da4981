"""``groupclip.advise``: what to begin with, and why, before anything of the data is looked at."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..arguments import positive
from ..partition.groups import Partition
from ..privacy.advice import MOMENTUM, Numbers, numbers
from ..privacy.figures import figure
from ..privacy.selection import search_cost
from ..privacy.spent import checked_delta, default_delta
from .batchsize import largest_batch
from .found import BudgetTooSmallError

RUNS = 10  # of a search, on average, whose price is told


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a private training may begin with. None of it was learnt from the data.

    Attributes:
        numbers: the plan and the learning rates.
        delta, epsilon: asked for. start: what is trained.
        clip, threshold: the clip function and R.
        groups: a style, or the partition that was planned for the memory. microbatch: samples at once; None if no model was given.
        seconds: that all steps take; None if no time was given.
        search_epsilon: what the best of ten runs on average spends at this noise (:func:`groupclip.search_cost`); None if unknown.
    """

    numbers: Numbers
    epsilon: float
    delta: float
    start: str
    clip: str
    threshold: float
    groups: str | Partition
    microbatch: int | None
    seconds: float | None
    search_epsilon: float | None

    def settings(self) -> dict[str, Any]:
        """Return the same by the names of ``groupclip train``, as far as it has them."""
        plan = self.numbers.mechanism
        found = {
            "epsilon": self.epsilon, "delta": self.delta, "sampling": plan.sampling, "steps": plan.steps,
            "batch_size": round(plan.expected_batch_size), "clip": self.clip, "thresholds": self.threshold, "optimizer": "sgd",
            "momentum": MOMENTUM, "lr": self.numbers.lr_sgd,
        }  # fmt: skip
        if isinstance(self.groups, str):
            found["clipping"] = self.groups
        return found if self.microbatch is None else {**found, "microbatch": self.microbatch}

    def reasons(self) -> list[tuple[str, str]]:
        """Return (what is advised, why), in words."""
        n, plan = self.numbers, self.numbers.mechanism
        sigma = plan.noise_multiplier or math.inf
        share = n.noise_share / n.least_share
        groups = self.groups if isinstance(self.groups, str) else f"{self.groups.style} ({len(self.groups)})"
        small, noise = n.rehearsal
        told = [
            (
                f"batch size {plan.expected_batch_size:,}, {plan.steps:,} steps ({n.epochs:.3g} epochs)",
                f"noise over signal is {share:.2f} times that of full batches, the least there is. Larger batches gain no more "
                "than that; smaller ones lose it"
                + ("" if share <= 1.2 else ". There is no time for larger ones: more time would help"),
            ),
            (
                f"noise multiplier {sigma:.4g}",
                f"it spends epsilon {figure(self.epsilon)} at delta {self.delta:g}, all steps together",
            ),
            (
                f"clip {self.clip}, R = {self.threshold:g}",
                "every sample's gradient gets the length R, so R needs no tuning: it is a factor of the learning rate",
            ),
            (
                f"SGD with momentum {MOMENTUM:g} and lr {n.lr_sgd:g}, or Adam with lr {n.lr_adam:g}",
                f"the noise of all steps together then moves a weight by {n.reach:.2g}, as in recipes of the literature; inputs of "
                "about unit size are assumed. If you change steps or epsilon, lr * steps follows epsilon",
            ),
            (
                f"groups: {groups}",
                "one group is the most accurate"
                + (", and it fits" if self.groups == "all-layer" and self.microbatch else "")
                + ("" if isinstance(self.groups, str) else "; with one, not even a single sample fits the memory"),
            ),
            (
                f"rehearse on PUBLIC data with batch size {small:,} and noise multiplier {noise:.4g}",
                f"batch size over noise multiplier stays {plan.expected_batch_size / sigma:.4g}, and so does the training, at "
                f"{small / plan.expected_batch_size:.2g} of the time; such a run protects nobody",
            ),
        ]
        if self.microbatch is not None:
            told.insert(5, (f"{self.microbatch:,} samples at once", "that is what the memory holds"))
        if self.seconds is not None:
            told.append((f"about {self.seconds:,.0f} seconds", "all samples of all steps, at the time that one takes"))
        if self.search_epsilon is not None:
            told.append(
                (
                    f"tuning by {RUNS} runs on the private data would spend epsilon {figure(self.search_epsilon)}",
                    "the best of a number of runs that is drawn; see groupclip calibrate --search for noise that pays for it. "
                    "Tuning that nobody counts spends more",
                )
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        n, plan = self.numbers, self.numbers.mechanism
        return {
            "settings": self.settings(),
            "noise_multiplier": plan.noise_multiplier,
            "lr_sgd": n.lr_sgd,
            "lr_adam": n.lr_adam,
            "noise_over_signal": n.noise_share / n.least_share,
            "rehearsal": {"batch_size": n.rehearsal[0], "noise_multiplier": n.rehearsal[1]},
            "groups": self.groups if isinstance(self.groups, str) else {g: list(self.groups[g]) for g in self.groups.names},
            "seconds": self.seconds,
            "search": None if self.search_epsilon is None else {"mean_runs": RUNS, "epsilon": self.search_epsilon},
            "reasons": [{"advice": what, "reason": why} for what, why in self.reasons()],
        }

    def text(self) -> str:
        """Return the advice with its reasons, for a terminal."""
        told = "\n".join(f"- {what}\n    {why}" for what, why in self.reasons())
        return f"To begin with, from public facts alone (no figure of the data was used):\n{told}"

    __str__ = text


def advise(
    *, dataset_size: int, epsilon: float, delta: float | None = None, start: str = "scratch", model: nn.Module | None = None,
    example_batch: Any = None, memory: str | int | None = None, optimizer: Optimizer | None = None,
    seconds_per_sample: float | None = None, hours: float | None = None, unit: str = "sample", inputs: int | None = None,
) -> Advice:  # fmt: skip
    """Say what a private training may begin with, from facts that are public: nothing here costs privacy.

    Args:
        dataset_size: n, taken as public. epsilon, delta: what all steps may spend; delta is min(1e-5, 1 / (2 n)) by default.
        start: "linear" (a linear model, also on frozen features), "scratch" (a network from random weights) or "pretrained".
        inputs: of a linear model, how many numbers of about unit size it takes: the learning rate follows from it.
        model, example_batch, memory, optimizer: for the groups and the samples at once, as of :func:`groupclip.plan` (``memory``:
            of the whole device). All or none of the first three.
        seconds_per_sample, hours: the time that a sample takes, forward and backward, and the time there is. Both or none.

    Raises:
        ValueError: arguments that don't go together.
        BudgetTooSmallError: not even one sample fits the memory.
    """
    parts = (model is not None, example_batch is not None, memory is not None)
    if any(parts) and not all(parts):
        raise ValueError("groups are advised for a memory: give model=, example_batch= and memory=, or none of them")
    if (seconds_per_sample is None) != (hours is None):
        raise ValueError("give seconds_per_sample= and hours=, or none of them")
    most = math.inf
    if seconds_per_sample is not None and hours is not None:
        most = positive("hours", hours) * 3600 / positive("seconds_per_sample", seconds_per_sample)
    found = numbers(dataset_size, epsilon=epsilon, delta=delta, start=start, most_samples=most, unit=unit, inputs=inputs)
    plan = found.mechanism
    groups, microbatch = "all-layer", None
    if model is not None and memory is not None:
        try:
            fits = largest_batch(model, example_batch, memory=memory, groups=1, optimizer=optimizer)
        except BudgetTooSmallError:
            fits = largest_batch(model, example_batch, memory=memory, optimizer=optimizer)
        microbatch = min(fits.samples, math.ceil(plan.expected_batch_size))
        groups = "all-layer" if len(fits.partition) == 1 else fits.partition
    delta = default_delta(dataset_size) if delta is None else checked_delta(delta)
    search = None
    with contextlib.suppress(ValueError):  # no bound is known for this sampling, or there is too little noise
        search = search_cost(plan, delta=delta, mean_runs=RUNS).epsilon
    return Advice(
        numbers=found,
        epsilon=float(epsilon),
        delta=delta,
        start=start,
        clip="automatic",
        threshold=1.0,
        groups=groups,
        microbatch=microbatch,
        seconds=None if seconds_per_sample is None else seconds_per_sample * plan.expected_batch_size * plan.steps,
        search_epsilon=search,
    )
