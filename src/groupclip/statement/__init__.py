"""Say what a run guarantees: the record, its words, the model card and the report."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .card import model_card
    from .record import PrivacyRecord

__all__ = ["PrivacyRecord", "model_card"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: to verify a record takes no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import record

    return getattr(record, name)
