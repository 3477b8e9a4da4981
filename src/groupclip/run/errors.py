"""What a run can fail with, apart from wrong arguments (``ValueError``, ``TypeError``, ``OSError``)."""

from ..errors import GroupClipError


class ConfigError(ValueError):
    """A setting of a run is unknown, missing or impossible. Nothing was written."""


class RunFailed(GroupClipError):
    """A run stopped on its way. What it had written is as it was; the message says how to go on."""


class RunInterrupted(GroupClipError):
    """A person or the system asked a run to stop; it wrote a checkpoint first."""
