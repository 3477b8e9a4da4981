"""The plan that ``calibrate`` and ``epsilon`` are asked about: options, the mechanism that they mean, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..privacy.epochs import steps_of
from ..privacy.figures import figure, reading
from ..privacy.mechanism import UNITS, Mechanism
from ..privacy.planned import AUTO
from ..privacy.sampled_step import ADJACENCIES, SAMPLINGS
from ..privacy.spent import PrivacySpent, default_delta, warn_if_lax

Command = Callable[..., None]


class Bands(click.ParamType):
    """A whole number, or ``auto``."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return value if value == AUTO else int(value)
        except ValueError:
            return self.fail(f"{value!r} is neither a whole number nor {AUTO}", param, ctx)


SAMPLING = (
    click.option("--sampling", type=click.Choice(SAMPLINGS), help="Choose how batches are drawn. Default: poisson."),
    click.option(
        "--adjacency",
        type=click.Choice(ADJACENCIES),
        help="Choose which data sets are neighbours. Default: add-or-remove-one.",
    ),
    click.option("--max-batch-size", type=int, help="Cap a truncated-poisson batch. Default: B + 6.5 sqrt(B)."),
    click.option(
        "--bands", type=Bands(), help="Set over how many steps noise is correlated; 'auto' finds it. Needs zero-out. Default: 1."
    ),
)
"""Options that ``train`` has as well."""

_OPTIONS = (
    click.option(
        "--dataset-size", type=int, required=True, help="Set the number of samples (of users or clients with --unit)."
    ),
    click.option("--batch-size", type=float, required=True, help="Set the EXPECTED size of a batch."),
    click.option("--epochs", type=float, help="Set how often each sample is drawn on average; or give --steps."),
    click.option("--steps", type=int, help="Set the number of optimizer steps; or give --epochs."),
    click.option("--delta", type=float, help="Set delta. Default: min(1e-5, 1 / (2 * dataset size))."),
    *SAMPLING,
    click.option(
        "--unit", type=click.Choice(UNITS), default="sample", show_default=True, help="Choose who is protected."
    ),
)
_NEIGHBOURS = {
    "add-or-remove-one": "one {unit}'s presence",
    "zero-out": "one {unit}, replaced by one that adds nothing",
    "replace-one": "one {unit}, replaced by any other",
}


def plan_options(command: Command) -> Command:
    """Add the options of a plan to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sampling_options(command: Command) -> Command:
    """Add the options of :data:`SAMPLING` to a command."""
    for option in reversed(SAMPLING):
        command = option(command)
    return command


def plan(given: dict[str, Any], noise_multiplier: float | None = None) -> tuple[Mechanism, float]:
    """Return the mechanism and the delta that the options of :func:`plan_options` mean; takes them out of ``given``.

    Raises:
        ValueError: they don't mean one.
    """
    size, batch, epochs, steps, delta = (
        given.pop(name) for name in ("dataset_size", "batch_size", "epochs", "steps", "delta")
    )
    chosen = {name: given.pop(name) for name in ("sampling", "adjacency", "max_batch_size", "bands", "unit")}
    if (epochs is None) == (steps is None):
        raise ValueError("give either --epochs or --steps" + ("" if epochs is None else ", not both"))
    if steps is None:
        if not epochs > 0:
            raise ValueError(f"--epochs {epochs:g} must be > 0")
        if not batch > 0:
            raise ValueError(f"--batch-size {batch:g} must be > 0")
        steps = steps_of(epochs, size, batch)
    mechanism = Mechanism(
        dataset_size=size,
        expected_batch_size=batch,
        steps=steps,
        noise_multiplier=noise_multiplier,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if delta is not None:
        warn_if_lax(delta, size, mechanism.unit)
    return mechanism, default_delta(size) if delta is None else delta


def facts(mechanism: Mechanism, spent: PrivacySpent) -> dict[str, Any]:
    """Return what both commands tell a machine."""
    return {
        **mechanism.to_dict(),
        "sample_rate": mechanism.sample_rate,
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "accountant": spent.accountant,
        "epsilon_rdp": spent.rdp,
        "epsilon_pld": spent.pld,
        "epsilon_exact": spent.exact,
        "note": spent.note,
    }


def text(mechanism: Mechanism, spent: PrivacySpent) -> str:
    """Return what both commands tell a person."""
    found = [
        f"{name} {figure(value)}"
        for name, value in (("exact", spent.exact), ("RDP", spent.rdp), ("PLD", spent.pld))
        if value is not None
    ]
    lines = [
        f"noise multiplier  {mechanism.noise_multiplier:.6g}",
        f"epsilon           {figure(spent.epsilon)} at delta {spent.delta:g}, by {spent.accountant} ({', '.join(found)})",
        f"reading           {reading(spent.epsilon)}",
        f"steps             {_batches(mechanism)}",
        f"neighbours        {mechanism.adjacency}: data sets that differ by "
        + _NEIGHBOURS[mechanism.adjacency].format(unit=mechanism.unit),
    ]
    return "\n".join([*lines, *([f"note              {spent.note}"] if spent.note else [])])


def _batches(mechanism: Mechanism) -> str:
    size, unit, q = mechanism.expected_batch_size, mechanism.unit, mechanism.sample_rate
    match mechanism.sampling:
        case "full-batch":
            return f"{mechanism.steps} batches of all {size} {unit}s"
        case "without-replacement":
            return f"{mechanism.steps} batches of exactly {size} {unit}s, drawn without replacement"
        case "truncated-poisson":
            kind = f"Poisson batches truncated to {mechanism.max_batch_size}, of"
        case _ if mechanism.bands != 1:
            rate, rounds = f"{mechanism.part_rate:.6g}", mechanism.rounds()
            return (
                f"{mechanism.steps} cyclic Poisson batches of {size:g} {unit}s on average: the data are dealt into "
                f"{mechanism.bands} parts, which take turns, and each {unit} of a part comes with probability {rate}. Noise is "
                f"correlated over {mechanism.bands} steps, which amounts to {rounds} rounds with independent noise"
            )
        case _:
            kind = "Poisson batches of"
    return f"{mechanism.steps} {kind} {size:g} {unit}s on average, each {unit} with probability {q:.6g}"
