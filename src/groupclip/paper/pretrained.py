"""The paper's models: ViT, RoBERTa and GPT-2 with public pretrained weights, or tiny ones with as many layers.

How many groups the styles make, against the paper's tables (layer-wise / param-wise; base or small first):

=========  =====================  =====================  ================================================================
model      paper                  here                   difference
=========  =====================  =====================  ================================================================
ViT        75/150, 147/294        equal                  with class token and positions frozen: the authors' public code
                                                         (fastDP) clips layers, and these two belong to none
RoBERTa    103/203, 199/395       103/202, 199/394       the word predictor's matrix is the word embedding: one
                                                         parameter, which fastDP counts once for each layer that uses it
GPT-2      76/149, 148/293,       equal                  with the head untied and started from the embedding, as in the
           220/437                                       authors' and Li et al.'s public code
=========  =====================  =====================  ================================================================

The other readings are there by name: ``roberta-base-head`` has a new classification layer in place of the word predictor
(102/201, 198/393), ``gpt2-small-tied`` keeps head and embedding one parameter (75/148, 147/292, 219/436).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..models.vit import VIT_SHAPES, VisionTransformer, ViTShape
from .data.records import WrongData
from .data.vision import Normalisation
from .source import Hub, Local, MissingSource, Source, StandIn, needed, reason
from .tokenizers import made_tokenizer

Family = Literal["vit", "roberta", "gpt2"]
PATCH, PIXELS = 16, 224
TINY_WIDTH, TINY_HEADS = 32, 2


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model of the paper's tables.

    family: what it is; ``vit`` for images, ``roberta`` for sentences, ``gpt2`` for tables to text.
    hub: the repository of its weights.
    blocks: transformer blocks.
    variant: ``infilling`` or ``head`` for RoBERTa, ``untied`` or ``tied`` for GPT-2, empty for ViTs.
    groups: style -> number of groups M that :func:`groupclip.partition` makes of it.
    paper: style -> M in the paper's tables; empty for readings that the paper doesn't have.
    """

    family: Family
    hub: str
    blocks: int
    variant: str = ""
    groups: Mapping[str, int]
    paper: Mapping[str, int]


def _facts(
    family: Family,
    hub: str,
    blocks: int,
    layers: int,
    parameters: int,
    variant: str = "",
    paper: tuple[int, int] | None = None,
) -> ModelFacts:
    groups = {"block-wise": blocks, "layer-wise": layers, "param-wise": parameters}
    in_paper: dict[str, int] = {} if paper is None else {"layer-wise": paper[0], "param-wise": paper[1]}
    return ModelFacts(family=family, hub=hub, blocks=blocks, variant=variant, groups=groups, paper=in_paper)


