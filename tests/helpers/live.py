"""Live bytes (the library's own) and counted products of a pass."""

from __future__ import annotations

from groupclip.memory.live import Live, watch


def products(seen: Live) -> int:
    """Matrix products and convolutions."""
    names = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
    return sum(seen.calls[name] for name in names)


__all__ = ["Live", "products", "watch"]
