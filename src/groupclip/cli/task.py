"""What ``check`` and ``audit`` share: a task, a model for it, and its groups, as ``train`` would build them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .arguments import parse_options

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..partition.groups import Partition
    from ..run.config import RunConfig
    from ..tasks import Task

_OPTIONS = (
    click.option("--task", help="Name the data: digits, mnist, fashion-mnist, imagefolder:PATH or csv:PATH."),
    click.option(
        "--data", type=click.Path(path_type=Path), help="Give the path of the task's files, if it isn't in --task."
    ),
    click.option(
        "--task-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an option; repeatable. The options are listed below.",
    ),
    click.option("--model", help="Name the model, as for groupclip train. Default: the model of the task's recipe."),
    click.option(
        "--model-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an option; repeatable. The options are listed below.",
    ),
    click.option("--clipping", help="Choose the style of the groups, as for groupclip train."),
)


def task_options(command: Any) -> Any:
    """Give a command the options that :func:`chosen` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, eq=False)
class Chosen:
    """Holds what the options name, built."""

    config: RunConfig
    task: Task
    model: nn.Module
    groups: Partition


def chosen(given: Mapping[str, Any]) -> Chosen:
    """Build what the options of :func:`task_options` name, and other settings of a run by their names; None is left out.

    Raises:
        ValueError, TypeError, FileNotFoundError: as for ``groupclip train``.
    """
    settings = {name: value for name, value in given.items() if name not in ("data", "task_option", "model_option")}
    settings |= {
        "data": None if given["data"] is None else str(given["data"]),
        "task_options": parse_options("--task-option", given["task_option"]),
        "model_options": parse_options("--model-option", given["model_option"]),
    }
    return built(settings)


def built(settings: Mapping[str, Any]) -> Chosen:
    """Build what settings of a run name, by the names of its ``run.yaml``; None is left out. Errors as of :func:`chosen`."""
    from ..run.build import groups_of, model_of
    from ..run.config import checked_request
    from ..run.config import task_options as options_of
    from ..run.resolve import advised_reading, resolve
    from ..tasks import load_task

    request = checked_request({name: value for name, value in settings.items() if value is not None})
    if "task" not in request:
        raise ValueError("no task is given: name one, e.g. --task digits or --task imagefolder:PATH")
    request = advised_reading(request)
    task = load_task(request["task"], request.get("data"), options_of(request.get("task_options", {})))
    config = resolve(request, task)
    model = model_of(config, task)
    return Chosen(config, task, model, groups_of(config, task, model, None))


def cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return ``[B]``: the losses that ``train`` makes."""
    from torch.nn import functional as F

    return F.cross_entropy(model(inputs), labels, reduction="none")
