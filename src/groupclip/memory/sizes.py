"""Numbers of bytes, read and written."""

from __future__ import annotations

import re

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(text: str | int) -> int:
    """Read ``"12GB"`` (10^9 bytes), ``"12GiB"`` (2^30), ``"500 MB"``, or a number of bytes.

    Raises:
        ValueError: none of these, or not positive.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([KMGT]?i?B)\s*", str(text), re.IGNORECASE)
        if match is None:
            raise ValueError(f"memory={text!r} can't be read: write a size as '12GB', '800MiB', or a number of bytes")
        size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise ValueError(f"memory={text!r} must be positive")
    return size


def show_bytes(size: float) -> str:
    """Write bytes in the largest unit (10^3, 10^6, 10^9 bytes) that leaves a number above one."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"
