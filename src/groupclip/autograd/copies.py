"""Copies where a sample alone has a view: a change in place of one of the two would be seen by the other, and isn't.

Which of them changes is told by torch's own count of changes, at the end of the run: then the samples run one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]


class Copies:
    """The copies of one run, and what they are copies of."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, int]] = []  # tensor, how often it was changed when the copy was made
        self._uncounted = False  # a tensor of samples shows its memory by another tensor, whose changes aren't counted with it

    def watch(self, given: Iterable[Tensor], copies: Iterable[Tensor]) -> None:
        """Watch tensors and copies of parts of them, whatever transforms they are in."""
        for tensor in (*given, *copies):
            while functorch.is_functorch_wrapped_tensor(tensor):
                tensor = functorch.get_unwrapped(tensor)
            if not tensor.is_inference():
                self._held.append((tensor, tensor._version))

    def memory_is_shown(self) -> None:
        """Hear that ``x.data`` was asked for."""
        self._uncounted = True

    def tell_apart(self) -> bool:
        """Return whether a change in place may have told a copy from a view; forget them."""
        held, self._held = self._held, []
        return bool(held) and (self._uncounted or any(tensor._version != version for tensor, version in held))
