"""Pretrained weights from a folder in the hub's files: loaded by name, complete, and told when they aren't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupclip.models.vit import VIT_SHAPES, VisionTransformer
from groupclip.paper import pretrained
from groupclip.paper.data.records import WrongData
from groupclip.paper.pretrained import MODELS, gpt2, roberta, vision_transformer
from groupclip.paper.source import Hub, Local, MissingSource, StandIn

torch.set_num_threads(1)
MADE = StandIn()


def stored_vit(folder: Path, name: str, classes: int = 1000) -> dict[str, torch.Tensor]:
    """A checkpoint of the real shape as timm writes it: all weights at random, a head for ``classes``."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = VisionTransformer(
            VIT_SHAPES[name], channels=3, image_size=(224, 224), num_classes=classes, patch_size=16
        )
        weights = {key: 0.02 * torch.randn(value.shape) for key, value in model.state_dict().items()}
    (folder / "models" / name).mkdir(parents=True)
    save_file(weights, str(folder / "models" / name / "model.safetensors"))
    return weights


def stored_text(folder: Path, name: str, variant: str = "") -> Any:
    """A stand-in in the files of transformers, as the hub has them."""
    made = (
        gpt2(f"{name}-tied", MADE, length=32, new_tokens=8)
        if name.startswith("gpt2")
        else roberta(name + variant, MADE, classes=3, length=32)
    )
    place = folder / "models" / name
    made.model.save_pretrained(place)
    made.tokenizer.save_pretrained(place)
    return made


# ------------------------------------------------------------------------------ ViT


def test_a_vit_takes_the_body_of_a_checkpoint_and_a_new_head(tmp_path: Path) -> None:
    weights = stored_vit(tmp_path, "vit-small")
    torch.manual_seed(0)
    model = vision_transformer("vit-small", Local(folder=tmp_path), classes=10, image_size=224)
    found = model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in weights.items() if not key.startswith("head."))
    assert found["head.weight"].shape == (10, 384) and (found["head.bias"] == 0).all()
    # the head: normal of deviation 0.02, cut at +-2 (a hundred deviations): 3,840 draws, off by 5 % once in 60,000 runs
    assert found["head.weight"].std() == pytest.approx(0.02, rel=0.05)
    torch.manual_seed(0)
    again = vision_transformer("vit-small", Local(folder=tmp_path), classes=10, image_size=224)
    assert torch.equal(again.head.weight, model.head.weight)  # the caller's seed
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen == ["cls_token", "pos_embed"]


def test_a_checkpoint_of_another_vit_is_refused(tmp_path: Path) -> None:
    weights = stored_vit(tmp_path, "vit-small")
    file = tmp_path / "models" / "vit-small" / "model.safetensors"
    part = {key: value for key, value in weights.items() if "blocks.11" not in key}
    for wrong, message in (
        (part, r"blocks\.11\.attn\.proj\.bias.* differ; get it again"),
        (weights | {"dist_token": torch.zeros(1)}, "dist_token differ"),
        (weights | {"pos_embed": torch.zeros(1, 50, 384)}, "pos_embed differ"),
    ):
        save_file(wrong, str(file))
        with pytest.raises(WrongData, match=message):
            vision_transformer("vit-small", Local(folder=tmp_path), classes=10, image_size=224)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(WrongData, match="damaged or cut off"):
        vision_transformer("vit-small", Local(folder=tmp_path), classes=10, image_size=224)


def test_pretrained_vits_work_at_224_pixels_alone(tmp_path: Path) -> None:
    for source in (Hub(), Local(folder=tmp_path)):
        with pytest.raises(ValueError, match="positions for 224 pixels alone"):
            vision_transformer("vit-small", source, classes=10, image_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-small", "vit-base", "vit-large"])
def test_timms_own_model_gives_the_same_logits(name: str) -> None:
    """The reason that timm isn't needed: its weights under its names, in our module, are its function."""
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(f"{name.replace('-', '_')}_patch16_224", num_classes=10).eval()
    ours = VisionTransformer(VIT_SHAPES[name], channels=3, image_size=(224, 224), num_classes=10, patch_size=16).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(theirs(images), ours(images), rtol=1e-5, atol=1e-6)
    settings = theirs.pretrained_cfg
    assert (settings["mean"], settings["std"]) == (pretrained.NORMALISATION.mean, pretrained.NORMALISATION.std)
    assert f"{settings['hf_hub_id']}" == MODELS[name].hub


# ------------------------------------------------------------------------------ RoBERTa and GPT-2


def test_roberta_comes_back_whole_with_its_word_predictor(tmp_path: Path) -> None:
    made = stored_text(tmp_path, "roberta-base")
    found = roberta("roberta-base", Local(folder=tmp_path), classes=2, length=32)
    theirs, ours = made.model.state_dict(), found.model.state_dict()
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[key], ours[key]) for key in theirs)
    assert found.model.lm_head.decoder.weight is found.model.roberta.embeddings.word_embeddings.weight
    assert all(p.dtype == torch.float32 for p in found.model.parameters())
    text = "the film is warm . It was great"
    assert found.tokenizer(text)["input_ids"] == made.tokenizer(text)["input_ids"]
    assert found.tokenizer.mask_token_id == made.tokenizer.mask_token_id


