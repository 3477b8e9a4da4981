"""Before a long run: does this model, with this loss, keep the samples of a batch apart?"""

from .check import CheckReport, check

__all__ = ["CheckReport", "check"]
