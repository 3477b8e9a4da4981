"""Say what a run guarantees: the record, its words, the model card and the report."""

from .card import model_card
from .record import PrivacyRecord

__all__ = ["PrivacyRecord", "model_card"]
