"""Every operation with a rule of its own, over the grid of its options: exact, by both norm methods."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from groupclip.norms import GRAM, INSTANTIATED

B = 3
METHODS = [GRAM, INSTANTIATED]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def ids(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(7))


@pytest.fixture(autouse=True)
def quiet_even_kernels() -> Iterator[None]:
    """Torch warns that padding="same" pads a copy where the kernel is even."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        yield


# ------------------------------------------------------------------ convolutions

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
IMAGES = {1: (7,), 2: (6, 5), 3: (4, 5, 4)}
KERNELS: dict[int, list[Any]] = {1: [1, 2, 3], 2: [1, 3, (2, 3)], 3: [2, (1, 3, 2)]}


def convolution_options(dims: int) -> Iterator[dict[str, Any]]:
    for kernel, groups, dilation in itertools.product(KERNELS[dims], (1, 2, 4), (1, 2)):
        for stride, padding in [(1, 0), (2, 1), (1, "same"), (1, "valid"), (2, 0)]:
            if kernel == 1 and dilation == 2:
                continue
            if isinstance(padding, int) and dims == 3 and dilation == 2:
                padding = 2
            yield {
                "kernel_size": kernel, "groups": groups, "dilation": dilation, "stride": stride, "padding": padding,
            }  # fmt: skip


