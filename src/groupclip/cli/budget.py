"""``groupclip budget``: what all trainings and releases on one data set have spent together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from ..privacy.budget import Budget, budget_in
from ..privacy.budgetfile import is_begun
from ..privacy.entries import Entry
from ..privacy.figures import figure
from ..privacy.sampled_step import ADJACENCIES
from ..privacy.spent import PrivacySpent
from . import plan, search
from .arguments import arguments_at_fault, print_json

_FILE = click.option(
    "--file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Name the file that holds the budget."
)


@click.group()
def budget() -> None:
    """Keep what releases on one data set may spend, in one file.

    \b
    Example:
      groupclip budget new --file patients.budget --epsilon 3 --delta 1e-6
      groupclip budget show --file patients.budget
    """


@budget.command()
@_FILE
@click.option("--epsilon", type=float, required=True, help="Set the epsilon that everything together may spend.")
@click.option("--delta", type=float, required=True, help="Set the delta of it.")
@click.option(
    "--adjacency", type=click.Choice(ADJACENCIES), help="Choose which data sets are neighbours. Default: add-or-remove-one."
)
@click.option("--unit", type=click.Choice(plan.UNITS), help="Choose who is protected. Default: sample.")
def new(file: Path, **facts: Any) -> None:
    """Write the file of a new budget.

    \b
    Example:
      groupclip budget new --file patients.budget --epsilon 3 --delta 1e-6
    """
    with arguments_at_fault():
        if is_begun(file):
            raise ValueError(f"{file} is there already: a budget is begun once; see groupclip budget show --file {file}")
        Budget(file, **facts)


@budget.command()
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(file: Path, as_json: bool) -> None:
    """Tell what was spent, what is set aside, and for what.

    \b
    Example:
      groupclip budget show --file patients.budget
    """
    with arguments_at_fault():
        found = budget_in(file)
        _tell(found, as_json)


@budget.command()
@_FILE
@plan.plan_options
@click.option("--noise-multiplier", type=float, required=True, help="Set sigma, the noise over the sensitivity of a step.")
@search.search_options
@click.option("--label", default="", help="Name what is released.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def add(file: Path, noise_multiplier: float, label: str, as_json: bool, **given: Any) -> None:
    """Count a release that groupclip doesn't make itself, before it is made. It is refused if the budget has not enough left.

    \b
    Example:
      groupclip budget add --file p.budget --dataset-size 900 --batch-size 900 --sampling full-batch --steps 1 --noise-multiplier 20
    """
    with arguments_at_fault():
        found = budget_in(file)
        given["adjacency"] = given["adjacency"] or found.adjacency
        given["delta"] = found.delta if given["delta"] is None else given["delta"]
        mechanism, _ = plan.plan(given, noise_multiplier)
        asked = search.taken(given, None)
        if asked is None:
            found.add(mechanism, label=label)
        else:
            found.add_search(mechanism, label=label, **asked)
        _tell(found, as_json)


@budget.command()
@_FILE
@click.option("--entry", required=True, help="Name the entry, as groupclip budget show lists it.")
def close(file: Path, entry: str) -> None:
    """Give back the steps that a training hasn't taken. Steps that were charged stay charged.

    A training that runs in another process meanwhile stops before its next step. A run that was stopped can still go on if the
    rest of its steps fits into the budget then.

    \b
    Example:
      groupclip budget close --file patients.budget --entry 0123456789ab
    """
    with arguments_at_fault():
        found = budget_in(file)
        found.close(entry)
        _tell(found, False)


def _tell(found: Budget, as_json: bool) -> None:
    spent, committed = found.spent(), found.committed()
    if as_json:
        print_json(
            {
                "epsilon": found.epsilon, "delta": found.delta, "adjacency": found.adjacency, "unit": found.unit,
                "spent": spent.epsilon, "set_aside": committed.epsilon, "accountant": committed.accountant, "note": spent.note,
                "entries": [
                    {"id": e.name, "label": e.label, "taken": e.taken, "planned": e.planned, "open": e.is_open}
                    for e in found.entries
                ],
            }
        )  # fmt: skip
        return
    left = max(0.0, found.epsilon - committed.epsilon)
    click.echo(f"budget            {found.adjacency}, unit {found.unit}, figures at delta {found.delta:g}")
    click.echo(f"allowed           {found.epsilon:g}")
    click.echo(f"spent             {_amount(spent)}")
    click.echo(f"with open steps   {_amount(committed)}: what open entries may still take is set aside for them")
    click.echo(f"left at most      {math.floor(left * 1e4) / 1e4:g}: by so much may the composed figure still grow")
    if spent.note:
        click.echo(f"note              {spent.note}")
    for entry in found.entries:
        click.echo(f"{entry.name}      {_what(entry)}{f': {entry.label}' if entry.label else ''}")


def _amount(spent: PrivacySpent) -> str:
    return f"{figure(spent.epsilon)}, by {spent.accountant}" if spent.epsilon else "nothing yet"


def _what(entry: Entry) -> str:
    if entry.given is not None:
        return f"a release of epsilon {entry.given[0]:g} at delta {entry.given[1]:g}"
    assert entry.mechanism is not None
    if entry.search is not None:
        return f"the best of about {entry.search[0]:g} runs of {entry.planned:,} steps"
    return f"{entry.taken:,} of {entry.planned:,} steps, {'open' if entry.is_open else 'closed'}"
