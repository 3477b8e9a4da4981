"""docs/how-it-works.md: every name stands in its file, every room is in the picture, and a gradient goes the way that is told."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import groupclip as gc

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "groupclip"
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
ANCHOR = r"\[`([\w/]+\.py)`(?: `([\w.]+)`)?\]\(\.\./src/groupclip/([\w/]+\.py)\)"
WAY = PAGE.split("## One gradient's way")[1].split("\n## ")[0]


def definition(file: str, name: str) -> ast.AST | None:
    """The function or class of that name in a file of the source; None if there is none."""
    found: Any = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        named = [n for n in found.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
        if not named:
            return None
        found = named[0]
    return found


def test_every_name_stands_in_its_file() -> None:
    anchors = re.findall(ANCHOR, PAGE)
    assert len(anchors) > 30
    for shown, name, linked in anchors:
        assert shown == linked and (SOURCE / linked).is_file(), linked
        assert not name or definition(linked, name) is not None, f"{linked} has no {name}"


def test_twin_a_name_that_is_not_there_is_seen() -> None:
    assert definition("autograd/dispatch.py", "split") is not None
    assert definition("autograd/dispatch.py", "splits") is None and definition("autograd/gate.py", "Gate.clip") is None


def floors_of_the_picture() -> list[tuple[str, ...]]:
    """The words at the beginning of each line."""
    picture = PAGE.split("## The rooms")[1].split("```")[1]
    return [tuple(line.split("  ")[0].split(", ")) for line in picture.strip().splitlines()]


def test_the_picture_shows_the_floors_that_are_enforced() -> None:
    scope = runpy.run_path(str(ROOT / "scripts" / "rooms.py"), run_name="rooms")
    *rooms, root = floors_of_the_picture()
    assert [set(floor) for floor in rooms] == [set(floor) for floor in scope["FLOORS"][:-1]]
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == {room for floor in rooms for room in floor}
    assert all((SOURCE / f"{module}.py").is_file() for module in root)


def test_every_folder_of_tests_that_is_named_is_there() -> None:
    folders = re.findall(r"`(tests/\w+(?:/|\.py))`", PAGE)
    assert len(folders) > 8
    for folder in folders:
        assert (ROOT / folder).exists(), folder


def calls_of_a_step() -> list[tuple[str, str]]:
    """(file, function) of every call of groupclip in one step of a linear layer, in order."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = gc.Mechanism(dataset_size=8, expected_batch_size=4, steps=1, noise_multiplier=1.0)
    engine = gc.attach(model, optimizer, "layer-wise", plan)
    data = TensorDataset(torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents:
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))

    inputs, labels = data[:4]
    sys.setprofile(note)
    try:
        engine.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
    finally:
        sys.setprofile(None)
    engine.detach()
    return calls


def test_a_gradient_goes_the_way_that_is_told() -> None:
    """Every function of the list is called, each after the one above it. A class stands for whichever of its methods."""
    told = [(file, name) for file, name, _ in re.findall(rf"^\d+\. {ANCHOR}", WAY, re.M)]
    assert len(told) > 15
    rest = iter(calls_of_a_step())
    for file, name in told:
        assert any(f == file and (q == name or q.startswith(f"{name}.")) for f, q in rest), f"{file} {name} isn't called here"
