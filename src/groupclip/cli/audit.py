"""``groupclip audit``: what an attacker can show of a plan, against what it claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from .arguments import ACCOUNTANT, arguments_at_fault, parse_thresholds, print_json
from .options import told
from .plan import sampling_options
from .plan import text as plan_text
from .task import task_options


@click.command(epilog=told(), short_help="Attack a plan, and compare what shows with the claim.")
@task_options
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Audit the plan of the run in this folder, as it is.",
)
@click.option("--clip", help="Choose the clip function, as for groupclip train.")
@click.option("--thresholds", help="Set the thresholds: R, or R_1,..,R_M, or GROUP=R_m,...")
@click.option("--epsilon", type=float, help="Set the epsilon that the run claims; the plan is calibrated for it.")
@click.option("--noise-multiplier", type=float, help="Set the plan's noise multiplier, instead of --epsilon.")
@click.option("--delta", type=float, help="Set delta. Default: min(1e-5, 1 / (2 * number of samples)).")
@click.option("--batch-size", type=int, help="Set the EXPECTED size of a batch.")
@click.option("--steps", type=int, help="Set the number of optimizer steps.")
@click.option("--hardened", is_flag=True, default=None, help="Draw the noise on a grid, as for groupclip train.")
@click.option("--allocation", help="Choose how the groups share the noise, as for groupclip train.")
@ACCOUNTANT
@sampling_options
@click.option(
    "--trials",
    type=click.IntRange(min=10),
    help="Take so many steps on each of the two batches. Default: as many as notice half the noise.",
)
@click.option(
    "--canaries",
    type=click.IntRange(min=0),
    help="Put so many canaries into the run; 0: make no run. Default: enough to exceed the claim.",
)
@click.option(
    "--confidence", type=float, default=0.99, show_default=True, help="Set the confidence of each of the two bounds."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and no progress.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def audit(
    folder: Path | None,
    thresholds: str | None,
    noise_multiplier: float | None,
    trials: int | None,
    canaries: int | None,
    confidence: float,
    as_json: bool,
    quiet: bool,
    **given: Any,  # settings of the run, by their names
) -> None:
    """Attack a task's plan: one step many times on made-up neighbours, then one run with made-up canaries.

    Step and run have the plan's noise multiplier, sample rate and steps. The report holds lower bounds on what they reveal
    against the claim. The exit code is 1 if a bound is above the claim; each bound of a sound plan is above it with probability
    1 - CONFIDENCE at most. The report says what it could have shown at most. It tells about the canaries, not about the task's
    samples. The run has fresh weights (no pretraining), and nothing of it is kept.

    \b
    Example:
      groupclip audit --task digits --clipping uniform:2 --epsilon 3
      groupclip audit --run runs/digits
      groupclip audit --task digits --clipping layer-wise --epsilon 3 --trials 10000 --canaries 0
    """
    with arguments_at_fault():
        from rich.console import Console

        from . import audited

        console = Console(stderr=True, quiet=quiet or as_json, highlight=False)

        settings = {**given, "thresholds": parse_thresholds(thresholds)}
        if folder is not None:
            asked, plan = audited.of_run(folder, {**settings, "noise_multiplier": noise_multiplier})
        else:
            asked, plan = audited.of_settings(settings, noise_multiplier)
        delta = asked.config.delta
        claimed = plan.spent(delta=delta, accountant=asked.config.accountant)
        if canaries is None:
            canaries = audited.enough(asked.task, claimed.epsilon, delta, confidence)
        found: dict[str, Any] = {"step": audited.step(asked, plan, trials, confidence, console)}
        if canaries:
            found["run"] = audited.whole_run(asked, plan, canaries, confidence, console)
    if as_json:
        facts = {"task": asked.config.task, "model": asked.config.model, "clipping": asked.config.clipping}
        reports = {name: _facts(report) for name, report in found.items()}
        if canaries:
            reports["run"]["plan"] = audited.beside(plan, canaries).to_dict()
        print_json({**facts, "plan": plan.to_dict(), "epsilon_claimed": claimed.epsilon, "delta": delta, **reports})
    else:
        click.echo(plan_text(plan, claimed))
        click.echo()
        click.echo("\n\n".join(str(report) for report in found.values()))
        if plan.bands != 1:
            click.echo("  The step had independent noise of the plan's size: how noise is correlated shows in the run alone.")
        if canaries:
            click.echo(f"  {audited.told(plan, audited.beside(plan, canaries))}")
    if any(report.violates for report in found.values()):
        raise click.exceptions.Exit(1)


def _facts(report: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "violates": report.violates, "about": "made-up canaries alone"}
