"""Blocks are found in the shapes that model code takes, and nothing else is taken for one."""

import pytest
from torch import nn

from groupclip.partition.blocks import find_blocks
from networks import GPT, MLP, ViT


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, bias=False)
        self.norm1 = nn.GroupNorm(1, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, bias=False)


class Wide(Residual):
    """Another class of block."""


class ResNet(nn.Module):
    """Four stages as plain Sequentials, as torchvision has them; the last stage is 64 times the first."""

    def __init__(self, depths: tuple[int, ...] = (2, 1, 3, 2)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 2, 7)
        self.bn1 = nn.GroupNorm(1, 2)
        for stage, depth in enumerate(depths, start=1):
            setattr(self, f"layer{stage}", nn.Sequential(*(Residual(2**stage) for _ in range(depth))))
        self.fc = nn.Linear(16, 2)


class Tower(nn.Module):
    def __init__(self, block: type[Residual], width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.layers = nn.ModuleList(block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)


class TwoTowers(nn.Module):
    def __init__(self, narrow: int = 4) -> None:
        super().__init__()
        self.encoder = Tower(Residual, 4, 2)
        self.decoder = Tower(Wide, narrow, 3)


class Mixture(nn.Module):
    """A block that itself holds a list of blocks, its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.experts = nn.ModuleList(Residual(4) for _ in range(3))


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.stage_0_block, self.stage_1_block = Residual(4), Residual(4)
        self.other = Residual(4)


def test_a_list_of_blocks() -> None:
    assert find_blocks(ViT(depth=3)) == ("blocks.0", "blocks.1", "blocks.2")
    assert find_blocks(GPT(depth=2)) == ("h.0", "h.1")


def test_a_sequential_of_blocks_and_other_things() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Residual(4), Wide(4), nn.ReLU(), Residual(4), nn.Linear(4, 2))
    assert find_blocks(model) == ("1", "4"), "of one class: the odd block between joins its neighbour"


def test_a_first_and_last_layer_of_one_class_are_no_sequence() -> None:
    assert find_blocks(nn.Sequential(Wide(3), Residual(4), Residual(4), Wide(3))) == ("1", "2")


def test_a_list_may_alternate_classes() -> None:
    assert find_blocks(nn.ModuleList([Residual(4), Wide(4), Residual(4)])) == ("0", "1", "2")


def test_numbered_siblings_but_not_single_layers() -> None:
    assert find_blocks(Numbered()) == ("stage_0_block", "stage_1_block")


def test_two_families_of_numbered_siblings() -> None:
    """The two arms of a U-Net."""
    model = nn.Module()
    arms = (("down1", Residual), ("down2", Residual), ("up1", Wide), ("up2", Wide), ("out1", Wide))
    for name, block in arms:
        model.add_module(name, block(4))
    assert find_blocks(model) == ("down1", "down2", "up1", "up2")


def test_stages_give_their_blocks_however_small_the_first() -> None:
    """layer1 has far less than a tenth of layer4, but blocks of its class; layer2 has only one block."""
    want = ("layer1.0", "layer1.1", "layer2.0", "layer3.0", "layer3.1", "layer3.2", "layer4.0", "layer4.1")
    assert find_blocks(ResNet()) == want


def test_plain_sequentials_are_blocks_if_nothing_repeats_in_them() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)) for _ in range(3)))
    assert find_blocks(model) == ("0", "1", "2")


def test_encoder_and_decoder_count_in_order() -> None:
    want = tuple(f"encoder.layers.{i}" for i in range(2)) + tuple(f"decoder.layers.{i}" for i in range(3))
    assert find_blocks(TwoTowers()) == want


def test_a_minor_sequence_of_another_class_is_not_counted() -> None:
    assert find_blocks(TwoTowers(narrow=24)) == tuple(f"decoder.layers.{i}" for i in range(3))


def test_the_outermost_sequence_wins() -> None:
    assert find_blocks(nn.ModuleList([Mixture(), Mixture()])) == ("0", "1")


def test_frozen_blocks_are_left_out_and_frozen_halves_stay() -> None:
    model = ViT(depth=4)
    model.blocks[0].requires_grad_(False)
    model.blocks[2].attn.requires_grad_(False)
    assert find_blocks(model) == ("blocks.1", "blocks.2", "blocks.3")


def test_a_block_under_two_names_is_one() -> None:
    shared = Residual(4)
    assert find_blocks(nn.ModuleList([shared, Residual(4), shared])) == ("0", "1")


@pytest.mark.parametrize(
    "model",
    [MLP(), nn.Linear(3, 2), ViT(depth=1), nn.ModuleList(nn.Linear(2, 2) for _ in range(3)), nn.ReLU()],
    ids=["mlp", "linear", "one-block", "list-of-layers", "nothing"],
)
def test_no_blocks(model: nn.Module) -> None:
    assert find_blocks(model) == ()


def test_renamed_classes_change_nothing() -> None:
    """FSDP2 gives every wrapped module a subclass of its own class at run time."""
    model = ResNet()
    want = find_blocks(model)
    renamed = {cls: type(f"FSDP{cls.__name__}", (cls,), {}) for cls in {type(m) for m in model.modules()}}
    for module in model.modules():
        module.__class__ = renamed[type(module)]
    assert find_blocks(model) == want
