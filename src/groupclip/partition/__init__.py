"""Which group each trainable parameter belongs to: every one in exactly one named group."""

from .groups import Partition, check_covers, partition

__all__ = ["Partition", "check_covers", "partition"]
