"""Hooks of the user's on what autograd saves must give back what they were given.

A hook is given tensors of all samples at once. One that compresses them by the largest number of all, say, lets each sample act on
the gradients of the others. Torch's own hooks (checkpoints, ``save_on_cpu``) are known; of any other the tensors that come back are
compared with those that went in, by a sum of their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import PrivacyViolation
from ..nested import has_numbers
from .vmap import hooks_on_saved, natively

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


def checked(pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    """Return the hooks, compared if they aren't torch's own."""
    if _is_known(pack) and _is_known(unpack):
        return pack, unpack

    def packed(x: Tensor) -> Any:
        return _Held(_told(x), pack(x))

    def unpacked(held: Any) -> Tensor:
        if not isinstance(held, _Held):  # packed by hooks that stood here before
            return unpack(held)
        x = unpack(held.value)
        if _told(x) != held.told:
            raise PrivacyViolation(
                f"saved-tensor hooks ({_name(pack)}, {_name(unpack)}) give back other numbers than they were given. They "
                "see all samples at once, so a compression may let one sample act on the gradients of others: keep tensors as they "
                "are (save_on_cpu, an offload), or compress inside the model by operations, of each sample alone"
            )
        return x

    return packed, _Checked(unpacked)


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


class _Held:
    __slots__ = ("told", "value")

    def __init__(self, told: tuple[Any, ...], value: Any) -> None:
        self.told, self.value = told, value


class _Checked:
    """Marks hooks that are compared already."""

    def __init__(self, unpack: Unpack) -> None:
        self._unpack = unpack

    def __call__(self, held: Any) -> Tensor:
        return self._unpack(held)


def _is_known(hook: Any) -> bool:
    return isinstance(hook, _Checked) or str(getattr(hook, "__module__", "")).startswith(("torch.", "groupclip."))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _told(x: Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from others: its shape, its dtype and a sum of its bits, each place weighed otherwise."""
    with torch._C.DisableTorchFunction(), natively(), torch.no_grad():
        if x.layout is not torch.strided or not has_numbers(x):
            return tuple(x.shape), x.dtype
        flat = x.detach().reshape(-1)
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1) if x.is_complex() else flat
        bits = flat.contiguous().view(_BITS[flat.element_size()])
        return tuple(x.shape), x.dtype, int(bits.sum(dtype=torch.int64)), int(bits[::2].sum(dtype=torch.int64))


@contextmanager
def hooks_checked() -> Iterator[None]:
    """Compare, inside, what the hooks give back that stand now."""
    hooks = hooks_on_saved(True)
    if hooks is None or (_is_known(hooks[0]) and _is_known(hooks[1])):
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(*checked(*hooks)):
        yield
