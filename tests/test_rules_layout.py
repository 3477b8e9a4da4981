"""Where samples lie: never guessed from lengths. Constants as long as the batch, samples in other dimensions, windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import Clipped, faults, gradients, inexact, members
from groupclip.private import PrivateTensor
from models import output_square

T, D = 4, 3  # sizes of batches below meet T, its divisors and its multiples
SIZES = [1, 2, 3, 4, 5, 8]


def sequences(size: int) -> tuple[Tensor, ...]:
    return (torch.randn(size, T, D, generator=torch.Generator().manual_seed(size)),)


class WithConstant(nn.Module):
    """Adds what a layer makes of a constant table [T, D] to every sample: Swin-v2's position bias, for one."""

    def __init__(self, layer: nn.Module, table: Tensor) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(D, 2)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.layer(self.table)))


class ConvMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, D, 2)

    def forward(self, table: Tensor) -> Tensor:
        return self.conv(table).mean(-1)


class Matmul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, D))

    def forward(self, table: Tensor) -> Tensor:
        return table @ self.weight


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, table: Tensor) -> Tensor:
        return table * self.weight


TABLE = torch.linspace(-1, 1, T * D).sin().reshape(T, D)
ON_CONSTANTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: WithConstant(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, D)), TABLE),
    "layer norm": lambda: WithConstant(
        nn.Sequential(nn.LayerNorm(D), nn.Tanh()), TABLE * torch.arange(1, T + 1)[:, None]
    ),
    "matmul": lambda: WithConstant(Matmul(), TABLE),
    "product": lambda: WithConstant(Scaled(), TABLE),
    "conv": lambda: WithConstant(ConvMean(), torch.arange(T * 2 * 3.0).sin().view(T, 2, 3)),
    "embedding": lambda: WithConstant(nn.Embedding(T, D), torch.arange(T)),
    "embedding of pairs": lambda: WithConstant(
        nn.Sequential(nn.Embedding(7, D), Sum(1)), torch.arange(T)[:, None] - torch.arange(T) + 3
    ),
}


class Sum(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(self.dim)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer", ON_CONSTANTS)
def test_a_constant_as_long_as_the_batch_is_no_batch(layer: str, size: int) -> None:
    """Each row would be clipped as if it were a sample, and a real sample would move all of them."""
    assert inexact(ON_CONSTANTS[layer](), sequences(size)) == []


class RelativeBias(nn.Module):
    """Attention with a table of biases that is looked up by a constant index [T, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.randn(1, 2 * T - 1)), nn.Linear(D, 3 * D)
        self.register_buffer("index", torch.arange(T)[:, None] - torch.arange(T) + T - 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        bias = self.table[:, self.index]
        return torch.tanh(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], bias)).squeeze(1)


class Positions(nn.Module):
    """Position embeddings in the ways of GPT-2 (arange), ViT ([1, T, d]), BERT (a buffer [1, T]) and by slicing."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.head = way, nn.Linear(D, 2)
        self.table = nn.Parameter(torch.randn(1, T, D) if way == "vit" else torch.randn(2 * T, D))
        self.register_buffer("ids", torch.arange(T)[None])

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "vit":
                position = self.table
            case "arange":
                position = F.embedding(torch.arange(x.shape[1]), self.table)
            case "bert":
                position = F.embedding(self.ids[:, : x.shape[1]], self.table)  # type: ignore[index]
            case "expanded":
                position = F.embedding(self.ids.expand(len(x), -1), self.table)  # type: ignore[operator]
            case _:
                position = self.table[: x.shape[1]]
        return self.head(torch.tanh(x + position))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["vit", "arange", "bert", "expanded", "slice"])
def test_position_embeddings(way: str, size: int) -> None:
    assert inexact(Positions(way), sequences(size)) == []


@pytest.mark.parametrize("size", SIZES)
def test_relative_position_bias(size: int) -> None:
    assert inexact(RelativeBias(), sequences(size)) == []


class Tokens(nn.Module):
    """Learnt tokens that every sample gets: a class token, latents, a mask token, queries of a decoder."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.head = way, nn.Linear(D, 2)
        self.token = nn.Parameter(torch.randn(1, 1, D) if way in ("expand", "repeat") else torch.randn(T, D))

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "expand":
                x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            case "repeat":
                x = torch.cat([x, self.token.repeat(len(x), 1, 1)], 1)
            case "latents":
                latents = self.token.unsqueeze(0).expand(len(x), -1, -1)
                x = F.scaled_dot_product_attention(latents, x, x) + latents
            case "stack":
                x = torch.stack([x, self.token.expand_as(x)], 2).tanh()
            case "mask":
                x = torch.where(x[..., :1] > 0, x, self.token)
            case "second":  # DETR's queries, with the samples in dimension 1
                queries = self.token.unsqueeze(1).repeat(1, len(x), 1)
                x = torch.tanh(x.transpose(0, 1) * queries).transpose(0, 1)
        return self.head(x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["expand", "repeat", "latents", "stack", "mask", "second"])
def test_learnt_tokens(way: str, size: int) -> None:
    assert inexact(Tokens(way), sequences(size)) == []


# ------------------------------------------------------------------ samples in other dimensions


class SequenceFirst(nn.Module):
    """[B, T, D] in and out, [T, B, D] inside."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.transpose(0, 1)).transpose(0, 1)


