"""Thresholds from PUBLIC data: free, because nothing about the private data is looked at."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from groupclip.arguments import number
from groupclip.engine.attach import attach
from groupclip.partition.groups import Partition


def public_thresholds(
    model: nn.Module,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    batches: Iterable[Any],
    losses: Callable[[nn.Module, Any], Tensor],
    *,
    quantile: float = 0.5,
) -> dict[str, float]:
    """Choose R_m of every group: a quantile of its per-sample gradient norms on public data, at the model's present weights.

    Args:
        model: not attached; is left as it was.
        groups: as for :func:`groupclip.partition`.
        batches: of PUBLIC data: what comes out tells of them, without noise. On private data use
            :class:`groupclip.clipping.adaptive.Adaptive`.
        losses: (model, batch) -> one loss per sample, ``[B]``.
        quantile: in (0, 1].

    Raises:
        ValueError: no batch, a wrong quantile, or a group whose quantile is zero or not finite.
    """
    if not 0 < number("quantile", quantile) <= 1:
        raise ValueError(f"quantile={quantile!r} must be in (0, 1]")
    kept = {name: p.grad for name, p in model.named_parameters()}
    engine = attach(model, None, groups, None)
    norms: dict[str, list[Tensor]] = {name: [] for name in engine.partition.names}
    try:
        for batch in batches:
            engine.backward(losses(model, batch))
            for name, found in engine.unsafe_norms().items():
                norms[name].append(found.detach().double().cpu())
            engine.discard()
    finally:
        engine.detach()
        for name, p in model.named_parameters():
            p.grad = kept[name]
    if not next(iter(norms.values())):
        raise ValueError("batches is empty: thresholds need at least one batch of public data")
    thresholds = {name: float(torch.quantile(torch.cat(found), quantile)) for name, found in norms.items()}
    for name, bound in thresholds.items():
        if not 0 < bound < float("inf"):
            raise ValueError(
                f"the {quantile:g} quantile of the norms of group {name!r} is {bound}: no threshold can be made of it; use a "
                "higher quantile, or other data"
            )
    return thresholds
