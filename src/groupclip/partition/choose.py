"""From a style to the groups of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .groups import Partition

if TYPE_CHECKING:
    from torch import nn

#: The beginning of a style's name -> what makes its groups from a model, the style and an example batch.
_BY_BATCH: dict[str, Callable[[nn.Module, str, Any], Partition]] = {}


def register_style(beginning: str, groups_of: Callable[[nn.Module, str, Any], Partition]) -> None:
    """Let styles whose name begins so, such as ``planned:``, be made by ``groups_of(model, style, batch)``.

    For styles that depend on more than names and shapes: what makes them imports this room, and isn't imported by it.
    """
    _BY_BATCH[beginning] = groups_of


def partition(
    model: nn.Module, style: str | Mapping[str, str] | Callable[[str], str], *, batch: Any = None
) -> Partition:
    """Put every trainable parameter of ``model`` in exactly one group (the paper's Table 1, and beyond).

    ``style`` is one of

    ==================  ==================================================================================
    ``all-layer``       one group, ``all``: flat clipping
    ``layer-wise``      one per module that owns parameters, by its name (the model itself: ``(model)``)
    ``param-wise``      one per parameter, named as the parameter
    ``block-wise``      one per repeated block (:func:`groupclip.partition.blocks.find_blocks`): ``block-1`` ...
    ``type-wise``       by kind of layer: linear, conv, norm, embedding, recurrent, other
    ``per-device``      by the device that holds the parameter: ``cpu``, ``cuda:0``, ...
    ``uniform:M``       ``group-1`` to ``group-M`` of consecutive blocks, as many in each, give or take one
    ``boundaries:2,6``  non-uniform: ``group-1`` is blocks 0 and 1, ``group-2`` 2 to 5, ``group-3`` the rest
    ``planned:4``       at most 4 groups of consecutive layers with the least peak memory, and their norm methods
    ``planned:12GB``    the fewest groups with which a step fits in a device of so many bytes, and norm methods
    a mapping           from parameter names or fnmatch patterns to group names; exact names win
    a function          from parameter name to group name
    ==================  ==================================================================================

    A parameter outside the blocks joins the block registered before it, or the first block if there is none:
    embeddings go with the first block, the final norm and the head with the last. In a model without repeated
    blocks ``uniform:M`` and ``boundaries`` count layers (modules that own parameters) instead. The planned
    styles need ``batch``, an example of a physical batch as :func:`groupclip.plan` takes it; its values don't
    matter, and without an optimizer its state isn't counted (``groupclip.plan`` can). Parameters
    with ``requires_grad=False`` are left out. A tied parameter is one parameter, under the first of its
    names; a mapping may use any of them.

    Raises ``ValueError`` for an unknown style, numbers that leave a group empty, a mapping that misses a
    parameter, claims one twice or matches nothing, and a model in which nothing trains; ``TypeError`` for a
    style of another type and for group names that aren't strings.
    """
    # here, so that what only counts epsilon doesn't wait for torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.parameter import is_lazy

    from .styles import computed, mapped, named_style

    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        model = model.module  # names are those that one process has
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters, so there is nothing to clip; set "
            "requires_grad=True on what is to be trained"
        )
    lazy = [name for name, p in trainable.items() if is_lazy(p)]
    if lazy:
        raise ValueError(f"{', '.join(lazy)}: not shaped yet (lazy module); run the model once before this")
    if isinstance(style, str) and batch is not None:
        for beginning, groups_of in _BY_BATCH.items():
            if style.startswith(beginning):
                return groups_of(model, style, batch)
    if isinstance(style, str):
        group_of, label = named_style(model, trainable, style), style
    elif isinstance(style, Mapping):
        group_of, label = mapped(model, trainable, style), "mapping"
    elif callable(style):
        group_of, label = computed(trainable, style), "function"
    else:
        raise TypeError(f"style must be a string, a mapping or a function, not {type(style).__name__}")
    members: dict[str, list[str]] = {}
    for name, group in group_of.items():
        if not isinstance(group, str):
            raise TypeError(f"group name {group!r} of parameter {name!r} must be a string")
        members.setdefault(group, []).append(name)
    return Partition(
        style=label,
        groups=tuple((group, tuple(names)) for group, names in members.items()),
        numbers=tuple(sum(trainable[name].numel() for name in names) for names in members.values()),
    )
