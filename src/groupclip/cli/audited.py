"""What ``groupclip audit`` attacks: the plan of a task or of a run, its step, and a run of it with canaries."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim import SGD

from ..auditing import RunAudit, StepAudit, audit, audit_run
from ..auditing.guesses import enough_canaries
from ..auditing.step import usual_trials
from ..clipping.adaptive import Adaptive
from ..noise.grid import HardenedNoise
from ..privacy.mechanism import Mechanism
from ..run.build import plan_of
from ..run.config import read_yaml
from ..statement.reading import read_record
from .counting import Counting
from .task import Chosen, built, chosen, cross_entropy

MOST_CANARIES = 2_000  # that are taken where no number is given


def of_settings(settings: Mapping[str, Any], noise_multiplier: float | None) -> tuple[Chosen, Mechanism]:
    """Return model, groups and plan of the options; calibrated for their epsilon, unless a noise multiplier is given.

    Raises:
        ValueError, TypeError, FileNotFoundError: as for ``groupclip train``.
    """
    if noise_multiplier is None:
        asked = chosen(settings)
        config = asked.config
        plan = plan_of(config, asked.task)
        return asked, plan.calibrate(epsilon=config.epsilon, delta=config.delta, accountant=config.accountant)
    if settings["epsilon"] is not None:
        raise ValueError("give either --epsilon or --noise-multiplier: one follows from the other")
    if not noise_multiplier > 0:
        raise ValueError(
            f"--noise-multiplier {noise_multiplier:g} must be > 0: without noise there is no claim to audit"
        )
    asked = chosen({**settings, "epsilon": 1.0})  # a setting that a run can't be without; it isn't used
    return asked, replace(plan_of(asked.config, asked.task), noise_multiplier=noise_multiplier)


def of_run(folder: Path, others: Mapping[str, Any]) -> tuple[Chosen, Mechanism]:
    """Return model, groups and plan of the run in ``folder``: that of its release, or else calibrated again from its settings.

    Raises:
        ValueError: no run there, settings beside it, or a release that was made by another plan than ``run.yaml`` says.
    """
    given = [name for name, value in others.items() if value not in (None, ())]
    if given:
        raise ValueError(f"--run {folder} has all settings of that run: leave --{given[0].replace('_', '-')} out")
    settings = read_yaml(folder / "run.yaml")
    asked = built(settings)
    plan = plan_of(asked.config, asked.task)
    record = folder / "release" / "privacy.json"
    if not record.is_file():
        config = asked.config
        return asked, plan.calibrate(epsilon=config.epsilon, delta=config.delta, accountant=config.accountant)
    try:
        stated = read_record(record)
        plan = replace(plan, bands=stated.get("bands", 1), noise_multiplier=stated["noise_multiplier"])
        same = plan.plan_hash == stated["plan_hash"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{record} can't be read as a privacy record: {error}") from error
    if not same:
        raise ValueError(
            f"{record} is of another plan than {folder / 'run.yaml'} and the data say now: audit the run where its files and data "
            "are as they were, or give its settings as options"
        )
    return asked, plan


def enough(task: Any, epsilon: float, delta: float, confidence: float) -> int:
    """Return canaries with which more than ``epsilon`` could be shown, by a fifth; as many as are affordable; 0 for users."""
    if task.unit == "user":
        return 0  # a canary is a sample: audit_run says so
    return max(100, enough_canaries(1.2 * epsilon, delta, confidence, MOST_CANARIES))


def step(asked: Chosen, plan: Mechanism, trials: int | None, confidence: float, console: Console) -> StepAudit:
    """Audit one step with the plan's noise and the thresholds as they begin; progress goes to ``console``."""
    one = replace(plan, steps=1, bands=1)  # its clipping and noise; how noise is correlated shows in the run
    taken = usual_trials(one, confidence) if trials is None else trials
    with Counting(console, "step audit: one step on each of two made-up batches", taken, "trials") as progress:
        return audit(
            _shake(asked.model), cross_entropy, _make_up(asked.task), asked.groups, one, trials=taken,
            thresholds=asked.config.thresholds, progress=progress, **_common(asked, confidence),
        )  # fmt: skip


def beside(plan: Mechanism, canaries: int) -> Mechanism:
    """Return the plan for so many samples more, at its rate, noise and steps. The cap of its batches grows as the batches do."""
    size = plan.dataset_size + canaries
    batch, cap = plan.sample_rate * size, None
    if plan.sampling != "poisson":
        batch = round(batch)
    elif plan.band_count > 1:
        batch = min(batch, size / plan.band_count)  # to the last bit
    if plan.max_batch_size is not None:
        cap = min(size, max(batch, round(plan.max_batch_size * batch / plan.expected_batch_size)))
    return replace(plan, dataset_size=size, expected_batch_size=batch, max_batch_size=cap)


def told(plan: Mechanism, audited: Mechanism) -> str:
    """Tell a person in what the plan of a run with canaries differs from the audited plan."""
    cap = (
        ""
        if plan.max_batch_size is None
        else f", the cap of a batch from {plan.max_batch_size:,} to {audited.max_batch_size:,}"
    )
    return (
        f"Beside the samples stand {audited.dataset_size - plan.dataset_size:,} canaries. So that the rate stays, the expected "
        f"batch size went from {plan.expected_batch_size:g} to {audited.expected_batch_size:g}{cap}."
    )


def whole_run(asked: Chosen, plan: Mechanism, canaries: int, confidence: float, console: Console) -> RunAudit:
    """Audit a run of the plan :func:`beside` the given one; progress goes to ``console``."""
    config = asked.config
    thresholds = Adaptive(start=config.thresholds, **config.adaptive) if config.adaptive else config.thresholds
    with Counting(console, f"one-run audit: a run with {canaries:,} canaries", plan.steps, "steps") as progress:
        return audit_run(
            asked.model, cross_entropy, asked.task.train, canaries, asked.groups, beside(plan, canaries),
            lambda parameters: SGD(parameters, lr=config.lr, momentum=config.momentum),
            thresholds=thresholds, microbatch=config.microbatch, progress=progress, **_common(asked, confidence),
        )  # fmt: skip


def _common(asked: Chosen, confidence: float) -> dict[str, Any]:
    config = asked.config
    noise = HardenedNoise() if config.hardened else None
    return {
        "clip": config.clip,
        "allocation": config.allocation,
        "noise": noise,
        "delta": config.delta,
        "confidence": confidence,
    }


def _shake(network: Any) -> Any:
    """Copy a model with a little noise on its weights: a head that begins at zero would leave the groups below without gradient."""
    shaken, generator = copy.deepcopy(network), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in shaken.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.02)
    return shaken


def _make_up(task: Any, samples: int = 3) -> tuple[Any, Any]:
    """Return random inputs of the task's shape, and random labels."""
    shape = (samples, *task.input_shape)
    generator = torch.Generator().manual_seed(0)
    if task.vocabulary is None:
        inputs = torch.rand(shape, generator=generator) * 2 - 1
    else:
        inputs = torch.randint(1, task.vocabulary, shape, generator=generator)
    return inputs, torch.randint(task.num_classes, (samples,), generator=generator)
