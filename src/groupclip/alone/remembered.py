"""What a model keeps of the samples of one pass mustn't meet those of a later one.

A queue of features, a centre, a hidden state that is carried on: through it a sample acts on the gradients of others, in steps in
which it has no part, and neither its threshold nor the noise covers that. Passes leave tensors of samples on modules; a later pass
that computes with one is refused.
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from torch import Tensor

from ..autograd.tensors import PASSIVE
from ..errors import PrivacyViolation
from ..nested import tensors_in

_CUT = frozenset({Tensor.detach, Tensor.requires_grad_, Tensor.data_ptr, Tensor.untyped_storage})  # more than a fact


class Remembered:
    """The tensors of samples that passes of one model left on its modules, as long as something holds them."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, left: list[tuple[str, Any]]) -> None:
        """Remember what a pass left, under the names of where; forget what nothing holds any more."""
        self._held = {key: found for key, found in self._held.items() if found[0]() is not None}
        for name, value in left:
            self._held |= {id(tensor): (weakref.ref(tensor), name) for tensor in tensors_in(value)}

    def refuse_use(self, func: Any, args: Any, kwargs: Any) -> None:
        """Check an operation of a later pass. To ask for a shape or a device is no use.

        Raises:
            PrivacyViolation: an argument was left by an earlier pass.
        """
        if func in PASSIVE and func not in _CUT:
            return
        for tensor in tensors_in((args, kwargs)):
            reference, name = self._held.get(id(tensor), (None, ""))
            if reference is not None and reference() is tensor:
                _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise PrivacyViolation(
        f"the forward pass computes with {name!r}, which an earlier pass left there: it is of that pass's samples. So a sample "
        "would act on the gradients of others, in steps without it, and the noise doesn't cover that. Set it anew at the beginning "
        "of forward(), or fill it from public data and put its module in eval mode. A memory of samples (a queue, a centre, a "
        "state that is carried on) can't be trained privately"
    )
