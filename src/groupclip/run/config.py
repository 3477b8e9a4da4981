"""Every setting of a run as one frozen value, and its YAML form. All settings are public."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..tasks import TaskOptions
from .errors import ConfigError
from .values import checked_value


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run, none left open.

    task: name of a task, without a path. data: absolute path of its files, or None.
    task_options, model_options: options of ``load_task`` and ``build_model`` that were given.
    clipping: style of the groups, or a mapping from parameter name or pattern to group.
    clip: the clip function. thresholds: R, or R_1..R_M, or a mapping from group to R_m.
    adaptive: options of :class:`groupclip.Adaptive`, whose thresholds begin at ``thresholds``; none: they are fixed.
    views: K augmented views of every image, whose mean gradient is clipped as one. augment: how they are made: crop, crop-flip, or
        none, with one view.
    average: of the weights after every step, which is released instead of the last: see :class:`groupclip.WeightAverage`; or none.
    no_privacy: a plain baseline without clipping, noise and epsilon; none of PRIVATE means anything then.
    epsilon, delta: what all steps together may spend. steps: planned optimizer steps.
    lax_delta: a delta of 1/n or more, for n samples, is meant.
    sampling, adjacency, max_batch_size, bands: as for :class:`groupclip.Mechanism`. accountant: by which the noise is calibrated;
        None for the one that needs least. allocation: how noise is shared among the groups. hardened: noise on a grid.
    batch_size: the EXPECTED size of a batch (users count where the task says whose its records are). microbatch: most samples
        held at once.
    lr: of the first step; schedule: how it goes on from there. momentum: of sgd.
    pretrain_steps: of public pretraining on drawn letters, before the private steps; 0 means none.
    budget: absolute path of the file of a :class:`groupclip.Budget` that the run's steps are charged to, or None.
    told: what the statement can't know, by the names of :class:`groupclip.statement.Told`. It is published.
    seed: of the initial weights and of the pretraining. Noise and sampling never depend on it.
    eval_every: steps between evaluations on held-out data; 0 means never. Fixed beforehand, so that what is
        evaluated depends on no data.
    """

    task: str
    data: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    clipping: str | Mapping[str, str]
    clip: str
    thresholds: float | list[float] | Mapping[str, float]
    adaptive: Mapping[str, float] = field(default_factory=dict)
    views: int = 1
    augment: str = "none"
    average: str = "none"
    no_privacy: bool = False
    epsilon: float
    delta: float
    lax_delta: bool = False
    sampling: str = "poisson"
    adjacency: str = "add-or-remove-one"
    max_batch_size: int | None = None
    bands: int | str = 1
    accountant: str | None = None
    allocation: str = "equal"
    hardened: bool = False
    budget: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    steps: int
    batch_size: int
    microbatch: int
    optimizer: str
    lr: float
    schedule: str
    momentum: float
    weight_decay: float
    pretrain_steps: int
    seed: int
    eval_every: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values, and only what differs from "not given"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}
        left_out = (*(PRIVATE if self.no_privacy else ("no_privacy",)), *(["bands"] if self.bands == 1 else []))
        return {name: v for name, v in values.items() if v is not None and v != {} and name not in left_out}


PRIVATE = (
    "average",
    "epsilon", "delta", "lax_delta", "clipping", "clip", "thresholds", "adaptive", "allocation", "hardened", "sampling",
    "adjacency", "max_batch_size", "bands", "accountant", "budget", "told",
)  # fmt: skip
"""Settings that mean nothing in a run without privacy."""

KEYS = (*(f.name for f in fields(RunConfig)), "epochs")


def checked_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a person asked for: every name known, every value of the right type; the rest is left open.

    Args:
        given: names of :class:`RunConfig`, or ``epochs`` in place of ``steps``; None counts as not given.

    Raises:
        ConfigError: an unknown key, a value of a wrong type or out of range, steps as well as epochs.
    """
    unknown = [str(key) for key in given if key not in KEYS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"unknown setting '{unknown[0]}'; {hint}The settings are {', '.join(KEYS)}")
    request = {key: checked_value(key, value) for key, value in given.items() if value is not None}
    if request.get("no_privacy") and (idle := [key for key in PRIVATE if request.get(key)]):
        raise ConfigError(f"no_privacy=true is given, and {idle[0]}={request[idle[0]]!r} means nothing without privacy: give one")
    if "steps" in request and "epochs" in request:
        raise ConfigError("steps and epochs are both given: one follows from the other, so give one of them")
    if ":" in request.get("task", ""):
        request["task"], _, path = request["task"].partition(":")
        if "data" in request:
            raise ConfigError(
                f"task '{given['task']}' has a path already, and data={given['data']} is another; give one"
            )
        if not path:
            raise ConfigError(f"task '{given['task']}' ends with a colon: write its path after it")
        request["data"] = path
    for path in ("data", "budget"):
        if path in request:
            request[path] = str(Path(request[path]).expanduser().absolute())
    return request


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file, unchecked. ConfigError if it can't be read or holds no mapping."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings {path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} should hold lines 'setting: value'; a run writes such a file as run.yaml")
    return content


def to_yaml(config: RunConfig, heading: str) -> str:
    """YAML text that :func:`read_yaml` reads back to the same settings; ``heading`` becomes a comment."""
    import yaml

    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    return comment + yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)


def task_options(config_options: Mapping[str, Any]) -> TaskOptions:
    """Return the options of a task as :func:`groupclip.tasks.load_task` takes them."""
    values = dict(config_options)
    if "classes" in values:
        values["classes"] = tuple(values["classes"])
    return TaskOptions(**values)
