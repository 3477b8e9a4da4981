"""``groupclip calibrate``: the noise that a privacy budget needs."""

from __future__ import annotations

import click

from . import plan
from .arguments import arguments_at_fault, print_json


@click.command()
@plan.plan_options
@click.option("--epsilon", type=float, required=True, help="What all steps together may spend.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    dataset_size: int,
    batch_size: float,
    epochs: float | None,
    steps: int | None,
    delta: float | None,
    epsilon: float,
    as_json: bool,
) -> None:
    """Find the least noise with which a plan stays within epsilon.

    \b
    Example:
      groupclip calibrate --dataset-size 50000 --batch-size 1000 --epochs 5 --epsilon 2 --delta 1e-5
    """
    with arguments_at_fault():
        planned = plan.plan(dataset_size, batch_size, epochs, steps)
        mechanism = planned.calibrate(epsilon=epsilon, delta=plan.delta_or_default(delta, dataset_size))
        spent = mechanism.spent(delta=plan.delta_or_default(delta, dataset_size))
    if as_json:
        print_json({**plan.facts(mechanism, spent), "target_epsilon": epsilon})
    else:
        click.echo(plan.text(mechanism, spent))