class FlattenedSequenceFirst(SequenceFirst):
    """[T * B, D] inside: rows of all samples in turn."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).reshape(-1, D)
        return self.layers(rows).unflatten(0, (T, len(x))).transpose(0, 1)


class Encoder(SequenceFirst):
    """Torch's own, with its default batch_first=False."""

    def __init__(self) -> None:
        super().__init__(nn.TransformerEncoderLayer(D, 1, 5, dropout=0.0, activation="gelu"))


def mlp(inputs: int = D) -> list[nn.Module]:
    return [nn.Linear(inputs, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)]


class Windows(nn.Module):
    """[B * n, w, D]: windows of each sample one after another (Swin)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.layers = width, nn.Sequential(*mlp())

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (-1, self.width)).flatten(0, 1)
        return self.layers(windows).unflatten(0, (len(x), -1)).flatten(1, 2)


class WindowsOutermost(Windows):
    """[n * B, w, D]: the first window of all samples, then the second."""

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.cat(x.split(self.width, 1))
        return torch.cat(self.layers(windows).split(len(x)), 1)


class Concatenated(nn.Module):
    """Both halves of a pair as one batch, [left; right]: siamese nets, and DPO's chosen and rejected answers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp())

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.layers(torch.cat([x, x.flip(1)])).chunk(2)
        return left - 2 * right


class Permuted(nn.Module):
    """Samples in another order inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*mlp()), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.flip(0)).flip(0))


class Experts(nn.Module):
    """Rows go to one of two layers, wherever they come from: how many rows a layer gets depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, D)
        choice, out = (rows.sum(1) > 0).long(), torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            chosen = (choice == i).nonzero().flatten()
            out = out.index_add(0, chosen, torch.tanh(expert(rows[chosen])))
        return out.view_as(x)


class ThroughNumpy(nn.Module):
    """Preprocessing that torch doesn't see."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.from_numpy(x.numpy() * 2))


class FrozenFront(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.layers = nn.Linear(D, D), nn.Sequential(*mlp())
        self.front.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = torch.tanh(self.front(x))
        return self.layers(x)


LAYOUTS: dict[str, Callable[[], nn.Module]] = {
    "sequence first": lambda: SequenceFirst(*mlp()),
    "sequence first, flattened": lambda: FlattenedSequenceFirst(*mlp()),
    "encoder": Encoder,
    "windows of 1": lambda: Windows(1),
    "windows of 2": lambda: Windows(2),
    "windows of 4": lambda: Windows(4),
    "windows outermost": lambda: WindowsOutermost(2),
    "concatenated": Concatenated,
    "permuted": Permuted,
    "experts": Experts,
    "through numpy": ThroughNumpy,
    "frozen front": FrozenFront,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_found_wherever_they_lie(layout: str, size: int) -> None:
    assert inexact(LAYOUTS[layout](), sequences(size)) == []


def with_dropout() -> nn.Module:
    return SequenceFirst(nn.Linear(D, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))


FAST = {name: LAYOUTS[name] for name in LAYOUTS if name not in ("permuted", "experts")} | {"dropout": with_dropout}


def takes_the_fast_way(model: nn.Module, batch: tuple[Tensor, ...]) -> bool:
    """Exact is every way; the slow one is a backward pass for each sample, and has a private tensor for a result."""
    engine = gc.attach(model, None, "param-wise", None)
    fast = not isinstance(model(*batch), PrivateTensor)
    engine.detach()
    return fast


@pytest.mark.parametrize("size", [1, 3, 4, 8])
@pytest.mark.parametrize("layout", FAST)
def test_layouts_along_one_dimension_take_the_fast_way(layout: str, size: int) -> None:
    assert takes_the_fast_way(FAST[layout](), sequences(size))


def test_twin_samples_in_another_order_do_not() -> None:
    assert not takes_the_fast_way(Permuted(), sequences(4))


@pytest.mark.parametrize("sizes", [(4, 3), (1, 4), (2, 4, 2), (3, 4)])
def test_a_layout_learnt_from_one_batch_holds_for_the_next(sizes: tuple[int, ...]) -> None:
    """The sizes of Poisson batches vary, and T may come first as the batch and then not."""
    for make in (lambda: SequenceFirst(*mlp()), lambda: Windows(2)):
        torch.manual_seed(0)
        model = make().double()
        groups = gc.partition(model, "param-wise")
        thresholds = dict.fromkeys(groups, 0.1)
        batches = [tuple(t.double() for t in sequences(size)) for size in sizes]
        wanted = [
            oracle.clipped_sum(model, output_square, batch, members(groups), "abadi", thresholds) for batch in batches
        ]
        engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
        for batch, want in zip(batches, wanted, strict=True):
            engine.backward(output_square(model, batch))
            got = gradients(model)
            engine.discard()
            assert faults(Clipped(got, engine.unsafe_norms()), want, groups, thresholds, 1e-10) == []
        engine.detach()
