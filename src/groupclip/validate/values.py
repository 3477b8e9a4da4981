"""Losses of samples in batches, by plain torch: each must be its loss alone, in any order and beside any others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import PrivacyViolation
from .mixing import blame
from .replay import Replays
from .samples import Batch
from .tolerance import Tolerance

LARGE = 1e6

ZEROED = "a sample zeroed out"
ENLARGED = "a sample's inputs a million times as large"


def another_order(size: int, known: int) -> list[int]:
    """Return all samples in an order, the same every time, in which none of the first ``known`` stands at its own place."""
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(size, generator=generator).tolist()
        if all(order[i] != i for i in range(known)):
            return order


def keep_apart(
    replays: Replays, data: Batch, order: Sequence[int], round_: int, alone: Mapping[int, float], tolerance: Tolerance,
    look: bool = False,
) -> tuple[list[float], bool]:  # fmt: skip
    """Check that some samples have their own losses in a batch of this order.

    Args:
        alone: sample -> its loss; of others nothing is known.
        look: whether to look at what the pass leaves.

    Returns:
        The losses of all, and whether the pass was seen to leave anything.

    Raises:
        PrivacyViolation: they aren't: names the module or the loss.
    """
    with replays.alike(order, round_) as made, torch.no_grad():
        losses = replays.loss(data.pick(*order))
        left = look and replays.left_by(made, replays.trace())
    if tuple(losses.shape) != (len(order),):
        raise PrivacyViolation(
            f"loss_fn gave losses of shape {tuple(losses.shape)} for a batch of {len(order)} samples: it must be ({len(order)},)"
        )
    for sample, here in zip(order, losses.tolist(), strict=True):
        if sample in alone and not tolerance.loss(here, alone[sample]):
            raise PrivacyViolation(blame(replays, data, round_, order))
    return losses.tolist(), left


def stands(replays: Replays, data: Batch, own: float, beside: float | None, tolerance: Tolerance) -> list[str]:
    """Check that the loss of sample 0 is the same, to a bit or two, whatever stands beside it.

    Args:
        own: its loss alone.
        beside: its loss with the last sample that is looked at beside it; None if that isn't known.

    Returns:
        Notes on what the model can't take.

    Raises:
        PrivacyViolation: it isn't.
    """
    last = replays.total - 1
    pairs = [("another sample beside it", data.pick(0, last), (0, last), beside)]
    pairs.append((ZEROED, data.changed([0, 1], times={1: 0.0}), (0, 1), None))
    if data.has_real_inputs:
        pairs.append((ENLARGED, data.changed([0, 1], times={1: LARGE}), (0, 1), None))
    notes, before = [], None
    for what, arguments, samples, known in pairs:
        try:
            here = _first_loss(replays, arguments, samples) if known is None else known
        except Exception as error:
            if what not in (ZEROED, ENLARGED):
                raise
            notes.append(f"not replayed, for the model can't take it ({type(error).__name__}): {what}")
            continue
        if not tolerance.loss(here, own) or not (before is None or tolerance.loss(here, before, same=True)):
            raise PrivacyViolation(
                f"{what}: the loss of another sample changes with it. An operation on the way mixes samples, if only a little, or "
                "when numbers are large"
            )
        before = here
    return notes


def _first_loss(replays: Replays, arguments: tuple[Any, ...], samples: tuple[int, int]) -> float:
    with replays.alike(samples), torch.no_grad():
        return float(replays.loss(arguments)[0])
