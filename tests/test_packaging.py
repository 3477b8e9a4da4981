"""The package as it is published: what is in the wheel, what it needs, and that it trains where nothing else is installed."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = {"torch", "numpy", "dp-accounting", "cryptography"}
#: With what these need in turn, but for torch's own.
INSTALLED = NEEDED | {
    "groupclip", "absl-py", "attrs", "cffi", "dm-tree", "mpmath", "pip", "pycparser", "scipy", "setuptools", "wrapt",
}  # fmt: skip


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_four_packages_are_needed() -> None:
    assert {name_of(requirement) for requirement in PROJECT["dependencies"]} == NEEDED


def test_every_extra_is_there_and_says_a_lowest_version() -> None:
    assert set(EXTRAS) == {"cli", "transformers", "lightning", "reproduce", "flower", "docs", "dev"}
    for requirement in (*PROJECT["dependencies"], *(r for name in EXTRAS for r in EXTRAS[name])):
        assert ">=" in requirement or requirement.startswith("groupclip["), requirement


# ------------------------------------------------------------------ the wheel, built


def run(*command: Any, **others: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **others)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", out, ROOT)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (facts,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(file.read(facts))
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    package = {name for name in names if ".dist-info/" not in name}
    assert sources <= package and "groupclip/py.typed" in package
    assert {name.split("/")[0] for name in package} == {"groupclip", "groupclip_command.py"}
    assert any(name.endswith("/LICENSE") for name in names)
    assert set(told.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert told["License-Expression"] == "Apache-2.0" and told["Requires-Python"] == ">=3.11"
    plain = {name_of(r) for r in told.get_all("Requires-Dist", []) if "extra ==" not in r}
    assert plain == NEEDED


# ------------------------------------------------------------------ installed where nothing else is


def closure(name: str) -> set[str]:
    """A package of this environment, and what it needs here in turn."""
    found, waiting = set(), [name]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            requirements = metadata.requires(one) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        found.add(one)
        waiting += [name_of(r) for r in requirements if "extra ==" not in r]
    return found


def linked(site: Path, package: str) -> None:
    """Let a new environment have a package of this one: torch alone is hundreds of megabytes."""
    distribution = metadata.distribution(package)
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(distribution.locate_file(top)))
        if not (site / top).exists():
            (site / top).symlink_to(source, target_is_directory=source.is_dir())


def environment(folder: Path, wheel: Path, *pins: str) -> Path:
    """A new environment with the wheel, and torch of this one; its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    for package in closure("torch"):
        linked(site, package)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, *pins)
    return python


def fifteen_lines() -> str:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"## Fifteen lines\n\n```python\n(.*?)```", page, re.S)
    assert found is not None
    return found[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="environments lie otherwise there")
@pytest.mark.parametrize("versions", ["newest", "lowest"])
def test_it_trains_where_nothing_else_is_installed(versions: str, wheel: Path, tmp_path: Path) -> None:
    """From an empty folder. torch is this environment's: its lowest version isn't tried."""
    if versions == "lowest" and sys.version_info >= (3, 13):
        pytest.skip("NumPy 2.0 has no wheel for this Python")
    floors = [re.sub(r">=([\d.]+).*", r"==\1", r) for r in PROJECT["dependencies"] if name_of(r) != "torch"]
    python = environment(tmp_path / "env", wheel, *(floors if versions == "lowest" else []))
    away = dict(cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    told = run(python, "-I", "-c", fifteen_lines(), **away)
    assert "epsilon = 3.00" in told
    listed = run(python, "-I", "-c", _LIST, **away).split()
    assert "groupclip" in listed
    assert {name_of(name) for name in listed} - closure("torch") <= INSTALLED
    if versions == "lowest":
        for floor in floors:
            name, _, lowest = floor.partition("==")
            told = run(python, "-I", "-c", f"from importlib.metadata import version; print(version({name!r}))", **away)
            assert f"{told.strip()}.".startswith(f"{lowest}.")


_LIST = "from importlib.metadata import distributions; print(*sorted({d.name for d in distributions()}))"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="environments lie otherwise there")
def test_the_command_without_its_extra_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheel)
    done = subprocess.run([python.parent / "groupclip", "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and "groupclip[cli]" in done.stderr and "Traceback" not in done.stderr
