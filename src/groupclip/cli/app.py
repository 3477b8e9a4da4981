"""The group of commands, and how errors end them: a message that names the fix, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from groupclip_command import INTERRUPTED, STOPPED

from ..errors import GroupClipError
from .advise import advise
from .audit import audit
from .bench import bench
from .bound import bound
from .budget import budget
from .calibrate import calibrate
from .check import check
from .epsilon import epsilon
from .memory import plan
from .report import report
from .reproduce import reproduce
from .statement import statement
from .train import train

FAILED = 1


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 the run failed, 2 a wrong argument, 130 stopped by Ctrl-C.",
)
@click.version_option(package_name="groupclip")
def app() -> None:
    """Train PyTorch models with differential privacy, clipping per-sample gradients in groups.

    \b
    Example:
      groupclip train --task digits --clipping uniform:2 --epsilon 3 --out runs/digits
    """


for command in (train, advise, check, audit, calibrate, epsilon, budget, statement, report, plan, bound, reproduce, bench):
    app.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. GROUPCLIP_TRACEBACK=1 shows where an error came from."""
    try:
        # click gives the code of an Exit back here, and what a command returns, which is nothing, otherwise
        code = app.main(args=list(arguments), prog_name="groupclip", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(STOPPED, nl=False, err=True)
        return INTERRUPTED
    except GroupClipError as error:
        if os.environ.get("GROUPCLIP_TRACEBACK"):
            raise
        click.echo(f"groupclip: {error}", err=True)
        return FAILED
    return code or 0
