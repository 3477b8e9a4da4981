"""A whole private training run as a library: settings in, a released model with its guarantee out.

from groupclip.run import start
outcome = start({"task": "digits", "epsilon": 3, "clipping": "uniform:2"}, Path("runs/digits")).train()
"""

from ..privacy.epochs import steps_of
from .config import RunConfig, read_yaml
from .errors import ConfigError, RunFailed, RunInterrupted
from .observer import Beginning, Nobody, Observer
from .plain import PlainOutcome, PlainRun, start_plain
from .resolve import resolve
from .resuming import resume
from .train import CHECKPOINT_SECONDS, Outcome, Run, start

__all__ = [
    "CHECKPOINT_SECONDS",
    "Beginning",
    "ConfigError",
    "Nobody",
    "Observer",
    "Outcome",
    "PlainOutcome",
    "PlainRun",
    "Run",
    "RunConfig",
    "RunFailed",
    "RunInterrupted",
    "read_yaml",
    "resolve",
    "resume",
    "start",
    "start_plain",
    "steps_of",
]
