"""Theorem 2: can finer groups, with the best thresholds, clip exactly as coarser ones do? Almost never."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import positive
from .distance import GAMMA, Numbers

CLIPS = ("abadi", "automatic")


@dataclass(frozen=True)
class Misfit:
    """Two samples that want different thresholds of one fine group.

    ``sample`` needs exactly ``threshold``; ``other`` needs ``other_threshold``, or at least that where ``at_least`` is true.
    """

    group: int
    sample: int
    threshold: float
    other: int
    other_threshold: float
    at_least: bool


@dataclass(frozen=True)
class Finer:
    """``thresholds`` ``[M]`` of the fine groups, or None; then ``misfit`` is a witness that there are none."""

    thresholds: tuple[float, ...] | None
    misfit: Misfit | None


def finer_thresholds(
    norms: ArrayLike,
    coarse: Sequence[int],
    thresholds: float | Sequence[float],
    *,
    clip: str = "abadi",
    gamma: float = GAMMA,
    tolerance: float = 1e-12,
) -> Finer:
    """Return thresholds of fine groups that clip these samples as the coarse groups do; or two samples that rule them out.

    Args:
        norms: ``[B, M]``, the norms of B per-sample gradients in M fine groups.
        coarse: ``[M]``, the number 0, 1, .. of the coarse group that each fine group lies in.
        thresholds: R of every coarse group, or one number for each.
        clip: "abadi", ``min(1, R / norm)``, or "automatic", ``R / (norm + gamma)``.
        tolerance: relative; thresholds that differ by less count as equal.

    A fine group m of a coarse group c gives sample i the coarse factor ``C(N_ic; R_c)`` if and only if (n = norm in m, N = in c)

    * abadi, i clipped (N > R_c): ``R_m = n R_c / N``. Not clipped: ``R_m >= n``.
    * automatic: ``R_m = R_c (n + gamma) / (N + gamma)``.

    and n = 0 asks nothing. (The appendix asks it of zero norms too, and for abadi names the ratios n / N of clipped samples only.)

    The paper's example, g_i = [3, 4], g_j = [6, 0], R = 4, is one, but not for the reason given: ||g_j|| = 6 > 4 IS clipped, and
    the contradiction is between two clipped samples.

    >>> found = finer_thresholds([[3, 4], [6, 0]], coarse=[0, 0], thresholds=4.0)
    >>> found.thresholds is None
    True
    >>> found.misfit  # g_i needs R_1 = 3 * 4/5 = 2.4, g_j needs R_1 = 6 * 4/6 = 4
    Misfit(group=0, sample=0, threshold=2.4, other=1, other_threshold=4.0, at_least=False)

    With g_j = [3.5, 0] the appendix's condition (||g_j|| < R < ||g_i||, first parts the other way round) and the text hold:

    >>> finer_thresholds([[3, 4], [3.5, 0]], coarse=[0, 0], thresholds=4.0).misfit
    Misfit(group=0, sample=0, threshold=2.4, other=1, other_threshold=3.5, at_least=True)

    Automatic clipping can't either; samples in proportion can, with abadi:

    >>> finer_thresholds([[3, 4], [6, 0]], [0, 0], 4.0, clip="automatic").thresholds is None
    True
    >>> finer_thresholds([[3, 4], [6, 8]], [0, 0], 4.0).thresholds
    (2.4, 3.2)

    Raises:
        ValueError: shapes that don't fit, a negative or infinite norm, an unknown clip.
    """
    n, of, R = _check(norms, coarse, thresholds)
    if clip not in CLIPS:
        raise ValueError(f"clip={clip!r} is unknown here; choose one of {', '.join(CLIPS)}")
    gamma = positive("gamma", gamma)
    found = []
    for m, c in enumerate(of):
        total = np.sqrt((n[:, of == c] ** 2).sum(axis=1))
        asking = np.flatnonzero(n[:, m] > 0)
        if clip == "automatic":
            exact = {int(i): R[c] * (n[i, m] + gamma) / (total[i] + gamma) for i in asking}
            floors = {}
        else:
            exact = {int(i): n[i, m] * R[c] / total[i] for i in asking if total[i] > R[c]}
            floors = {int(i): n[i, m] for i in asking if total[i] <= R[c]}
        found.append(_threshold(m, exact, floors, float(R[c]), tolerance))
        if isinstance(found[-1], Misfit):
            return Finer(None, found[-1])
    return Finer(tuple(found), None)


def _threshold(
    m: int, exact: dict[int, float], floors: dict[int, float], free: float, tolerance: float
) -> float | Misfit:
    """Return the threshold that all samples agree on, or two that don't. ``free``: what to take if nobody asks for anything."""
    least = max(floors, key=floors.__getitem__) if floors else None
    if not exact:
        return free if least is None else float(floors[least])
    low, high = min(exact, key=exact.__getitem__), max(exact, key=exact.__getitem__)
    if not math.isclose(exact[low], exact[high], rel_tol=tolerance):
        return Misfit(m, low, float(exact[low]), high, float(exact[high]), at_least=False)
    if least is not None and floors[least] > exact[high] * (1 + tolerance):
        return Misfit(m, high, float(exact[high]), least, float(floors[least]), at_least=True)
    return float(exact[high])


def _check(
    norms: ArrayLike, coarse: Sequence[int], thresholds: float | Sequence[float]
) -> tuple[Numbers, np.ndarray, Numbers]:
    n = np.asarray(norms, dtype=np.float64)
    of = np.asarray(coarse)
    if n.ndim != 2 or of.shape != n.shape[1:]:
        raise ValueError(f"norms must be [B, M] and coarse [M]; got {n.shape} and {of.shape}")
    if not np.all((n >= 0) & np.isfinite(n)):
        raise ValueError("norms must be >= 0 and finite")
    if sorted(set(of.tolist())) != list(range(len(set(of.tolist())))):
        raise ValueError(f"coarse={coarse!r} must number the coarse groups 0, 1, .. without a gap")
    count = int(of.max()) + 1 if of.size else 0
    R = np.asarray(thresholds, dtype=np.float64)
    if R.shape not in ((), (count,)) or not np.all((R > 0) & np.isfinite(R)):
        raise ValueError(
            f"thresholds={thresholds!r} must be positive: one number, or one for each of {count} coarse groups"
        )
    return n, of, np.broadcast_to(R, (count,))
