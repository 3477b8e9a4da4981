"""Checks of single numbers; every message names the argument, the value and what it should be."""

import math
from numbers import Integral, Real


def whole(name: str, value: object, *, least: int) -> int:
    """Return ``value`` as an int; TypeError or ValueError unless it is a whole number in [least, 2^53]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} must be a whole number (int), not {type(value).__name__}")
    if int(value) < least:
        raise ValueError(f"{name}={value!r} must be >= {least}")
    if int(value) > 2**53:
        raise ValueError(f"{name}={value!r} is larger than 2**53, where a double stops counting; check the number")
    return int(value)


def number(name: str, value: object) -> float:
    """Return ``value`` as a float; TypeError or ValueError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be finite")
    return float(value)


def positive(name: str, value: object) -> float:
    """Return ``value`` as a float > 0."""
    found = number(name, value)
    if found <= 0:
        raise ValueError(f"{name}={value!r} must be > 0")
    return found
