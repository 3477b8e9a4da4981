"""Planting a bug in a temporary copy of the package, and running ordinary tests against that copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planted import Edit, Mutant

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "groupclip"
LIMIT = 600  # seconds, of a busy machine; a copy that hangs is a failure of its own


@dataclass(frozen=True)
class Verdict:
    """What the tests said of one copy.

    killed_by: the first test that failed; empty if all passed. seconds: of the whole process, imports included.
    """

    killed_by: str
    seconds: float


def copied(folder: Path, edits: Sequence[Edit] = ()) -> Path:
    """A copy of the package in ``folder``, with ``edits``. ValueError unless each text to be replaced occurs once."""
    package = folder / "groupclip"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        path = package / edit.file
        source = path.read_text(encoding="utf-8")
        if source.count(edit.old) != 1:
            raise ValueError(f"{edit.file} holds {source.count(edit.old)} times, and not once: {edit.old!r}")
        path.write_text(source.replace(edit.old, edit.new), encoding="utf-8")
    return package


def tried(folder: Path, tests: Sequence[str], *options: str, **variables: str) -> Verdict:
    """Run tests of the default suite with the package in ``folder`` instead of the installed one, up to the first failure.

    ``options`` are pytest's, ``variables`` of the environment.

    Raises:
        RuntimeError: the tests couldn't be run to a verdict (an import that fails, no test collected, no end).
    """
    where = f"import groupclip, sys; sys.exit(not groupclip.__file__.startswith({str(folder)!r}))"
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        **variables,
    }
    asked = [sys.executable, "-c", where]
    if subprocess.run(asked, cwd=ROOT, env=environment, timeout=LIMIT).returncode:
        raise RuntimeError(f"the tests would import another groupclip than the one in {folder}")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, *options, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    seconds = time.monotonic() - begun
    failed = re.findall(r"^FAILED (\S+?::.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return Verdict("", seconds)
    if done.returncode != 1 or not failed:
        raise RuntimeError(f"no verdict of {' '.join(tests)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Verdict(failed[0], seconds)


def verdict(mutant: Mutant, folder: Path) -> Verdict:
    """Plant the bug in a new folder and run its tests."""
    copied(folder, mutant.edits)
    return tried(folder, mutant.tests)
