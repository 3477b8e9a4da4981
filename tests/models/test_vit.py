"""Vision transformers: the paper's shapes, timm's names, any image size."""

import re

import pytest
import torch

from groupclip.models import MODELS, build_model
from groupclip.models.vit import default_patch_size

# timm's counts for vit_*_patch16_224 at 1,000 classes
TIMM_COUNTS = {
    "vit-tiny": 5_717_416,
    "vit-small": 22_050_664,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
}
BLOCK_NAMES = (
    "norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias",
    "norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias",
)  # fmt: skip


@pytest.mark.parametrize("name", TIMM_COUNTS)
def test_parameter_counts_are_those_of_timm(name):
    spec = MODELS[name]
    with torch.device("meta"):
        model = build_model(name, input_shape=spec.input_shape, num_classes=spec.num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == TIMM_COUNTS[name]
    assert model.pos_embed.shape[1] == 197  # the paper's T


def test_parameter_names_and_shapes_are_those_of_timm():
    with torch.device("meta"):
        model = build_model("vit-tiny", input_shape=(3, 224, 224), num_classes=1000)
    outer = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"]
    inner = [f"blocks.{block}.{name}" for block in range(12) for name in BLOCK_NAMES]
    last = ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    state = model.state_dict()
    assert sorted(state) == sorted(outer + inner + last)
    shapes = {name: tuple(state[name].shape) for name in (*outer, "blocks.0.attn.qkv.weight", "head.weight")}
    assert shapes == {
        "cls_token": (1, 1, 192),
        "pos_embed": (1, 197, 192),
        "patch_embed.proj.weight": (192, 3, 16, 16),
        "patch_embed.proj.bias": (192,),
        "blocks.0.attn.qkv.weight": (576, 192),
        "head.weight": (1000, 192),
    }


def test_the_forward_pass_is_that_of_the_formulas():
    # written out again, loop by loop, in float64, from Dosovitskiy et al. 2021, equations 1-4 (qkv order as in timm)
    torch.manual_seed(0)
    model = build_model("vit-micro", input_shape=(2, 8, 8), num_classes=3, patch_size=4).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)

    def norm(z, layer):
        centred = z - z.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.weight + layer.bias

    def linear(z, layer):
        return z @ layer.weight.T + layer.bias

    logits = []
    for image in x:
        kernel = model.patch_embed.proj.weight.flatten(1)
        patches = [image[:, i : i + 4, j : j + 4].flatten() for i in (0, 4) for j in (0, 4)]
        tokens = [kernel @ patch + model.patch_embed.proj.bias for patch in patches]
        z = torch.stack([model.cls_token[0, 0], *tokens]) + model.pos_embed[0]
        for block in model.blocks:
            q, k, v = linear(norm(z, block.norm1), block.attn.qkv).chunk(3, -1)
            heads = []
            for h in range(4):
                part = slice(32 * h, 32 * (h + 1))
                weights = (q[:, part] @ k[:, part].T / 32**0.5).softmax(-1)
                heads.append(weights @ v[:, part])
            z = z + linear(torch.cat(heads, -1), block.attn.proj)
            hidden = linear(norm(z, block.norm2), block.mlp.fc1)
            z = z + linear(hidden * (1 + torch.erf(hidden / 2**0.5)) / 2, block.mlp.fc2)
        logits.append(linear(norm(z, model.norm)[0], model.head))
    assert torch.allclose(model(x), torch.stack(logits), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("height", "width", "patch"),
    [(8, 8, 4), (16, 16, 4), (28, 28, 4), (32, 32, 4), (64, 64, 8), (96, 96, 12), (224, 224, 16), (384, 384, 16),
     (32, 224, 4), (9, 9, 3), (13, 13, 1), (1, 1, 1), (3, 5, 1)],
)  # fmt: skip
def test_the_patch_rule(height, width, patch):
    assert default_patch_size(height, width) == patch


def test_sizes_and_patches_can_be_chosen():
    model = build_model("vit-micro", input_shape=(1, 8, 12), num_classes=10, patch_size=2)
    assert model.pos_embed.shape[1] == 1 + 4 * 6
    assert model(torch.zeros(2, 1, 8, 12)).shape == (2, 10)


def test_image_size_resizes_inside_the_model():
    model = build_model("vit-micro", input_shape=(1, 8, 8), num_classes=10, image_size=16, patch_size=4)
    torch.nn.init.normal_(model.head.weight)
    assert model.pos_embed.shape[1] == 1 + 16
    flat = torch.full((2, 1, 8, 8), 0.3)
    assert torch.allclose(model(flat), model(torch.full((2, 1, 16, 16), 0.3)), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(input_shape=(1, 8, 8), patch_size=3), "patch_size=3 doesn't divide 8x8 pixels; choose a divisor"),
        (dict(input_shape=(1, 8, 8), patch_size=0), "patch_size=0 doesn't divide"),
        (dict(input_shape=(3, 97, 97)), "97x97 pixels in patches of 1 make 9409 tokens, more than 1024; set image_size"),
    ],
)
def test_patches_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model("vit-micro", num_classes=10, **options)
