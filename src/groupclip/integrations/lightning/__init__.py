"""Lightning: a callback with which ``Trainer.fit`` trains privately, and the loader that it is given."""

from .batches import PrivateBatches
from .callback import PrivateTraining

__all__ = ["PrivateBatches", "PrivateTraining"]
