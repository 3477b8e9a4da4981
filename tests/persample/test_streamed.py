"""A layer's gradients formed for a few samples at once, in a group of their own: against single samples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import groupclip as gc
import oracle
from groupclip.memory.live import Live
from groupclip.persample import streamed
from groupclip.persample.convolution import Convolution, Geometry
from groupclip.persample.dense import Dense
from groupclip.persample.norms import AUTO, GRAM, LAST
from groupclip.persample.outer import Outer
from groupclip.persample.streamed import Streamed

SAMPLES, POSITIONS = 7, 80


class Net(nn.Module):
    """Two linear layers of 40 on 80 positions each, or two convolutions of 12 channels on 8 x 8 pixels."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one: nn.Module = nn.Linear(40, 40) if kind == "linear" else nn.Conv2d(12, 24, 3, padding=1)
        self.two: nn.Module = nn.Linear(40, 48) if kind == "linear" else nn.Conv2d(24, 24, 3, stride=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return model(batch[0]).square().flatten(1).mean(dim=1)


def inputs(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (POSITIONS, 40) if kind == "linear" else (12, 16, 16)
    # samples of many sizes, so that a factor at the wrong place shows
    return torch.randn(SAMPLES, *shape, generator=generator) * torch.logspace(-1, 1, SAMPLES).view(-1, *[1] * len(shape))


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """These nets are large enough to be streamed."""
    monkeypatch.setattr(streamed, "_FEW", 1000)
    return monkeypatch


@pytest.mark.parametrize("at_once", [1, 2 * 2592, 1 << 21], ids=["one sample a block", "a few", "all that may be"])
@pytest.mark.parametrize("style", ["layer-wise", "param-wise"])
@pytest.mark.parametrize("clip", ["automatic", "abadi"])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_equals_the_loop_in_float64(
    kind: str, clip: str, style: str, at_once: int, of_any_size: pytest.MonkeyPatch
) -> None:
    of_any_size.setattr(streamed, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    model, x = Net(kind), inputs(kind)
    groups = gc.partition(model, style)
    expected = oracle.clipped_sum(model, losses, (x,), {name: groups[name] for name in groups}, clip)
    model, x = model.double(), x.double()
    engine = gc.attach(model, None, groups, None, clip=clip)
    blocks = counted(of_any_size)
    engine.backward(losses(model, (x,)))
    assert [samples for _, samples in blocks] == [SAMPLES] * 2
    assert at_once > 1 or [number for number, _ in blocks] == [SAMPLES] * 2
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected.sums[name], rtol=1e-9, atol=1e-12)
    for name, norms in engine.unsafe_norms().items():
        torch.testing.assert_close(norms, expected.norms[name], rtol=1e-9, atol=0.0)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each layer that is streamed, how many blocks of how many samples in all there were."""
    found: list[tuple[int, int]] = []
    plain = Streamed.blocks

    def blocks(self: Streamed):
        sizes = []
        for which, grads in plain(self):
            sizes.append(grads.num_samples)
            yield which, grads
        found.append((len(sizes), sum(sizes)))

    monkeypatch.setattr(Streamed, "blocks", blocks)
    return found


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e25], ids=["infinite", "no number", "a norm that overflows"])
def test_a_sample_that_is_not_finite_touches_no_other(kind: str, bad: float, of_any_size: pytest.MonkeyPatch) -> None:
    of_any_size.setattr(streamed, "_AT_ONCE", 2 * 2592)
    torch.manual_seed(0)
    model, x = Net(kind), inputs(kind)
    x[3] = bad
    engine = gc.attach(model, None, "layer-wise", None)
    blocks = counted(of_any_size)
    engine.backward(losses(model, (x,)))
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(blocks) == 2 and all(grad.isfinite().all() for grad in found.values())
    model.zero_grad()
    engine.backward(losses(model, (x[[0, 1, 2, 4, 5, 6]],)))
    if bad == 1e25:  # tanh of it is finite: only the first layer overflows
        found = {name: grad for name, grad in found.items() if name.startswith("one")}
    for name, grad in found.items():
        torch.testing.assert_close(grad, model.get_parameter(name).grad, rtol=1e-5, atol=1e-7)


def test_a_group_of_several_layers_streams_nothing(of_any_size: pytest.MonkeyPatch) -> None:
    """Its layers would wait for each other's norms; the twin above streams both."""
    model = Net("linear")
    engine = gc.attach(model, None, "all-layer", None)
    blocks = counted(of_any_size)
    engine.backward(losses(model, (inputs("linear"),)))
    assert not blocks


@pytest.mark.parametrize("method", ["gram", "instantiated"])
def test_a_method_that_was_asked_for_is_kept(method: str, of_any_size: pytest.MonkeyPatch) -> None:
    model = Net("linear")
    groups = gc.partition(model, "layer-wise").with_methods({name: method for name, _ in model.named_parameters()})
    engine = gc.attach(model, None, groups, None)
    blocks = counted(of_any_size)
    engine.backward(losses(model, (inputs("linear"),)))
    assert not blocks


@pytest.mark.parametrize("inputs_first", [False, True])
def test_it_is_a_form_like_any_other(inputs_first: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, g = torch.randn(5, 90, 60, generator=generator), torch.randn(5, 90, 50, generator=generator)
    whole = Outer(a, g, inputs_first)
    found = Outer(torch.cat([a] * 10), torch.cat([g] * 10), inputs_first).settle(LAST)
    assert isinstance(found, Streamed) and isinstance(whole.settle(AUTO), Dense)
    found, exact, factors = found.select(torch.arange(5)), whole.instantiate(), torch.rand(5, generator=generator)
    torch.testing.assert_close(found.square_norms(), exact.flatten(1).square().sum(dim=1))
    torch.testing.assert_close(found.weighted_sum(factors), torch.tensordot(factors, exact, 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.instantiate(), exact)
    nobody = found.select(torch.tensor([], dtype=torch.long))
    assert nobody.square_norms().shape == (0,) and not nobody.weighted_sum(factors[:0]).any()


@pytest.mark.parametrize(
    ("positions", "inputs_of", "outputs", "samples", "streams"),
    [
        (197, 384, 1536, 8, True),  # of ViT-Small
        (256, 768, 3072, 4, True),  # of RoBERTa-base
        (100, 768, 3072, 8, False),  # of GPT2 on short texts: Gram matrices are a sixth of a product
        (1, 1024, 1024, 256, False),  # one position: closed form
        (197, 384, 1536, 1, False),  # one sample: nothing is kept for others
        (197, 16, 16, 8, False),  # small: one operation for all samples
    ],
)
def test_what_is_streamed(positions: int, inputs_of: int, outputs: int, samples: int, streams: bool) -> None:
    a, g = (torch.empty(samples, positions, n, device="meta") for n in (inputs_of, outputs))
    if streams:
        assert isinstance(Outer(a, g).settle(LAST), Streamed)
    else:
        assert not isinstance(Outer(torch.zeros(a.shape), torch.zeros(g.shape)).settle(LAST), Streamed)


@pytest.mark.parametrize(("threads", "sizes"), [(1, [3, 3, 1]), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (8, [3, 3, 1])])
def test_each_thread_has_a_sample_of_a_block(threads: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three samples at most, two threads take two: of the third, one would wait for the other."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(streamed, "_AT_ONCE", 3 * 1600)
    whole = Outer(torch.randn(SAMPLES, POSITIONS, 40), torch.randn(SAMPLES, POSITIONS, 40), inputs_first=False)
    blocks = list(Streamed(whole, 1600, 10**6).blocks())
    assert [len(grads.instantiate()) for _, grads in blocks] == sizes
    assert [which.stop - which.start for which, _ in blocks] == sizes


def test_there_is_no_second_product() -> None:
    """Of two linear layers the private pass has the plain one's products and no other, and no input gradient of the first."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(8, 128, 64)
    with FlopCounterMode(display=False) as plain:
        losses(model, (x,)).sum().backward()
    model.zero_grad()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(losses(model, (x,)))
    with FlopCounterMode(display=False) as ours:
        engine.backward(losses(model, (x,)))
    assert ours.get_total_flops() == plain.get_total_flops()


# ------------------------------------------------------------------ convolutions


@pytest.mark.parametrize("style", ["layer-wise", "all-layer"])
def test_a_batch_is_not_unfolded(style: str) -> None:
    """Patches of 3 x 3 pixels would be nine times the inputs of a layer, of which there are four."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Conv2d(24, 24, 3, padding=1) for _ in range(4)])
    x, peaks = torch.randn(32, 24, 24, 24), []
    for private in (False, True):
        model.zero_grad()
        engine = gc.attach(model, None, style, None) if private else None
        for _ in range(2):
            model.zero_grad()
            with Live([*model.parameters(), x]) as live:
                found = losses(model, (x,))
                found.sum().backward() if engine is None else engine.backward(found)
        peaks.append(live.peak)
    layer = 4 * x.numel()
    assert peaks[1] - peaks[0] < 4 * layer  # their output gradients, at most


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_from_gradients_that_are_dropped(groups: int, images: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 2), groups)
    x = torch.randn(5, images, 8, 17, 14, generator=generator, dtype=dtype)
    g = torch.randn(5, images, 8, 9, 12, generator=generator, dtype=dtype)
    g[2] = 0.0
    found = Convolution(x, g, geometry).settle(GRAM)
    assert isinstance(found, Convolution) and found._streams
    exact = Convolution(x.double(), g.double(), geometry).instantiate()
    squares = exact.flatten(1).square().sum(dim=1)
    torch.testing.assert_close(found.square_norms().double(), squares, rtol=1e-5, atol=0.0)
    lengths = found.square_rooms().double().sqrt() / squares.sqrt()
    assert lengths[[0, 1, 3, 4]].max() < 1e-3  # and so no sample loses more than that to rounding
    factors = torch.rand(5, generator=generator)
    total = torch.tensordot(factors.double(), exact, 1)
    torch.testing.assert_close(found.weighted_sum(factors.to(dtype)).double(), total, rtol=1e-4, atol=1e-4)
    assert found._cancelling is None or found._cancelling.tolist() == [False] * 5


def test_terms_that_cancel_are_told_without_gram_matrices() -> None:
    """Equal pixels with output gradients that add up to nearly nothing: their terms mustn't meet those of other samples."""
    x, g = torch.ones(2, 1, 1, 16, 18), torch.ones(2, 1, 2, 16, 16)
    g[1, :, :, ::2] = -1.0
    g[1, :, :, 0, 0] += 1e-4
    found = Convolution(x, g, Geometry((1, 3), (1, 1), (0, 0), (1, 1), 1)).settle(GRAM)
    assert isinstance(found, Convolution) and found._streams
    found.square_norms()
    assert found._cancelling is not None and found._cancelling.tolist() == [False, True]


@pytest.mark.parametrize("pixels", [1, 6])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_channels_that_lie_last_in_memory(dims: int, pixels: int, dtype: torch.dtype) -> None:
    """Torch's kernels refuse the layout that they would give such gradients."""
    x = torch.randn(5, 1, *[pixels] * dims, 3, dtype=dtype).movedim(-1, 2)
    g = torch.randn(5, 1, *[pixels] * dims, 4, dtype=dtype).movedim(-1, 2)
    geometry = Geometry((3,) * dims, (1,) * dims, (1,) * dims, (1,) * dims, 1)
    want = Convolution(x.contiguous(), g.contiguous(), geometry)
    got = Convolution(x, g, geometry)
    torch.testing.assert_close(got.instantiate(), want.instantiate())
    factors = torch.rand(5, dtype=dtype)
    torch.testing.assert_close(got.weighted_sum(factors), want.weighted_sum(factors))
