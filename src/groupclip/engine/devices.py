"""Groups of a model that lies on several devices: each on one of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..errors import UnsupportedOperation
from ..partition.groups import Partition


def check_devices(partition: Partition, named: Mapping[str, nn.Parameter]) -> None:
    """Check that each group is on one device: then no norm, and nothing of a sample, goes from one device to another.

    Raises:
        UnsupportedOperation: a group is on several.
    """
    for group in partition.names:
        where = sorted({str(named[name].device) for name in partition[group]})
        if len(where) > 1:
            raise UnsupportedOperation(
                f"the parameters of group {group!r} are on several devices ({', '.join(where)}), so the norms of its samples would "
                "be on none: use groups='per-device', or groups within a device (layer-wise, block-wise, a mapping)"
            )
