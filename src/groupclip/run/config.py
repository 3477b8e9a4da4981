"""Every setting of a run as one frozen value, and its YAML form. All settings are public."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..privacy.allocation import ALLOCATIONS
from ..privacy.sampled_step import ADJACENCIES, SAMPLINGS
from ..tasks import TaskOptions
from ..tasks.encoder import PACKAGES
from .errors import ConfigError
from .optimizers import OPTIMIZERS, SCHEDULES

DEVICES = ("auto", "cpu", "cuda")
ACCOUNTANTS = ("PLD", "RDP", "exact")
ADAPTIVE_OPTIONS = ("quantile", "rate", "share")
MODEL_OPTIONS = ("patch_size", "image_size", "activation")
_LISTS = ("classes",)
PATH_OPTIONS = ("test", "public", "encoder")
_WHOLE = {
    "image_size": (1, 4096), "patch_size": (1, 4096), "max_length": (1, 2**20), "vocabulary": (1, 2**27), "prefix": (0, 1000),
}  # fmt: skip
"""The least and the most. What is larger was mistyped, and would fill the memory."""
_LARGEST = 2**63 - 1  # that torch and files hold


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run, none left open.

    task: name of a task, without a path. data: absolute path of its files, or None.
    task_options, model_options: options of ``load_task`` and ``build_model`` that were given.
    clipping: style of the groups, or a mapping from parameter name or pattern to group.
    clip: the clip function. thresholds: R, or R_1..R_M, or a mapping from group to R_m.
    adaptive: options of :class:`groupclip.Adaptive`, whose thresholds begin at ``thresholds``; none: they are fixed.
    no_privacy: a plain baseline without clipping, noise and epsilon; none of PRIVATE means anything then.
    epsilon, delta: what all steps together may spend. steps: planned optimizer steps.
    lax_delta: a delta of 1/n or more, for n samples, is meant.
    sampling, adjacency, max_batch_size: as for :class:`groupclip.Mechanism`. accountant: by which the noise is calibrated; None
        for the one that needs least. allocation: how noise is shared among the groups. hardened: noise on a grid.
    batch_size: the EXPECTED size of a batch (users count where the task says whose its records are). microbatch: most samples
        held at once.
    lr: of the first step; schedule: how it goes on from there. momentum: of sgd.
    pretrain_steps: of public pretraining on drawn letters, before the private steps; 0 means none.
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
    no_privacy: bool = False
    epsilon: float
    delta: float
    lax_delta: bool = False
    sampling: str = "poisson"
    adjacency: str = "add-or-remove-one"
    max_batch_size: int | None = None
    accountant: str | None = None
    allocation: str = "equal"
    hardened: bool = False
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
        left_out = PRIVATE if self.no_privacy else ("no_privacy",)
        return {name: v for name, v in values.items() if v is not None and v != {} and name not in left_out}


PRIVATE = (
    "epsilon", "delta", "lax_delta", "clipping", "clip", "thresholds", "adaptive", "allocation", "hardened", "sampling",
    "adjacency", "max_batch_size", "accountant",
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
    request = {key: _check(key, value) for key, value in given.items() if value is not None}
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
    if "data" in request:
        request["data"] = str(Path(request["data"]).expanduser().absolute())
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


def _check(key: str, value: Any) -> Any:
    match key:
        case "steps" | "batch_size" | "microbatch" | "max_batch_size":
            return _whole(key, value, least=1, most=_LARGEST)
        case "eval_every" | "pretrain_steps" | "seed":
            return _whole(key, value, least=0, most=_LARGEST)
        case "epsilon" if isinstance(value, (int, float, str)) and str(value).strip().lower() in ("inf", "infinity"):
            raise ConfigError("epsilon=inf must be > 0 and finite: for a baseline without privacy give --no-privacy")
        case "epsilon" | "lr" | "epochs":
            return _real(key, value, above=0.0)
        case "weight_decay":
            return _real(key, value, least=0.0)
        case "momentum":
            return _real(key, value, least=0.0, below=1.0)
        case "delta":
            return _real(key, value, above=0.0, below=1.0)
        case "optimizer":
            return _one_of(key, value, OPTIMIZERS)
        case "sampling":
            return _one_of(key, value, SAMPLINGS)
        case "adjacency":
            return _one_of(key, value, ADJACENCIES)
        case "accountant":
            return _one_of(key, value, ACCOUNTANTS)
        case "allocation":
            return _one_of(key, value, ALLOCATIONS)
        case "no_privacy" | "hardened" | "lax_delta":
            return _yes_or_no(key, value)
        case "adaptive":
            return {name: _real(f"{key}.{name}", v) for name, v in _known(key, value, ADAPTIVE_OPTIONS).items()}
        case "schedule":
            return _one_of(key, value, SCHEDULES)
        case "device":
            return _one_of(key, value, DEVICES)
        case "task_options":
            return _options(key, value, tuple(f.name for f in fields(TaskOptions)))
        case "model_options":
            return _options(key, value, MODEL_OPTIONS)
        case "thresholds":
            return _thresholds(value)
        case "clipping" if isinstance(value, Mapping):
            return {_text(key, k): _text(key, v) for k, v in value.items()}
        case _:
            return _text(key, value)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ConfigError(f"{key}={value!r} must be text")
    return str(value)


def _one_of(key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigError(f"{key}={value!r} is unknown; it is one of {', '.join(choices)}")
    return value


def _yes_or_no(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r} must be true or false")
    return value


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key}={value!r} must be a whole number")
    if value < least:
        raise ConfigError(f"{key}={value} must be at least {least}")
    if value > most:
        raise ConfigError(f"{key}={value} must be at most {most}")
    return value


def _real(
    key: str, value: Any, *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf
) -> float:
    if isinstance(value, str):  # YAML reads 1e-5, without a dot, as text
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{key}={value!r} must be a number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key}={value!r} must be a number")
    if isinstance(value, int) and abs(value) > _LARGEST:  # a whole number that no float may hold
        raise ConfigError(f"{key}={str(value)[:20]}.. is beyond the numbers that can be counted with")
    if not (above < value < below and value >= least):
        bounds = [f"> {above:g}"] * (above > -math.inf) + [f">= {least:g}"] * (least > -math.inf)
        bounds += [f"< {below:g}"] * (below < math.inf) or ["finite"] * (value == math.inf)
        raise ConfigError(f"{key}={value:g} must be {' and '.join(bounds)}")
    return float(value)


def _thresholds(value: Any) -> float | list[float] | dict[str, float]:
    if isinstance(value, Mapping):
        return {_text("thresholds", k): _real(f"thresholds[{k}]", v, above=0.0) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_real("thresholds", v, above=0.0) for v in value]
    return _real("thresholds", value, above=0.0)


def _options(key: str, value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {n: _option(f"{key}.{n}", n, v) for n, v in _known(key, value, names).items() if v is not None}


def _known(key: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}={value!r} must be a mapping from option to value")
    for name in value:
        if name not in names:
            raise ConfigError(f"{key} has no option '{name}'; its options are {', '.join(names)}")
    return value


def _option(key: str, name: str, value: Any) -> Any:
    if name in _WHOLE:
        return _whole(key, int(value) if isinstance(value, str) and value.isdecimal() else value, *_WHOLE[name])
    if name in _LISTS:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ConfigError(f"{key}={value!r} must be a list of names")
        return [str(item) for item in items]
    if name == "encoder" and value in PACKAGES:
        return value
    if name in PATH_OPTIONS:
        return str(Path(_text(key, value)).expanduser().absolute())
    return _text(key, value)
