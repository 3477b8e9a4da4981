"""Run by the tests as a process: trains on a budget, and may get SIGKILL when the row of a step is told.

python budget_run.py [STEP AT WHICH IT KILLS ITSELF]

Each line that it reads, the JSON of [OUT, BUDGET], is a run. It answers "trained" or "refused", and "ready" before the first.
"""

import json
import os
import signal
import sys
from pathlib import Path

from groupclip.errors import BudgetExceeded
from groupclip.run import start
from small_runs import REQUEST, SELDOM, At, Nobody


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


print("ready", flush=True)
for line in sys.stdin:
    out, budget = json.loads(line)
    try:
        run = start({**REQUEST, "budget": budget}, Path(out), checkpoint_seconds=SELDOM)
    except BudgetExceeded:
        print("refused", flush=True)
    else:
        run.train(At(int(sys.argv[1]), die) if len(sys.argv) > 1 else Nobody())
        print("trained", flush=True)
