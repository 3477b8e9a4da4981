"""The command line; needs ``pip install 'groupclip[cli]'``. Thin: what a command does is in the library."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence


def command(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Ends the process with a message where a package that it needs is missing."""
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
    return run(arguments)
