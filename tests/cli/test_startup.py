"""How the command line starts: what it loads, and how it ends when it is stopped meanwhile."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import groupclip_command
from groupclip.privacy.budget import Budget

PLAN = ["--dataset-size", "50000", "--batch-size", "1000", "--epochs", "5", "--delta", "1e-5"]


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["train", "--help"],
        ["epsilon", *PLAN, "--noise-multiplier", "1.1", "--search", "3", "--curve", "1,2", "--samples-per-user", "2"],
        ["calibrate", *PLAN, "--epsilon", "2"],
        ["budget", "new", "--file", "{folder}/new.budget", "--epsilon", "2", "--delta", "1e-5"],
        ["budget", "add", "--file", "{folder}/there.budget", *PLAN, "--noise-multiplier", "2"],
    ],
    ids=["help", "train-help", "epsilon", "calibrate", "budget-new", "budget-add"],
)
def test_accounting_and_help_do_not_load_torch(command: list[str], tmp_path: Path) -> None:
    Budget(tmp_path / "there.budget", epsilon=2, delta=1e-5)
    command = [part.format(folder=tmp_path) for part in command]
    program = (
        "import sys; from groupclip.cli.app import run; code = run(sys.argv[1:]); print('torch' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False 0"


#: ``os`` and what it imports, which ``site`` has loaded before any program begins.
OS = {"os", "stat", "_stat", "os.path", "posixpath", "genericpath", "_collections_abc", "abc", "_abc"}

INTERRUPTED_AT = """
import os, signal, sys
at = sys.argv.pop(1)

class Finder:  # asked for every module that isn't loaded yet
    def find_spec(self, name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process inherited
sys.meta_path.insert(0, Finder())
from groupclip_command import main
main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "groupclip", "groupclip.errors", "groupclip.partition", "groupclip.cli", "logging", "click", "groupclip.cli.app", "torch",
        "numpy._core.multiarray", "groupclip.engine.engine",
    ],
)  # fmt: skip
def test_ctrl_c_while_modules_are_loaded_ends_without_a_traceback(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT, module, "train", "--task", "digits", "--epsilon", "3"]
    done = subprocess.run([*command, "--config", "no-such.yaml"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "groupclip: stopped\n")


def test_ctrl_c_before_the_handler_is_there_ends_without_a_traceback() -> None:
    """In the import of ``signal`` itself, which comes first."""
    program = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        raise KeyboardInterrupt

from groupclip_command import main
for name in ("signal", "enum"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Finder())
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "groupclip: stopped\n")


def test_the_entry_point_imports_nothing_before_it_can_answer() -> None:
    """What Python has loaded when a program begins (here without ``site``, which may load anything) is all that it needs."""
    folder = str(Path(groupclip_command.__file__).parent)
    program = f"import sys; before = set(sys.modules); sys.path.insert(0, {folder!r}); import groupclip_command; "
    program += "print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", program], check=True, capture_output=True, text=True)
    assert set(ast.literal_eval(done.stdout)) <= {"groupclip_command", *OS}
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert declared == {"groupclip": "groupclip_command:main"}


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    """As nohup and a shell's background jobs have it."""
    program = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from groupclip_command import main
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print("went on")))
main()
"""
    done = subprocess.run([sys.executable, "-c", program, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "went on"
