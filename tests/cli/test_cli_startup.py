"""How the command line starts: what it loads, and how it ends when it is stopped meanwhile."""

import subprocess
import sys

import pytest

PLAN = ["--dataset-size", "50000", "--batch-size", "1000", "--epochs", "5", "--delta", "1e-5"]


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["train", "--help"],
        ["epsilon", *PLAN, "--noise-multiplier", "1.1", "--search", "3", "--curve", "1,2"],
        ["calibrate", *PLAN, "--epsilon", "2"],
    ],
    ids=["help", "train-help", "epsilon", "calibrate"],
)
def test_accounting_and_help_do_not_load_torch(command: list[str]) -> None:
    program = (
        "import sys; from groupclip.cli.app import run; code = run(sys.argv[1:]); print('torch' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False 0"