def test_the_head_variant_takes_the_same_files_and_a_head_for_the_data(tmp_path: Path) -> None:
    made = stored_text(tmp_path, "roberta-base")
    found = roberta("roberta-base-head", Local(folder=tmp_path), classes=3, length=32)
    assert found.model.classifier.out_proj.weight.shape[0] == 3
    body, theirs = found.model.roberta.state_dict(), made.model.roberta.state_dict()
    assert all(torch.equal(body[key], theirs[key]) for key in theirs)


def test_weights_that_are_not_there_are_never_drawn_at_random(tmp_path: Path) -> None:
    stored_text(tmp_path, "roberta-base", "-head")  # without a word predictor
    with pytest.raises(WrongData, match=r"lacks lm_head.*get the files of FacebookAI/roberta-base"):
        roberta("roberta-base", Local(folder=tmp_path), classes=2, length=32)
    file = tmp_path / "models" / "roberta-base" / "model.safetensors"
    weights = load_file(str(file))
    del weights["roberta.encoder.layer.3.output.dense.bias"]
    save_file(weights, str(file), {"format": "pt"})
    with pytest.raises(WrongData, match=r"lacks roberta.encoder.layer.3.output.dense.bias"):
        roberta("roberta-base-head", Local(folder=tmp_path), classes=3, length=32)


def test_gpt2_starts_its_head_from_the_embedding_and_goes_on_without_it(tmp_path: Path) -> None:
    made = stored_text(tmp_path, "gpt2-small")
    tied = gpt2("gpt2-small-tied", Local(folder=tmp_path), length=32, new_tokens=8).model
    assert tied.lm_head.weight is tied.transformer.wte.weight
    untied = gpt2("gpt2-small", Local(folder=tmp_path), length=32, new_tokens=8).model
    assert untied.lm_head.weight is not untied.transformer.wte.weight
    assert torch.equal(untied.lm_head.weight, made.model.transformer.wte.weight)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(tied.eval()(input_ids=ids).logits, untied.eval()(input_ids=ids).logits)
        untied.transformer.wte.weight.zero_()
    assert torch.equal(untied.lm_head.weight, made.model.transformer.wte.weight)
    untied.save_pretrained(tmp_path / "kept")  # what was untied stays so
    kept = type(untied).from_pretrained(tmp_path / "kept", dtype=torch.float32)
    assert torch.equal(kept.lm_head.weight, untied.lm_head.weight) and (kept.transformer.wte.weight == 0).all()


@pytest.mark.parametrize("family", ["roberta-base", "gpt2-small"])
def test_texts_longer_than_the_positions_are_refused(family: str, tmp_path: Path) -> None:
    stored_text(tmp_path, family)
    with pytest.raises(ValueError, match=r"more than the \d+ that .* has positions for; take a smaller length"):
        if family.startswith("gpt2"):
            gpt2(family, Local(folder=tmp_path), length=33, new_tokens=8)
        else:
            roberta(family, Local(folder=tmp_path), classes=2, length=33)


# ------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize(("name", "file"), [
    ("vit-large", "model.safetensors"), ("roberta-large-head", "config.json"), ("gpt2-medium-tied", "config.json"),
])  # fmt: skip
def test_an_empty_place_says_what_belongs_there(name: str, file: str, tmp_path: Path) -> None:
    folder = name.removesuffix("-head").removesuffix("-tied")
    message = rf"no file .*models/{folder}/{file}; .*hf download {MODELS[name].hub} --local-dir FOLDER/models/{folder}$"
    with pytest.raises(MissingSource, match=message):
        load(name, Local(folder=tmp_path))


def test_half_a_download_says_so(tmp_path: Path) -> None:
    stored_text(tmp_path, "gpt2-small")
    file = tmp_path / "models" / "gpt2-small" / "model.safetensors"
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(MissingSource, match=r"gpt2-small is not complete .*hf download openai-community/gpt2 "):
        load("gpt2-small", Local(folder=tmp_path))
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WrongData, match="damaged or cut off"):
        load("gpt2-small", Local(folder=tmp_path))


@pytest.mark.parametrize("name", ["vit-small", "roberta-base", "gpt2-large"])
def test_a_hub_that_cannot_be_reached_says_how_to_bring_the_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    import transformers

    asked: list[str] = []

    def no_hub(place: str, *_: Any, **__: Any) -> None:
        asked.append(place)
        raise OSError("We couldn't connect\nto it")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", no_hub)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", no_hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        MissingSource, match=rf"OSError: We couldn't connect\).*hf download {MODELS[name].hub} .*--data-folder"
    ):
        load(name, Hub())
    assert asked == [MODELS[name].hub]


def load(name: str, source: Hub | Local) -> object:
    match MODELS[name].family:
        case "vit":
            return vision_transformer(name, source, classes=10, image_size=224)
        case "roberta":
            return roberta(name, source, classes=2, length=32)
        case "gpt2":
            return gpt2(name, source, length=32, new_tokens=8)
