"""Options that ``calibrate`` and ``epsilon`` share, and the plan that they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..mechanism import Mechanism, PrivacySpent, default_delta

Command = Callable[..., None]

_OPTIONS = (
    click.option("--dataset-size", type=int, required=True, help="Number of samples."),
    click.option("--batch-size", type=float, required=True, help="EXPECTED size of a Poisson batch."),
    click.option("--epochs", type=float, help="How often each sample is drawn on average; or give --steps."),
    click.option("--steps", type=int, help="Number of optimizer steps; or give --epochs."),
    click.option("--delta", type=float, help="Default: min(1e-5, 1 / (2 * dataset size))."),
)


def plan_options(command: Command) -> Command:
    """Add the options of a plan to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def plan(
    dataset_size: int,
    batch_size: float,
    epochs: float | None,
    steps: int | None,
    noise_multiplier: float | None = None,
) -> Mechanism:
    """The mechanism that the options mean. ValueError if they don't mean one."""
    from ..run.resolve import steps_of

    if (epochs is None) == (steps is None):
        raise ValueError("give either --epochs or --steps" + ("" if epochs is None else ", not both"))
    if steps is None:
        assert epochs is not None
        if not epochs > 0:
            raise ValueError(f"--epochs {epochs:g} must be > 0")
        if not batch_size > 0:
            raise ValueError(f"--batch-size {batch_size:g} must be > 0")
        steps = steps_of(epochs, dataset_size, batch_size)
    return Mechanism(
        dataset_size=dataset_size,
        expected_batch_size=batch_size,
        steps=steps,
        noise_multiplier=noise_multiplier,
    )


def delta_or_default(delta: float | None, dataset_size: int) -> float:
    return default_delta(dataset_size) if delta is None else delta


def facts(mechanism: Mechanism, spent: PrivacySpent) -> dict[str, Any]:
    """What both commands tell a machine."""
    return {
        "dataset_size": mechanism.dataset_size,
        "expected_batch_size": mechanism.expected_batch_size,
        "sample_rate": mechanism.sample_rate,
        "steps": mechanism.steps,
        "noise_multiplier": mechanism.noise_multiplier,
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "accountant": spent.accountant,
        "epsilon_rdp": spent.rdp,
        "epsilon_pld": spent.pld,
        "adjacency": mechanism.adjacency,
        "note": spent.note,
    }


def text(mechanism: Mechanism, spent: PrivacySpent) -> str:
    """What both commands tell a person."""
    other = [f"{name} {value:.4f}" for name, value in (("RDP", spent.rdp), ("PLD", spent.pld)) if value is not None]
    lines = [
        f"noise multiplier  {mechanism.noise_multiplier:.6g}",
        f"epsilon           {spent.epsilon:.4f} at delta {spent.delta:g}, by {spent.accountant} ({', '.join(other)})",
        f"steps             {mechanism.steps} Poisson batches of {mechanism.expected_batch_size:g} samples "
        "on average, "
        f"each sample with probability {mechanism.sample_rate:.6g}",
        f"neighbours        {mechanism.adjacency}: data sets that differ by one sample's presence",
    ]
    return "\n".join([*lines, *([f"note              {spent.note}"] if spent.note else [])])
