"""Rules in lower precision: float32 to 1e-5 of float64; half precision and autocast to their own rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import clipped_by_engine, members
from check_rules import Calls, ids, randn
from groupclip.persample.apart import Apart
from groupclip.persample.base import PerSample
from groupclip.persample.convolution import Convolution, Geometry
from groupclip.persample.lookup import Lookup, Tied
from groupclip.persample.outer import Outer
from groupclip.persample.pulled import Pulled
from models import output_square

B = 4


class First(nn.Module):
    """The first of what a module returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[0]


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "rnn": (lambda: First(nn.RNN(4, 5, 2, batch_first=True)), randn(B, 9, 4)),
    "gru": (lambda: First(nn.GRU(4, 5, bidirectional=True, batch_first=True)), randn(B, 9, 4)),
    "lstm": (lambda: First(nn.LSTM(4, 5, 2, batch_first=True)), randn(B, 9, 4)),
    "projected lstm": (lambda: First(nn.LSTM(4, 5, proj_size=3, batch_first=True)), randn(B, 9, 4)),
    "cell": (lambda: nn.GRUCell(4, 5), randn(B, 4)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), randn(B, 2, 5, 4)),
    "bilinear": (lambda: Calls(lambda x, w: F.bilinear(x, x.cos(), w), w=randn(3, 4, 4)), randn(B, 6, 4)),
    "heads": (lambda: Calls(lambda x, w: torch.einsum("bhd,hde->bhe", x, w), w=randn(3, 4, 2)), randn(B, 3, 4)),
    "scales": (lambda: Calls(lambda x, w: torch.einsum("btd,d->btd", x, w), w=randn(4)), randn(B, 6, 4)),
    "prelu": (lambda: nn.PReLU(6), randn(B, 6, 4)),
    "bag": (lambda: nn.EmbeddingBag(6, 4, mode="mean"), ids(6, B, 7)),
    "maxima": (lambda: nn.EmbeddingBag(6, 4, mode="max"), ids(6, B, 7)),
    "chunks": (
        lambda: Calls(lambda x, w: F.scaled_dot_product_attention(*(F.linear(x, p) for p in w.chunk(3))), w=randn(12, 4)),
        randn(B, 6, 4),
    ),
    "tied": (lambda: Calls(lambda i, w: F.embedding(i, w).tanh() @ w.t(), w=randn(6, 4)), ids(6, B, 7)),
}  # fmt: skip


def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return (
        output_square(model, batch).float()
        if next(model.parameters()).dtype != torch.float64
        else output_square(model, batch)
    )


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return MODELS[name][0](), (MODELS[name][1],)


@pytest.mark.parametrize("name", MODELS)
def test_single_precision(name: str) -> None:
    model, batch = made(name)
    groups = gc.partition(model, "param-wise")
    thresholds = dict.fromkeys(groups, 0.1)
    want = oracle.clipped_sum(model, losses, batch, members(groups), "automatic", thresholds)
    got = clipped_by_engine(model, losses, batch, groups, "automatic", thresholds)
    for group in groups:
        torch.testing.assert_close(got.norms[group].double(), want.norms[group], rtol=1e-5, atol=1e-7)
        for parameter in groups[group]:
            torch.testing.assert_close(got.sums[parameter].double(), want.sums[parameter], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16(name: str) -> None:
    """Within the rounding of forward and backward; no sample above the threshold."""
    model, batch = made(name)
    model = model.to(torch.bfloat16)
    batch = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in batch)
    groups = gc.partition(model, "param-wise")
    thresholds = dict.fromkeys(groups, 0.5)
    want = oracle.clipped_sum(model, losses, batch, members(groups), "automatic", thresholds)
    got = clipped_by_engine(model, losses, batch, groups, "automatic", thresholds)
    for group in groups:
        assert got.norms[group].dtype == torch.float32
        torch.testing.assert_close(got.norms[group].double(), want.norms[group], rtol=0.1, atol=0.01)
    for i in range(B):
        alone = clipped_by_engine(
            model, losses, tuple(t[i : i + 1] for t in batch), groups, "flat-normalised", thresholds
        )
        for group in groups:
            assert sum(alone.sums[p].double().square().sum() for p in groups[group]) ** 0.5 <= 0.5 * (1 + 1e-6), group


@pytest.mark.filterwarnings("ignore:.*(TF32|oneDNN)")  # of the switch, and of what it has no kernel for
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("bag", "maxima")])
def test_autocast(name: str, onednn: bool) -> None:
    """With oneDNN's kernels and without: of some, torch asks for instructions that not every processor has."""
    model, batch = made(name)

    def cast(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.backends.mkldnn.flags(enabled=onednn):
            return output_square(model, batch).float()

    groups = gc.partition(model, "param-wise")
    want = oracle.clipped_sum(model, losses, batch, members(groups))
    try:
        cast(model, batch)
    except RuntimeError as error:  # torch 2.13's LSTM, without AVX-512: then neither does the attached model run
        assert onednn and "could not create a primitive descriptor" in str(error)
        with pytest.raises(RuntimeError, match="could not create a primitive descriptor"):
            clipped_by_engine(model, cast, batch, groups)
        return
    got = clipped_by_engine(model, cast, batch, groups)
    for group in groups:
        torch.testing.assert_close(got.norms[group].double(), want.norms[group], rtol=0.1, atol=0.02)


def half(*shape: int) -> Tensor:
    return randn(*shape).bfloat16()


def forms(widen: Callable[[Tensor], Tensor]) -> dict[str, PerSample]:
    """Gradients kept in bfloat16, or the same numbers widened."""
    a, g, table, up = (widen(half(B, 9, n)) for n in (6, 5, 7, 6))
    leaf = widen(half(15, 6)).requires_grad_()
    parts = [Pulled(Outer(a * widen(torch.tensor(2.0**i)), g), leaf[5 * i : 5 * i + 5], leaf, True) for i in range(3)]
    spots = ids(7, B, 9)
    kernel = Geometry((3,), (2,), (1,), (1,), 2)
    return {
        "outer": Outer(a, g),
        "apart": Apart(parts),
        "lookup": Lookup(spots, up, 7),
        "tied": Tied(Lookup(spots, up, 7), Outer(a, table)),
        "convolution": Convolution(widen(half(B, 1, 4, 9)), widen(half(B, 1, 6, 5)), kernel),
    }


@pytest.mark.parametrize("method", ["gram", "instantiated"])
@pytest.mark.parametrize("form", ["outer", "apart", "lookup", "tied", "convolution"])
def test_norms_of_half_precision_factors(form: str, method: str) -> None:
    """To 1e-3 of float64 from the same bfloat16 numbers."""
    found = forms(lambda t: t.bfloat16())[form].settle(method).square_norms().double().sqrt()
    exact = forms(lambda t: t.bfloat16().double())[form].square_norms().sqrt()
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=0)
