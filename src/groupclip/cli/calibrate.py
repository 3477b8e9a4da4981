"""``groupclip calibrate``: the noise that a privacy budget needs."""

from __future__ import annotations

from typing import Any

import click

from . import groups, plan, search
from .arguments import ACCOUNTANT, arguments_at_fault, print_json


@click.command()
@plan.plan_options
@click.option("--epsilon", type=float, required=True, help="Set the epsilon that all steps together may spend.")
@ACCOUNTANT
@search.search_options
@groups.group_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(epsilon: float, accountant: str | None, as_json: bool, **given: Any) -> None:
    """Find the least noise with which a plan stays within epsilon.

    With --search, epsilon is what the whole search for settings may spend, not one run.

    \b
    Example:
      groupclip calibrate --dataset-size 50000 --batch-size 1000 --epochs 5 --epsilon 2 --delta 1e-5
      groupclip calibrate --dataset-size 50000 --batch-size 1000 --epochs 5 --epsilon 2 --search 10
    """
    with arguments_at_fault():
        planned, delta = plan.plan(given)
        asked = search.taken(given, accountant)
        if asked is None:
            mechanism = planned.calibrate(epsilon=epsilon, delta=delta, accountant=accountant)
        else:
            mechanism = search.calibrated(planned, asked, epsilon, delta)
        spent = mechanism.spent(delta=delta, accountant=accountant)
        whole = None if asked is None else search.cost(mechanism, asked, delta)
        assert mechanism.noise_multiplier is not None
        by_group = groups.noise_by_group(given, mechanism.noise_multiplier)
    if as_json:
        searched = {} if asked is None or whole is None else search.facts(asked, whole)
        print_json({**plan.facts(mechanism, spent), "target_epsilon": epsilon, **searched, **by_group})
    else:
        click.echo(plan.text(mechanism, spent))
        if asked is not None and whole is not None:
            click.echo(search.text(asked, whole))
        if by_group:
            click.echo(groups.text(by_group))
