"""Where a model repeats itself: its transformer or residual blocks, read from the module tree.

The paper groups "the transformer blocks" (section "Uniform v.s. non-uniform design of grouping") and takes
them as given; this file is the reading of that phrase for any module tree. No model is named here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from torch import nn

MINOR = 0.1  # a sequence of other blocks with less than this share of the largest one is a stem or a head


def find_blocks(model: nn.Module) -> tuple[str, ...]:
    """Qualified names of the repeated blocks of ``model`` that train, in registration order; may be empty.

    A *block* is a module with more inside than one layer: two modules that own parameters, or three
    parameters. A *sequence* is

    * the blocks in an ``nn.ModuleList`` or ``nn.ModuleDict``, of whatever class (hybrid models alternate), or
    * the blocks of one class in an ``nn.Sequential`` (the class with most coordinates), or
    * siblings of one class whose names differ by a number (``block1``, ``block2``),

    two or more of them. The outermost sequence wins: the experts or heads inside a block are not blocks. A
    bare container in a sequence stands for the blocks in it (``layer1`` to ``layer4`` of a ResNet), or for
    itself if nothing repeats there. Sequences beside each other (encoder and decoder) all count, except
    those of another class with less than a tenth of the largest one's coordinates (a stem before a ViT).

    Frozen parameters count in finding the blocks, so freezing doesn't change what a block is; then blocks in
    which nothing trains are left out, because a group of them would be empty.
    """
    sequences = list(_sequences(model, ""))
    if not sequences:
        return ()
    numbers = [sum(_numbers(block) for _, block in sequence) for sequence in sequences]
    largest = max(range(len(sequences)), key=lambda i: numbers[i])
    classes = {type(block) for _, block in sequences[largest]}
    kept = [
        sequence
        for sequence, size in zip(sequences, numbers, strict=True)
        if size >= MINOR * numbers[largest] or classes & {type(block) for _, block in sequence}
    ]
    trains = [name for name, p in model.named_parameters() if p.requires_grad]
    blocks = [name for sequence in kept for name, _ in sequence]
    return tuple(block for block in blocks if any(name.startswith(f"{block}.") for name in trains))


def _sequences(module: nn.Module, prefix: str) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the outermost sequences under ``module``, as lists of (qualified name, block)."""
    repeated = _repeated_children(module)
    run: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        deeper = [] if name in repeated and not _is_container(child) else list(_sequences(child, f"{path}."))
        if name in repeated and not deeper:
            run.append(_unwrap(child, path))
        if deeper and run:  # keep registration order: what lies deeper comes after the run so far
            yield run
            run = []
        yield from deeper
    if run:
        yield run


def _repeated_children(module: nn.Module) -> set[str]:
    """Return names of the children of ``module`` that stand in a sequence of two or more; maybe none.

    Of the classes repeated in an ``nn.Sequential`` only the largest counts: a first and a last layer of one
    class, around the blocks, are no sequence.
    """
    families: dict[object, dict[str, nn.Module]] = defaultdict(dict)
    for name, child in module.named_children():
        if not _is_block(child):
            continue
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            families["all"][name] = child
        elif isinstance(module, nn.Sequential):
            families[type(child)][name] = child
        elif re.search(r"\d", name):
            families[type(child), re.sub(r"\d+", "#", name)][name] = child
    repeated = [family for family in families.values() if len(family) > 1]
    if isinstance(module, nn.Sequential) and repeated:
        repeated = [max(repeated, key=lambda family: sum(map(_numbers, family.values())))]
    return {name for family in repeated for name in family}


def _unwrap(module: nn.Module, path: str) -> tuple[str, nn.Module]:
    """Return the block itself where a bare container holds just one: a stage of depth 1 among deeper ones."""
    inner = [(name, child) for name, child in module.named_children() if _numbers(child)]
    if _is_container(module) and len(inner) == 1 and _is_block(inner[0][1]):
        return _unwrap(inner[0][1], f"{path}.{inner[0][0]}")
    return path, module


def _is_block(module: nn.Module) -> bool:
    owners = sum(1 for m in module.modules() if any(True for _ in m.parameters(recurse=False)))
    return owners >= 2 or sum(1 for _ in module.parameters()) >= 3


def _is_container(module: nn.Module) -> bool:
    """Return whether ``module`` only holds others. By its forward: FSDP2 and others rename classes at run time."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) or (
        isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    )


def _numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
