"""Why an entry of the zoo is refused in a style, or has operations that no closed form covers: one sentence each.

A test demands a reason for whatever is refused or has no rule, so the table of results has no unexplained row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groupclip.autograd.operation import SLOW, VMAP

#: The operation is exact, and is replayed for all samples at once in the backward pass.
REPLAYED = {
    "where": "the learnt position bias is masked by `where`, which no rule covers",
    "cdist": "distances to learnt codes: no rule covers `cdist`",
    "getitem": "the rows of a bare parameter that are read depend on the sample",
}

#: Samples lie along no one dimension of what these layers meet: exact, one sample at a time, said in the log.
ONE_BY_ONE = {
    "mixture of experts": "each expert meets as many tokens as were sent to it, of whichever samples",
    "sorted samples": "in the middle the rows are in the order of their contents, not of the samples",
    "unpadded tokens": "samples of different lengths lie end to end",
    "two inputs in one stack": "in the first pass the second input may be a support set that is as long as the batch; a batch of "
    "another size settles it",
    "prompt, first state, tied": "the cell's first steps are the prompt, the same for all samples, its later steps are theirs",
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
        KeyError: an operation without a rule that nobody has explained.
    """
    reasons = {}
    if VMAP in operations:
        for operation in operations[VMAP]:
            reasons[f"{operation} ({VMAP})"] = REPLAYED[operation]
    if SLOW in operations:
        reasons[f"{', '.join(operations[SLOW])} ({SLOW})"] = ONE_BY_ONE[name]
    return reasons