def inexact_convolution(dims: int, options: dict[str, Any], method: str) -> list[str]:
    model = nn.Sequential(CONV[dims](4, 4, **options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2))
    x = randn(B, 4, *IMAGES[dims])
    model(x)
    return inexact(model, (x,), styles=("param-wise",), methods=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", CONV)
def test_convolutions(dims: int, method: str) -> None:
    """Kernels, groups (depthwise included), dilation, stride, padding as numbers and as text."""
    tried = 0
    for i, options in enumerate(convolution_options(dims)):
        if i % 3 == METHODS.index(method) or dims == 2:
            assert inexact_convolution(dims, options, method) == [], options
            tried += 1
    assert tried >= 12


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", CONV)
def test_all_convolutions(dims: int, method: str) -> None:
    for options in convolution_options(dims):
        assert inexact_convolution(dims, options, method) == [], options


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", CONV)
def test_padding_modes(dims: int, mode: str) -> None:
    """Uneven paddings, numbers and text; bias and none."""
    uneven = {1: (2,), 2: (1, 2), 3: (1, 2, 1)}[dims]
    for padding, bias in ((uneven, True), ("same", False), (1, False)):
        options = {"kernel_size": 2, "padding": padding, "padding_mode": mode, "bias": bias, "dilation": 1}
        for method in METHODS:
            assert inexact_convolution(dims, options, method) == [], options


class Calls(nn.Module):
    """A function of the input and of parameters, as a model."""

    def __init__(self, function: Callable[..., Tensor], **parameters: Tensor) -> None:
        super().__init__()
        self.function, self.names = function, list(parameters)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(self.function(*inputs, *(self.get_parameter(name) for name in self.names)))


def test_convolutions_called_as_functions() -> None:
    """With keywords, tuples of one, a bias that is frozen or absent, images of each sample in a dimension more."""
    w, b, x = randn(4, 2, 3), randn(4), randn(B, 4, 7)
    for function in (
        lambda x, w, b: F.conv1d(x, w, b, (2,), (1,), (1,), 2),
        lambda x, w, b: F.conv1d(input=x, weight=w, bias=b, groups=2, padding="same"),
        lambda x, w, b: F.conv1d(x, w, None, groups=2, padding=1) + b[:, None],
        lambda x, w, b: torch.conv1d(x, w, bias=b, groups=2, stride=2),
    ):
        assert inexact(Calls(function, w=w, b=b), (x,)) == []
    frames = randn(B, 2, 4, 5, 5)
    folded = Calls(lambda x, w: F.conv2d(x.flatten(0, 1), w, padding=1).unflatten(0, (-1, 2)), w=randn(3, 4, 3, 3))
    for method in METHODS:
        assert inexact(folded, (frames,), methods=method) == []


# ------------------------------------------------------------------ linear maps


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(B, 4), (B, 5, 4), (B, 2, 5, 4), (B, 2, 2, 2, 4), (B, 1, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool, method: str) -> None:
    """Any number of dimensions between sample and features; T = 1 is the closed form."""
    assert (
        inexact(nn.Sequential(nn.Linear(4, 6, bias), nn.GELU(), nn.Linear(6, 2)), (randn(*shape),), methods=method)
        == []
    )


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "x @ w": (lambda x, w: x @ w, {"w": (4, 5)}, (B, 6, 4)),
    "matmul": (torch.matmul, {"w": (4, 5)}, (B, 4)),
    "mm": (torch.mm, {"w": (4, 5)}, (B, 4)),
    "x @ w.t()": (lambda x, w: x @ w.t(), {"w": (5, 4)}, (B, 6, 4)),
    "x @ w.mT": (lambda x, w: x @ w.mT, {"w": (5, 4)}, (B, 6, 4)),
    "w @ x": (lambda x, w: w @ x, {"w": (5, 6)}, (B, 6, 4)),
    "x @ vector": (lambda x, w: (x @ w).unsqueeze(-1), {"w": (4,)}, (B, 6, 4)),
    "x @ stacked": (lambda x, w: x.unsqueeze(1) @ w, {"w": (2, 4, 5)}, (B, 6, 4)),
    "bmm of an expanded weight": (lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)), {"w": (1, 4, 5)}, (B, 6, 4)),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w), {"b": (5,), "w": (4, 5)}, (B, 4)),
    "addmm scaled": (lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=3), {"b": (5,), "w": (4, 5)}, (B, 4)),
    "conv1d of gpt-2": (
        lambda x, b, w: torch.addmm(b, x.view(-1, 4), w).view(*x.shape[:-1], 5), {"b": (5,), "w": (4, 5)}, (B, 6, 4),
    ),
    "baddbmm": (lambda x, b, w: torch.baddbmm(b, x, w.expand(len(x), 4, 5)), {"b": (1, 1, 5), "w": (1, 4, 5)}, (B, 6, 4)),
    "einsum": (lambda x, w: torch.einsum("btd,dhk->bhtk", x, w), {"w": (4, 2, 3)}, (B, 6, 4)),
    "bilinear": (lambda x, w: F.bilinear(x, x * 2, w), {"w": (3, 4, 4)}, (B, 6, 4)),
    "functional linear, keywords": (lambda x, w, b: F.linear(input=x, weight=w, bias=b), {"w": (5, 4), "b": (5,)}, (B, 4)),
    "low rank": (lambda x, a, b: x @ a.T @ b.T + F.linear(x, b @ a), {"a": (2, 4), "b": (4, 2)}, (B, 6, 4)),
    "weight standardised": (
        lambda x, w: F.linear(x, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-3)), {"w": (5, 4)}, (B, 4),
    ),
    "masked": (lambda x, w: F.linear(x, w.tril()), {"w": (4, 4)}, (B, 6, 4)),
    "transposed convolution": (lambda x, w: F.conv_transpose1d(x, w, stride=2), {"w": (6, 3, 2)}, (B, 6, 4)),
    "prelu": (F.prelu, {"w": (6,)}, (B, 6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_parameters(function: str, method: str) -> None:
    call, shapes, shape = FUNCTIONS[function]
    parameters = {name: randn(*size) + 0.1 * i for i, (name, size) in enumerate(shapes.items())}
    assert inexact(Calls(call, **parameters), (randn(*shape),), methods=method) == []


# ------------------------------------------------------------------ adding and multiplying

ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + w": lambda x, w: x + w,
    "w + x": lambda x, w: w + x,
    "x - w": lambda x, w: x - w,
    "w - x": lambda x, w: w - x,
    "x * w": lambda x, w: x * w,
    "x / w": lambda x, w: x / (2 + w.abs()),
    "w / x": lambda x, w: w / (2 + x.square()),
    "add alpha": lambda x, w: torch.add(x, w, alpha=3),
    "sub alpha": lambda x, w: torch.sub(w, x, alpha=3),
    "rsub": lambda x, w: torch.rsub(x, w),
    "mul method": lambda x, w: x.mul(w),
    "add method": lambda x, w: x.add(w, alpha=2),
    "add_": lambda x, w: (x * 1).add_(w),
    "+=": lambda x, w: _in_place(x * 1, w),
    "mul_": lambda x, w: (x * 1).mul_(w),
    "sub_": lambda x, w: (x * 1).sub_(w),
    "div_": lambda x, w: (x * 1).div_(2 + w.square()),
    "addcmul": lambda x, w: torch.addcmul(x, x, w),
    "lerp": lambda x, w: torch.lerp(x, w.expand_as(x), 0.3),
    "where": lambda x, w: torch.where(x > 0, x, w),
    "maximum": lambda x, w: torch.maximum(x, w),
    "pow": lambda x, w: (1 + x.square()) ** w,
}


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    x += w
    return x


@pytest.mark.parametrize("shape", [(4,), (5, 4), (1, 5, 1), (5, 1), (1, 1, 4), ()], ids=str)
@pytest.mark.parametrize("operation", ELEMENTWISE)
def test_elementwise(operation: str, shape: tuple[int, ...]) -> None:
    """Every way that a parameter lines up with ``x [B, 5, 4]``; B = 5 and 4 are as long as its own dimensions."""
    for size in (B, 5, 4, 1):
        model = Calls(
            ELEMENTWISE[operation], w=torch.linspace(0.5, 1.5, max(1, int(torch.Size(shape).numel()))).view(shape)
        )
        assert inexact(model, (randn(size, 5, 4),), styles=("all-layer",)) == [], size


# ------------------------------------------------------------------ normalisation


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(4), (B, 4)),
    "layer norm, sequence": (lambda: nn.LayerNorm(4), (B, 6, 4)),
    "layer norm, two dimensions": (lambda: nn.LayerNorm((6, 4)), (B, 2, 6, 4)),
    "layer norm, all but the sample": (lambda: nn.LayerNorm((6, 4)), (B, 6, 4)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (B, 6, 4)),
    "layer norm without anything": (lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2)), (B, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), (B, 6, 4)),
    "rms norm, two dimensions": (lambda: nn.RMSNorm((6, 4), eps=1e-3), (B, 2, 6, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (B, 4, 5, 3)),
    "group norm, one group": (lambda: nn.GroupNorm(1, 4), (B, 4, 5)),
    "group norm, vectors": (lambda: nn.GroupNorm(2, 6), (B, 6)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4, affine=True), (B, 4, 6)),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(4, affine=True), (B, 4, 3, 4)),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(4, affine=True), (B, 4, 3, 2, 3)),
    "batch norm 1d, fixed": (lambda: nn.BatchNorm1d(4).eval(), (B, 4)),
    "batch norm 2d, fixed": (lambda: nn.BatchNorm2d(4).eval(), (B, 4, 3, 4)),
    "instance norm, fixed": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True).eval(), (B, 4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm: str) -> None:
    """Followed by a bend, so that the norm's own scale doesn't cancel; between layers, so that inputs have gradients."""
    make, shape = NORMS[norm]
    for first in (True, False):
        front: list[nn.Module] = [] if first else [nn.Linear(shape[-1], shape[-1]), nn.Tanh()]
        assert inexact(nn.Sequential(*front, make(), nn.Tanh()), (randn(*shape),)) == []


