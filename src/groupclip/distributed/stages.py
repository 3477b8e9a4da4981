"""Pipeline stages (``torch.distributed.pipelining``): what groupclip can train of them, and what is refused by name."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedOperation
from .ranks import Ranks
from .shards import is_sharded
from .wrappers import is_ddp

_PIPELINING = "torch.distributed.pipelining"
_HOW = (
    "A stage trains privately where every rank calls groupclip.attach(part, optimizer, .., stage=PipelineStage(part, rank, ranks, "
    "device)) and groupclip.PrivateSchedule(engine, schedule, rows=..).step(..): then the noise counts the thresholds of all "
    "stages, and their micro-batches are told apart. Or use fully_shard, or one process with the model's layers on several devices "
    "and groups='per-device'"
)
_SCHEDULES = ("ScheduleGPipe", "Schedule1F1B")


def check_no_stage(model: Any) -> None:
    """Refuse a stage or a schedule in the place of a model.

    Raises:
        UnsupportedOperation: says why, and what to use.
    """
    if any(cls.__module__.startswith(_PIPELINING) for cls in type(model).__mro__):
        raise UnsupportedOperation(f"the model is a {type(model).__name__} of {_PIPELINING}, and not a module. {_HOW}")


def check_no_schedule() -> None:
    """Refuse a call of the model by a schedule.

    Raises:
        UnsupportedOperation: says why, and what to use.
    """
    if f"{_PIPELINING}.stage" not in sys.modules:
        return
    frame = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PIPELINING):
            raise UnsupportedOperation(
                f"the model is called as a stage of {_PIPELINING}, and was attached without stage=, so its noise covers its own "
                f"groups alone. {_HOW}"
            )
        frame = frame.f_back


def check_stage(stage: Any, model: nn.Module, ranks: Ranks) -> None:
    """Check that ``stage`` is this rank's one stage of a pipeline over all ranks, with ``model`` in it.

    Raises:
        UnsupportedOperation: a pipeline that groupclip can't train; it is named, with what to do instead.
        ValueError: the stage is of another module.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        raise UnsupportedOperation(
            f"stages of a pipeline need torch 2.13, and this is torch {torch.__version__}: use DistributedDataParallel"
        )
    from torch.distributed.pipelining import PipelineStage

    if type(stage) is not PipelineStage:
        raise UnsupportedOperation(
            f"stage={type(stage).__name__}: it must be a PipelineStage of {_PIPELINING}, made of this rank's part of the model. "
            "Stages that torch traced (pipeline(..), build_stage) and classes of your own run the part in ways that groupclip "
            "doesn't know: make a PipelineStage of each part"
        )
    if stage.submod is not model:
        raise ValueError("stage.submod isn't the model that is attached: give attach the module that the stage was made of")
    if not any(param.requires_grad for param in model.parameters()):
        raise UnsupportedOperation(
            "no parameter of this stage trains, so it has no engine, and its rank would take no part in the others' steps: cut the "
            "model so that every stage has a trainable parameter"
        )
    if is_ddp(model) or any(map(is_sharded, model.parameters())):
        raise UnsupportedOperation(
            "the stage's module is wrapped by DistributedDataParallel or cut by fully_shard: several ranks would have one stage, "
            "and groupclip doesn't sum over some ranks alone. Use either of them without stages, or a stage for each rank"
        )
    if stage.group_size != ranks.size or stage.num_stages != ranks.size or stage.stage_index != ranks.rank:
        raise UnsupportedOperation(
            f"stage {stage.stage_index} of {stage.num_stages} is on rank {ranks.rank} of {ranks.size}, in a group of "
            f"{stage.group_size}: a pipeline needs one stage on each rank, stage i on rank i, and all ranks. Several stages a rank "
            "(ScheduleInterleaved1F1B, zero-bubble schedules) and pipelines beside data parallelism aren't supported: cut the "
            "model into as many parts as there are ranks"
        )
    if stage.dw_builder is not None:
        raise UnsupportedOperation(
            "the stage has a dw_builder, which computes gradients of weights beside autograd, where nobody clips them: leave it out"
        )


def check_schedule(schedule: Any) -> None:
    """Check that a schedule runs one stage, and each micro-batch backward in one pass.

    Raises:
        UnsupportedOperation: it is another one, has no loss, or cuts batches in ways of its own.
    """
    name = type(schedule).__name__
    if not (type(schedule).__module__.startswith(_PIPELINING) and name in _SCHEDULES):
        raise UnsupportedOperation(
            f"the schedule is a {name}: it must be torch's {' or '.join(_SCHEDULES)}. Others run several stages on a rank, or "
            "split backward passes into those of inputs and of weights, in which a sample's gradient is never there as a whole"
        )
    if schedule._loss_fn is None:
        raise UnsupportedOperation(
            f"the {name} has no loss_fn, so nothing is trained: give it one, on every rank, that returns one loss a sample"
        )
    if schedule._args_chunk_spec is not None or schedule._kwargs_chunk_spec is not None:
        raise UnsupportedOperation(
            f"the {name} has args_chunk_spec= or kwargs_chunk_spec=, which cut batches into micro-batches in other ways than by "
            "sample, or not at all: each sample would see those of others. Leave both out; dimension 0 is the sample"
        )


def check_sent(outputs: Any, expected: tuple[Any, ...] | None) -> None:
    """Check that a stage sends what the next one has memory for: torch fills it as it lies, and what is left of it is of others.

    Args:
        outputs: of the stage: a tensor, or several.
        expected: shapes, dtypes, and whether they have gradients, as torch found them when the schedule began.

    Raises:
        UnsupportedOperation: other tensors; says which.
    """
    all_sent, metas = outputs if isinstance(outputs, (tuple, list)) else (outputs,), expected or ()
    sent, awaited = [_looks(t) for t in all_sent], [_looks(meta) for meta in metas]
    if sent != awaited:
        raise UnsupportedOperation(
            f"the stage's outputs are {_listed(sent)}, and the next stage receives {_listed(awaited)}, as the first ones were: "
            "what doesn't fill its memory leaves numbers of other samples there. Let the stage return one shape and one dtype for "
            "samples of one shape (no lengths that depend on the sample; autocast in every step or in none), and evaluate on as "
            "many samples each time (n_microbatches * rows)"
        )
    late = [i for i, (t, meta) in enumerate(zip(all_sent, metas, strict=True)) if t.requires_grad and not meta.requires_grad]
    if late:
        raise UnsupportedOperation(
            f"the stage's outputs {late} have a gradient, and those that torch saw first (or output_args=) had none, so none comes "
            "back: let an output depend on parameters for all samples or for none (add 0 times one that does)"
        )


def _looks(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{dtype} {tuple(shape)}"


def _listed(looks: list[str]) -> str:
    return ", ".join(looks) or "nothing"
