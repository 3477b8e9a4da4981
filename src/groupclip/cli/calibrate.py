"""``groupclip calibrate``: the noise that a privacy budget needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ..privacy.bands import prefix_noise
from ..privacy.mechanism import Mechanism
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

    With --bands, it also tells how much less noise that leaves in sums of gradients. With --search, epsilon is
    what the whole search for settings may spend, not one run.

    \b
    Example:
      groupclip calibrate --dataset-size 50000 --batch-size 1000 --epochs 5 --epsilon 2 --delta 1e-5
      groupclip calibrate --dataset-size 50000 --batch-size 1000 --epochs 5 --epsilon 2 --search 10
    """
    with arguments_at_fault():
        planned, delta = plan.plan(given)
        asked = search.taken(given, accountant)

        def calibrated(wanted: Mechanism) -> Mechanism:
            if asked is None:
                return wanted.calibrate(epsilon=epsilon, delta=delta, accountant=accountant)
            return search.calibrated(wanted, asked, epsilon, delta)

        if planned.bands != 1 and not as_json:
            click.echo("finding the noise ..", err=True)
        mechanism = calibrated(planned)
        gain = prefix_noise(mechanism) / prefix_noise(calibrated(replace(planned, bands=1))) - 1 if planned.bands != 1 else None
        spent = mechanism.spent(delta=delta, accountant=accountant)
        whole = None if asked is None else search.cost(mechanism, asked, delta)
        assert mechanism.noise_multiplier is not None
        by_group = groups.noise_by_group(given, mechanism.noise_multiplier)
    if as_json:
        searched = {} if asked is None or whole is None else search.facts(asked, whole)
        gained = {} if gain is None else {"prefix_noise_gain": gain}
        print_json({**plan.facts(mechanism, spent), "target_epsilon": epsilon, **gained, **searched, **by_group})
    else:
        click.echo(plan.text(mechanism, spent))
        if gain is not None:
            click.echo(
                f"bands             {mechanism.bands}: {gain:+.1%} noise in sums of gradients, against DP-SGD (--bands 1) at this "
                "epsilon"
            )
        if asked is not None and whole is not None:
            click.echo(search.text(asked, whole))
        if by_group:
            click.echo(groups.text(by_group))
