"""Check before a long run that a model, with its loss, keeps the samples of a batch apart."""

from .check import check
from .report import CheckReport

__all__ = ["CheckReport", "check"]
