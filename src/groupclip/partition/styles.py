"""The clipping styles: which group each trainable parameter belongs to.

The styles are those of the paper's Table 1 and of its section "Uniform v.s. non-uniform design of grouping".
Every function here returns ``{parameter name: group name}`` over the names it was given. The same noise
covers all of them: the noise-to-sensitivity ratio doesn't depend on the grouping (the paper's remark there).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Protocol

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from .blocks import find_blocks

STYLES = (
    "all-layer",
    "layer-wise",
    "param-wise",
    "block-wise",
    "type-wise",
    "per-device",
    "uniform:M",
    "boundaries:2,6",
    "planned:4",
    "planned:12GB",
)
PLANNED = "planned:"
ROOT = "(model)"  # the layer-wise group of parameters that the model itself owns: its qualified name is ""
KINDS = {
    "linear": (nn.Linear, nn.Bilinear, nn.MultiheadAttention),  # the last one owns its in-projection itself
    "conv": (_ConvNd,),
    "norm": (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
}

Groups = dict[str, str]
Parameters = Mapping[str, nn.Parameter]


class Style(Protocol):
    """Gives every trainable parameter the name of its group. ``style`` is the whole word, with what stands behind the colon."""

    def __call__(self, model: nn.Module, trainable: Parameters, style: str, /) -> Groups: ...


def named_style(model: nn.Module, trainable: Parameters, style: str) -> Groups:
    """Return the groups of a style given by its name; ``ValueError`` for an unknown one says which is closest."""
    head, colon, _ = style.partition(":")
    if head not in NAMED or bool(colon) != (head in _WITH_ARGUMENT):
        raise ValueError(_unknown(style))
    return NAMED[head](model, trainable, style)


def _unknown(style: str) -> str:
    # Compared without the argument, so that "unifrom:4" finds "uniform:M".
    heads = {known.partition(":")[0]: known for known in STYLES}
    near = difflib.get_close_matches(style.lower().partition(":")[0].replace("_", "-"), heads, n=1)
    hint = f" Did you mean {heads[near[0]]!r}?" if near else ""
    return (
        f"unknown clipping style {style!r}.{hint} Styles: {', '.join(STYLES)}; or a mapping from parameter "
        "names or patterns to group names, or a function from parameter name to group name"
    )


# ------------------------------------------------------------------------------ layers and kinds of layer


def _layer(name: str) -> str:
    """Return the module that owns a parameter. A parametrized weight (weight norm ...) is its layer's own."""
    owner = name.rpartition(".")[0]
    if owner.startswith("parametrizations."):
        owner = ""
    return owner.partition(".parametrizations.")[0] or ROOT


def _kind(model: nn.Module, name: str) -> str:
    """linear, conv, norm, embedding, recurrent or other, by the class of the layer.

    By torch's classes, else by the name of the class: nobody's RMSNorm derives from a common base. GPT-2's
    ``Conv1D`` has a matrix for a weight, so it is a linear layer. What a module of many layers owns itself
    (a class token, a LayerScale) is ``other``, whatever that module is called.
    """
    layer = _layer(name)
    module = model if layer == ROOT else model.get_submodule(layer)
    for kind, classes in KINDS.items():
        if isinstance(module, classes):
            return kind
    inner = [child for part, child in module.named_children() if part != "parametrizations"]
    if any(True for child in inner for _ in child.parameters()):
        return "other"
    title = type(module).__name__.lower()
    kind = next((kind for kind in ("norm", "embedding", "linear", "conv") if kind in title), "other")
    return "linear" if kind == "conv" and all(p.ndim <= 2 for p in module.parameters()) else kind


# ------------------------------------------------------------------------------ blocks, uniform, non-uniform


def _block_wise(model: nn.Module, trainable: Parameters) -> Groups:
    blocks = find_blocks(model)
    if not blocks:
        raise ValueError(
            f"'block-wise': found no repeated blocks that train in {type(model).__name__} (two modules or "
            "more with several parameters each, in a ModuleList, or of one class in a Sequential or under "
            "numbered names); use 'layer-wise', 'uniform:M' (which then splits the layers), or a mapping"
        )
    return {name: f"block-{unit + 1}" for name, unit in _units_by_block(trainable, blocks).items()}


def _uniform(model: nn.Module, trainable: Parameters, style: str) -> Groups:
    text = style.partition(":")[2]
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise ValueError(f"{style!r}: M must be a whole number of groups, 1 or more, as in 'uniform:4'")
    groups = int(text)
    units, count, what = units_of(model, trainable)
    if groups > count:
        raise ValueError(
            f"{style!r}: found {count} {what}, too few for {groups} groups; use 'uniform:{count}' or fewer "
            "groups, 'layer-wise', or a mapping"
        )
    # The first groups take what is left over: the lower a group, the more memory is free when it is clipped.
    small, extra = divmod(count, groups)
    starts = [m * small + min(m, extra) for m in range(1, groups)]
    return _cut(units, starts)


