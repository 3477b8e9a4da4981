"""Several views of each sample, clipped as one: augmentation multiplicity (De et al. 2022).

The model is called with ``[B K, ..]``, the K views of a sample one after another. Each sample then runs alone as a batch of its
own K rows. Its loss is the mean over them, so its gradient is the mean of theirs, which is clipped once: the sample adds at most
the threshold, whatever K is. So views cost no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..alone.inputs import Inputs
from ..arguments import whole
from ..errors import UnsupportedOperation
from ..nested import replaced, tensors_in


class Views:
    """Makes samples of rows, K at a time.

    Args:
        count: K, at least 1.

    Raises:
        TypeError, ValueError: it is no whole number of 1 or more.
    """

    def __init__(self, count: int) -> None:
        self.count = whole("views", count, least=1)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the inputs as ``[B, K, ..]``.

        Raises:
            ValueError: tensors of different lengths, or a length that K doesn't divide.
        """
        lengths = sorted({t.shape[0] for t in tensors_in((args, kwargs)) if t.dim() > 0})
        if len(lengths) != 1 or lengths[0] % self.count:
            raise ValueError(
                f"with views={self.count} every tensor holds the {self.count} views of each sample one after another, B * "
                f"{self.count} rows in dimension 0, and the tensors have {lengths}: x.repeat_interleave({self.count}, 0) repeats "
                "what is the same for all views; what isn't of the samples belongs into the model"
            )
        batch, taken = lengths[0] // self.count, set[int]()

        def apart(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() == 0:
                return value
            rows = value.unflatten(0, (batch, self.count))
            taken.add(id(rows))
            return rows

        args, kwargs = replaced((args, kwargs), apart)
        return Inputs(args, kwargs, frozenset(taken), batch)

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make, of a function of a batch, one of ``[1, K, ..]``, which sees the views of one sample as a batch of K.

        Raises:
            UnsupportedOperation: by the function made: it returns a tensor that isn't of K rows.
        """

        def of_one(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = replaced((args, kwargs), _together)
            return replaced(function(*args, **kwargs), self._apart)

        return of_one

    def _apart(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or value.dim() == 0:
            return value
        if value.shape[0] != self.count:
            raise UnsupportedOperation(
                f"an output has shape {tuple(value.shape)} for the {self.count} views of one sample, so its dimension 0 isn't the "
                "view: return tensors with the rows of the batch in dimension 0, or a number, the mean over the views"
            )
        return value.unflatten(0, (1, self.count))

    def joined(self, outputs: Any) -> Any:
        """Return outputs ``[B, K, ..]`` as ``[B K, ..]``."""
        return replaced(outputs, _together)

    def means(self, losses: Tensor, batch: int) -> Tensor:
        """Return the mean of each sample's losses, ``[B]``, of ``[B K]``; ``[B]`` and what is no loss at all stay as they are."""
        ours = isinstance(losses, Tensor) and losses.dim() == 1 and len(losses) == batch * self.count
        return losses.unflatten(0, (batch, self.count)).mean(1) if ours else losses


def _together(value: Any) -> Any:
    several = isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.dim() > 1
    return value.flatten(0, 1) if several else value
