"""What the ranks of a pipeline agree on at attach: the groups of all stages, whose thresholds the noise of each must count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..distributed.agreement import agreed, told_by_all
from ..distributed.ranks import ranks
from ..distributed.stages import check_stage
from ..errors import PrivacyViolation
from ..partition.choose import partition
from ..partition.groups import Partition, check_covers
from ..privacy.mechanism import Mechanism

#: What the ranks decide on first, in messages: another name than for ranks without stages, who would wait for each other.
PART = "its stage of a pipeline"


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of one pipeline, as one rank knows them. A group's name begins with its stage: ``stage0/head``.

    Attributes:
        stage: torch's, of this rank.
        own: the groups of this stage.
        everywhere: the groups of all stages, in their order. Names of parameters begin with the stage too.
    """

    stage: Any
    own: Partition
    everywhere: Partition


def met(
    stage: Any, model: nn.Module, groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    mechanism: Mechanism | None, *, views: int, loss_reduction: str,
) -> Stages:  # fmt: skip
    """Return what all ranks have. All of them must call it; nothing is changed.

    Raises:
        UnsupportedOperation: a pipeline that groupclip can't train.
        PrivacyViolation: no process group; or another rank was refused, or attaches without a stage.
        ValueError: arguments that don't go with stages.
    """
    together = ranks(even_one=True)
    if together is None:
        raise PrivacyViolation("stage= without a process group: call torch.distributed.init_process_group first")

    def look() -> Partition:
        if mechanism is None:
            raise ValueError(
                "mechanism=None with stage=: stages are trained with a plan. Give a mechanism; one with noise_multiplier=0 adds "
                "no noise"
            )
        if views != 1 or loss_reduction != "none":
            raise ValueError(
                f"views={views} and loss_reduction={loss_reduction!r} with stage=: leave both out; loss_fn of the schedule "
                "returns one loss a sample"
            )
        check_stage(stage, model, together)
        found = groups if isinstance(groups, Partition) else partition(model, groups)
        check_covers(found, model)
        return _named(found, together.rank)

    own = agreed(together, look, PART)
    told = told_by_all(together, lambda: {"groups": own.to_json()}, PART)
    return Stages(stage, own, _joined([Partition.from_json(each["groups"]) for each in told]))


def _named(found: Partition, index: int) -> Partition:
    """Return the groups under names that say the stage."""
    groups = tuple((f"stage{index}/{group}", members) for group, members in found.groups)
    return Partition(found.style, groups, found.numbers, found.norm_methods)


def _joined(parts: list[Partition]) -> Partition:
    """Return the groups of all stages."""
    styles = list(dict.fromkeys(part.style for part in parts))
    return Partition(
        f"{' and '.join(styles)} in {len(parts)} stages",
        tuple(
            (group, tuple(f"stage{index}/{name}" for name in members))
            for index, part in enumerate(parts)
            for group, members in part.groups
        ),
        tuple(number for part in parts for number in part.numbers),
        tuple((f"stage{i}/{name}", method) for i, part in enumerate(parts) for name, method in part.norm_methods),
    )
