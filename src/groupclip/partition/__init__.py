"""Which group each trainable parameter belongs to: every one in exactly one named group."""

from .choose import partition
from .groups import Partition, check_covers

__all__ = ["Partition", "check_covers", "partition"]
