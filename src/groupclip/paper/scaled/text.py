"""SST-2 on two CPU cores: a twin of the paper's table "Test accuracy of SST2 dataset", and of SST2's columns in the appendix.

What is smaller: RoBERTa-base and -large (12 and 24 blocks, 768 and 1,024 wide) become MiniLM (6 blocks, 384 wide), of which the
upper 1 or 2 blocks and a new head are trained; three epochs become a sixth of one, batches of 2,000 become 512. AdamW without
weight decay, its learning rate of 3e-4 and automatic clipping are the paper's; the rate falls in a line, which gave the same
accuracy and a lower loss than a constant one where public tweets stood in for the private set. One phrase is the unit. The
score is taken on the whole of GLUE's dev set, once.

The private records are 29,000 of each label. On the data set as it is (56 % positive) so few steps of automatic clipping call
too many texts positive: each sample has the same weight however right the model is about it, so what all gradients have in
common grows with the surplus of a label. Cells with ``data = sst2-as-it-is`` show that.

A private run has no seed: its batches and noise come from the operating system. ``seed`` numbers repetitions; without privacy
it draws the order of the records.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...clipping.adaptive import Adaptive
from ..settings import TrainSettings
from ..source import needed_files
from ..workload import Workload
from .before import scores_before
from .experiment import ScaledCell, ScaledExperiment
from .text_data import SST2, Read, balanced, collate, encode, read_sst2
from .text_made import tiny_bert, write_made
from .text_model import Classifier, blocks_of, losses, minilm, read, read_once, scores, upper
from .text_public import PUBLIC, public_texts

NAME = "sst2-small"
BALANCED, WHOLE = "sst2", "sst2-as-it-is"
STYLES = ("all-layer", "param-wise", "layer-wise", "block-wise")
ADAPTIVE = "layer-wise, adaptive"  # thresholds of He et al. 2022, the paper's "layer-wise*"

MakeModel = Callable[[], tuple[Classifier, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """Says how large the experiment is; one value for tests and one for results."""

    model: str
    make: MakeModel
    blocks: Sequence[int]  # that are trained
    each: int  # private records of either label, in the balanced part
    epsilons: Sequence[float]
    seeds: Sequence[int]
    settings: TrainSettings


FULL = Scale(
    model="minilm",
    make=minilm,
    blocks=(2, 1),
    each=29_000,
    epsilons=(3.0, 8.0),
    seeds=(0, 1, 2),
    settings=TrainSettings(
        epsilon=None, delta=1e-5, batch_size=512, steps=20, microbatch=64, lr=3e-4, schedule="linear"
    ),
)
SMOKE = Scale(
    model="tiny",
    make=tiny_bert,
    blocks=(2, 1),
    each=90,
    epsilons=(8.0,),
    seeds=(0,),
    settings=dataclasses.replace(FULL.settings, batch_size=40, steps=3, microbatch=16),
)


@dataclass(frozen=True)
class Folders:
    """Where the data lie, and where what frozen blocks make of texts is kept."""

    data: Path
    kept: Path


def cells(scale: Scale, folders: Folders) -> list[ScaledCell]:
    """Return all runs: repetition by repetition, so that a suite which is stopped has whole ones."""
    make = functools.partial(_cell, scale, folders)
    made: list[ScaledCell] = []
    for seed in scale.seeds:
        for blocks in scale.blocks:
            made.append(make(blocks, BALANCED, seed, None, "", ""))
            for epsilon in scale.epsilons:
                # with one block, blocks are no groups
                styles = STYLES if blocks > 1 else [style for style in STYLES if style != "block-wise"]
                made += [make(blocks, BALANCED, seed, epsilon, style, "automatic") for style in styles]
        most, largest = scale.blocks[0], scale.epsilons[-1]
        made += [make(most, BALANCED, seed, epsilon, ADAPTIVE, "abadi") for epsilon in scale.epsilons]
        made += [make(most, WHOLE, seed, largest, style, "automatic") for style in ("all-layer", "param-wise")]
    return made


def _cell(
    scale: Scale, folders: Folders, blocks: int, data: str, seed: int, epsilon: float | None, style: str, clip: str
) -> ScaledCell:
    model = f"{scale.model}-top{blocks}"
    cell = {"model": model, "data": data, "epsilon": epsilon, "clipping": style, "clip": clip, "seed": seed}
    settings = dataclasses.replace(scale.settings, epsilon=epsilon, seed=seed)
    if epsilon is not None and style == ADAPTIVE:
        settings = dataclasses.replace(settings, clipping="layer-wise", clip=clip, thresholds=Adaptive())
    elif epsilon is not None:
        settings = dataclasses.replace(settings, clipping=style, clip=clip)
    return ScaledCell(
        cell=cell, settings=settings, build=functools.partial(build, scale, folders, blocks, balance=data == BALANCED)
    )


def build(scale: Scale, folders: Folders, blocks: int, *, balance: bool) -> Workload:
    """Return the pretrained model with a new head, on all private records or as many of either label."""
    public = dict.fromkeys(PUBLIC, "public texts, of vaderSentiment 3.3.2")
    needed_files(folders.data, {SST2: "gzip of JSON lines with split, text and label", **public})
    base, train, dev = _prepare(scale, folders, blocks)
    model = copy.deepcopy(base)
    private = balanced(train, scale.each) if balance else train
    evaluate = functools.partial(scores, records=dev)
    described: Mapping[str, object] = {
        "private": f"{SST2}: {len(private)} training phrases" + (", as many of either label" if balance else ""),
        "unit": "one phrase",
        "test": f"the {len(dev)} sentences of GLUE's dev set",
        "public": f"all-MiniLM-L6-v2; every fourth text of {', '.join(PUBLIC)} standardises its features",
        "before": scores_before(evaluate, model, (NAME, scale.model, blocks, folders)),
        "trained": f"upper {blocks} blocks and head",
        "trained_parameters": sum(p.numel() for p in model.parameters()),
        "precision": "bfloat16 by autocast; norms, sums and noise in float32",
        "seed": "a repetition's number: private runs draw from the operating system",
    }
    return Workload(
        name=f"SST-2, upper {blocks} blocks",
        model=model,
        train=private,  # type: ignore[arg-type]
        collate=collate,
        losses=losses,
        evaluate=evaluate,
        description=described,
    )


@functools.cache
def _prepare(scale: Scale, folders: Folders, blocks: int) -> tuple[Classifier, list[Read], list[Read]]:
    """Return the upper blocks, and what the lower ones make of train and dev records: the same for all cells of a suite."""
    model, tokenizer = scale.make()
    model.standardise(encode(tokenizer, public_texts(folders.data))[::4])
    train, dev = read_sst2(folders.data)
    frozen = len(blocks_of(model)) - blocks
    file = folders.kept / f"{scale.model}-{frozen}-train.safetensors"
    private = read_once(file, model, encode(tokenizer, train), frozen)
    held_out = read(model, encode(tokenizer, dev), frozen)
    return upper(model, frozen), private, held_out


def real_cells(data: Path, kept: Path) -> list[ScaledCell]:
    """Return the cells of docs/reproduction."""
    return cells(FULL, Folders(data, kept))


def smoke_cells(folder: Path) -> list[ScaledCell]:
    """Return a few tiny cells on made-up phrases, which are written into the folder."""
    write_made(folder, train=200, dev=60)
    return cells(SMOKE, Folders(folder, folder / "public"))


EXPERIMENTS = [
    ScaledExperiment(
        name=NAME,
        title="the upper blocks of MiniLM, fine-tuned privately on SST-2",
        twin="sst2",
        cells=real_cells,
        smoke=smoke_cells,
    )
]
