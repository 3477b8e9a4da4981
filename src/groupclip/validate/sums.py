"""What the attached model gives for neighbouring batches, against single samples: clipped sums, norms, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.engine import Engine
from ..errors import GroupClipError, PrivacyViolation
from ..persample.norms import square_sums
from .replay import Replays
from .samples import Batch
from .single import Sample
from .tolerance import Tolerance
from .wording import listed


class Sums:
    """Compares, and remembers what came out right.

    Args:
        engine: attached to the model of ``replays``.
        data: the samples.
        tolerance: of the comparisons.
    """

    def __init__(self, engine: Engine, replays: Replays, data: Batch, tolerance: Tolerance) -> None:
        self._engine, self._replays, self._data, self._tolerance = engine, replays, data, tolerance
        self._params = {n: p for n, p in replays.model.named_parameters() if p.requires_grad}
        self.right: list[str] = []
        self.notes: list[str] = []

    def equal(self, what: str, samples: Sequence[int], singles: Sequence[Sample | None]) -> list[float]:
        """Check that sums and norms are those of the single samples, each loss times its scale. A sample of which nothing is known
        (None) weighs nothing, so it may add nothing to a sum, and has no norm. Gives the losses.
        """
        known = [s for s in singles if s is not None]
        weights = torch.tensor([0.0 if s is None else s.times for s in singles])
        off, norms, losses = self._off(self._data.pick(*samples), samples, known, weights)
        thresholds, groups, bound = self._engine.thresholds, self._engine.partition, self._tolerance.sums
        wrong = [n for m in groups.names for n in groups[m] if not off[n] <= bound * thresholds[m]]
        # Rows that changed places are clipped by norms of their own, so that the sum may be right.
        swapped = [
            m for m in groups.names
            if not _alike(norms[m], [None if s is None else s.norms[m] for s in singles], bound, thresholds[m])
        ]  # fmt: skip
        if wrong or swapped:
            found = f"the norms of gradients in group {listed(swapped)} aren't those of the samples in their order"
            if wrong:
                found = f"the clipped gradient of {listed(wrong)} isn't the sum of the samples' own"
            raise PrivacyViolation(
                f"{what}: {found}, though their losses keep apart, and every sample runs alone. An operation on the way computes "
                "something else for samples side by side than for one alone: a rule that isn't groupclip's own, or the vmap() of a "
                "custom autograd.Function, that mixes samples or takes them for others. Mend that rule, or delete it (samples then "
                "run one at a time), or freeze these parameters. Or the loss calls the model twice, with the samples in another "
                "order the second time: keep one order"
            )
        self.right.append(what)
        return losses

    def bounded(self, what: str, times: float, without: Sample) -> None:
        """Check that sample 1, its inputs multiplied, moves the sum of no group by more than its threshold."""
        try:
            off, _, _ = self._off(self._data.changed([0, 1], times={1: times}), [0, 1], [without])
        except GroupClipError:
            raise
        except Exception as error:
            self._engine.discard()
            self.notes.append(f"not replayed, for the model can't take it ({type(error).__name__}): {what}")
            return
        for group, threshold in self._engine.thresholds.items():
            moved = sum(off[n] ** 2 for n in self._engine.partition[group]) ** 0.5
            if not moved <= threshold * (1 + self._tolerance.sums):
                raise PrivacyViolation(
                    f"{what}: the sum of group {group!r} moves by more than its threshold, so a single sample isn't bounded. An "
                    "operation on the way mixes samples when numbers are large"
                )
        self.right.append(what)

    def _off(
        self, arguments: tuple[Any, ...], samples: Sequence[int], singles: Sequence[Sample],
        weights: Tensor | None = None,
    ) -> tuple[dict[str, float], dict[str, Tensor], list[float]]:  # fmt: skip
        """Parameter -> distance of the engine's clipped sum from that of the single samples; the engine's norms; the losses."""
        engine = self._engine
        with self._replays.alike(samples, one=True):
            losses = self._replays.loss(arguments)
            engine.backward(losses if weights is None else losses * weights.to(losses))
        norms = engine.unsafe_norms()
        off = {}
        for group, threshold in engine.thresholds.items():
            parts = [(sample.grads, sample.weight(group, threshold)) for sample in singles]
            for name in engine.partition[group]:
                own = [(grads[name], weight) for grads, weight in parts if name in grads and weight > 0]
                off[name] = _distance(self._params[name].grad, own)
        engine.discard()
        return off, norms, losses.detach().tolist()


def _distance(total: Tensor | None, parts: Sequence[tuple[Tensor, float]]) -> float:
    """Return ``|total - sum of weight * gradient|``, not finite where the total isn't. Overwrites ``total``: it may be large."""
    if total is None:
        if not parts:
            return 0.0
        total = torch.zeros_like(parts[0][0])
    total = total.detach()
    for grad, weight in parts:
        total.sub_(grad, alpha=weight)
    return float(square_sums(total.unsqueeze(0))) ** 0.5


def _alike(norms: Tensor, single: Sequence[float | None], tolerance: float, threshold: float) -> bool:
    """Return whether norms are those of the single samples; what isn't finite in one isn't in the other. A zero weight has
    none, or, where its loss isn't finite, none that counts.
    """
    for here, own in zip(norms.tolist(), single, strict=True):
        if own is None:
            if here - here == 0 and here > tolerance * threshold:
                return False
            continue
        finite = here - here == 0, own - own == 0
        if finite[0] != finite[1] or (finite[0] and abs(here - own) > tolerance * max(own, threshold)):
            return False
    return True