def _boundaries(model: nn.Module, trainable: Parameters, style: str) -> Groups:
    text = style.partition(":")[2]
    if not re.fullmatch("[0-9]+(,[0-9]+)*", text):
        raise ValueError(
            f"{style!r}: boundaries are whole numbers with commas between them, as in 'boundaries:2,6'"
        )
    starts = [int(part) for part in text.split(",")]
    if any(a >= b for a, b in pairwise(starts)):
        raise ValueError(f"{style!r}: boundaries must increase, else a group is empty")
    units, count, what = units_of(model, trainable)
    outside = [b for b in starts if not 0 < b < count]
    if outside:
        raise ValueError(
            f"{style!r}: {', '.join(map(str, outside))} would leave a group empty: found {count} {what}, so "
            f"boundaries lie above 0 and below {count}"
        )
    return _cut(units, starts)


def units_of(model: nn.Module, trainable: Parameters) -> tuple[dict[str, int], int, str]:
    """Return what uniform and boundaries count: blocks, or layers in a model without repeated blocks."""
    blocks = find_blocks(model)
    if blocks:
        return _units_by_block(trainable, blocks), len(blocks), f"blocks ({blocks[0]} to {blocks[-1]})"
    order: dict[str, int] = {}
    units = {name: order.setdefault(_layer(name), len(order)) for name in trainable}
    return units, len(order), "layers (and no repeated blocks)"


def _units_by_block(trainable: Parameters, blocks: tuple[str, ...]) -> dict[str, int]:
    """Index of the block of each parameter; one outside joins the block before it, or the first block."""
    units, current = {}, 0
    for name in trainable:
        current = next((i for i, block in enumerate(blocks) if name.startswith(f"{block}.")), current)
        units[name] = current
    return units


def _cut(units: Mapping[str, int], starts: list[int]) -> Groups:
    """group-1 holds the units below ``starts[0]``, group-2 those from there to below ``starts[1]``, ..."""
    return {name: f"group-{1 + sum(unit >= start for start in starts)}" for name, unit in units.items()}


def _planned(model: nn.Module, trainable: Parameters, style: str) -> Groups:
    raise ValueError(
        f"{style!r} needs an example batch, because only a batch shows how large activations are: "
        "partition(model, style, batch=example_batch), or gc.plan(model, example_batch, ...).partition"
    )


#: What stands before the colon of a style -> its groups. ``STYLES`` says how each is written.
NAMED: dict[str, Style] = {
    "all-layer": lambda model, trainable, style: dict.fromkeys(trainable, "all"),
    "layer-wise": lambda model, trainable, style: {name: _layer(name) for name in trainable},
    "param-wise": lambda model, trainable, style: {name: name for name in trainable},
    "type-wise": lambda model, trainable, style: {name: _kind(model, name) for name in trainable},
    "per-device": lambda model, trainable, style: {name: str(p.device) for name, p in trainable.items()},
    "block-wise": lambda model, trainable, style: _block_wise(model, trainable),
    "uniform": _uniform,
    "boundaries": _boundaries,
    "planned": _planned,
}
_WITH_ARGUMENT = {known.partition(":")[0] for known in STYLES if ":" in known}


# ------------------------------------------------------------------------------ a mapping, a function


def mapped(model: nn.Module, trainable: Parameters, mapping: Mapping[str, str]) -> Groups:
    """Return groups by exact parameter name, else by fnmatch patterns; a tied parameter goes by any of its names.

    ``ValueError`` for a key that matches no trainable parameter, a parameter that no key matches, and one
    that two keys of equal rank (two exact names, or two patterns) put in different groups. An exact name wins
    over patterns, so one exception to a pattern is one line.
    """
    names_of = {id(p): [] for p in trainable.values()}
    frozen = []
    for name, p in model.named_parameters(remove_duplicate=False):
        names_of.get(id(p), frozen).append(name)
    for key in mapping:
        if not any(_matches(key, name) for names in names_of.values() for name in names):
            why = "only frozen parameters" if any(_matches(key, name) for name in frozen) else "no parameter"
            known = [name for names in names_of.values() for name in names]
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"mapping key {key!r} matches {why}: take it out or correct it{hint}")
    return {name: _group_by_mapping(name, names_of[id(p)], mapping) for name, p in trainable.items()}


def _group_by_mapping(name: str, aliases: list[str], mapping: Mapping[str, str]) -> str:
    keys = [key for key in mapping if key in aliases] or [
        key for key in mapping if any(_matches(key, alias) for alias in aliases)
    ]
    tied = f" (tied: {', '.join(aliases)})" if len(aliases) > 1 else ""
    if not keys:
        raise ValueError(f"parameter {name!r}{tied} is in no group: no key of the mapping matches; add one")
    if len({mapping[key] for key in keys}) > 1:
        claims = ", ".join(f"{key!r} -> {mapping[key]!r}" for key in keys)
        raise ValueError(
            f"parameter {name!r}{tied} is in more than one group: {claims}; a parameter is clipped once, so "
            "narrow the patterns, or give it by its exact name, which wins over patterns"
        )
    return mapping[keys[0]]


def _matches(key: str, name: str) -> bool:
    return key == name or fnmatchcase(name, key)


def computed(trainable: Parameters, function: Callable[[str], str]) -> Groups:
    """Return groups by a function from parameter name (the first one, if tied) to group name."""
    return {name: function(name) for name in trainable}
