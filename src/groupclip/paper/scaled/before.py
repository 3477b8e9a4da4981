"""Scores of a model before private training: every cell of an experiment starts from the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from torch import nn

_seen: dict[Hashable, Mapping[str, float]] = {}


def scores_before(
    evaluate: Callable[[nn.Module], Mapping[str, float]], model: nn.Module, key: Hashable
) -> Mapping[str, float]:
    """Return the scores of the pretrained model as it is, taken once for each ``key``; no choice depends on them."""
    if key not in _seen:
        _seen[key] = evaluate(model)
    return _seen[key]
