"""The paper's theory as functions: Theorem 1 (how far DP-SGD gets), its distance, and Theorem 2 (what finer groups can't do).

Where the paper's print, its proof and what follows disagree, the docstrings say so, and ``docs/theory.md`` sums it up.
Everything here is plain arithmetic in float64; :mod:`groupclip.theory.convex` alone trains something.
"""

from .bound import (
    Bound,
    Setting,
    dp_sgd,
    headline,
    proof_last_line,
    sgd,
    sgd_from_squares,
    small_level,
    theorem_as_printed,
)
from .distance import distance, inverse, largest_distance, least_norm, linear_inverse, small_level_constant
from .finer import Finer, Misfit, finer_thresholds

__all__ = [
    "Bound",
    "Finer",
    "Misfit",
    "Setting",
    "distance",
    "dp_sgd",
    "finer_thresholds",
    "headline",
    "inverse",
    "largest_distance",
    "least_norm",
    "linear_inverse",
    "proof_last_line",
    "sgd",
    "sgd_from_squares",
    "small_level",
    "small_level_constant",
    "theorem_as_printed",
]