_TIMM = "timm/{}_patch16_224.augreg_in21k_ft_in1k"
_GPT2 = "openai-community/gpt2"
MODELS: dict[str, ModelFacts] = {
    "vit-small": _facts("vit", _TIMM.format("vit_small"), 12, 75, 150, paper=(75, 150)),
    "vit-base": _facts("vit", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", 12, 75, 150),
    "vit-large": _facts("vit", _TIMM.format("vit_large"), 24, 147, 294, paper=(147, 294)),
    "roberta-base": _facts("roberta", "FacebookAI/roberta-base", 12, 103, 202, "infilling", (103, 203)),
    "roberta-large": _facts("roberta", "FacebookAI/roberta-large", 24, 199, 394, "infilling", (199, 395)),
    "roberta-base-head": _facts("roberta", "FacebookAI/roberta-base", 12, 102, 201, "head"),
    "roberta-large-head": _facts("roberta", "FacebookAI/roberta-large", 24, 198, 393, "head"),
    "gpt2-small": _facts("gpt2", _GPT2, 12, 76, 149, "untied", (76, 149)),
    "gpt2-medium": _facts("gpt2", f"{_GPT2}-medium", 24, 148, 293, "untied", (148, 293)),
    "gpt2-large": _facts("gpt2", f"{_GPT2}-large", 36, 220, 437, "untied", (220, 437)),
    "gpt2-small-tied": _facts("gpt2", _GPT2, 12, 75, 148, "tied"),
    "gpt2-medium-tied": _facts("gpt2", f"{_GPT2}-medium", 24, 147, 292, "tied"),
    "gpt2-large-tied": _facts("gpt2", f"{_GPT2}-large", 36, 219, 436, "tied"),
}


def model_facts(model: str) -> ModelFacts:
    """Raise ``ValueError`` for a name that isn't in the paper's tables or beside them."""
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; models: {', '.join(MODELS)}")
    return MODELS[model]


def folder_of(model: str) -> str:
    """Return where a model's weights lie below ``models``: all readings of one model share them."""
    return model.removesuffix("-head").removesuffix("-tied")


# ------------------------------------------------------------------------------ ViT


def vision_transformer(name: str, source: Source, *, classes: int, image_size: int) -> VisionTransformer:
    """Return a ViT with patches of 16 pixels, a new head for ``classes``, class token and positions frozen.

    Weights are timm's, by name; timm itself isn't needed. The new head starts as timm's would: normal, 0.02, cut at 2.

    Raises:
        ValueError: pretrained weights for images that aren't 224 pixels wide: their positions are for 14 x 14 patches.
        MissingSource, WrongData: weights that aren't here, or are of another model.
    """
    facts = model_facts(name)
    tiny = isinstance(source, StandIn)
    if not tiny and image_size != PIXELS:
        raise ValueError(
            f"image_size={image_size}: the weights of {facts.hub} have positions for {PIXELS} pixels alone"
        )
    shape = ViTShape(dim=TINY_WIDTH, depth=facts.blocks, heads=TINY_HEADS) if tiny else VIT_SHAPES[name]
    file = None if isinstance(source, StandIn) else _weights_file(name, facts, source)
    with _seed(source):
        model = VisionTransformer(
            shape, channels=3, image_size=(image_size, image_size), num_classes=classes, patch_size=PATCH
        )
        nn.init.trunc_normal_(model.head.weight, std=0.02)
    if file is not None:
        _load_by_name(model, file)
    model.cls_token.requires_grad_(False)
    model.pos_embed.requires_grad_(False)
    return model


NORMALISATION = Normalisation()  # of the "augreg" checkpoints (Steiner et al. 2021): 0.5 and 0.5 for each channel


def _load_by_name(model: VisionTransformer, file: Path) -> None:
    library = needed("safetensors", "a vision transformer")
    try:
        weights = needed("safetensors.torch", "a vision transformer").load_file(str(file))
    except library.SafetensorError as error:
        raise WrongData(f"{file} is damaged or cut off ({error}); get it again") from error
    weights = {key: value for key, value in weights.items() if not key.startswith("head.")}
    own = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    wrong = sorted(set(own) ^ set(weights)) + [k for k in own if k in weights and own[k].shape != weights[k].shape]
    if wrong:
        raise WrongData(f"{file} isn't this vision transformer: {', '.join(wrong[:4])} differ; get it again")
    model.load_state_dict(weights, strict=False)


def _weights_file(name: str, facts: ModelFacts, source: Hub | Local) -> Path:
    if isinstance(source, Local):
        file = source.folder / "models" / folder_of(name) / "model.safetensors"
        if not file.is_file():
            raise MissingSource(f"model '{name}': there is no file {file}; {_how(name, facts)}")
        return file
    hub = needed("huggingface_hub", f"model '{name}'")
    try:
        return Path(hub.hf_hub_download(facts.hub, "model.safetensors"))
    except Exception as error:  # the library raises a dozen kinds for "can't be reached" and "isn't in the cache"
        raise MissingSource(_unreachable(name, facts, error)) from error


# ------------------------------------------------------------------------------ RoBERTa and GPT-2


@dataclass(frozen=True)
class LanguageModel:
    """A model of transformers and its tokenizer."""

    model: Any
    tokenizer: Any


def roberta(name: str, source: Source, *, classes: int, length: int) -> LanguageModel:
    """RoBERTa with its word predictor (``infilling``: ``RobertaForMaskedLM``) or with a new classification head.

    Its dropout stays as the checkpoint's configuration has it.
    """
    facts, library = model_facts(name), needed("transformers", f"model '{name}'")
    infilling = facts.variant == "infilling"
    kind = library.RobertaForMaskedLM if infilling else library.RobertaForSequenceClassification
    labels: dict[str, Any] = {} if infilling else {"num_labels": classes}
    if isinstance(source, StandIn):
        tokenizer = made_tokenizer("roberta")
        config = library.RobertaConfig(
            vocab_size=len(tokenizer), hidden_size=TINY_WIDTH, num_hidden_layers=facts.blocks, num_attention_heads=TINY_HEADS,
            intermediate_size=2 * TINY_WIDTH, max_position_embeddings=length + 2, type_vocab_size=1, layer_norm_eps=1e-5,
            pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, **labels,
        )  # fmt: skip
        with _seed(source):
            return LanguageModel(kind(config), tokenizer)
    found = _from_pretrained(name, facts, source, kind, labels)
    _check_length(length, found.model.config.max_position_embeddings - 2, facts)  # RoBERTa counts from 2
    return found


def gpt2(name: str, source: Source, *, length: int, new_tokens: int) -> LanguageModel:
    """GPT-2, its head one parameter with the embedding (``tied``) or a copy of it from there on (``untied``)."""
    facts, library = model_facts(name), needed("transformers", f"model '{name}'")
    if isinstance(source, StandIn):
        tokenizer = made_tokenizer("gpt2")
        end = tokenizer.eos_token_id
        config = library.GPT2Config(
            vocab_size=len(tokenizer), n_embd=TINY_WIDTH, n_layer=facts.blocks, n_head=TINY_HEADS,
            n_positions=length + new_tokens, bos_token_id=end, eos_token_id=end,
        )  # fmt: skip
        with _seed(source):
            found = LanguageModel(library.GPT2LMHeadModel(config), tokenizer)
    else:
        found = _from_pretrained(name, facts, source, library.GPT2LMHeadModel, {})
        _check_length(length + new_tokens, found.model.config.n_positions, facts)
    if facts.variant == "untied":
        found.model.lm_head.weight = nn.Parameter(found.model.transformer.wte.weight.detach().clone())
        found.model.config.tie_word_embeddings = False
    return found


def _check_length(tokens: int, most: int, facts: ModelFacts) -> None:
    if tokens > most:
        raise ValueError(
            f"{tokens} tokens are more than the {most} that {facts.hub} has positions for; take a smaller length"
        )


def _from_pretrained(
    name: str, facts: ModelFacts, source: Hub | Local, kind: Any, more: dict[str, Any]
) -> LanguageModel:
    library = needed("transformers", f"model '{name}'")
    place = facts.hub
    if isinstance(source, Local):
        folder = source.folder / "models" / folder_of(name)
        if not (folder / "config.json").is_file():
            raise MissingSource(f"model '{name}': there is no file {folder / 'config.json'}; {_how(name, facts)}")
        place = str(folder)
    damaged = needed("safetensors", f"model '{name}'").SafetensorError
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(place)
        model, found = kind.from_pretrained(place, dtype=torch.float32, output_loading_info=True, **more)
    except damaged as error:
        raise WrongData(
            f"model '{name}': the weights in {place} are damaged or cut off ({error}); get them again"
        ) from error
    except OSError as error:
        if isinstance(source, Local):
            raise MissingSource(f"model '{name}': {place} is not complete ({error}); {_how(name, facts)}") from error
        raise MissingSource(_unreachable(name, facts, error)) from error
    # the library draws what it doesn't find at random, and only logs it
    absent = [key for key in found["missing_keys"] if not (facts.variant == "head" and key.startswith("classifier."))]
    absent += [key for key, *_ in found["mismatched_keys"]]
    if absent:
        raise WrongData(f"model '{name}': {place} lacks {', '.join(absent[:4])}; get the files of {facts.hub}")
    return LanguageModel(model, tokenizer)


def _unreachable(name: str, facts: ModelFacts, error: Exception) -> str:
    return f"model '{name}' couldn't be loaded ({reason(error)}); {_how(name, facts)}, then give --data-folder FOLDER"


def _how(name: str, facts: ModelFacts) -> str:
    return (
        "on a machine with internet access, unset HF_HUB_OFFLINE and run: "
        f"hf download {facts.hub} --local-dir FOLDER/models/{folder_of(name)}"
    )


@contextmanager
def _seed(source: Source) -> Iterator[None]:
    """Stand-ins have their own seed; real weights leave the new head to torch's global generator, which the caller seeds."""
    if not isinstance(source, StandIn):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source.seed)
        yield
