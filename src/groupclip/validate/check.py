"""``groupclip.check``: neighbouring batches replayed on the user's own model and loss, against single samples.

The truth is plain torch: the model on a batch of ONE sample, before it is attached. Against it are held

- the losses: sample i's loss in a batch must be its loss alone, whichever other samples are there;
- the clipped sums that the attached model gives on neighbouring batches: a sample added, removed, replaced by one with
  a loss a million times as large: each must be the sum of the samples' own clipped gradients;
- a sample zeroed out, or with its inputs a million times as large, may move no group's sum by more than its threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attaching import attach
from ..clipping import Abadi
from ..engine import Engine
from ..errors import GroupClipError, PrivacyViolation
from ..norms import square_sums
from ..partition import Partition, partition
from ..private import SLOW, VMAP
from .coverage import Coverage, ParameterUse, slow, table
from .mixing import first_mixing_module
from .replay import Batch, Losses, comparable, kept_gradients
from .single import Sample, alone

_LARGE = 1e6

#: By the coarsest dtype that gradients came in: how far, in parts of the threshold, a clipped sum may be from the truth.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}
_HALF_TOLERANCE = 0.15

#: Losses of the same samples in batches of the same size differ by rounding of another order only.
_LOSS_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_HALF_LOSS_TOLERANCE = 3e-2

#: A group whose gradient is this small beside the whole is judged by the whole: there is only rounding in it.
_FLOOR = 1e-4


@dataclass(frozen=True)
class CheckReport:
    """What was found right.

    Attributes:
        uses: the coverage table, one row a trainable parameter.
        replayed: the neighbouring batches that came out right.
        warnings: what is right and slow, or couldn't be seen.
    """

    uses: tuple[ParameterUse, ...]
    replayed: tuple[str, ...]
    warnings: tuple[str, ...]

    def table(self) -> str:
        return table(self.uses)

    def __str__(self) -> str:
        lines = [
            self.table(),
            "",
            *(f"right: {what}" for what in self.replayed),
            *(f"note: {w}" for w in self.warnings),
        ]
        return "\n".join(lines)


def check(
    model: nn.Module,
    loss_fn: Losses,
    batch: Any,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    *,
    samples: int = 3,
) -> CheckReport:
    """Whether ``model`` with this loss keeps samples apart, so that clipping bounds what each of them can do.

    Run it before a long run. Dropout and other random draws of torch are held constant meanwhile. The model (weights,
    gradients, buffers, mode) and the random number generators are left as they were.

    Args:
        model: as it will be attached, in training mode.
        loss_fn: ``loss_fn(model, *batch) -> [B]`` losses, one a sample; called as ``loss_fn(model, batch)`` if the batch is
            a mapping or a tensor.
        batch: an example of at least ``samples`` (and 2) samples: dimension 0 of its first tensor.
        groups: a :class:`Partition` or a style, as for :func:`groupclip.attach`.
        samples: how many of them to use; the cost grows with it. A model that arranges small batches in another way than
            large ones needs as many as will be trained on.

    Returns:
        A report with the coverage table: for each parameter its group, the operations that use it, how their samples are
        kept apart, and how norms are computed.

    Raises:
        PrivacyViolation: samples aren't kept apart: names the module, or the loss, and what to do.
        CoverageError, UnsupportedOperation, ValueError, TypeError: as :func:`groupclip.attach` and ``engine.backward``.

    The check sees what these samples show. It proves nothing about data-dependent branches that they don't take.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples={samples!r}: at least 2 are needed to see whether they mix")
    data = Batch(batch)
    if data.size < samples:
        raise ValueError(
            f"the batch has {data.size} samples, {samples} are asked for: pass a larger example or samples="
        )
    partition_ = groups if isinstance(groups, Partition) else partition(model, groups)
    with kept_gradients(model):
        attach(model, None, partition_, None).detach()  # refuses by name what can't train privately at all
        return _Check(model, loss_fn, data, partition_, samples).run()


