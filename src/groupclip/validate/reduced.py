"""A loss that comes as a single number: whether it is the mean or the sum of its samples' losses, as ``loss_reduction`` claims."""

from __future__ import annotations

import math

import torch

from ..errors import PrivacyViolation
from .replay import Replays, Script
from .samples import Batch
from .tolerance import Tolerance


def what_is_wrong(replays: Replays, data: Batch) -> Exception:
    """Return the error to raise for a loss function that gives one number for a batch."""
    replays.scripts[0] = Script([], [], chance=False)  # draws are constants
    everyone = range(replays.total)
    losses = [_loss(replays, data, samples) for samples in (tuple(everyone), *((i,) for i in everyone))]
    (whole, *each), bound = [loss for loss, _ in losses], max(bound for _, bound in losses)
    for reduction, own in (("mean", sum(each) / len(each)), ("sum", sum(each))):
        if math.isclose(whole, own, rel_tol=bound, abs_tol=bound * max(map(abs, each))):
            return ValueError(
                f"loss_fn gave a single number, for these samples the {reduction} of their losses; it must give one loss per "
                f"sample, [B]: use reduction='none'. (loss_reduction={reduction!r} of groupclip.attach would take it as it is)"
            )
    return PrivacyViolation(
        "loss_fn gave a single number, which is neither the mean nor the sum of its samples' losses: it divides by a count over "
        "the batch, as a mean over all tokens does (the .loss of Hugging Face's language models). The lengths of other samples "
        "change a sample's weight in it, which loss_reduction='mean' doesn't see. Average the terms of each sample, e.g. "
        "(losses * mask).sum(1) / mask.sum(1), and use reduction='none'"
    )


def _loss(replays: Replays, data: Batch, samples: tuple[int, ...]) -> tuple[float, float]:
    """Return the loss of some samples, and how far it may be off: in a mean over tokens of equal losses, weights hardly show."""
    with replays.alike(samples) as made, torch.no_grad():
        loss = replays.loss(data.pick(*samples))
    dtype = torch.bfloat16 if made.draws.half else loss.dtype
    return float(loss), Tolerance.of(dtype).same
