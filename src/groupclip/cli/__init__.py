"""The command line; needs ``pip install 'groupclip[cli]'``. Thin: what a command does is in the library."""

from __future__ import annotations

import logging
import sys

from .signals import INTERRUPTED, STOPPED, end_quietly


def main() -> None:
    """Entry point of ``groupclip``: ends the process with an exit code; see :mod:`groupclip.cli.app`."""
    end_quietly()
    try:
        try:
            import click  # noqa: F401
            import rich  # noqa: F401
            import yaml  # noqa: F401
        except ModuleNotFoundError as error:
            sys.exit(
                f"groupclip: the command line needs {error.name}, which isn't installed; run: pip install 'groupclip[cli]'"
            )
        from .app import run

        logging.basicConfig(format="%(name)s: %(message)s")

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # before the command began
        sys.stderr.write(STOPPED)
        sys.exit(INTERRUPTED)
