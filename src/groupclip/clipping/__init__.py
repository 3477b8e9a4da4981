"""Turn per-sample norms into clip factors, and say what the noise of a step has to be."""

from .functions import Abadi, Automatic, ClipFunction, FlatNormalised, Global, bounded_factors, clip_function, shortened

__all__ = [
    "Abadi",
    "Automatic",
    "ClipFunction",
    "FlatNormalised",
    "Global",
    "bounded_factors",
    "clip_function",
    "shortened",
]
