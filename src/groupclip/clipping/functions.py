"""Turn per-sample norms into clip factors: ``C_i = C(||g_i||; R)``.

Every clip function guarantees ``norm * factor <= R`` for every finite norm; :func:`bounded_factors`, which the
engine calls, enforces it whatever the function, and gives a sample whose norm isn't finite the factor zero.

Legend: B samples; R the clipping threshold of the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

#: How a scalar loss that the user calls ``backward`` on was made from the losses of the samples; ``none`` forbids it.
LossReduction = Literal["none", "mean", "sum"]


class ClipFunction(ABC):
    """A rule that turns the norms of per-sample gradients into factors."""

    name: str

    @abstractmethod
    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        """Return clip factors ``[B]`` for norms ``[B]``; must keep ``norms * factors <= threshold``."""


@dataclass(frozen=True)
class Automatic(ClipFunction):
    """``R / (norm + gamma)``: automatic clipping (AUTO-S).

    The paper's clip function (section 2.1, item 1, with R = 1 and gamma = 0.01). Sensitivity: strictly below R.
    ValueError if ``gamma`` isn't positive and finite; it is in the gradient's own unit.
    """

    gamma: float = 0.01
    name = "automatic"

    def __post_init__(self) -> None:
        if not 0 < self.gamma < float("inf"):
            raise ValueError(f"gamma={self.gamma} must be positive and finite")

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        return (norms + self.gamma).reciprocal() * threshold


@dataclass(frozen=True)
class Abadi(ClipFunction):
    """``min(1, R / norm)``: Abadi et al. 2016. Gradients below the threshold are kept as they are."""

    name = "abadi"

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        return (norms.reciprocal() * threshold).clamp(max=1.0)


@dataclass(frozen=True)
class FlatNormalised(ClipFunction):
    """``R / norm``: every gradient is scaled to length R (AUTO-V). A zero gradient stays zero."""

    name = "flat-normalised"

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        return torch.where(norms > 0, threshold / norms, 0.0)


@dataclass(frozen=True)
class Global(ClipFunction):
    """``1[norm <= R]``: a gradient is kept whole or dropped whole."""

    name = "global"

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        return (norms <= threshold).to(norms.dtype)


_BY_NAME: dict[str, ClipFunction] = {c.name: c for c in (Automatic(), Abadi(), FlatNormalised(), Global())}


def clip_function(clip: str | ClipFunction) -> ClipFunction:
    """Return the clip function of that name, or the object itself.

    Raises:
        ValueError: no clip function has that name.
        TypeError: neither a name nor a :class:`ClipFunction`.
    """
    if isinstance(clip, ClipFunction):
        return clip
    if not isinstance(clip, str):
        raise TypeError(f"clip={clip!r} must be a name or an object of groupclip.clipping")
    if clip not in _BY_NAME:
        raise ValueError(f"clip={clip!r} is unknown; choose one of {', '.join(sorted(_BY_NAME))}")
    return _BY_NAME[clip]


#: Rounding of the clipped sum can lift a sample above R: the norm and the product C * g are rounded in the
#: dtype of the gradient. The factor is shortened by this much, so that R bounds what is really added.
_ROUNDING = {torch.float64: 0.0, torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}


def bounded_factors(clip: ClipFunction, norms: Tensor, threshold: float, dtype: torch.dtype) -> Tensor:
    """Return factors ``[B]`` with ``norms * factors <= threshold``, and zero where the norm isn't finite.

    Args:
        clip: the clip function.
        norms: ``[B]`` norms of the per-sample gradients of one group, float32 or float64.
        threshold: R of the group.
        dtype: the dtype in which the clipped gradients are summed; its rounding is kept below the threshold
            by shortening the factors (1e-6 of it in float32, 2^-7 in bfloat16, 2^-9 in float16, nothing in float64).
    """
    raw = clip.factors(norms, threshold)
    # The function may be the user's own: the bound is enforced here, where the noise relies on it.
    capped = torch.minimum(raw, norms.reciprocal() * threshold).clamp(min=0.0)
    # infinite norms have the factor 0 by the bound, and what is no number has it here
    return torch.nan_to_num(capped, nan=0.0, posinf=0.0) * (1.0 - _ROUNDING[dtype])


#: What the last roundings of a factor and a norm amount to in float64, where factors aren't shortened otherwise.
_LAST = 2.0**-47


def shortened(factors: Tensor, norms: Tensor, room: Tensor | float) -> Tensor:
    """Return factors ``[B]`` for gradients that may be longer than their norms say: ``norm / (norm + room)`` of them.

    A sample whose norm is zero gets the factor zero. So does one whose factor is too small for its dtype to have all its bits.

    Args:
        factors: ``[B]``, for the norms.
        norms: ``[B]`` as they were measured.
        room: by how much norms may be too small, ``[B]`` or for all: what rounding and underflow may have taken off.
    """
    longest = norms * (1 + _LAST) + room
    tiny = torch.finfo(norms.dtype).tiny
    share = torch.threshold(torch.nan_to_num(norms / longest, nan=0.0), tiny, 0.0)  # less hasn't all its bits
    held = factors * share
    return torch.threshold(held, torch.finfo(held.dtype).tiny, 0.0)
