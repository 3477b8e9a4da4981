"""What an engine needs where it is one of several ranks: found out, and agreed on by all, before anything is changed."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction
from ..distributed.agreement import agreed, digest, told_by_all, unanimous
from ..distributed.ranks import Ranks, ranks
from ..distributed.shards import is_sharded, roots, unsharded
from ..distributed.stages import check_no_schedule
from ..distributed.wrappers import OutOfStep, check_ddp, check_nobody_averages, is_ddp, unwrapped
from ..errors import PrivacyViolation, UnsupportedOperation
from ..noise.sources import NoiseSource
from ..partition.groups import Partition
from ..privacy.budget import Budget
from ..privacy.ledger import Ledger
from ..privacy.mechanism import Mechanism
from ..privacy.reservation import Reservation
from .backward import BackwardPass
from .forward import Forward
from .passes import StagePasses
from .stages import Stages
from .together import own_noise


@dataclass(eq=False)
class Shared:
    """The part of one rank in a training of several.

    Attributes:
        ranks: of the training.
        wrapper: the model as it was given to ``attach``.
        noise: of this rank.
        training: the name of the training, which all ranks have in common.
        whole: the parameters that passes are made with, by the id of what is kept of them
            (see :mod:`groupclip.distributed.shards`).
        on_budget: rank 0 charges every step to a budget.
        stages: of the pipeline, of which each rank trains one; None where all train one model.
        passes: of this rank's stage, from :meth:`begin` on.
    """

    ranks: Ranks
    wrapper: nn.Module
    noise: NoiseSource
    training: str
    whole: dict[int, nn.Parameter]
    on_budget: bool
    stages: Stages | None = None
    passes: StagePasses | None = None

    @property
    def charges(self) -> bool:
        """Whether this rank is the one that charges a budget."""
        return self.on_budget and self.ranks.rank == 0

    def draw_on(self, ledger: Ledger, reservation: Reservation | None) -> None:
        """Let the steps of all ranks be charged once, by rank 0, which has the reservation. All ranks must call it."""
        if not self.on_budget:
            return

        def facts() -> dict[str, Any]:
            if reservation is None:
                return {}
            return {"name": reservation.name, "lasts": reservation.lasts, "before": dict(reservation.before)}

        ledger.draw_on(ChargedByFirst(self.ranks, reservation, **told_by_all(self.ranks, facts, PART)[0]))

    def begin(self, forward: Forward, backward: BackwardPass) -> list[Any]:
        """Let the engine sum over ranks, and nobody else, until what is returned is removed."""
        backward.step.join(self.ranks, self.training, backward.turns, staged=self.stages is not None)
        if self.stages is not None:
            self.passes = StagePasses(self.stages.stage, self.ranks, self.wrapper, forward, backward)
            return [self.passes]
        forward.check_call = _check_call
        if self.whole:
            forward.keep_in_step(frozenset(self.whole))
            assert backward.turns is not None
            backward.turns.roots = roots(unwrapped(self.wrapper))
        return [OutOfStep(self.wrapper)] if is_ddp(self.wrapper) else []  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class ChargedByFirst:
    """Steps of all ranks, charged to a budget once: by rank 0, before any rank counts them.

    Attributes:
        reservation: of rank 0; None on the others.
        name, lasts, before: as of the reservation.
    """

    ranks: Ranks
    reservation: Reservation | None
    name: str
    lasts: bool
    before: Mapping[str, int]
    begun: tuple[int, ...] = ()  # correlated noise isn't had on several processes

    @property
    def budget(self) -> Budget | None:
        """That of rank 0; None on the others."""
        return None if self.reservation is None else self.reservation.budget

    def charge(self, sampling: str, *, anew: bool = False) -> int:
        """Charge one step, and return its number. All ranks must call it; where rank 0 can't charge it, none takes it."""

        def charged() -> dict[str, int]:
            return {} if self.reservation is None else {"step": self.reservation.charge(sampling, anew=anew)}

        return told_by_all(self.ranks, charged, "the step")[0]["step"]

    def close(self) -> None:
        """Free the rest."""
        if self.reservation is not None:
            self.reservation.close()


#: What the ranks decide on in :func:`groupclip.attach`, in messages.
PART = "part in the training"


def shared_training(
    wrapper: nn.Module, partition: Partition, mechanism: Mechanism, clip: ClipFunction, amounts: GroupNoise,
    noise: NoiseSource, budget: Any, views: int, stages: Stages | None,
) -> Shared | None:  # fmt: skip
    """Return this rank's part in the training; None where one process trains alone. All ranks must call it.

    Raises:
        PrivacyViolation: the ranks have other plans, groups, thresholds or weights, or one of them was refused.
        UnsupportedOperation: what several processes can't train with.
    """
    model = unwrapped(wrapper)
    together = ranks(even_one=stages is not None or any(map(is_sharded, model.parameters())))
    if together is None:
        return None

    def check() -> NoiseSource:
        largest = max(amounts.thresholds.values()) * mechanism.dataset_size
        if largest > torch.finfo(torch.float32).max:
            raise UnsupportedOperation(
                f"thresholds that sum to {largest:.3g} over the data set: sums of ranks that are finite may have one that isn't. "
                "Give smaller thresholds"
            )
        if is_ddp(wrapper):
            check_ddp(wrapper)
        return own_noise(noise, together)

    def facts() -> dict[str, Any]:
        return {
            "the plan": mechanism.plan_hash,
            "the groups": digest((partition if stages is None else stages.everywhere).to_json()),
            "the clip function": repr(clip),
            "the thresholds": dict(amounts.thresholds),
            "the noise": digest([amounts.stds, type(noise).__name__]),
            "the views of a sample": views,
            "the weights": _weights(model) if stages is None else "of each stage its own",
        }

    given = [rank["budget"] for rank in told_by_all(together, lambda: {"budget": budget is not None}, PART)]
    if any(given) and not given[0]:
        raise PrivacyViolation(
            f"budget= is given on rank {given.index(True)} and not on rank 0, which charges the steps of all ranks to it: give it "
            "on rank 0"
        )
    names = told_by_all(together, lambda: {"named": "" if stages is not None else _named(model)}, PART)
    if any(other != names[0] for other in names):
        raise UnsupportedOperation(
            "the ranks hold other parameters than each other, as stages of a pipeline do: each rank's noise would be for its own "
            "part, and not for all that a sample moves. Train one model on all ranks, by DistributedDataParallel or fully_shard, "
            "or give attach stage=, on every rank"
        )
    whole = agreed(together, lambda: unsharded(model), PART)
    own = unanimous(together, check, facts, PART)
    training = together.from_first(uuid.uuid4().bytes).hex()
    return Shared(together, wrapper, own, training, whole, given[0], stages)


def _check_call() -> None:
    """Refuse a call of the model that isn't of this training."""
    check_no_schedule()
    check_nobody_averages()


def _named(model: nn.Module) -> str:
    """Return a name for the names and shapes of a model's parameters."""
    return digest([[name, list(param.shape), param.requires_grad] for name, param in model.named_parameters()])


def _weights(model: nn.Module) -> str:
    """Return a name for what a model's parameters hold. Training begins at one point on all ranks."""
    found = hashlib.sha256()
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        for name, param in model.named_parameters():
            value: Tensor = param.detach()
            found.update(f"{name} {tuple(value.shape)} {value.dtype} {value.requires_grad}".encode())
            if value.numel() and not value.is_meta and not is_sharded(value):
                found.update(value.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]
