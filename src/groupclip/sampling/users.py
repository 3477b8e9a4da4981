"""User-level privacy: a user's samples are one unit, drawn together and clipped as one.

The engine clips what lies along dimension 0 of the model's input. So a batch of users is ``[U, k, ..]``, U users with k
samples each; :class:`PerUser` runs the model on all U k samples at once; and the loss of a user is one number, the mean
over that user's samples. Whatever k is, one user adds at most the threshold.
"""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map


class PerUser(nn.Module):
    """Makes a model of samples a model of users. Attach this module; it trains the model inside.

    Args:
        model: takes samples along dimension 0 of every tensor it is given.

    ``forward`` takes tensors ``[U, k, ..]`` and returns tensors ``[U, k, ..]``; ValueError for one of another shape.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model on the samples of U users, k each; every tensor is ``[U, k, ..]``. ValueError for one of another shape."""
        shape: list[tuple[int, int]] = []

        def together(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if leaf.dim() < 2 or (shape and leaf.shape[:2] != shape[0]):
                raise ValueError(
                    f"an input of PerUser has shape {tuple(leaf.shape)}; it needs [U, k, ..] for every tensor"
                )
            shape.append((leaf.shape[0], leaf.shape[1]))
            return leaf.flatten(0, 1)

        arguments, keywords = tree_map(together, (inputs, named))
        outputs = self.model(*arguments, **keywords)

        def apart(leaf: Any) -> Any:
            return leaf.unflatten(0, shape[0]) if isinstance(leaf, Tensor) else leaf

        return tree_map(apart, outputs)


def user_losses(losses: Tensor) -> Tensor:
    """Return one loss a user, ``[U]``: the mean of the losses ``[U, k]`` (or ``[U k]``-shaped as ``[U, k, ..]``) of its samples.

    Raises:
        ValueError: losses in one row, ``[U k]``.
    """
    if losses.dim() < 2:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}; give the losses of each user's samples, [U, k]: "
            "losses.unflatten(0, (U, k)) if they are in one row"
        )
    return losses.flatten(1).mean(1)
