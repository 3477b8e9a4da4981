"""The processes that ``torchrun -m groupclip train`` starts: they join one process group and take the steps of one run."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..run.company import Company

PATIENCE = datetime.timedelta(hours=6)  # for the process that pretrains, evaluates or reads while others wait
_NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def joined() -> Iterator[Company]:
    """Join the processes that torchrun started with this one, if any, until the end.

    Raises:
        ValueError: the environment names other processes, but not how to meet them.
    """
    import torch

    from ..run.company import company

    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        yield company()
        return
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing or not torch.distributed.is_available():
        raise ValueError(
            f"this is one of {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), and "
            + (f"{', '.join(missing)} isn't set" if missing else "this torch was built without torch.distributed")
            + ": start them by torchrun --nproc-per-node N -m groupclip train .., or one by itself without WORLD_SIZE"
        )
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend, timeout=PATIENCE)
    together = company()
    if not together.keeps:
        logging.getLogger("groupclip").setLevel(logging.ERROR)  # the first one says it
    yield together
    # Not after an error: a group that has lost a process waits for it here.
    torch.distributed.destroy_process_group()
