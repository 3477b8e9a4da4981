"""Say what a run guarantees: the record, its words, the model card and the report."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .asked import Question, questions
    from .card import model_card
    from .record import PrivacyRecord
    from .told import Told

__all__ = ["PrivacyRecord", "Question", "Told", "model_card", "questions"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: to verify a record takes no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Question", "questions"):
        from . import asked as home
    elif name == "Told":
        from . import told as home
    else:
        from . import record as home
    return getattr(home, name)
