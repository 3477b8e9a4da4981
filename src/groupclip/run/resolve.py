"""Turn what a person asked for into a run's full settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..privacy.epochs import steps_of
from ..privacy.spent import default_delta, told_lax
from ..tasks import Task
from .config import RunConfig
from .errors import ConfigError
from .recipes import EVALUATIONS, KINDS, augmentation, plain_recipe, recipe


def advised_reading(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``request`` with the options that the recipe advises for the reading of its task, before the task is loaded.

    What the person gave stays.
    """
    kind = KINDS.get(request["task"])
    if kind is None:
        return dict(request)
    if "encoder" in request.get("task_options", {}):
        return dict(request)
    advised = recipe(request["task"], kind, request.get("model")).task_options
    options = {**advised, **request.get("task_options", {})}
    return {**request, "task_options": options} if options else dict(request)


def resolve(request: Mapping[str, Any], task: Task) -> RunConfig:
    """Fill the settings that ``request`` (see ``checked_request``) leaves open with those that the task's recipe advises.

    The only fact of the records that is used is their number (or that of their owners), which is public.

    Raises:
        ConfigError: no epsilon, an expected batch larger than the data set, or momentum for an optimizer that has none.
        ValueError: epochs that mean more steps than a mechanism may have.
    """
    plain = bool(request.get("no_privacy"))
    if not plain and "epsilon" not in request:
        raise ConfigError("no epsilon is given: say how much privacy the run may spend, e.g. --epsilon 3")
    features = "features" in request.get("task_options", {})
    advised = (plain_recipe if plain else recipe)(task.name, task.kind, request.get("model"), features=features)
    size = len(task.train) if plain else task.units
    many = "training samples" if task.unit == "sample" else "users"
    # somebody who names the size of a batch, or a cap, wants batches to be sampled
    sampled = not request.keys().isdisjoint(("batch_size", "max_batch_size"))
    sampling = request.get("sampling", "poisson" if sampled else advised.sampling)
    usual = size if sampling == "full-batch" else min(advised.batch_size, max(1, size // 2))
    batch = request.get("batch_size", usual)
    if batch > size:
        raise ConfigError(f"batch_size={batch} is larger than the {size} {many}; use at most that many")
    steps = request["steps"] if "steps" in request else steps_of(request.get("epochs", advised.epochs), size, batch)
    open_to_advice = {f.name for f in fields(RunConfig)} - {"task_options"}  # those were taken before the task was read
    optimizer = request.get("optimizer", advised.optimizer)
    if optimizer != "sgd" and request.get("momentum"):
        raise ConfigError(
            f"momentum={request['momentum']:g} is of sgd and means nothing with optimizer={optimizer!r}: give one of them"
        )
    views = request.get("views", 1)
    augment = request.get("augment", "none" if views == 1 else augmentation(task.name))
    if augment != "none" and (task.kind != "image" or features):
        found = "features" if features else "none"
        raise ConfigError(f"views={views}, augment={augment!r}: views are made of images, and task {task.name!r} has {found}")
    if views > 1 and augment == "none":
        raise ConfigError(f"views={views} of every image would be {views} times the same: give augment=crop or crop-flip")
    defaults = {
        **{f.name: getattr(advised, f.name) for f in fields(advised) if f.name in open_to_advice},
        "sampling": sampling,
        "epsilon": math.inf,  # a run without privacy has no other
        "delta": default_delta(size),
        "batch_size": batch,
        "steps": steps,
        "optimizer": optimizer,
        "momentum": advised.momentum if optimizer == "sgd" else 0.0,
        "augment": augment,
        "seed": 0,
        "eval_every": math.ceil(steps / EVALUATIONS),
        "device": "auto",
    }
    given = {key: value for key, value in request.items() if key != "epochs"}
    return RunConfig(**{**defaults, **given})


def refuse_lax_delta(config: RunConfig, task: Task) -> None:
    """Raise ConfigError where delta is 1/n or more, unless that is asked for by name (``lax_delta``)."""
    told = told_lax(config.delta, task.units, task.unit)
    if told and not config.lax_delta:
        raise ConfigError(
            f"delta={config.delta:g} is {told}, so the run's epsilon would promise nothing. Ask for at most "
            f"delta={default_delta(task.units):.3g}; if it is meant, ask for it by name: lax_delta=true"
        )
