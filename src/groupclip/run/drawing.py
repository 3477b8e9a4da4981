"""A run's place in a budget: its steps are set aside when it begins, stay so while it may go on, and are free when it has ended."""

from __future__ import annotations

import uuid
from pathlib import Path

from ..privacy.budget import Budget, budget_in
from ..privacy.budgetfile import is_begun
from ..privacy.mechanism import Mechanism
from ..privacy.reservation import Reservation
from ..tasks import Task
from .config import RunConfig
from .errors import ConfigError


def set_aside(config: RunConfig, task: Task, mechanism: Mechanism) -> Reservation | None:
    """Set all steps of a new run aside in its budget; None without one.

    Raises:
        ValueError: there is no such budget, or it is of other neighbours.
        BudgetExceeded: the run doesn't fit.
    """
    if config.budget is None:
        return None
    label = f"groupclip train: {config.model} on {task.name}, {uuid.uuid4().hex[:8]}"  # by which it is found again
    return budget_in(config.budget).go_on(mechanism, label=label)


def taken_up(config: RunConfig, mechanism: Mechanism, name: str | None, charged: int) -> Reservation | None:
    """Find what was set aside for a run that goes on, and charge to it what the run's own journal counts.

    Args:
        name: of its entry, as its checkpoint has it.
        charged: steps by the journal, which is a step ahead where a process died between the two.

    Raises:
        ConfigError: the budget is gone, or has no such entry: it is another file, or an older copy.
        BudgetExceeded: it was closed, and its steps don't fit any more.
    """
    if config.budget is None:
        return None
    path = Path(config.budget)
    if not is_begun(path):
        raise ConfigError(f"{path} isn't there, or is empty: the steps of this run were set aside in it. Put it back")
    budget = Budget(path)
    labels = [entry.label for entry in budget.entries if entry.name == name]
    if name is None or not labels:
        raise ConfigError(
            f"{config.budget} has no entry {name}, in which the steps of this run were set aside: it is another budget, or an "
            "older copy. Put it back"
        )
    part = budget.go_on(mechanism, label=labels[0])
    for _ in range(budget.taken(name), charged):
        part.charge("groupclip")
    return budget.go_on(mechanism, label=labels[0])


def give_back(reservation: Reservation | None) -> None:
    """Free the steps that a run hasn't taken and never will."""
    if reservation is not None:
        reservation.budget.close(reservation.name)
