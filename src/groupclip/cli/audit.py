"""``groupclip audit``: what an attacker can show of a plan, against what it claims."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace
from typing import Any

import click

from .arguments import arguments_at_fault, parse_thresholds, print_json
from .task import chosen, cross_entropy, task_options


@click.command()
@task_options
@click.option("--clip", help="The clip function, as for groupclip train.")
@click.option("--thresholds", help="R, or R_1,..,R_M, or GROUP=R_m,...")
@click.option("--epsilon", type=float, required=True, help="What the run claims.")
@click.option("--delta", type=float, help="Default: min(1e-5, 1/(2n)).")
@click.option("--batch-size", type=int, help="Expected size of a batch.")
@click.option("--steps", type=int, help="Optimizer steps of the run.")
@click.option("--trials", type=click.IntRange(min=10), default=200, show_default=True, help="Steps on each batch.")
@click.option(
    "--step-noise-multiplier",
    type=float,
    default=1.0,
    show_default=True,
    help="Of the step that is audited; 0: the plan's.",
)
@click.option("--canaries", type=click.IntRange(min=0), default=300, show_default=True, help="In the run; 0: no run.")
@click.option("--confidence", type=float, default=0.99, show_default=True, help="Of each of the two bounds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    thresholds: str | None,
    trials: int,
    step_noise_multiplier: float,
    canaries: int,
    confidence: float,
    as_json: bool,
    **given: Any,  # settings of the run, by their names
) -> None:
    """Attack a task's plan: one step many times on made-up neighbours, then one run with made-up canaries.

    Lower bounds on what they reveal are held against the claim; exit code 1 if a bound is above it, which a sound plan
    brings about with probability 1 - CONFIDENCE at most, each. What is reported tells about the canaries, not about the
    task's samples. The run has fresh weights (no pretraining); nothing of it is kept.

    \b
    Example:
      groupclip audit --task digits --clipping uniform:2 --epsilon 3
      groupclip audit --task digits --clipping layer-wise --epsilon 3 --trials 1000 --canaries 0
    """
    with arguments_at_fault():
        from torch.optim import SGD

        from ..auditing import audit as audit_step
        from ..auditing import audit_run
        from ..mechanism import Mechanism

        asked = chosen({**given, "thresholds": parse_thresholds(thresholds)})
        config, loaded, network, groups = asked.config, asked.task, asked.model, asked.groups
        plan = Mechanism(
            dataset_size=len(loaded.train) + canaries, expected_batch_size=config.batch_size, steps=config.steps
        )
        plan = plan.calibrate(epsilon=config.epsilon, delta=config.delta)

        one = replace(plan, steps=1, noise_multiplier=step_noise_multiplier or plan.noise_multiplier)

        common: dict[str, Any] = {"clip": config.clip, "thresholds": config.thresholds, "delta": config.delta}
        common["confidence"] = confidence
        found: dict[str, Any] = {
            "step": audit_step(_shaken(network), cross_entropy, _made_up(loaded), groups, one, trials=trials, **common)
        }
        if canaries:
            found["run"] = audit_run(
                network, cross_entropy, loaded.train, canaries, groups, plan,
                lambda parameters: SGD(parameters, lr=config.lr, momentum=config.momentum),
                microbatch=config.microbatch, **common,
            )  # fmt: skip
    if as_json:
        facts = {
            "step_noise_multiplier": one.noise_multiplier,
            "task": config.task,
            "model": config.model,
            "clipping": config.clipping,
            "plan": plan.to_dict(),
        }
        print_json({**facts, **{name: _facts(report) for name, report in found.items()}})
    else:
        click.echo(f"The step, with noise multiplier {one.noise_multiplier:g} (the plan's: {plan.noise_multiplier:g}):")
        click.echo("\n\n".join(str(report) for report in found.values()))
    if any(report.violates for report in found.values()):
        raise click.exceptions.Exit(1)


def _facts(report: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "violates": report.violates, "about": "made-up canaries alone"}


def _shaken(network: Any) -> Any:
    """A copy with a little noise on its weights: a head that begins at zero would leave the groups below without gradient."""
    import torch

    shaken, generator = copy.deepcopy(network), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in shaken.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.02)
    return shaken


def _made_up(task: Any, samples: int = 3) -> tuple[Any, Any]:
    """Random inputs of the task's shape, and random labels."""
    import torch

    shape = (samples, *task.input_shape)
    generator = torch.Generator().manual_seed(0)
    if task.kind == "image":
        inputs = torch.rand(shape, generator=generator) * 2 - 1
    else:
        inputs = torch.randint(1, task.vocabulary, shape, generator=generator)
    return inputs, torch.randint(task.num_classes, (samples,), generator=generator)
