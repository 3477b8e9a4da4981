"""Canaries whose gradient is chosen: a loss that is linear in a few parameters, a few of its own for each canary.

They lie across what real samples do and across each other, so that an attacker's view of one is blurred by the noise alone
("Dirac canaries" of Nasr et al. 2023, section 5, by a loss in place of a gradient put in by hand: the engine clips them as it
clips anything).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..clipping.functions import bounded_factors
from ..engine.engine import Engine

_MOST = 16  # coordinates that one canary has in a group
_NORMS = tuple(2.0**k for k in range(-7, 11))  # of its gradient, over the threshold
_AS_GOOD = 0.999


class Crafted:
    """m canaries on one engine's model.

    Args:
        engine: its groups, thresholds and clip function decide how large gradients should be.
        canaries: m.
    """

    def __init__(self, engine: Engine, canaries: int) -> None:
        self._model = engine.model
        named = dict(engine.model.named_parameters())
        generator = torch.Generator().manual_seed(0)  # of signs that the attacker knows; they cancel what samples share
        self._signs: dict[str, Tensor] = {}  # [m, k] by parameter
        self._places: dict[str, Tensor] = {}  # [m, k] by parameter: flat indices
        self._scales: dict[str, float] = {}
        self._group: dict[str, str] = {}
        for group in engine.partition.names:
            name = max(engine.partition[group], key=lambda n: named[n].numel())
            size = named[name].numel()
            k = min(max(size // canaries, 1), _MOST)
            # spread over the parameter; canaries share coordinates only where there are fewer than m
            places = torch.arange(canaries * k, device=named[name].device) * max(size // (canaries * k), 1) % size
            self._places[name] = places.view(k, canaries).T.contiguous()
            signs = torch.randint(2, (canaries, k), generator=generator) * 2 - 1
            self._signs[name] = signs.to(self._places[name].device)
            self._scales[name] = _best_norm(engine, group) / k**0.5
            self._group[name] = group

    def losses(self, engine: Engine, which: Tensor, there: Tensor) -> Tensor:
        """Return ``[B]``: of canaries ``which`` ``[B]``, zero where ``there`` ``[B]`` is zero."""
        parameters = dict(self._model.named_parameters())
        total = None
        with engine.forward_on(which):
            for name, places in self._places.items():
                picked = F.embedding(places[which], parameters[name].reshape(-1, 1)).flatten(1)
                picked = (picked * self._signs[name][which]).sum(1)
                loss = picked * (there.to(picked) * self._scales[name])
                total = loss if total is None else total + loss
        assert total is not None  # a partition has a group
        return total

    def scores(self, released: Mapping[str, Tensor], engine: Engine) -> Tensor:
        """Return ``[m]``, float64: how far a released gradient lies on each canary's side."""
        total = torch.zeros(next(iter(self._places.values())).shape[0], dtype=torch.float64)
        for name, places in self._places.items():
            group = self._group[name]
            weight = engine.thresholds[group] / engine.noise_stds[group] ** 2 / places.shape[1] ** 0.5
            total += (released[name].flatten()[places].double() * self._signs[name]).sum(1).cpu() * weight
        return total


def _best_norm(engine: Engine, group: str) -> float:
    """Return the norm whose clipped gradient is the longest; of those as good, the largest."""
    bound = engine.thresholds[group]
    norms = torch.tensor([bound * times for times in _NORMS], dtype=torch.float64)
    clipped = norms * bounded_factors(engine.clip, norms, bound, torch.float64)
    return float(norms[clipped >= _AS_GOOD * clipped.max()].max())
