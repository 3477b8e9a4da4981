"""The command ``groupclip``, from its first moment on: it answers Ctrl-C before it imports anything that takes long.

It stands beside the package: a module in it would be loaded after ``groupclip/__init__.py`` and what that imports.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED, STOPPED = 130, "groupclip: stopped\n"


def main() -> None:
    """Entry point of ``groupclip``: ends the process with an exit code; see :mod:`groupclip.cli.app`."""
    try:
        _end_quietly()
        from groupclip.cli import command

        sys.exit(command(sys.argv[1:]))
    except KeyboardInterrupt:  # before the command began
        os.write(2, STOPPED.encode())
        sys.exit(INTERRUPTED)


def _end_quietly() -> None:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored: nohup
        signal.signal(signal.SIGINT, interrupt)


def interrupt(number: int, frame: "FrameType | None") -> None:
    """Handler of a signal: KeyboardInterrupt, but where it meets an import, the end of the process.

    NumPy and torch make other errors of an interruption while they are loaded, and can't be loaded a second time.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, STOPPED.encode())
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
