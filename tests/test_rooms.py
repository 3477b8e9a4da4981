"""The rooms stand in order: no circle of imports, no arrow up, few modules at the root, no long file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parent.parent / "scripts" / "rooms.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rooms = _loaded()


def test_there_is_something_to_look_at() -> None:
    arrows = rooms.arrows()
    assert len(arrows) > 200 and "noise.sources" in arrows["engine.attach"]


@pytest.mark.parametrize("look", [rooms.circles, rooms.arrows_up, rooms.long_files], ids=lambda look: look.__name__)
def test_nothing_is_found(look: Callable[[], list[object]]) -> None:
    assert look() == []


def test_few_modules_stand_at_the_root() -> None:
    assert len(rooms.at_the_root()) <= rooms.AT_THE_ROOT


def test_every_room_has_its_floor_and_every_floor_its_rooms() -> None:
    folders = {path.parent.name for path in rooms.SOURCE.glob("*/__init__.py")}
    assert sorted(name for floor in rooms.FLOORS for name in floor if name) == sorted(folders)


def _small(folder: Path, **files: str) -> Path:
    """A package of two rooms, ``engine`` above ``noise``, with this in their modules."""
    for name in ("__init__", "engine.__init__", "engine.a", "engine.b", "noise.__init__", "noise.c"):
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(files.get(name.replace(".", "_").strip("_"), ""), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "from ..engine.a import x",
        "from ..engine import a",
        "import groupclip.engine.a",
        "from groupclip.engine import a as b",
        "def f():\n    from ..engine import a",
        "class A:\n    def f(self):\n        if self:\n            import groupclip.engine.a",
        "if not TYPE_CHECKING:\n    from ..engine.a import x",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from ..engine.a import x",
        "from .. import Engine",
        "import importlib\nimportlib.import_module('groupclip.engine.a')",
        "def f(name):\n    return import_module(f'{__name__}.{name}')",
    ],
)
def test_twin_an_arrow_up_is_seen(tmp_path: Path, line: str) -> None:
    assert len(rooms.arrows_up(_small(tmp_path, noise_c=line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "if TYPE_CHECKING:\n    from ..engine.a import x",
        "import typing\nif typing.TYPE_CHECKING:\n    from ..engine.a import x",
        "from . import d",
        "import torch",
        "from engine import a",
    ],
)
def test_what_is_no_arrow_up_is_none(tmp_path: Path, line: str) -> None:
    assert rooms.arrows_up(_small(tmp_path, noise_c=line, engine_a="from ..noise.c import y\nfrom .b import z")) == []


def test_twin_a_circle_is_seen_however_it_is_closed(tmp_path: Path) -> None:
    lazily = "def f():\n    from . import a"
    assert rooms.circles(_small(tmp_path, engine_a="from .b import x", engine_b=lazily)) == [["engine.a", "engine.b"]]
    typed = "if TYPE_CHECKING:\n    from . import a"
    assert rooms.circles(_small(tmp_path, engine_a="from .b import x", engine_b=typed)) == []


def test_twin_a_long_file_is_seen(tmp_path: Path) -> None:
    assert rooms.long_files(_small(tmp_path, engine_a="x = 1\n" * 300)) == []
    assert rooms.long_files(_small(tmp_path, engine_a="x = 1\n" * 301)) == ["engine/a.py: 301 lines"]


def test_a_new_room_needs_a_floor(tmp_path: Path) -> None:
    folder = _small(tmp_path)
    (folder / "attic").mkdir()
    (folder / "attic" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "engine" / "a.py").write_text("from ..attic import x", encoding="utf-8")
    with pytest.raises(ValueError, match="the room 'attic' has no floor"):
        rooms.arrows_up(folder)