# ------------------------------------------------------------------ embeddings


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("padding", [None, 0, 3, -1])
@pytest.mark.parametrize("shape", [(B,), (B, 1), (B, 5), (B, 2, 4)])
def test_embeddings(shape: tuple[int, ...], padding: int | None, method: str) -> None:
    """Few ids: some come twice in a sample, some never, some are padding."""
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=padding), nn.Tanh(), nn.Linear(3, 2))
    assert inexact(model, (ids(4, *shape),), methods=method) == []


@pytest.mark.parametrize("sparse", [True, False])
def test_embedding_gradients_are_dense(sparse: bool) -> None:
    """Noise is dense, so the gradient that comes out is."""
    assert inexact(nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Tanh()), (ids(6, B, 4),)) == []


class TwoTables(nn.Module):
    """Words, segments and one table twice; a padding that is padding in one look-up and a word in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(6, 3), nn.Embedding(2, 3)

    def forward(self, words: Tensor, segments: Tensor) -> Tensor:
        again = F.embedding(words.flip(1), self.words.weight, padding_idx=2)
        return torch.tanh(self.words(words) + self.segments(segments) * again)


def test_one_table_looked_up_twice() -> None:
    assert inexact(TwoTables(), (ids(6, B, 5), ids(2, B, 5))) == []


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    model = nn.Sequential(nn.EmbeddingBag(6, 3, mode=mode), nn.Tanh())
    assert inexact(model, (ids(6, B, 5),)) == []


class TiedHead(nn.Module):
    """A table that is looked up and is the weight of the head, in one of the ways that models write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.words, self.way, self.bias = nn.Embedding(7, 4), way, nn.Parameter(torch.zeros(7))

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.words(tokens))
        table = self.words.weight
        match self.way:
            case "linear":
                return F.linear(x, table, self.bias)
            case "transposed":
                return x @ table.t() + self.bias
            case "einsum":
                return torch.einsum("btd,vd->btv", x, table) + self.bias
            case _:  # its mean in every position, too
                return F.linear(x + table.mean(0), table, self.bias)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["linear", "transposed", "einsum", "mean"])
