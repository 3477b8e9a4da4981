"""What choosing the best of several runs costs, as ``calibrate`` and ``epsilon`` tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..privacy.figures import figure
from ..privacy.mechanism import Mechanism
from ..privacy.selection import LAWS, calibrate_search, search_cost
from ..privacy.spent import PrivacySpent

_OPTIONS = (
    click.option(
        "--search",
        "mean_runs",
        type=float,
        help="Count a search: the best of so many runs on average is chosen; see --search-law.",
    ),
    click.option(
        "--search-law",
        type=click.Choice(tuple(LAWS)),
        default="geometric",
        show_default=True,
        help="Choose the law of the number of runs, which must be DRAWN (groupclip.draw_runs) and kept secret.",
    ),
)


def search_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--search`` and ``--search-law``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken(given: dict[str, Any], accountant: str | None) -> dict[str, Any] | None:
    """Return the search that is asked for, taken out of ``given``; None for a single run.

    Raises:
        ValueError: an accountant other than RDP, on which the theorems rest.
    """
    mean_runs, law = given.pop("mean_runs"), given.pop("search_law")
    if mean_runs is None:
        return None
    if accountant not in (None, "RDP"):
        raise ValueError(
            f"--accountant {accountant} with --search: the cost of a search is known by RDP alone; leave it out"
        )
    return {"mean_runs": mean_runs, "law": law}


def calibrated(mechanism: Mechanism, search: dict[str, Any], epsilon: float, delta: float) -> Mechanism:
    """Calibrate the noise so that the whole search spends ``epsilon``."""
    return calibrate_search(mechanism, epsilon=epsilon, delta=delta, **search)


def cost(mechanism: Mechanism, search: dict[str, Any], delta: float) -> PrivacySpent:
    """Compute the cost of the whole search."""
    return search_cost(mechanism, delta=delta, **search)


def facts(search: dict[str, Any], spent: PrivacySpent) -> dict[str, Any]:
    return {"search": {**search, "epsilon": spent.epsilon, "accountant": spent.accountant}}


def text(search: dict[str, Any], spent: PrivacySpent) -> str:
    return (
        f"search            epsilon {figure(spent.epsilon)} at delta {spent.delta:g}, by {spent.accountant}: the best of a number "
        f"of runs that is drawn ({search['law']}, {search['mean_runs']:g} on average) and kept secret"
    )
