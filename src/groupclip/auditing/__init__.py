"""Audits: lower bounds on epsilon from attacks on made-up canaries, against what the plan claims."""

from .report import StepAudit
from .step import audit

__all__ = ["StepAudit", "audit"]
