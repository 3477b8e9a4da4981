"""The clipping thresholds ``R_1 .. R_M`` of the groups, and the sensitivity that they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

Thresholds = float | Sequence[float] | Mapping[str, float]


class ReadOnly(Mapping[str, float]):
    """A look at thresholds that the engine alone moves."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._thresholds = thresholds

    def __getitem__(self, group: str) -> float:
        return self._thresholds[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._thresholds)

    def __len__(self) -> int:
        return len(self._thresholds)

    def __repr__(self) -> str:
        return repr(self._thresholds)

    def __setitem__(self, group: str, value: object) -> NoReturn:
        raise TypeError(
            f"the threshold of group {group!r} can't be changed: clipping, noise and the statement were made from it. Detach the "
            "engine and attach again (what was spent stays spent, and the next statement tells it), or let groupclip.Adaptive "
            "move the thresholds"
        )


def group_thresholds(thresholds: Thresholds, groups: Sequence[str]) -> dict[str, float]:
    """R_m of every group.

    Args:
        thresholds: a number R gives ``R_m = R / sqrt(M)``, the paper's equal split (section "Clipping
            thresholds"), whose vector has length R whatever M is; a sequence gives R_m in the order of the
            groups; a mapping gives them by name.
        groups: the names of the M groups.

    Raises:
        ValueError: a threshold that isn't positive and finite, a wrong number of them, or a name too many or too few.
        TypeError: not a number, a sequence or a mapping.
    """
    if isinstance(thresholds, Mapping):
        missing, extra = [g for g in groups if g not in thresholds], [g for g in thresholds if g not in groups]
        if missing or extra:
            raise ValueError(
                f"thresholds must have one entry a group; missing: {missing or 'none'}, unknown: {extra or 'none'}; "
                f"the groups are {list(groups)}"
            )
        values = {g: thresholds[g] for g in groups}
    elif isinstance(thresholds, (int, float)) and not isinstance(thresholds, bool):
        if not 0 < thresholds < math.inf:
            raise ValueError(f"thresholds={thresholds}: must be positive and finite")
        values = {g: thresholds / math.sqrt(len(groups)) for g in groups}
    elif isinstance(thresholds, Sequence) and not isinstance(thresholds, str):
        if len(thresholds) != len(groups):
            raise ValueError(f"thresholds has {len(thresholds)} numbers for {len(groups)} groups: give one a group")
        values = dict(zip(groups, thresholds, strict=True))
    else:
        raise TypeError(
            f"thresholds={thresholds!r} must be a number, a sequence of M numbers or a mapping group -> number"
        )
    for group, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"threshold of group {group!r} is {value!r}: must be a number")
        if not (0 < value < math.inf):
            raise ValueError(f"threshold of group {group!r} is {value}: must be positive and finite")
    return {g: float(v) for g, v in values.items()}


def sensitivity(thresholds: Mapping[str, float]) -> float:
    """Return ``||(R_1, .., R_M)||``: how far one sample can move the sum of clipped gradients (add or remove one)."""
    return math.hypot(*thresholds.values())
