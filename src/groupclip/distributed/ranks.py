"""The processes of one training, on the process group that the user made: each is a rank, and all are told the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PrivacyViolation


@dataclass(frozen=True)
class Ranks:
    """Ranks of a process group, of which there are two or more.

    Attributes:
        rank: of this process, in the group.
        size: how many there are.
        group: torch's; None for the default one, of all processes.
    """

    rank: int
    size: int
    group: Any = None

    def exchange(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what every rank gave, in their order. All ranks must call it; facts are what JSON holds. Nothing is unpickled."""
        own = torch.tensor(list(json.dumps(dict(facts)).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(self.size)]
        torch.distributed.all_gather(lengths, torch.tensor([len(own)], device=_device()))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(own)] = own
        told = [torch.zeros(longest, dtype=torch.uint8, device=_device()) for _ in range(self.size)]
        torch.distributed.all_gather(told, padded.to(_device()))
        return [
            json.loads(bytes(text[: int(length)].tolist()).decode()) for text, length in zip(told, lengths, strict=True)
        ]

    def from_first(self, secret: bytes) -> bytes:
        """Return rank 0's bytes, of which every rank gives as many. It isn't seen outside of the ranks."""
        tensor = torch.tensor(list(secret), dtype=torch.uint8, device=_device())
        torch.distributed.broadcast(tensor, 0)
        return bytes(tensor.tolist())

    def wait(self) -> None:
        """Wait until all ranks are here.

        Raises:
            RuntimeError: one of them is lost (torch's own error).
        """
        here: Tensor = torch.ones((), device=_device())
        torch.distributed.all_reduce(here)
        if int(here) != self.size:
            raise PrivacyViolation(f"{int(here)} of {self.size} ranks came to the end of a step")


def ranks(*, even_one: bool = False) -> Ranks | None:
    """Return the ranks that this process is one of; None where it trains alone (no process group, or one of a single process).

    Args:
        even_one: return the only rank of a group of a single process too.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    size = distributed.get_world_size()
    return Ranks(distributed.get_rank(), size) if size > 1 or even_one else None


def _device() -> torch.device:
    """Return where tensors must be that go through the process group."""
    backend = str(torch.distributed.get_backend_config())
    return torch.device("cpu") if "cpu:" in backend else torch.device("cuda", torch.cuda.current_device())
