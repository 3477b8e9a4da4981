"""The values of a run's settings: each of its type, and within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..engine.averages import Averaging
from ..privacy.allocation import ALLOCATIONS
from ..privacy.planned import AUTO
from ..privacy.sampled_step import ADJACENCIES, SAMPLINGS
from ..statement.told import Told
from ..tasks import TaskOptions
from ..tasks.encoder import PACKAGES
from .errors import ConfigError
from .optimizers import OPTIMIZERS, SCHEDULES

DEVICES = ("auto", "cpu", "cuda")
ACCOUNTANTS = ("PLD", "RDP", "exact")
ADAPTIVE_OPTIONS = ("quantile", "rate", "share")
AUGMENTATIONS = ("none", "crop", "crop-flip")
FEATURES = ("scattering",)
MOST_VIEWS = 4096
MODEL_OPTIONS = ("patch_size", "image_size", "activation")
_LISTS = ("classes",)
PATH_OPTIONS = ("test", "public", "encoder")
_WHOLE = {
    "image_size": (1, 4096), "patch_size": (1, 4096), "max_length": (1, 2**20), "vocabulary": (1, 2**27), "prefix": (0, 1000),
}  # fmt: skip
"""The least and the most. What is larger was mistyped, and would fill the memory."""
_LARGEST = 2**63 - 1  # that torch and files hold


def checked_value(key: str, value: Any) -> Any:
    """Return the value of a setting in its type. ConfigError if it is of a wrong type or out of range."""
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
        case "bands":
            return value if value == AUTO else _whole(key, value, least=1, most=_LARGEST)
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
        case "views":
            return _whole(key, value, least=1, most=MOST_VIEWS)
        case "augment":
            return _one_of(key, value, AUGMENTATIONS)
        case "average":
            return _average(key, value)
        case "schedule":
            return _one_of(key, value, SCHEDULES)
        case "device":
            return _one_of(key, value, DEVICES)
        case "task_options":
            return _options(key, value, tuple(f.name for f in fields(TaskOptions)))
        case "model_options":
            return _options(key, value, MODEL_OPTIONS)
        case "told":
            return _told(key, value)
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


def _average(key: str, value: Any) -> str:
    if value == "none":
        return value
    try:
        Averaging.named(value)
    except ValueError as error:
        raise ConfigError(f"{key}={value!r}: {error}; or none") from error
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


def _told(key: str, value: Any) -> dict[str, Any]:
    names = tuple(f.name for f in fields(Told))
    found = {name: _one_told(f"{key}.{name}", name, v) for name, v in _known(key, value, names).items() if v is not None}
    try:
        Told.from_dict(found)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return found


def _one_told(key: str, name: str, value: Any) -> Any:
    return _real(key, value, above=0.0) if name == "search_epsilon" else _text(key, value)


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
    if name == "features":
        return _one_of(key, value, FEATURES)
    if name == "encoder" and value in PACKAGES:
        return value
    if name in PATH_OPTIONS:
        return str(Path(_text(key, value)).expanduser().absolute())
    return _text(key, value)
