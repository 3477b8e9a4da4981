"""Why an entry of the zoo is refused in a style, or has operations that no closed form covers: one sentence each.

A test demands a reason for whatever is refused or has no rule, so the table of results has no unexplained row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groupclip.autograd.operation import SLOW, VMAP

#: The operation is exact, on parameters that are expanded for each sample.
EXPANDED = {
    "where": "the learnt position bias is masked by `where`, which no rule covers",
    "cdist": "distances to learnt codes: no rule covers `cdist`",
    "getitem": "the rows of a bare parameter that are read depend on the sample",
}

#: Entries that have no blocks for the block-wise style.
NO_BLOCKS = {
    "ALBERT": "all its layers are one shared block, so nothing repeats",
    "": "a few layers, none of which repeats",  # every hand-written entry but the mixture of experts
}


def why_no_blocks(name: str) -> str:
    return next(reason for start, reason in NO_BLOCKS.items() if name.startswith(start))


def why_without_rule(name: str, operations: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Way and operations -> reason.

    Raises:
        KeyError: an operation without a rule that nobody has explained, or samples that run one at a time: of no entry they do.
    """
    if SLOW in operations:
        raise KeyError(f"the samples of {name!r} run one at a time")
    return {f"{operation} ({VMAP})": EXPANDED[operation] for operation in operations.get(VMAP, ())}
