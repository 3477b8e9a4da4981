"""``groupclip.attach``: everything is looked at, and refused if it must be, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..clipping.adaptive import Adaptive
from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction, LossReduction, clip_function
from ..distributed.agreement import agreed
from ..distributed.ranks import ranks
from ..distributed.stages import check_no_stage
from ..distributed.wrappers import check_wrappers, unwrapped
from ..errors import PrivacyViolation
from ..noise.sources import NoiseSource, SecureNoise
from ..partition.choose import partition
from ..partition.groups import Partition, check_covers
from ..privacy.budget import Budget, reserved
from ..privacy.mechanism import Mechanism
from ..privacy.reservation import Reservation
from ..privacy.thresholds import Thresholds
from .checks import (
    check_arguments,
    check_modules,
    check_optimizer,
    check_parameters,
    check_whole,
    noise_multiplier,
)
from .devices import check_devices
from .engine import Engine
from .factorised import check_factorised
from .forward import check_class
from .shared import PART, Shared, shared_training
from .stages import Stages, met
from .views import Views


def attach(
    model: nn.Module,
    optimizer: Optimizer | None,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    mechanism: Mechanism | None,
    *,
    clip: str | ClipFunction = "automatic",
    thresholds: Thresholds | Adaptive = 1.0,
    allocation: str | Mapping[str, float] = "equal",
    loss_reduction: LossReduction = "none",
    noise: NoiseSource | None = None,
    budget: Budget | Reservation | None = None,
    views: int = 1,
    stage: Any = None,
) -> Engine:
    """Make ``model`` and ``optimizer`` train privately.

    Args:
        model: any module; its trainable parameters become private, in place. On several processes it may be a
            ``DistributedDataParallel``, made before.
        optimizer: a ``torch.optim.Optimizer`` over exactly the trainable parameters; None with ``mechanism=None``.
        groups: a :class:`Partition`, or a style for :func:`groupclip.partition`.
        mechanism: the plan of the run, calibrated. None clips without noise and without accounting: not private.
        clip: the clip function; see :mod:`groupclip.clipping`.
        thresholds: R (then ``R_m = R / sqrt(M)``), M numbers, or a mapping from group to R_m; or
            :class:`groupclip.Adaptive`, which follows a quantile of the norms and pays for it out of the same plan.
        allocation: how the noise is shared among the groups: "equal" (the paper's), "threshold", "dimension", or a standard
            deviation by group; see :func:`groupclip.privacy.allocation.noise_stds`. Each amounts to the plan's noise multiplier.
        loss_reduction: ``none`` (default): gradients come from ``engine.backward(losses)`` alone. ``mean`` or ``sum``: the
            user's own ``loss.backward()`` is allowed, and the loss is that reduction over the samples of the batch. A mean
            over all TOKENS of the batch is not: samples would weigh by each other's lengths. A loss that the model computes
            itself, as those of Hugging Face do, comes out as that reduction of its samples' losses.
        noise: the source of noise; a new :class:`SecureNoise` by default. One of your own is named in the statement.
        budget: what all trainings and releases on these data may spend together. The plan's steps are set aside in it, each is
            charged before it is taken, and ``engine.detach`` frees the rest. To go on with a saved run, ``budget.reopen(name)``;
            to train in rounds, ``budget.go_on(mechanism, label=..)``. On several processes rank 0 charges the steps of all, once;
            the others may leave it out.
        views: K, views of each sample (augmentations of it): the attached model is trained on ``[B, K, ..]`` and returns ``[B, K,
            ..]``, and the mean of a sample's K gradients is clipped once. Losses are ``[B, K]``, or their means ``[B]``.
        stage: the ``PipelineStage`` of ``torch.distributed.pipelining`` that was made of ``model``, which is this rank's part of a
            larger one. Every rank attaches its own. ``groups`` are those of this part, under names as ``stage0/head``; thresholds
            and noise are for the groups of all stages together. Train by :class:`groupclip.PrivateSchedule`.

    Guarantee:
        each step's gradient is ``(sum_i g_i^(m) C(g_i^(m); R_m) + s_m N(0, I)) / E[batch size]`` for every group m (the
        paper's eq. for G_private^(m), section 1), over the samples of the logical batch. ``s_m = sigma ||(R_1..R_M)||``
        as in the paper, unless ``allocation`` says otherwise; with moving thresholds or hardened noise, sigma is a little
        larger, for what they release or round. Each step is counted before it is applied, and none is made past the plan.
        It rests on losses of single samples (see :func:`groupclip.check`).

    Raises:
        BudgetExceeded: the plan doesn't fit into the budget.
        CoverageError: a trainable parameter in no group, or not in the optimizer, or the optimizer holds others.
        PrivacyViolation: the model normalises over the batch (BatchNorm in training mode); several processes that attach
            with other arguments or other weights.
        UnsupportedOperation: what several processes can't train with (see docs/distributed.md).
        ValueError, TypeError: arguments that don't fit; nothing is changed then.
    """
    stages = None if stage is None else met(stage, model, groups, mechanism, views=views, loss_reduction=loss_reduction)
    several = None if mechanism is None else ranks(even_one=stages is not None)

    def look() -> _LookedAt:
        return _looked_at(
            model, optimizer, groups if stages is None else stages.own, mechanism, clip, thresholds, allocation, loss_reduction,
            noise, budget, views, stages,
        )  # fmt: skip

    found = agreed(several, look, PART)
    shared: Shared | None = None
    if mechanism is not None:
        shared = shared_training(
            model, found.partition, mechanism, found.clip, found.amounts, found.noise, budget, views, stages
        )
    engine, reservation = agreed(
        several,
        lambda: _build(found, optimizer, mechanism, loss_reduction, budget, shared),
        PART,
        undo=lambda built: built[0].detach(),
    )
    if shared is not None and engine.ledger is not None:
        shared.draw_on(engine.ledger, reservation)
    if engine._training is not None:  # not before it is known what the ledger counts
        engine._training.warn()
    return engine


@dataclass(frozen=True, eq=False)
class _LookedAt:
    """What the arguments of :func:`attach` mean. Nothing is changed yet."""

    model: nn.Module
    partition: Partition
    clip: ClipFunction
    amounts: GroupNoise
    noise: NoiseSource
    views: Views


def _looked_at(
    wrapper: nn.Module, optimizer: Optimizer | None, groups: Any, mechanism: Mechanism | None, clip: str | ClipFunction,
    thresholds: Thresholds | Adaptive, allocation: str | Mapping[str, float], loss_reduction: LossReduction,
    noise: NoiseSource | None, budget: Budget | Reservation | None, views: int, stages: Stages | None,
) -> _LookedAt:  # fmt: skip
    model = unwrapped(wrapper)
    check_no_stage(wrapper)
    check_wrappers(wrapper)
    partition_ = groups if isinstance(groups, Partition) else partition(model, groups)
    check_covers(partition_, model)
    clip_ = clip_function(clip)
    check_arguments(loss_reduction, mechanism, optimizer)
    several = Views(views)
    if several.count > 1 and loss_reduction == "sum":
        raise ValueError(f"loss_reduction='sum' would add up the {views} views of a sample: with views give 'mean' or 'none'")
    source: NoiseSource = SecureNoise() if noise is None else noise
    if not isinstance(source, NoiseSource) or not isinstance(source.secure, bool):
        raise TypeError(
            f"noise={noise!r} is no source of noise: it needs secure (a bool) and add_(tensor, std); leave it out for SecureNoise()"
        )
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sizes = {name: sum(named[n].numel() for n in partition_[name]) for name in partition_.names}
    if stages is not None:
        sizes = dict(stages.everywhere.sizes)
    sigma = 0.0 if mechanism is None else noise_multiplier(mechanism)
    amounts = GroupNoise(thresholds, allocation, sizes, sigma, source, loss_reduction)
    check_class(model)
    check_modules(model)
    check_parameters(named)
    check_devices(partition_, named)
    if optimizer is not None:
        check_optimizer(optimizer, named)
    if budget is not None and not source.secure:
        raise PrivacyViolation(
            "noise that a seed reproduces can be subtracted again, so the steps would spend more than the budget counts: leave "
            "noise= out, or budget="
        )
    check_factorised(mechanism, amounts, source, several=stages is not None or ranks() is not None)
    if mechanism is None:
        check_whole(named)
    return _LookedAt(model, partition_, clip_, amounts, source, several)


def _build(
    found: _LookedAt, optimizer: Optimizer | None, mechanism: Mechanism | None, loss_reduction: LossReduction,
    budget: Budget | Reservation | None, shared: Shared | None,
) -> tuple[Engine, Reservation | None]:  # fmt: skip
    """Make the engine, and set its steps aside in the budget, on the rank that charges them."""
    noise = found.noise if shared is None else shared.noise
    reservation = reserved(budget, mechanism) if shared is None or shared.charges else None
    try:
        engine = Engine(
            found.model, optimizer, found.partition, mechanism, found.clip, found.amounts, loss_reduction, noise, found.views,
            shared,
        )  # fmt: skip
    except BaseException:
        if reservation is not None:
            reservation.close()
        raise
    if reservation is not None and engine.ledger is not None:
        engine.ledger.draw_on(reservation)
    return engine, reservation
