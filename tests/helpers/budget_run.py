"""Run by the tests as a process: trains on a budget, and may get SIGKILL when the row of a step is told.

python budget_run.py OUT BUDGET [STEP AT WHICH IT KILLS ITSELF]
"""

import os
import signal
import sys
from pathlib import Path

from groupclip.errors import BudgetExceeded
from groupclip.run import start
from small_runs import REQUEST, SELDOM, At, Nobody


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


out, budget = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
try:
    run = start({**REQUEST, "budget": budget}, out, checkpoint_seconds=SELDOM)
except BudgetExceeded:
    print("refused", flush=True)
else:
    run.train(At(int(sys.argv[3]), die) if len(sys.argv) > 3 else Nobody())
    print("trained", flush=True)
