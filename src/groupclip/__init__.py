"""Differentially private training of PyTorch models with group-wise per-sample gradient clipping.

import groupclip as gc

mechanism = gc.Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250).calibrate(epsilon=2.0, delta=1e-5)
groups = gc.partition(model, "uniform:4")
engine = gc.attach(model, optimizer, groups, mechanism)
"""

from typing import TYPE_CHECKING, Any

from . import clipping
from .adaptive import Adaptive
from .attaching import attach
from .engine import Engine
from .errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from .hardened import HardenedNoise
from .mechanism import Mechanism
from .memory import Plan, plan
from .partition import Partition, partition
from .public import public_thresholds
from .sampling import logical_batches, poisson_batches
from .search import calibrate_search, draw_runs, search_cost
from .spent import default_delta
from .users import PerUser, user_losses
from .validate import CheckReport, check

if TYPE_CHECKING:
    from .auditing import CanaryAudit, RunAudit, StepAudit, audit, audit_run

__all__ = [
    "Adaptive",
    "BudgetExceeded",
    "CanaryAudit",
    "CheckReport",
    "CoverageError",
    "Engine",
    "GroupClipError",
    "HardenedNoise",
    "Mechanism",
    "Partition",
    "PerUser",
    "Plan",
    "PrivacyViolation",
    "RunAudit",
    "StepAudit",
    "UnsupportedOperation",
    "attach",
    "audit",
    "audit_run",
    "calibrate_search",
    "check",
    "clipping",
    "default_delta",
    "draw_runs",
    "logical_batches",
    "partition",
    "plan",
    "poisson_batches",
    "public_thresholds",
    "search_cost",
    "user_losses",
]


def __getattr__(name: str) -> Any:
    """Audits are loaded when they are asked for."""
    if name in ("CanaryAudit", "RunAudit", "StepAudit", "audit", "audit_run"):
        from . import auditing

        return getattr(auditing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
