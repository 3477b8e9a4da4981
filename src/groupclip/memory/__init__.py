"""Memory: what a step needs before it is run, the groups that need least, and what a step did need."""

from .batchsize import largest_batch
from .fact import Fact
from .found import BudgetTooSmallError, Plan
from .measure import measure
from .plan import plan, planned
from .search import Planner
from .sizes import parse_bytes, show_bytes

__all__ = [
    "BudgetTooSmallError", "Fact", "Plan", "Planner", "largest_batch", "measure", "parse_bytes", "plan", "planned", "show_bytes",
]  # fmt: skip
