"""The processes that take the steps of one run: all train, and the first of them keeps its files and tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from ..distributed.agreement import agreed, told_by_all, unanimous
from ..distributed.ranks import Ranks, ranks

T = TypeVar("T")


@dataclass(frozen=True)
class Company:
    """This process among those of a run. What one of them is refused, all are refused: all must call each method in turn.

    Attributes:
        ranks: None where one process trains alone.
    """

    ranks: Ranks | None

    @property
    def keeps(self) -> bool:
        """Whether this process keeps the run's files."""
        return self.ranks is None or self.ranks.rank == 0

    @property
    def size(self) -> int:
        return 1 if self.ranks is None else self.ranks.size

    def all(self, act: Callable[[], T], what: str) -> T:
        """Return what ``act`` returns here, if it returns in all processes."""
        return agreed(self.ranks, act, what)

    def first(self, act: Callable[[], T], what: str) -> T | None:
        """Return what ``act`` returns in the process that keeps the files; None in the others, if it returned there."""
        return agreed(self.ranks, act if self.keeps else lambda: None, what)

    def alike(self, act: Callable[[], T], facts: Callable[[T], Mapping[str, Any]], what: str) -> T:
        """Return what ``act`` returns here, if its ``facts``, which JSON holds, are the same in all processes."""
        if self.ranks is None:
            return act()
        done: list[T] = []

        def acted() -> T:
            done.append(act())
            return done[0]

        return unanimous(self.ranks, acted, lambda: facts(done[0]), what)

    def any(self, act: Callable[[], bool], what: str) -> bool:
        """Return whether ``act`` is true in one of the processes."""
        if self.ranks is None:
            return act()
        return any(told["it is"] for told in told_by_all(self.ranks, lambda: {"it is": act()}, what))

    def told_by_first(self, value: T) -> T:
        """Return the first process's value, which JSON holds."""
        return value if self.ranks is None else told_by_all(self.ranks, lambda: {"is": value}, "a value")[0]["is"]

    def weights_of_first(self, model: nn.Module) -> None:
        """Put the first process's weights and buffers into the models of all."""
        if self.ranks is None:
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for tensor in model.state_dict().values():
                whole = tensor.detach().contiguous()
                torch.distributed.broadcast(whole, 0)
                tensor.copy_(whole)


def company() -> Company:
    """Return this process among those of torch's process group."""
    return Company(ranks())
