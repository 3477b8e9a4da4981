"""What ``state_dict`` would publish, and a model fills from its samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .writes import memory_of, opaque


class Published:
    """Buffers and weights that ``state_dict`` would publish, looked at after passes over samples that differ.

    Args:
        model: as it is before the passes.
        written: :attr:`groupclip.snapshot.Snapshot.written`.

    Attributes:
        changed: some pass changed one.
        of_samples: names of those whose values depend on the samples.
    """

    def __init__(self, model: nn.Module, written: set[int]) -> None:
        self._model, self._written = model, written
        self._before = {name: (held, held._version, _place(held)) for name, held in _published(model)}
        self._after: dict[str, Tensor] = {}
        self.changed = False
        self.of_samples: set[str] = set()

    def look(self) -> None:
        """After a pass, before it is undone. The random numbers are the same in all of them."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, held in _published(self._model):
                before, version, place = self._before.get(name, (None, 0, None))
                # A weight that another than a function of torch wrote isn't put back, so it tells nothing of the samples.
                counted = held._version == version or isinstance(held, nn.Parameter)
                if held is before and counted and _place(held) == place and place not in self._written:
                    continue
                self.changed = True
                now = held.detach().clone()
                other = self._after.setdefault(name, now)
                if other.shape != now.shape or other.dtype != now.dtype or not torch.equal(_bits(other), _bits(now)):
                    self.of_samples.add(name)


def _place(held: Tensor) -> int | None:
    return None if opaque(held) else memory_of(held)


def _bits(buffer: Tensor) -> Tensor:
    """Of any dtype; nan is nan."""
    return buffer.contiguous().reshape(-1).view(torch.uint8)


def _published(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, held in (*module._buffers.items(), *module._parameters.items()):
            if held is not None and name not in module._non_persistent_buffers_set and not held.is_inference():
                yield f"{prefix}.{name}".lstrip("."), held
