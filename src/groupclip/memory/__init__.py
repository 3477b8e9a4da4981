"""Memory: what a step needs before it is run, the groups that need least, and what a step did need."""

from .measure import measure
from .plan import BudgetTooSmallError, Plan, Planner, parse_bytes, plan

__all__ = ["BudgetTooSmallError", "Plan", "Planner", "measure", "parse_bytes", "plan"]
