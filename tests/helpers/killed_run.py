"""Run by the tests as a process: trains in a folder and gets SIGKILL when the row of a step is told."""

import os
import signal
import sys
from pathlib import Path

from groupclip.run import resume, start
from small_runs import REQUEST, At


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


out, step, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
run = resume(out, checkpoint_seconds=seconds) if out.exists() else start(REQUEST, out, checkpoint_seconds=seconds)
run.train(At(step, die))
