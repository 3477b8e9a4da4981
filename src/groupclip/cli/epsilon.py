"""``groupclip epsilon``: what a plan with given noise spends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import PrivacyViolation
from ..privacy.figures import figure
from ..statement.reading import read_record, record_at
from ..statement.verified import differences
from . import groups, plan, search
from .arguments import ACCOUNTANT, arguments_at_fault, parse_numbers, parse_whole, print_json


def _verify(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Answer ``--record``, which needs no plan: it has one."""
    if path is None or context.resilient_parsing:
        return
    with arguments_at_fault():
        path = record_at(path)
        record = read_record(path)
        found = differences(record)
    if found:
        raise PrivacyViolation(f"{path} claims other than its facts give:\n" + "\n".join(f"  {each}" for each in found))
    claimed = record["epsilon"]
    click.echo(
        f"{path}: no epsilon is claimed, and its facts say why: {'; '.join(record['obstacles'])}"
        if claimed is None
        else f"{path}: its facts give what it claims, epsilon {figure(claimed)} at delta {record['delta']:g}. Whether the facts "
        "are true can't be computed."
    )
    context.exit(0)


@click.command()
@click.option(
    "--record",
    type=click.Path(exists=True, path_type=Path),
    callback=_verify,
    is_eager=True,
    expose_value=False,
    help="Read a privacy.json, or that of a run's folder, instead of a plan, compute its claims again from its facts, and tell "
    "whether they differ.",
)
@plan.plan_options
@click.option("--noise-multiplier", type=float, help="Set sigma, the noise over the sensitivity of a step.")
@click.option(
    "--noise-stds", help="Give s_1,..,s_M, the noise on every coordinate of each group's sum, with --thresholds."
)
@ACCOUNTANT
@click.option("--rounds", type=int, help="Set the rounds that a resumed run with --bands has, which are more than its plan's.")
@click.option(
    "--samples-per-user", help="Tell epsilon for a person with K,.. samples too, at the same delta: 2,4,8 for instance."
)
@search.search_options
@click.option("--thresholds", help="Give R_1,..,R_M, for --noise-stds.")
@click.option("--curve", help="Tell delta at each of EPSILON,.. too: the whole guarantee.")
@click.option(
    "--gdp-mu", is_flag=True, help="Tell the nearest mu above of Gaussian differential privacy too; an estimate."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def epsilon(
    noise_multiplier: float | None,
    noise_stds: str | None,
    thresholds: str | None,
    accountant: str | None,
    rounds: int | None,
    samples_per_user: str | None,
    curve: str | None,
    gdp_mu: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compute the epsilon that a plan spends.

    \b
    Example:
      groupclip epsilon --dataset-size 50000 --batch-size 1000 --epochs 5 --noise-multiplier 1.1 --delta 1e-5
      groupclip epsilon --dataset-size 50000 --batch-size 1000 --epochs 5 --noise-stds 1,2 --thresholds 0.5,1
      groupclip epsilon --dataset-size 50000 --batch-size 1024 --steps 980 --noise-multiplier 1 --samples-per-user 2,4,8
      groupclip epsilon --record runs/digits
    """
    with arguments_at_fault():
        if (noise_multiplier is None) == (noise_stds is None):
            raise ValueError("give either --noise-multiplier or --noise-stds (with --thresholds)")
        if noise_multiplier is None:
            noise_multiplier = groups.multiplier_of(noise_stds or "", thresholds)
        elif thresholds is not None:
            raise ValueError("--thresholds is for --noise-stds: a noise multiplier is the same whatever the thresholds")
        mechanism, delta = plan.plan(given, noise_multiplier)
        asked = search.taken(given, accountant)
        try:
            spent = mechanism.spent(delta=delta, accountant=accountant, rounds=rounds)
            whole = None if asked is None else search.cost(mechanism, asked, delta)
            numbers = [] if samples_per_user is None else parse_whole("--samples-per-user", samples_per_user)
            several = {k: mechanism.spent(delta=delta, accountant=accountant, samples_per_user=k) for k in numbers}
            points = [] if curve is None else parse_numbers("--curve", curve)
            deltas = dict(zip(points, mechanism.delta_curve(points, rounds=rounds), strict=True))
            if gdp_mu and rounds is not None:
                raise ValueError("--gdp-mu is of a whole run, and --rounds of one that was resumed: leave one of them out")
            mu = mechanism.gdp_mu() if gdp_mu else None
        except PrivacyViolation as error:
            raise ValueError(str(error)) from error
    if as_json:
        searched = {} if asked is None or whole is None else search.facts(asked, whole)
        more: dict[str, Any] = {"curve": [{"epsilon": e, "delta": d} for e, d in deltas.items()]} if deltas else {}
        if several:
            more["by_samples_of_a_person"] = [
                {"samples": k, "epsilon": s.epsilon, "accountant": s.accountant, "note": s.note} for k, s in several.items()
            ]
        print_json(
            {**plan.facts(mechanism, spent), **searched, **more, **({} if mu is None else {"gdp_mu_estimate": mu})}
        )
    else:
        click.echo(plan.text(mechanism, spent))
        for k, s in several.items():
            note = f" ({s.note})" if s.note else ""
            click.echo(f"epsilon           {figure(s.epsilon)} for a person with {k} {mechanism.unit}s, by {s.accountant}{note}")
        if asked is not None and whole is not None:
            click.echo(search.text(asked, whole))
        for point, found in deltas.items():
            click.echo(f"delta             {figure(found)} at epsilon {point:g}")
        if mu is not None:
            click.echo(
                f"mu                {figure(mu)}, the Gaussian curve nearest above: an ESTIMATE for comparisons, no guarantee"
            )
