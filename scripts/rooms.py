"""The rooms of src/groupclip, and what may import what: python scripts/rooms.py prints four counts, and what breaks them.

A room is a folder below src/groupclip. It stands on a floor. Its modules import from their own room and from lower floors only.
An import inside a function counts. One that only type checkers see (``if TYPE_CHECKING``) doesn't.
What ``import groupclip`` shows (its ``__init__``) stands above all, so nothing imports it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "groupclip"

#: From the highest floor to the lowest. Rooms on one floor don't import each other.
FLOORS = (
    ("cli", "integrations"),
    ("paper",),
    ("run",),
    ("auditing", "theory"),
    ("validate", "memory", "models"),
    ("engine", "tasks", "federated"),
    ("alone", "rules"),
    ("autograd",),
    ("clipping", "persample"),
    ("sampling", "statement"),
    ("privacy", "noise", "partition"),
    ("distributed",),
    ("",),  # the modules at the root
)
LONGEST = 300  # lines of a file
AT_THE_ROOT = 8  # modules


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module by its name below groupclip: ``engine.step``; of a package, ``engine``; of groupclip itself, ````."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    """The modules of groupclip that this one imports, each with the line."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
            yield from _by_name(node.args[0])
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "groupclip":
                    yield alias.name.removeprefix("groupclip").removeprefix("."), node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            if node.level:
                base = ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])
            elif node.module and node.module.split(".")[0] == "groupclip":
                base = node.module.removeprefix("groupclip").removeprefix(".")
            else:
                continue
            for alias in node.names:
                whole = f"{base}.{alias.name}".removeprefix(".")
                yield whole if whole in known else base, node.lineno


def _name(function: ast.expr) -> str:
    return getattr(function, "id", getattr(function, "attr", ""))


def _by_name(asked: ast.expr) -> Iterator[tuple[str, int]]:
    """A module that is imported by its name; one that is found by ``__name__`` may be any, so it counts as groupclip itself."""
    if isinstance(asked, ast.Constant) and str(asked.value).split(".")[0] == "groupclip":
        yield str(asked.value).removeprefix("groupclip").removeprefix("."), asked.lineno
    elif any(getattr(n, "id", "") in ("__name__", "__package__") for n in ast.walk(asked)):
        yield "", asked.lineno


def room(module: str, known: Mapping[str, Path]) -> str:
    first = module.split(".")[0]
    return first if "." in module or known[module].name == "__init__.py" else ""


def floor(module: str, known: Mapping[str, Path]) -> int:
    """0 is the lowest. groupclip itself is above all.

    Raises:
        ValueError: a room without a floor.
    """
    if module == "":
        return len(FLOORS)
    its = room(module, known)
    for height, rooms in enumerate(reversed(FLOORS)):
        if its in rooms:
            return height
    raise ValueError(f"the room {its!r} has no floor: name it in FLOORS of scripts/rooms.py")


def arrows(source: Path = SOURCE) -> dict[str, dict[str, int]]:
    """Module -> the modules that it imports -> in which line."""
    known = modules(source)
    return {
        name: {target: line for target, line in imports(name, path, known) if target != name}
        for name, path in known.items()
    }


def arrows_up(source: Path = SOURCE) -> list[str]:
    """The imports from a higher floor, or from another room of the same."""
    known = modules(source)
    found = []
    for name, targets in arrows(source).items():
        for target, line in targets.items():
            same = room(name, known) == room(target, known) and (name == "") == (target == "")
            if not same and floor(target, known) >= floor(name, known):
                found.append(f"{known[name].relative_to(source)}:{line} imports {target or 'groupclip itself'}")
    return found


def circles(source: Path = SOURCE) -> list[list[str]]:
    """Modules that import each other, in whatever way round (Tarjan's strongly connected components)."""
    graph = arrows(source)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            circle = []
            while not circle or circle[-1] != name:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def at_the_root(source: Path = SOURCE) -> list[str]:
    return sorted(path.name for path in source.glob("*.py"))


def long_files(source: Path = SOURCE) -> list[str]:
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(source.rglob("*.py"))}
    return [f"{path.relative_to(source)}: {count} lines" for path, count in counts.items() if count > LONGEST]


def main() -> int:
    roots = at_the_root()
    counts = {
        "circles": [" - ".join(circle) for circle in circles()],
        "arrows up": arrows_up(),
        f"files above {LONGEST} lines": long_files(),
    }
    for what, found in counts.items():
        print(f"{what} {len(found)}")
        for each in found:
            print(f"    {each}")
    print(f"modules at the root {len(roots)}, of at most {AT_THE_ROOT}")
    return int(any(counts.values()) or len(roots) > AT_THE_ROOT)


if __name__ == "__main__":
    sys.exit(main())
