"""What a model keeps of its samples from pass to pass, without noise: running means, codebooks, banks of features.

Such a thing is data in the model. It is looked for by making passes on other samples, with the same random draws, and
comparing everything that is left behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import PrivacyViolation
from .replay import Replays, Trace
from .wording import listed

Arguments = tuple[Any, ...]


def notes_on_memory(replays: Replays, batches: Sequence[Arguments], traces: Sequence[Trace], round_: int) -> list[str]:
    """Return what is kept of the samples, and does no harm to the guarantee as long as nobody looks at it.

    Args:
        replays: of the model and its loss.
        batches: of two samples, others in each.
        traces: what a pass of that round on each left behind.

    Raises:
        PrivacyViolation: it is saved with the weights, or later passes depend on it.
    """
    first, *others = traces
    kept = {name: saved for other in others for name, saved in first.differing(other).items()}
    if not kept:
        return []
    saved = [name for name, is_saved in kept.items() if is_saved]
    if saved:
        raise PrivacyViolation(
            f"{_tell(replays, saved)} changes with the samples of a forward pass: it holds statistics of the data without noise, "
            f"and is saved with the weights. {_CURE}"
        )
    for other in batches[1:]:
        histories = [_after(replays, [batch, batches[0]], round_) for batch in (batches[0], other)]
        lasting = list(histories[0][1].differing(histories[1][1]))
        if lasting:
            raise PrivacyViolation(
                f"{_tell(replays, lasting)} holds what earlier batches put there, without noise, and nothing tells that "
                f"later passes don't use it. {_CURE}. If it is a log, keep it outside the model (engine.unsafe_look tells of it)"
            )
        readers = [
            histories,
            [_after(replays, [batch, batches[0]], round_, evaluate=True) for batch in (batches[0], other)],
        ]
        if any(not _close(a[0], b[0]) for a, b in readers):
            raise PrivacyViolation(
                f"{_tell(replays, list(kept))} holds what the last batch put there, without noise, and the next pass reads "
                f"it. {_CURE}"
            )
    return [f"{_tell(replays, list(kept))} holds what the last batch put there: don't publish it with the model"]


_CURE = (
    "Leave it fixed while training privately (compute it from public data, or put that module in eval mode), or let it depend on "
    "the weights alone"
)


def _after(replays: Replays, history: Sequence[Arguments], round_: int, evaluate: bool = False) -> tuple[Tensor, Trace]:
    """Return losses of the last of several passes, and what they left."""
    with replays.alike((0, 1), round_), torch.no_grad():
        for arguments in history[:-1]:
            replays.loss(arguments)
        if evaluate:
            replays.model.eval()
        losses = replays.loss(history[-1]).detach()
        return losses, replays.trace()


def _close(x: Tensor, y: Tensor) -> bool:
    tolerance = torch.finfo(x.dtype).eps * 16 if x.is_floating_point() else 0.0
    return x.shape == y.shape and torch.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)


def _tell(replays: Replays, names: list[str]) -> str:
    """Return the values by name, with the class of the module that the first is in."""
    module, _, _ = names[0].rpartition(".")
    modules = dict(replays.model.named_modules())
    where = f" of module {module!r} ({type(modules[module]).__name__})" if module and module in modules else ""
    return f"{listed(names)}{where}" if len(names) == 1 else listed(names)
