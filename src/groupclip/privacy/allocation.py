"""How much noise each group gets, and what that amounts to.

One step releases one vector: the groups' clipped sums, each over the standard deviation s_m of its noise. One sample
moves group m by at most R_m, so the whole by at most ``(sum_m (R_m / s_m)^2)^(1/2) = 1 / sigma``: every allocation with
that sum spends the same (Gaussian mechanism of an anisotropic noise; McMahan et al. 2018, theorem 1). What else is
released about the same batch (a noisy count) joins the sum.
"""

import math
from collections.abc import Iterable, Mapping

from .thresholds import sensitivity

ALLOCATIONS = ("equal", "threshold", "dimension")
ROUNDING = 1e-9  # relative; float64 sums over any number of groups stay far below


def noise_stds(
    allocation: str | Mapping[str, float], thresholds: Mapping[str, float], sizes: Mapping[str, int], sigma: float
) -> dict[str, float]:
    """s_m of every group: the standard deviation of the noise on each coordinate of its clipped sum.

    Args:
        allocation: "equal" (the paper's): ``s_m = sigma ||(R_1..R_M)||``. "threshold": ``s_m = sigma sqrt(M) R_m``, as
            much noise to signal in every group (He et al. 2022, section 3.2). "dimension": ``s_m`` proportional to
            ``sqrt(R_m / sqrt(d_m))``, which minimises the total variance ``sum_m d_m s_m^2``. Or s_m by group.
        thresholds: R_m by group.
        sizes: d_m, the number of coordinates, by group.
        sigma: noise multiplier of the whole; 0 gives no noise.

    Raises:
        ValueError: an unknown allocation; groups that differ; given s_m that amount to less than ``sigma``.
    """
    if set(thresholds) != set(sizes):
        raise ValueError(
            f"thresholds are of the groups {sorted(thresholds)}, sizes of {sorted(sizes)}; both need every group"
        )
    if isinstance(allocation, Mapping):
        return _given(allocation, thresholds, sigma)
    if allocation == "equal":
        total = sensitivity(thresholds)
        return {group: sigma * total for group in thresholds}
    if allocation == "threshold":
        return {group: sigma * math.sqrt(len(thresholds)) * bound for group, bound in thresholds.items()}
    if allocation == "dimension":
        total = math.fsum(bound * math.sqrt(sizes[group]) for group, bound in thresholds.items())
        return {
            group: sigma * math.sqrt(total * bound / math.sqrt(sizes[group])) for group, bound in thresholds.items()
        }
    raise ValueError(
        f"allocation={allocation!r} is unknown; use one of {', '.join(ALLOCATIONS)}, or a mapping from group to standard deviation"
    )


def noise_multiplier_of(
    stds: Mapping[str, float], thresholds: Mapping[str, float], others: Iterable[float] = (), rounding: float = 0.0
) -> float:
    """Return the sigma that the noise really added amounts to: ``((sum_m (R_m/s_m)^2 + sum_j z_j^-2)^(1/2) + rounding)^-1``.

    Args:
        stds: s_m by group. Any that is 0 gives 0: no noise.
        thresholds: R_m by group.
        others: noise multipliers z_j (standard deviation over sensitivity) of further Gaussian releases of the same step.
        rounding: what rounding to a grid adds to the distance of neighbours, over the noise.
    """
    if any(std <= 0 for std in stds.values()):
        return 0.0
    distance = math.hypot(*(thresholds[group] / std for group, std in stds.items()), *(1 / z for z in others))
    return 1 / (distance + rounding)


def _given(stds: Mapping[str, float], thresholds: Mapping[str, float], sigma: float) -> dict[str, float]:
    if set(stds) != set(thresholds):
        raise ValueError(
            f"the allocation is of the groups {sorted(stds)}, the thresholds of {sorted(thresholds)}; they must agree"
        )
    for group, std in stds.items():
        if isinstance(std, bool) or not isinstance(std, (int, float)) or not 0 < std < math.inf:
            raise ValueError(f"the noise of group {group!r} is {std!r}: a standard deviation is positive and finite")
    found = noise_multiplier_of(stds, thresholds)
    if found < sigma * (1 - ROUNDING):
        raise ValueError(
            f"this allocation amounts to noise_multiplier={found:.6g}, the plan says {sigma:.6g}: epsilon would be larger "
            f"than planned. Multiply every standard deviation by {sigma / found:.6g}"
        )
    return {group: float(stds[group]) for group in thresholds}
