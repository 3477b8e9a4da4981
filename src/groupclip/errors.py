"""The errors of groupclip.

::

    GroupClipError
    |-- UnsupportedOperation   an operation whose per-sample gradient can't be had exactly
    |-- CoverageError          a trainable parameter that no group, or no rule, looks after
    |-- PrivacyViolation       going on would release something that the stated guarantee doesn't cover
    `-- BudgetExceeded         a step past the plan that the noise was calibrated for

Wrong arguments are ``ValueError`` and ``TypeError``. Every message says what was found, why it can't
work, and what to do.
"""


class GroupClipError(Exception):
    """The base class of every error that groupclip defines."""


class UnsupportedOperation(GroupClipError):
    """A parameter is used in a way whose per-sample gradient can't be computed exactly."""


class CoverageError(GroupClipError):
    """A trainable parameter is outside the plan: in no group, in two, or out of groupclip's sight."""


class PrivacyViolation(GroupClipError):
    """Going on would break the privacy guarantee that the run states."""


class BudgetExceeded(GroupClipError):
    """The step lies past the number of steps that the mechanism was planned for."""
