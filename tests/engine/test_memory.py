"""One backward pass, plain training's memory: counted products, floating point operations and live bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor  # pyright: ignore
from torch.utils.flop_counter import FlopCounterMode

import groupclip as gc
from groupclip.autograd.vmap import natively
from groupclip.models import build_model
from live import Live, products, watch

STYLES = ("all-layer", "uniform:2", "block-wise", "layer-wise", "param-wise")
BATCH = 6


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    """12 blocks of 192 features, 65 positions: activations weigh more than parameters, as in training at scale."""
    return build_model("vit-tiny", input_shape=(3, 64, 64), num_classes=10, patch_size=8, seed=0)


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, 3, 64, 64, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    return lambda: F.cross_entropy(model(batch[0]), batch[1], reduction="sum").backward()


def private(engine: gc.Engine, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    return lambda: engine.backward(F.cross_entropy(engine.model(batch[0]), batch[1], reduction="none"))


def attached(model: nn.Module, style: str, method: str) -> gc.Engine:
    groups = gc.partition(model, style)
    groups = groups.with_methods({name: method for group in groups for name in groups[group]})
    return gc.attach(model, None, groups, None)


@pytest.fixture(scope="module")
def reference(vit: nn.Module, batch: tuple[Tensor, Tensor]) -> Live:
    seen = watch(plain(vit, batch), [*vit.parameters(), *batch])
    vit.zero_grad()
    return seen


@pytest.mark.one_in(2)
@pytest.mark.parametrize("style", STYLES)
def test_one_backward_pass_with_the_products_of_plain_training(vit, batch, reference, style) -> None:
    """Instantiated gradients REPLACE the weight gradients: as many products as plain training, and as many FLOPs.

    A plain weight gradient besides, or a second input gradient, would add one product a layer.
    """
    engine = attached(vit, style, "instantiated")
    try:
        seen = watch(private(engine, batch), [*vit.parameters(), *batch])
        assert products(seen) == products(reference)
        vit.zero_grad()
        with FlopCounterMode(display=False) as counted:
            private(engine, batch)()
    finally:
        engine.detach()
    with FlopCounterMode(display=False) as expected:
        plain(vit, batch)()
    vit.zero_grad()
    assert counted.get_total_flops() == expected.get_total_flops()


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize("style", STYLES)
def test_gram_norms_add_two_products_a_matrix_and_nothing_else(vit, batch, reference, style) -> None:
    """4 linear layers a block, the patch embedding; the head sees one position, so its norm is in closed form."""
    engine = attached(vit, style, "gram")
    try:
        seen = watch(private(engine, batch), [*vit.parameters(), *batch])
    finally:
        engine.detach()
    matrices = 4 * 12 + 1
    assert products(seen) == products(reference) + 2 * matrices


def test_layer_wise_with_gram_norms_peaks_as_plain_training(vit, batch, reference) -> None:
    engine = attached(vit, "layer-wise", "gram")
    try:
        seen = watch(private(engine, batch), [*vit.parameters(), *batch])
    finally:
        engine.detach()
    assert seen.peak <= 1.02 * reference.peak


def test_more_groups_need_less_memory(vit, batch, reference) -> None:
    """The trade-off of the paper's Table 2: all-layer keeps every output gradient, layer-wise none."""
    peaks = {}
    for style in ("all-layer", "uniform:2", "layer-wise"):
        engine = attached(vit, style, "gram")
        try:
            peaks[style] = watch(private(engine, batch), [*vit.parameters(), *batch]).peak / reference.peak
        finally:
            engine.detach()
    assert peaks["layer-wise"] < peaks["uniform:2"] < peaks["all-layer"]
    assert peaks["all-layer"] > 1.01


def test_a_group_frees_its_memory_when_it_ends(vit, batch) -> None:
    """Live bytes when the gradient reaches the middle of the network: block-wise holds no more than plain training
    does there (2 %), all-layer holds the output gradients of the upper half besides."""
    held: dict[str, int] = {}

    def measure(name: str, run: Callable[[], None]) -> None:
        run()
        vit.zero_grad()
        with Live([*vit.parameters(), *batch]) as seen:

            def forward(module: nn.Module, args: object, output: Tensor) -> None:
                # A hook on the gradient runs after everything above it, and after the gates that were ready.
                with natively():
                    whole = get_unwrapped(output) if is_batchedtensor(output) else output  # of all samples
                    whole.register_hook(lambda grad: held.__setitem__(name, seen.live))

            handle = vit.get_submodule("blocks.5").register_forward_hook(forward)
            run()
            handle.remove()
        vit.zero_grad()

    measure("plain", plain(vit, batch))
    for style in ("block-wise", "all-layer"):
        engine = attached(vit, style, "gram")
        try:
            measure(style, private(engine, batch))
        finally:
            engine.detach()
    assert held["block-wise"] <= 1.02 * held["plain"]
    assert held["all-layer"] > 1.2 * held["plain"]
