"""Each style of the paper, mappings and functions; what can't be a style is refused by name."""

from pathlib import Path

import pytest
import torch
from torch import nn

from groupclip.partition.choose import partition
from groupclip.partition.styles import NAMED, STYLES
from networks import GPT, MLP, RMSNorm, ViT

# ------------------------------------------------------------------ the styles one by one


def test_all_layer_layer_wise_param_wise() -> None:
    model = MLP()
    every = ("0.weight", "0.bias", "2.weight", "4.weight", "4.bias")
    assert partition(model, "all-layer").groups == (("all", every),)
    layers = (("0", ("0.weight", "0.bias")), ("2", ("2.weight",)), ("4", ("4.weight", "4.bias")))
    assert partition(model, "layer-wise").groups == layers
    assert partition(model, "layer-wise").sizes == {"0": 42, "2": 42, "4": 21}
    assert partition(model, "param-wise").groups == tuple((name, (name,)) for name in every)


def test_layer_wise_names_what_the_model_owns_itself() -> None:
    groups = partition(ViT(), "layer-wise")
    assert groups["(model)"] == ("cls_token", "pos_embed")
    assert groups["blocks.0.attn.qkv"] == ("blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias")
    assert groups["blocks.0.scale1"] == ("blocks.0.scale1.gamma",)
    assert partition(nn.Linear(2, 2), "layer-wise").groups == (("(model)", ("weight", "bias")),)


def test_layer_wise_keeps_a_parametrized_layer_together() -> None:
    inner = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert partition(nn.Sequential(inner), "layer-wise").names == ("0",)
    assert partition(inner, "layer-wise").names == ("(model)",)
    assert partition(inner, "type-wise").names == ("linear",)


def test_block_wise_shares_out_what_is_outside() -> None:
    groups = partition(ViT(depth=3), "block-wise")
    assert groups.names == ("block-1", "block-2", "block-3")
    outside = [[name for name in groups[g] if not name.startswith("blocks.")] for g in groups]
    assert outside[0] == ["cls_token", "pos_embed", "patch_embed.weight", "patch_embed.bias"]
    assert outside[1] == []
    assert outside[2] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert {name.split(".")[1] for name in groups["block-2"]} == {"1"}


def test_between_two_sequences_joins_the_block_before() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = ViT(depth=2), ViT(depth=2)

    groups = partition(Two(), "block-wise")
    assert len(groups) == 4
    assert groups.group_of("encoder.head.weight") == "block-2"
    assert groups.group_of("decoder.patch_embed.weight") == "block-2"
    assert groups.group_of("decoder.cls_token") == "block-2"


@pytest.mark.parametrize(
    ("depth", "groups", "blocks"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (5, 3, [2, 2, 1]), (9, 4, [3, 2, 2, 2]), (3, 1, [3]), (2, 2, [1, 1])],
)
def test_uniform_shares_blocks_equally(depth: int, groups: int, blocks: list[int]) -> None:
    made = partition(ViT(depth=depth), f"uniform:{groups}")
    assert made.names == tuple(f"group-{m + 1}" for m in range(groups))
    held = [sorted({int(n.split(".")[1]) for n in made[g] if n.startswith("blocks.")}) for g in made]
    assert [len(h) for h in held] == blocks
    assert [block for blocks in held for block in blocks] == list(range(depth)), "consecutive, in order"


def test_boundaries_are_first_blocks_of_groups() -> None:
    """The paper's Table 2: "boundary" X means the first X blocks are the first group."""
    groups = partition(ViT(depth=8), "boundaries:2,6")
    held = [sorted({int(n.split(".")[1]) for n in groups[g] if n.startswith("blocks.")}) for g in groups]
    assert groups.names == ("group-1", "group-2", "group-3")
    assert held == [[0, 1], [2, 3, 4, 5], [6, 7]]
    assert groups.group_of("cls_token") == "group-1" and groups.group_of("head.bias") == "group-3"
    uniform = partition(ViT(depth=8), "uniform:2")
    assert partition(ViT(depth=8), "boundaries:4").groups == uniform.groups


