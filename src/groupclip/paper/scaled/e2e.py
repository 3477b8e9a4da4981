"""E2E on two CPU cores: a twin of the paper's table "Test score of text generation on E2E dataset".

What is smaller: GPT2-small, -medium and -large (12 to 36 blocks, pretrained on the web) become GPT-2s of 2 and 4 blocks, 128
wide, pretrained here on fifty thousand public sentences (:mod:`.e2e_pretraining`); ten epochs become a quarter of one; beam
search becomes the likeliest token each time. The private records are all 42,061 pairs of E2E's training set, so one pair is
the unit, and not a restaurant. Learning rate 1e-3, AdamW with weight decay 0.01 and automatic clipping are the paper's.

Scores: perplexity of a token over the first pairs of the development set, and BLEU and ROUGE-L of one text for each of its
first meaning representations against all their references. Names are taken out before training and put back before scoring.

A private run has no seed: its batches and noise come from the operating system. ``seed`` numbers repetitions; without privacy
it draws the order of the records.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..settings import TrainSettings
from ..source import needed_files
from ..workload import Workload
from .before import scores_before
from .e2e_data import E2E, collate, encode, read_e2e, read_table
from .e2e_made import write_made
from .e2e_pretraining import PUBLIC, Recipe, Shape, losses, made_files, pretrained
from .e2e_scores import Asked, scores
from .experiment import ScaledCell, ScaledExperiment

NAME = "e2e-small"
STYLES = ("all-layer", "param-wise", "layer-wise", "block-wise")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Says how large the experiment is; one value for tests and one for results."""

    shapes: Mapping[str, Shape]
    recipe: Recipe
    epsilons: Sequence[float]
    seeds: Sequence[int]
    settings: TrainSettings
    pairs: int  # of the development set: for the perplexity
    tables: int  # of the development set: to write texts for


FULL = Scale(
    shapes={"gpt2-2": Shape(blocks=2), "gpt2-4": Shape(blocks=4)},
    recipe=Recipe(),
    epsilons=(3.0, 8.0),
    seeds=(0, 1, 2),
    settings=TrainSettings(
        epsilon=None, delta=1e-5, batch_size=512, steps=20, microbatch=64, lr=1e-3, weight_decay=0.01
    ),
    pairs=512,
    tables=128,
)
SMOKE = Scale(
    shapes={"gpt2-tiny": Shape(width=16, heads=2, blocks=2, vocabulary=300)},
    recipe=Recipe(steps=4, batch_size=8),
    epsilons=(8.0,),
    seeds=(0,),
    settings=dataclasses.replace(FULL.settings, batch_size=20, steps=3, microbatch=8),
    pairs=16,
    tables=4,
)


@dataclass(frozen=True)
class Folders:
    """Where the data lie, and where the vocabulary and pretrained weights are kept."""

    data: Path
    kept: Path


def cells(scale: Scale, folders: Folders) -> list[ScaledCell]:
    """Return all runs: repetition by repetition, so that a suite which is stopped has whole ones."""
    make = functools.partial(_cell, scale, folders)
    made: list[ScaledCell] = []
    for seed in scale.seeds:
        for name in scale.shapes:
            made.append(make(name, seed, None, ""))
            made += [make(name, seed, epsilon, style) for epsilon in scale.epsilons for style in STYLES]
    return made


def _cell(scale: Scale, folders: Folders, name: str, seed: int, epsilon: float | None, style: str) -> ScaledCell:
    clip = "" if epsilon is None else "automatic"
    cell = {"model": name, "data": "e2e", "epsilon": epsilon, "clipping": style, "clip": clip, "seed": seed}
    settings = dataclasses.replace(scale.settings, epsilon=epsilon, seed=seed)
    if epsilon is not None:
        settings = dataclasses.replace(settings, clipping=style, clip=clip)
    return ScaledCell(cell=cell, settings=settings, build=functools.partial(build, scale, name, folders))


def build(scale: Scale, name: str, folders: Folders) -> Workload:
    """Return a fresh copy of the pretrained model, on the private pairs."""
    shape = scale.shapes[name]
    files = {E2E: "gzip of JSON lines with split, mr and refs"}
    if not all(file.exists() for file in made_files(folders.kept, shape, scale.recipe)):
        files |= {file: f"gzip of JSON lines with {' and '.join(fields)}" for file, fields in PUBLIC.items()}
    needed_files(folders.data, files)
    base, tokenizer = _public_model(shape, scale.recipe, folders)
    model = copy.deepcopy(base)
    found = read_e2e(folders.data / E2E)
    train = [(table.prompt, table.hide(text)) for table, text in _pairs(found["train"])]
    dev = [(table.prompt, table.hide(text)) for table, text in _pairs(found["dev"])]
    asked = [Asked(read_table(mr), tuple(references)) for mr, references in found["dev"][: scale.tables]]
    evaluate = functools.partial(
        scores, tokenizer=tokenizer, records=encode(tokenizer, dev[: scale.pairs]), asked=asked
    )
    described: Mapping[str, object] = {
        "private": f"{E2E}: all {len(train)} training pairs; one pair is the unit",
        "test": f"{min(len(dev), scale.pairs)} pairs of the development set, texts for {len(asked)} of its tables",
        "public": f"sentences of {', '.join(PUBLIC)}",
        "pretraining": dataclasses.asdict(scale.recipe),
        "shape": dataclasses.asdict(scale.shapes[name]),
        "before": scores_before(evaluate, base, (NAME, name, folders)),
        "parameters": sum(p.numel() for p in model.parameters()),
        "precision": "bfloat16 by autocast; norms, sums and noise in float32",
        "seed": "a repetition's number: private runs draw from the operating system",
    }
    return Workload(
        name=f"E2E, {name}",
        model=model,
        train=encode(tokenizer, train),  # type: ignore[arg-type]
        collate=collate,
        losses=losses,
        evaluate=evaluate,
        description=described,
    )


def _pairs(rows: Sequence[tuple[str, list[str]]]) -> list[tuple[Any, str]]:
    return [(table, text) for mr, references in rows for table in [read_table(mr)] for text in references]


@functools.cache
def _public_model(shape: Shape, recipe: Recipe, folders: Folders) -> tuple[nn.Module, Any]:
    return pretrained(folders.data, folders.kept, shape, recipe)


def real_cells(data: Path, kept: Path) -> list[ScaledCell]:
    """Return the cells of docs/reproduction."""
    return cells(FULL, Folders(data, kept))


def smoke_cells(folder: Path) -> list[ScaledCell]:
    """Return a few tiny cells on made-up tables, which are written into the folder."""
    write_made(folder, train=60, dev=8)
    return cells(SMOKE, Folders(folder, folder / "public"))


EXPERIMENTS = [
    ScaledExperiment(
        name=NAME,
        title="a small GPT-2, pretrained on public sentences, fine-tuned privately on E2E",
        twin="e2e",
        cells=real_cells,
        smoke=smoke_cells,
    )
]
