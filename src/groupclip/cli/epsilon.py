"""``groupclip epsilon``: what a plan with given noise spends."""

from __future__ import annotations

import click

from ..errors import PrivacyViolation
from . import plan
from .arguments import arguments_at_fault, print_json


@click.command()
@plan.plan_options
@click.option("--noise-multiplier", type=float, required=True, help="sigma: noise over the sensitivity of a step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def epsilon(
    dataset_size: int,
    batch_size: float,
    epochs: float | None,
    steps: int | None,
    delta: float | None,
    noise_multiplier: float,
    as_json: bool,
) -> None:
    """Compute the epsilon that a plan spends.

    \b
    Example:
      groupclip epsilon --dataset-size 50000 --batch-size 1000 --epochs 5 --noise-multiplier 1.1 --delta 1e-5
    """
    with arguments_at_fault():
        mechanism = plan.plan(dataset_size, batch_size, epochs, steps, noise_multiplier)
        try:
            spent = mechanism.spent(delta=plan.delta_or_default(delta, dataset_size))
        except PrivacyViolation as error:
            raise ValueError(str(error)) from error
    if as_json:
        print_json(plan.facts(mechanism, spent))
    else:
        click.echo(plan.text(mechanism, spent))
