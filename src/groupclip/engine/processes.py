"""One process trains: what several would release together isn't what the plan counts."""

from __future__ import annotations

import torch

from ..errors import PrivacyViolation


def check_alone() -> None:
    """Check that this process trains alone: no process group, or one of a single process.

    Raises:
        PrivacyViolation: several processes. Each would add noise of its own to a sum that they share, and draw batches of its
            own, so every step would release as many noisy sums as there are processes while the plan counts one.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    count = distributed.get_world_size()
    if count > 1:
        raise PrivacyViolation(
            f"torch.distributed has {count} processes, and each would draw batches and add noise to the common sum: "
            f"{count} noisy sums a step, of which the plan counts one. Train on one process (no init_process_group, or "
            "world_size=1); clipping alone, with mechanism=None, works on several"
        )
