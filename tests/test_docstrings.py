"""The reference is complete: every public name tells its arguments, and what it raises."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import groupclip

DOCS = Path(__file__).parent.parent / "docs"

#: Made by a function, whose docstring tells the arguments.
MADE_ELSEWHERE = {"Engine", "CheckReport", "Plan", "StepAudit", "RunAudit", "Advice", "LogicalBatches", "LogicalBatch"}
#: Names in Python of what is given by position or passed on.
IDLE = {"self", "cls", "args", "kwargs", "_"}


def documented() -> list[str]:
    """Names in docs/api.md, below ``groupclip``; those of hosts that aren't installed are left out."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^\.\. auto(?:function|class|exception):: groupclip\.([\w.]+)$", text, re.M)
    hosts = {"transformers", "lightning", "accelerate"}
    absent = {host for host in hosts if importlib.util.find_spec(host) is None}
    return [name for name in names if not any(name.startswith(f"integrations.{host}") for host in absent)]


def found(path: str) -> Any:
    thing: Any = groupclip
    for name in path.split("."):
        if not hasattr(thing, name):
            importlib.import_module(f"{thing.__name__}.{name}")
        thing = getattr(thing, name)
    return thing


def callables(path: str) -> Iterator[tuple[str, Any, str]]:
    """(name, callable, what is told of it) of a name and of the public methods that it doesn't have from its host."""
    thing = found(path)
    if not inspect.isclass(thing):
        yield path, thing, own_doc(thing)
        return
    doc = own_doc(thing)
    if not issubclass(thing, BaseException) and thing.__name__ not in MADE_ELSEWHERE:
        yield path, thing, f"{doc}\n{own_doc(vars(thing).get('__init__'))}"
    foreign = [base for base in thing.__mro__ if not base.__module__.startswith("groupclip")]
    for name, held in vars(thing).items():
        method = held.__func__ if isinstance(held, (classmethod, staticmethod)) else held
        if not name.startswith("_") and inspect.isfunction(method) and not any(hasattr(base, name) for base in foreign):
            inherited = next((own_doc(vars(b)[name]) for b in thing.__mro__ if name in vars(b) and own_doc(vars(b)[name])), "")
            yield f"{path}.{name}", method, f"{inherited}\n{doc}" if inherited else ""


def own_doc(thing: Any) -> str:
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")


def missing(function: Any, doc: str) -> list[str]:
    """What a docstring doesn't tell: "nothing at all", an argument, or that something is raised."""
    if not doc:
        return ["nothing at all"]
    elsewhere = re.search(r"\bas (of )?:(meth|func|class):", doc) is not None  # "arguments as of :meth:`epsilon`"
    untold = [p for p in inspect.signature(function).parameters if p not in IDLE and not re.search(rf"\b{p}\b", doc)]
    body = [vars(function).get("__init__"), vars(function).get("__post_init__")] if inspect.isclass(function) else [function]
    raised = {name for part in body if _is_written(part) for name in re.findall(r"raise (\w+)\(", inspect.getsource(part))}
    return [] if elsewhere else untold + sorted(f"raises {name}" for name in raised if name not in doc)


def _is_written(part: Any) -> bool:
    """Whether a function stands in a file: that of a dataclass doesn't."""
    return inspect.isfunction(part) and Path(part.__code__.co_filename).is_file()


CASES = [case for path in documented() for case in callables(path)]


@pytest.mark.parametrize(("function", "doc"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_docstring_tells_arguments_and_errors(function: Any, doc: str) -> None:
    assert missing(function, doc) == []


def test_names_were_found() -> None:
    names = {name for name, *_ in CASES}
    assert {"attach", "Engine.backward", "Mechanism", "poisson_batches", "integrations.opacus.PrivacyEngine.make_private"} <= names
    assert len(CASES) > 80


def test_twin_what_is_not_told_is_seen() -> None:
    def scaled(values: list[float], factor: float) -> list[float]:
        """Multiply ``values``."""
        if factor < 0:
            raise ValueError("factor")
        return [factor * value for value in values]

    assert missing(scaled, own_doc(scaled)) == ["factor", "raises ValueError"]
    assert missing(scaled, "") == ["nothing at all"]
