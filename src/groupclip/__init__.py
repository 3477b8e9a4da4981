"""Differentially private training of PyTorch models with group-wise per-sample gradient clipping.

import groupclip as gc

mechanism = gc.Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250).calibrate(epsilon=2.0, delta=1e-5)
groups = gc.partition(model, "uniform:4")
engine = gc.attach(model, optimizer, groups, mechanism)
"""

from . import clipping
from .engine import Engine, attach
from .errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from .mechanism import Mechanism
from .memory import Plan, plan
from .partition import Partition, partition
from .sampling import poisson_batches

__all__ = [
    "BudgetExceeded",
    "CoverageError",
    "Engine",
    "GroupClipError",
    "Mechanism",
    "Partition",
    "Plan",
    "PrivacyViolation",
    "UnsupportedOperation",
    "attach",
    "clipping",
    "partition",
    "plan",
    "poisson_batches",
]
