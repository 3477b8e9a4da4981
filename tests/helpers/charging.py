"""Run by the tests as a process: charges steps to an entry of a budget, a line of output each, until none is left or it is killed.

python charging.py FILE ENTRY [STEP AT WHICH IT KILLS ITSELF]
"""

import os
import signal
import sys

from groupclip.errors import BudgetExceeded
from groupclip.privacy.budget import Budget

path, entry = sys.argv[1:3]
last = int(sys.argv[3]) if len(sys.argv) > 3 else None
budget = Budget(path)
if last is None:  # one of several: they begin together
    print("ready", flush=True)
    sys.stdin.readline()
try:
    while True:
        step = budget.charge(entry)
        print(step, flush=True)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
except BudgetExceeded:
    pass