class _Check:
    """One run of :func:`check`."""

    def __init__(self, model: nn.Module, loss_fn: Losses, data: Batch, groups: Partition, samples: int) -> None:
        self.model, self.loss_fn, self.data, self.groups, self.samples = model, loss_fn, data, groups, samples
        self.params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.coverage = Coverage()
        self.lowest = torch.float64  # the coarsest dtype that a loss or a gradient came in
        self.replayed: list[str] = []
        self.skipped: list[str] = []

    def run(self) -> CheckReport:
        everyone = range(self.samples)
        last = self.samples - 1
        singles = [self._alone(self.data.pick(i)) for i in everyone]
        self._losses_keep_apart([sample.loss for sample in singles])
        large = self._alone(self.data.pick(last), times=_LARGE)
        engine = attach(self.model, None, self.groups, None, clip=Abadi(), thresholds=self._thresholds(singles))
        engine._tape.observer = self.coverage
        try:
            self._equal(engine, "a batch as it is", self.data.pick(*everyone), singles)
            self._equal(engine, "all samples but one removed", self.data.pick(0), [singles[0]])
            weights = torch.tensor([1.0, _LARGE])
            self._equal(
                engine, "a sample replaced by one with a loss a million times as large", self.data.pick(0, last),
                [singles[0], large], weights,
            )  # fmt: skip
            self._bounded(engine, "a sample zeroed out", self.data.changed([0, 1], times={1: 0.0}), singles[0])
            if self.data.has_real_inputs:
                wild = self.data.changed([0, 1], times={1: _LARGE})
                self._bounded(engine, "a sample's inputs a million times as large", wild, singles[0])
        finally:
            engine.detach()
        return CheckReport(self.coverage.rows(self.groups), tuple(self.replayed), tuple(self._warnings()))

    # ------------------------------------------------------------------ the truth

    def _loss(self, arguments: tuple[Any, ...]) -> Tensor:
        return self.loss_fn(self.model, *arguments)

    def _alone(self, arguments: tuple[Any, ...], times: float = 1.0) -> Sample:
        sample = alone(self.model, self.loss_fn, arguments, self.groups, times)
        self.lowest = max(self.lowest, sample.dtype, key=lambda d: torch.finfo(d).eps)
        return sample

    def _thresholds(self, singles: list[Sample]) -> dict[str, float]:
        """Half the smallest norm that a group has, so that every sample is clipped."""
        whole = max(sum(norm**2 for norm in sample.norms.values()) ** 0.5 for sample in singles)
        if not 0 < whole < float("inf"):
            raise ValueError(
                "the gradients of these samples are zero or not finite, so there is nothing to compare: pass others"
            )
        return {m: max(0.5 * min(s.norms[m] for s in singles), _FLOOR * whole) for m in self.groups.names}

    # ------------------------------------------------------------------ the comparisons

    def _losses_keep_apart(self, single: list[float]) -> None:
        """In no batch may a sample's loss be another than its loss alone."""
        tolerance = _LOSS_TOLERANCE.get(self.lowest, _HALF_LOSS_TOLERANCE)
        for chosen in ((self.samples - 1, 0), tuple(range(self.samples))):
            with comparable(self.model), torch.no_grad():
                losses = self._loss(self.data.pick(*chosen))
            if tuple(losses.shape) != (len(chosen),):
                raise PrivacyViolation(
                    f"loss_fn gave losses of shape {tuple(losses.shape)} for a batch of {len(chosen)} samples: it must be "
                    f"({len(chosen)},)"
                )
            for here, i in zip(losses.tolist(), chosen, strict=True):
                off = abs(here - single[i]) > tolerance * (abs(single[i]) + 1e-3)
                if off or math.isnan(here) != math.isnan(single[i]):
                    raise PrivacyViolation(self._blame())

    def _blame(self) -> str:
        """Samples' losses depend on each other: where that begins."""
        last = self.samples - 1
        batches = [self.data.pick(0, 1), self.data.pick(0, last if last > 1 else 0), self.data.pick(last, 1)]

        def run(arguments: tuple[Any, ...]) -> None:
            with comparable(self.model):
                self._loss(arguments)

        name = first_mixing_module(self.model, run, batches)
        if name is None:
            return (
                "the loss of a sample depends on the other samples of the batch, though the model's outputs don't: loss_fn "
                "divides by a count over the batch (as a mean over all tokens does), or compares samples with each other (as "
                "contrastive losses do). Average each sample's own terms, e.g. (losses * mask).sum(1) / mask.sum(1); a loss "
                "over pairs of samples needs the pair as the sample"
            )
        kind = type(self.model.get_submodule(name)).__name__
        where = f"module {name!r} ({kind})" if name else f"the forward method of {kind} itself, outside its submodules,"
        return (
            f"{where} mixes the samples of the batch: what it gives for one depends on another, so clipping can't bound what "
            "a sample does. Let it use each sample's own entries alone (GroupNorm or LayerNorm instead of statistics over the "
            "batch; attention within a sample; no comparison between samples). If its input has the sequence first, the "
            "sample must come first instead, or batch_first=True"
        )

    def _equal(
        self,
        engine: Engine,
        what: str,
        arguments: tuple[Any, ...],
        singles: list[Sample],
        weights: Tensor | None = None,
    ) -> None:
        """The engine's sums must be those of the single samples."""
        off = self._off(engine, arguments, singles, weights)
        tolerance = _TOLERANCE.get(self.lowest, _HALF_TOLERANCE)
        wrong = [n for m in self.groups.names for n in self.groups[m] if not off[n] <= tolerance * engine.thresholds[m]]
        if wrong:
            raise PrivacyViolation(
                f"{what}: the clipped gradient of {_listed(wrong)} isn't the sum of the samples' own, though their losses keep "
                "apart. The model arranges this batch in a way that groupclip misreads, or an operation on the way has a "
                "gradient that mixes samples (a custom autograd.Function): rewrite that part with the sample as dimension 0, "
                "or freeze these parameters"
            )
        self.replayed.append(what)

    def _bounded(self, engine: Engine, what: str, arguments: tuple[Any, ...], without: Sample) -> None:
        """A sample may move the sum of no group by more than its threshold."""
        try:
            off = self._off(engine, arguments, [without])
        except GroupClipError:
            raise
        except Exception as error:
            engine.discard()
            self.skipped.append(f"not replayed, for the model can't take it ({type(error).__name__}): {what}")
            return
        tolerance = _TOLERANCE.get(self.lowest, _HALF_TOLERANCE)
        for group, threshold in engine.thresholds.items():
            if not sum(off[n] ** 2 for n in self.groups[group]) ** 0.5 <= threshold * (1 + tolerance):
                raise PrivacyViolation(
                    f"{what}: the sum of group {group!r} moves by more than its threshold, so a single sample isn't bounded. An "
                    "operation on the way mixes samples when numbers are large"
                )
        self.replayed.append(what)

    def _off(
        self, engine: Engine, arguments: tuple[Any, ...], singles: list[Sample], weights: Tensor | None = None
    ) -> dict[str, float]:
        """Parameter -> distance of the engine's clipped sum from that of the single samples."""
        with comparable(self.model):
            losses = self._loss(arguments)
            if weights is not None:
                losses = losses * weights.to(losses)
            engine.backward(losses)
        off = {}
        for group, threshold in engine.thresholds.items():
            parts = [(sample.grads, sample.factor(group, threshold)) for sample in singles]
            for name in self.groups[group]:
                own = [(grads[name], factor) for grads, factor in parts if name in grads and factor > 0]
                off[name] = _distance(self.params[name].grad, own)
        engine.discard()
        return off

    def _warnings(self) -> list[str]:
        rows = self.coverage.rows(self.groups)
        found = [
            f"{operation} has no closed form for {_listed(names)}: exact, slower"
            for operation, names in slow(rows, [VMAP]).items()
        ]
        found += [
            f"{operation}: samples couldn't be told apart where {_listed(names)} is used: exact, one sample at a time"
            for operation, names in slow(rows, [SLOW]).items()
        ]
        unused = [r.parameter for r in rows if not r.operations or not r.norm]
        if unused:
            found.append(f"no gradient reached {_listed(unused)} in these passes: it would be trained on noise alone")
        return found + self.skipped


def _distance(total: Tensor | None, parts: list[tuple[Tensor, float]]) -> float:
    """``|total - sum of factor * gradient|``, not finite where the total isn't. Overwrites ``total``: it may be large."""
    if total is None:
        if not parts:
            return 0.0
        total = torch.zeros_like(parts[0][0])
    total = total.detach()
    for grad, factor in parts:
        total.sub_(grad, alpha=factor)
    return float(square_sums(total.unsqueeze(0))) ** 0.5


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
