"""Differentially private training of PyTorch models with group-wise per-sample gradient clipping.

import groupclip as gc

mechanism = gc.Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250).calibrate(epsilon=2.0, delta=1e-5)
groups = gc.partition(model, "uniform:4")
engine = gc.attach(model, optimizer, groups, mechanism)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from .partition.choose import partition, register_style  # at once: or the room would stand in the place of the function
from .partition.groups import Partition

if TYPE_CHECKING:
    from . import clipping
    from .auditing import CanaryAudit, RunAudit, StepAudit, audit, audit_run
    from .clipping.adaptive import Adaptive
    from .engine.attach import attach
    from .engine.averages import WeightAverage
    from .engine.engine import Engine
    from .engine.noise_aware import NoiseAwareAdam
    from .engine.public_thresholds import public_thresholds
    from .engine.schedule import PrivateSchedule
    from .memory import Plan, plan
    from .memory.advise import Advice, advise
    from .noise.grid import HardenedNoise
    from .privacy.bands import prefix_noise
    from .privacy.budget import Budget
    from .privacy.mechanism import Mechanism
    from .privacy.selection import calibrate_search, draw_runs, search_cost
    from .privacy.spent import default_delta
    from .sampling.batches import logical_batches, poisson_batches
    from .sampling.users import PerUser, user_losses
    from .tasks.augment import augmented
    from .validate import CheckReport, check

__all__ = [
    "Adaptive",
    "Advice",
    "Budget",
    "BudgetExceeded",
    "CanaryAudit",
    "CheckReport",
    "CoverageError",
    "Engine",
    "GroupClipError",
    "HardenedNoise",
    "Mechanism",
    "NoiseAwareAdam",
    "Partition",
    "PerUser",
    "Plan",
    "PrivacyViolation",
    "PrivateSchedule",
    "RunAudit",
    "StepAudit",
    "UnsupportedOperation",
    "WeightAverage",
    "advise",
    "attach",
    "audit",
    "audit_run",
    "augmented",
    "calibrate_search",
    "check",
    "clipping",
    "default_delta",
    "draw_runs",
    "logical_batches",
    "partition",
    "plan",
    "poisson_batches",
    "prefix_noise",
    "public_thresholds",
    "search_cost",
    "user_losses",
]


def _planned(model: Any, style: str, batch: Any) -> Partition:
    from .memory.plan import planned

    return planned(model, style, batch)


register_style("planned:", _planned)  # memory is loaded where a style of its is asked for

_HOME = {
    "auditing": ("CanaryAudit", "RunAudit", "StepAudit", "audit", "audit_run"),
    "clipping.adaptive": ("Adaptive",),
    "engine.attach": ("attach",),
    "engine.averages": ("WeightAverage",),
    "engine.engine": ("Engine",),
    "engine.noise_aware": ("NoiseAwareAdam",),
    "engine.public_thresholds": ("public_thresholds",),
    "engine.schedule": ("PrivateSchedule",),
    "memory": ("Plan", "plan"),
    "memory.advise": ("Advice", "advise"),
    "noise.grid": ("HardenedNoise",),
    "privacy.bands": ("prefix_noise",),
    "privacy.budget": ("Budget",),
    "privacy.mechanism": ("Mechanism",),
    "privacy.selection": ("calibrate_search", "draw_runs", "search_cost"),
    "privacy.spent": ("default_delta",),
    "sampling.batches": ("logical_batches", "poisson_batches"),
    "sampling.users": ("PerUser", "user_losses"),
    "tasks.augment": ("augmented",),
    "validate": ("CheckReport", "check"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: what only counts epsilon doesn't wait for torch."""
    if name in _MODULE_OF:
        found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found
    missing = AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.startswith("_"):
        raise missing
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise missing from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
