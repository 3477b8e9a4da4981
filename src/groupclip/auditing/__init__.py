"""Audits: lower bounds on epsilon from attacks on made-up canaries, against what the plan claims."""

from .canaries import CanaryAudit
from .report import RunAudit, StepAudit
from .run import audit_run
from .step import audit

__all__ = ["CanaryAudit", "RunAudit", "StepAudit", "audit", "audit_run"]
