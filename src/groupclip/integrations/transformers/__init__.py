"""A private ``Trainer`` of transformers: :class:`PrivateTrainer`, and :func:`privatize` for trainers that others subclassed."""

from .trainer import PrivateTrainer, privatize

__all__ = ["PrivateTrainer", "privatize"]