def test_without_blocks_the_layers_are_shared_out() -> None:
    assert partition(MLP(), "uniform:2").groups == (
        ("group-1", ("0.weight", "0.bias", "2.weight")),
        ("group-2", ("4.weight", "4.bias")),
    )
    assert partition(MLP(), "boundaries:1").groups == (
        ("group-1", ("0.weight", "0.bias")),
        ("group-2", ("2.weight", "4.weight", "4.bias")),
    )


def test_type_wise() -> None:
    class Conv1D(nn.Module):
        """GPT-2's: a linear layer with its weight transposed."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(2))

    class ConvolutionalNormalizer(nn.Module):
        """Holds layers: what it owns itself is of no kind, whatever its name says."""

        def __init__(self) -> None:
            super().__init__()
            self.token, self.inner = nn.Parameter(torch.zeros(3)), nn.Conv2d(1, 1, 1)

    class NormalizedLinear(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "linear": nn.Linear(2, 2),
            "conv1d": Conv1D(),
            "normalized": NormalizedLinear(2, 2),
            "attention": nn.MultiheadAttention(2, 1),
            "conv": nn.ConvTranspose2d(1, 1, 1),
            "group": nn.GroupNorm(1, 2),
            "rms": RMSNorm(2),
            "instance": nn.InstanceNorm1d(2, affine=True),
            "embedding": nn.Embedding(3, 2),
            "lstm": nn.LSTM(2, 2),
            "mixed": ConvolutionalNormalizer(),
            "prelu": nn.PReLU(),
        }
    )
    groups = partition(model, "type-wise")
    kinds = {kind: {name.split(".")[0] for name in groups[kind]} for kind in groups}
    assert kinds == {
        "linear": {"linear", "conv1d", "normalized", "attention"},
        "conv": {"conv", "mixed"},
        "norm": {"group", "rms", "instance"},
        "embedding": {"embedding"},
        "recurrent": {"lstm"},
        "other": {"mixed", "prelu"},
    }
    assert groups["other"] == ("mixed.token", "prelu.weight")


def test_per_device() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Linear(2, 1))
    assert partition(model, "per-device").groups == (
        ("cpu", ("0.weight", "0.bias", "2.weight", "2.bias")),
        ("meta", ("1.weight", "1.bias")),
    )


def test_frozen_parameters_are_left_out() -> None:
    model = MLP()
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    assert partition(model, "layer-wise").groups == (("0", ("0.bias",)), ("4", ("4.weight", "4.bias")))
    assert partition(model, "uniform:2").names == ("group-1", "group-2")


# ------------------------------------------------------------------ mappings and tied weights


def test_a_mapping_of_patterns_in_which_an_exact_name_wins() -> None:
    groups = partition(MLP(), {"[02].*": "body", "4.*": "head", "0.bias": "head"})
    assert groups.groups == (("body", ("0.weight", "2.weight")), ("head", ("0.bias", "4.weight", "4.bias")))
    assert groups.style == "mapping"


def test_patterns_may_overlap_if_they_agree() -> None:
    assert partition(MLP(), {"*": "all", "0.*": "all"}).groups == partition(MLP(), "all-layer").groups


def test_a_tied_parameter_is_one_under_its_first_name() -> None:
    model = GPT(tied=True)
    assert "lm_head.weight" not in partition(model, "param-wise").names
    assert partition(model, "all-layer").sizes["all"] == sum(p.numel() for p in model.parameters())
    body = {"wpe.*": "body", "h.*": "body", "norm.*": "body"}
    for alias in ("wte.weight", "lm_head.weight", "lm_head.*"):
        assert partition(model, {alias: "tied", **body})["tied"] == ("wte.weight",)


def test_a_tied_parameter_in_two_groups_is_refused_until_one_name_decides() -> None:
    model = GPT(tied=True)
    body = {"wpe.*": "body", "h.*": "body", "norm.*": "body"}
    with pytest.raises(ValueError, match=r"'wte\.weight' \(tied: wte\.weight, lm_head\.weight\) is in more"):
        partition(model, {**body, "wte.*": "body", "lm_head.*": "head"})
    with pytest.raises(ValueError, match="more than one group"):
        partition(model, {**body, "wte.weight": "body", "lm_head.weight": "head"})
    groups = partition(model, {**body, "wte.*": "body", "lm_head.*": "head", "lm_head.weight": "head"})
    assert groups["head"] == ("wte.weight",)


def test_blocks_may_be_tied() -> None:
    model = ViT(depth=3)
    model.blocks[2] = model.blocks[0]
    assert partition(model, "block-wise").names == ("block-1", "block-2")


# ------------------------------------------------------------------ refusals

MISSING = {"0.*": "a", "2.*": "a", "4.bias": "a"}
BAD = [
    ("layerwise", r"unknown clipping style 'layerwise'\. Did you mean 'layer-wise'\? Styles: all-layer"),
    ("All_Layer", "Did you mean 'all-layer'"),
    ("unifrom:4", "Did you mean 'uniform:M'"),
    ("uniform", "Did you mean 'uniform:M'"),
    ("planned:4", r"'planned:4' needs an example batch"),
    ("", "unknown clipping style ''"),
    ("uniform:0", "'uniform:0': M must be a whole number of groups, 1 or more"),
    ("uniform:x", "'uniform:x': M must be a whole number"),
    ("uniform:-1", "'uniform:-1': M must be a whole number"),
    ("uniform:", "'uniform:': M must be a whole number"),
    ("uniform:2.0", "'uniform:2.0': M must be a whole number"),
    ("uniform:4", r"found 3 layers \(and no repeated blocks\), too few for 4 groups; use 'uniform:3'"),
    ("boundaries:", "'boundaries:': boundaries are whole numbers"),
    ("boundaries:1;2", "'boundaries:1;2': boundaries are whole numbers"),
    ("boundaries:2,1", "'boundaries:2,1': boundaries must increase"),
    ("boundaries:1,1", "'boundaries:1,1': boundaries must increase"),
    ("boundaries:0,1", "'boundaries:0,1': 0 would leave a group empty: found 3 layers"),
    ("boundaries:1,3,5", "'boundaries:1,3,5': 3, 5 would leave a group empty: found 3 layers .* and below 3"),
    ("block-wise", "'block-wise': found no repeated blocks that train in MLP"),
    (MISSING, r"parameter '4\.weight' is in no group: no key of the mapping matches"),
    ({**MISSING, "4.w*": "a", "5.*": "b"}, r"mapping key '5\.\*' matches no parameter"),
    ({**MISSING, "4.wieght": "a"}, r"'4\.wieght' matches no parameter: .* did you mean '4\.weight'\?"),
    ({"*": "a", "4.*": "b"}, r"'4\.weight' is in more than one group: '\*' -> 'a', '4\.\*' -> 'b'; .* exact"),
    ({}, r"'0\.weight' is in no group"),
    ({"*": ""}, r"the group of 0\.weight, .* has an empty name"),
]


@pytest.mark.parametrize(("style", "message"), BAD, ids=[str(style) for style, _ in BAD])
def test_refused(style: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(MLP(), style)


def test_too_few_blocks_are_named() -> None:
    with pytest.raises(ValueError, match=r"'uniform:4': found 3 blocks \(blocks\.0 to blocks\.2\), too few"):
        partition(ViT(depth=3), "uniform:4")
    with pytest.raises(ValueError, match=r"found 3 blocks \(blocks\.0 to blocks\.2\), so boundaries lie"):
        partition(ViT(depth=3), "boundaries:1,3")


def test_a_key_that_only_matches_frozen_parameters() -> None:
    model = MLP()
    model[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"mapping key '0\.\*' matches only frozen parameters"):
        partition(model, {"*": "a", "0.*": "a"})


def test_each_style_of_the_table_is_listed_for_the_user_and_in_the_readme() -> None:
    assert {style.partition(":")[0] for style in STYLES} == set(NAMED)
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{head}" in page for head in NAMED)