def test_tied_heads(way: str, method: str) -> None:
    assert inexact(TiedHead(way), (ids(7, B, 5),), styles=("param-wise",), methods=method) == []


# ------------------------------------------------------------------ attention


class Attends(nn.Module):
    """Torch's attention over ``x [B, 5, 4]`` and ``memory [B, 3, ..]``, its weights in the output if asked for."""

    def __init__(
        self, *, cross: bool = False, weights: bool = True, average: bool = True, mask: str = "", **options: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.first, self.cross, self.weights, self.average, self.mask = (
            options.get("batch_first", False), cross, weights, average, mask,
        )  # fmt: skip

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        keys = memory if self.cross else x
        if not self.first:
            x, keys = x.transpose(0, 1), keys.transpose(0, 1)
        length, size = (x.shape[1], x.shape[0]) if self.first else x.shape[:2]
        positions = keys.shape[1 if self.first else 0]
        masks: dict[str, Any] = {}
        if self.mask == "causal":
            masks = {
                "attn_mask": nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype),
                "is_causal": True,
            }
        elif self.mask == "bool":
            masks = {"attn_mask": torch.ones(length, positions, dtype=torch.bool).triu(1)}
        elif self.mask == "per head":
            masks = {"attn_mask": torch.arange(size * 2 * length * positions).view(size * 2, length, positions) / 50.0}
            masks["attn_mask"] = masks["attn_mask"].fmod(1).to(x.dtype)
        elif self.mask == "padding":
            masks = {"key_padding_mask": (torch.arange(positions) == 2).expand(size, -1)}
        out, weights = self.attention(
            x, keys, keys, need_weights=self.weights, average_attn_weights=self.average, **masks
        )
        out = out if self.first else out.transpose(0, 1)
        return out if weights is None else torch.cat([out.flatten(1), weights.flatten(1)], 1)


ATTENTION: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "batch first": {"batch_first": True},
    "no weights": {"weights": False},
    "weights of each head": {"average": False},
    "no bias": {"bias": False},
    "bias for keys and values": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "both, no weights": {"add_bias_kv": True, "add_zero_attn": True, "weights": False, "batch_first": True},
    "cross": {"cross": True},
    "cross, other widths": {"cross": True, "kdim": 4, "vdim": 4},
    "cross, other widths, no bias": {"cross": True, "kdim": 4, "vdim": 4, "bias": False, "batch_first": True},
    "causal": {"mask": "causal"},
    "causal without weights": {"mask": "causal", "weights": False},
    "boolean mask": {"mask": "bool", "batch_first": True},
    "padding mask": {"mask": "padding"},
    "padding mask and bias": {"mask": "padding", "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("options", ATTENTION)
def test_multi_head_attention(options: str, size: int) -> None:
    """B = 5 and 3 are as long as the sequences."""
    x, memory = randn(size, 5, 4), randn(size, 3, 4).cos()
    assert inexact(Attends(**ATTENTION[options]), (x, memory), styles=("param-wise",)) == []


class DecoderLayer(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=batch_first, activation="gelu")
        self.first = batch_first

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if self.first:
            return self.layer(x, memory)
        return self.layer(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("size", [2, 5])
def test_transformer_decoder(batch_first: bool, size: int) -> None:
    assert (
        inexact(DecoderLayer(batch_first), (randn(size, 5, 4), randn(size, 3, 4).cos()), styles=("param-wise",)) == []
    )


# ------------------------------------------------------------------ recurrence


class Recurs(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.net, self.first = kind(3, 4, **options), options.get("batch_first", False)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.net(x if self.first else x.transpose(0, 1))
        return out if self.first else out.transpose(0, 1)


@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    assert inexact(Recurs(kind, **options), (randn(B, 4, 3),), styles=("all-layer",)) == []


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_used_at_every_step(kind: type[nn.RNNCellBase]) -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state  # type: ignore[return-value]

    assert inexact(Loops(), (randn(B, 4, 3),), styles=("param-wise",)) == []
