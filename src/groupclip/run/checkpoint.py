"""A run's state as ONE safetensors file, so that replacing it is one rename. No pickle anywhere.

It holds weights, optimizer state, ledger and settings; neither a key, a seed of noise or sampling, nor a
statistic of the data that has no noise: noise and sampling begin under new keys after every resume.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.averages import WeightAverage
from ..privacy.ledger import charged_in
from .errors import RunFailed
from .files import SECRET, write_atomically

FORMAT = "groupclip-resume-1"


@dataclass(frozen=True)
class Progress:
    """Holds what a run has done besides its weights.

    updates: steps that the weights really took (fewer than the ledger counts after a crash).
    lost: (first, last) charged steps whose updates were lost: in crashes, or by an older copy of the checkpoint.
    pretraining: facts about the public pretraining; None before it, or without.
    """

    updates: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    pretraining: Mapping[str, Any] | None = None


def save(
    path: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    engine: Mapping[str, Any],
    progress: Progress,
    average: WeightAverage | None = None,
) -> None:
    """Write a checkpoint, atomically, for its owner alone. Raises OSError; the old one is intact then."""
    from safetensors.torch import save as serialise

    tensors, plain = flatten(optimizer.state_dict())
    tensors |= {f"model.{name}": value for name, value in model.state_dict().items()}
    kept = {} if average is None else average.state_dict()
    tensors |= {f"average.{name}": value for name, value in kept.pop("means", {}).items()}
    facts = {
        "format": FORMAT,
        "config": config,
        "engine": engine,
        "optimizer": plain,
        "progress": asdict(progress),
        **({"average": kept} if kept else {}),
    }
    content = {name: plain_tensor(value) for name, value in tensors.items()}
    write_atomically(path, serialise(content, {"groupclip": json.dumps(facts)}), SECRET)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Holds what :func:`save` wrote, read back."""

    config: dict[str, Any]
    engine: dict[str, Any]
    progress: Progress
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    average: dict[str, Any]


def name_of(path: Path) -> str:
    """Return a name for what a checkpoint's file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. RunFailed if it is damaged or of another version."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["groupclip"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']}")
        if not isinstance(facts["config"], dict) or not isinstance(facts["engine"], dict):
            raise ValueError("its settings or the state of its engine are none")
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        done = facts["progress"]
        lost = tuple((first, last) for first, last in done["lost"])
        progress = Progress(done["updates"], lost, done["pretraining"])
        if any(type(n) is not int or n < 0 for n in (progress.updates, *sum(lost, ()))):
            raise ValueError(f"its progress is {done}")
        means = {n.removeprefix("average."): t for n, t in tensors.items() if n.startswith("average.")}
        average = {**facts.get("average", {}), "means": means}
        optimizer = unflatten(tensors, facts["optimizer"])
        return Checkpoint(facts["config"], facts["engine"], progress, weights, optimizer, average)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunFailed(
            f"{path} is no checkpoint of this version of groupclip ({error}): start the run again in a new folder"
        ) from error


def charged_to(
    saved: Checkpoint, charged: int, *, begun: Sequence[int] = (), told: int = 0
) -> tuple[dict[str, Any], Progress]:
    """Raise the ledger of the engine's state to the charged steps, and note in the progress that those between are lost.

    Args:
        begun, told: as of :func:`groupclip.privacy.ledger.charged_in`.
    """
    ledger = dict(saved.engine["ledger"])
    counted = sum(ledger["steps"].values())
    if charged <= counted:
        return saved.engine, saved.progress
    ledger = charged_in(ledger, charged - counted, begun=begun, told=told)
    lost = (*saved.progress.lost, (counted + 1, charged))
    return {**saved.engine, "ledger": ledger}, replace(saved.progress, lost=lost)


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn errors of a checkpoint's types and shapes, inside, into RunFailed."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunFailed(f"{path} is damaged ({reason}): restore it, or start the run again in a new folder") from error


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's ``state_dict`` as tensors by name and the rest as JSON-able values."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        rest[str(index)] = {}
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                rest[str(index)][name] = value
    return tensors, {"state": rest, "param_groups": state["param_groups"]}


def unflatten(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of :func:`flatten`, but for tuples, which JSON turned into lists."""
    state: dict[int, dict[str, Any]] = {int(index): dict(rest) for index, rest in plain["state"].items()}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, entry = name.split(".", 2)
            state[int(index)][entry] = value
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in plain["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def plain_tensor(value: Tensor) -> Tensor:
    """Return the values alone, on the CPU, contiguous, as a plain tensor that shares memory with nothing."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.detach().to("cpu", copy=True).contiguous().as_subclass(Tensor)
