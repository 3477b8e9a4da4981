"""Turn names of the paper's tables into something that can be trained: data set, model, loss and score in one."""

from __future__ import annotations

from functools import partial

from torch import nn

from . import scores
from .data import e2e, glue, vision
from .data.facts import DatasetFacts
from .data.records import Records, facts_of, splits
from .pretrained import MODELS, NORMALISATION, PIXELS, ModelFacts, gpt2, model_facts, roberta, vision_transformer
from .source import Hub, Local, Source, StandIn
from .workload import Workload

FITS = {"vit": "image", "roberta": "sentences", "gpt2": "table-to-text"}
SENTENCE_TOKENS, PAIR_TOKENS = 256, 100  # the paper's settings table
FEWEST_TOKENS = 16  # room for a template
STAND_IN_NEW_TOKENS = 8  # a model that knows nothing never ends its sentence


def build(
    dataset: str, model: str, *, source: Source, image_size: int | None = None, length: int | None = None
) -> Workload:
    """Return a data set and a model of the paper's tables as a :class:`~groupclip.paper.workload.Workload`.

    Args:
        dataset: a key of ``data.facts.DATASETS``.
        model: a key of ``pretrained.MODELS``.
        source: :class:`Hub`, :class:`Local` or :class:`StandIn`.
        image_size: side of the images in pixels; the paper's 224 by default, and the only one that pretrained ViTs take.
        length: most tokens of a record; the paper's by default: 256, and 100 for E2E.

    Batches are tuples of tensors whose first dimension is the sample. A new classification head is drawn from torch's global
    generator (a stand-in's from its own seed).

    Raises:
        ValueError: unknown names, a model for another kind of data, a size that means nothing here.
        MissingSource: data, weights or a package that isn't here, and how to get it.
        WrongData: data or weights that aren't the published ones.
    """
    facts, kind = facts_of(dataset), model_facts(model)
    if FITS[kind.family] != facts.kind:
        fit = ", ".join(name for name, other in MODELS.items() if FITS[other.family] == facts.kind)
        raise ValueError(f"model {model!r} isn't for {dataset} ({facts.kind}); models for it: {fit}")
    if facts.kind == "image" and length is not None:
        raise ValueError(f"length={length} means nothing to images; set image_size")
    if facts.kind != "image" and image_size is not None:
        raise ValueError(f"image_size={image_size} means nothing to texts; set length")
    if length is not None and length < FEWEST_TOKENS:
        raise ValueError(f"length={length} must be at least {FEWEST_TOKENS} tokens: a template and some text")
    if facts.kind == "image":
        return _vision(dataset, facts, model, source, PIXELS if image_size is None else image_size)
    if facts.kind == "sentences":
        return _glue(dataset, facts, model, kind, source, SENTENCE_TOKENS if length is None else length)
    return _e2e(dataset, facts, model, kind, source, PAIR_TOKENS if length is None else length)


def _vision(dataset: str, facts: DatasetFacts, model: str, source: Source, size: int) -> Workload:
    net = vision_transformer(model, source, classes=facts.classes, image_size=size)
    found = splits(dataset, source)
    collate = vision.ImageBatches(NORMALISATION)
    tests = {name: vision.Images(found[split], facts.columns, size) for name, split in facts.tests.items()}
    return Workload(
        name=f"{dataset} {model}",
        model=net.train(),
        train=vision.Images(found[facts.train], facts.columns, size),
        collate=collate,
        losses=vision.losses,
        evaluate=partial(vision.score, tests=tests, collate=collate),
        description=_description(dataset, facts, model, net, source, found)
        | {
            "preprocessing": f"resized whole to {size} x {size} (bicubic), mean 0.5, std 0.5 for each channel; no augmentation"
        },
    )


def _glue(dataset: str, facts: DatasetFacts, model: str, kind: ModelFacts, source: Source, length: int) -> Workload:
    language = roberta(model, source, classes=facts.classes, length=length)
    found = splits(dataset, source)
    tests = {name: glue.Texts(found[split], facts.columns) for name, split in facts.tests.items()}
    about = _description(dataset, facts, model, language.model, source, found)
    if kind.variant == "infilling":
        collate = glue.InfillBatches(language.tokenizer, length, glue.TEMPLATES[dataset])
        net = glue.Infilling(language.model, collate.words())
        losses, evaluate = glue.infill_losses, partial(glue.infill_score, tests=tests, collate=collate)
        template = glue.TEMPLATES[dataset]
        about |= {
            "preprocessing": f"template '{template.middle}', label words {list(template.words)}, at most {length} tokens"
        }
    else:
        collate = glue.HeadBatches(language.tokenizer, length)
        net, losses = language.model, glue.head_losses
        evaluate = partial(glue.head_score, tests=tests, collate=collate)
        about |= {"preprocessing": f"at most {length} tokens; a new classification head on the first one"}
    return Workload(
        name=f"{dataset} {model}", model=net.train(), train=glue.Texts(found[facts.train], facts.columns),
        collate=collate, losses=losses, evaluate=evaluate, description=about,
    )  # fmt: skip


def _e2e(dataset: str, facts: DatasetFacts, model: str, kind: ModelFacts, source: Source, length: int) -> Workload:
    made_up = isinstance(source, StandIn)
    metrics = (
        scores.METRICS if not made_up else tuple(name for name in scores.METRICS if name not in scores.unavailable())
    )
    scores.require(metrics)  # before the training, not after it
    new_tokens = STAND_IN_NEW_TOKENS if made_up else e2e.NEW_TOKENS
    language = gpt2(model, source, length=length, new_tokens=new_tokens)
    found = splits(dataset, source)
    collate = e2e.PairBatches(language.tokenizer, length)
    test = e2e.Pairs(found[facts.tests["e2e"]], facts.columns)
    return Workload(
        name=f"{dataset} {model}",
        model=language.model.train(),
        train=e2e.Pairs(found[facts.train], facts.columns),
        collate=collate,
        losses=e2e.losses,
        evaluate=partial(e2e.score, test=test, collate=collate, metrics=metrics, new_tokens=new_tokens),
        description=_description(dataset, facts, model, language.model, source, found)
        | {
            "preprocessing": f"table, end of text, reference, end of text: at most {length} tokens; loss: mean over a "
            "record's own reference tokens",
            "decoding": f"beam search with {e2e.BEAMS} beams, at most {new_tokens} new tokens, one output a table",
            "metrics": list(metrics),
            "metrics_left_out": scores.unavailable() if made_up else {},
        },
    )


def _description(
    dataset: str, facts: DatasetFacts, model: str, net: nn.Module, source: Source, found: dict[str, Records]
) -> dict[str, object]:
    kind = model_facts(model)
    match source:
        case StandIn():
            where = "stand-ins: made records, a tiny model with random weights and as many layers"
        case Local(subset=subset):
            where = "a local folder" + (" that holds a part of the data set" if subset else "")
        case Hub():
            where = "the Hugging Face hub"
    return {
        "dataset": dataset,
        "model": model,
        "source": where,
        "data": {"hub": facts.hub, "config": facts.config, "licence": facts.licence},
        "sizes": {split: len(records) for split, records in found.items()},
        "published_sizes": dict(facts.sizes),
        "weights": kind.hub,
        "variant": kind.variant,
        "frozen": [parameter for parameter, p in net.named_parameters() if not p.requires_grad],
        "groups": dict(kind.groups),
        "groups_in_paper": dict(kind.paper),
    }
