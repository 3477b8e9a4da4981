"""Several views of each sample, clipped as one: augmentation multiplicity (De et al. 2022).

The model is called with ``[B, K, ..]``, K views of each of B samples. Each sample then runs alone as a batch of its own K rows. Its
loss is the mean over them, so its gradient is the mean of theirs, which is clipped once: the sample adds at most the threshold,
whatever K is. So views cost no privacy.

The views of a sample stand in a dimension of their own. Were they rows in turn, views in another order (``torch.cat`` of K batches)
would mix samples in every unit, and nobody would see it.
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
        """Return the inputs, all of whose tensors hold samples.

        Raises:
            ValueError: a tensor that isn't ``[B, K, ..]``.
        """
        tensors = [t for t in tensors_in((args, kwargs)) if t.dim() > 0]
        shapes = {tuple(t.shape[:2]) for t in tensors}
        if len(shapes) != 1 or next(iter(shapes))[1:] != (self.count,):
            raise ValueError(
                f"with views={self.count} every tensor is [B, {self.count}, ..], the views of a sample in dimension 1, and the "
                f"tensors have the shapes {[tuple(t.shape) for t in tensors]}: torch.stack([augment(x) for _ in range("
                f"{self.count})], 1) makes them, x.unsqueeze(1).expand(-1, {self.count}) repeats what all views share. What isn't "
                "of the samples belongs into the model"
            )
        return Inputs(args, kwargs, frozenset(map(id, tensors)), tensors[0].shape[0])

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

    def means(self, losses: Tensor, batch: int) -> Tensor:
        """Return the mean of each sample's losses, ``[B]``, of ``[B, K]``; ``[B]`` and what is no loss at all stay as they are."""
        ours = isinstance(losses, Tensor) and losses.shape == (batch, self.count)
        return losses.mean(1) if ours else losses


def _together(value: Any) -> Any:
    return value.flatten(0, 1) if isinstance(value, Tensor) and value.dim() > 0 else value
