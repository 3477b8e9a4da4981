"""How models hold their parameters together: parametrisations, dtypes, tuples, dicts, keywords, chance, in-place, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from check_engine import inexact
from check_rules import B, Calls, ids, randn
from groupclip.persample.pulled import Pulled

PARAMETRISED: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 5)),
    "weight norm, other dimension": lambda: parametrizations.weight_norm(nn.Linear(4, 5), dim=1),
    "weight norm of the whole": lambda: parametrizations.weight_norm(nn.Linear(4, 5), dim=None),
    "weight norm of a convolution": lambda: parametrizations.weight_norm(nn.Conv1d(3, 5, 2)),
    "weight norm, transposed convolution": lambda: parametrizations.weight_norm(nn.ConvTranspose1d(3, 5, 2)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 5)).eval(),
    "spectral norm of a convolution": lambda: parametrizations.spectral_norm(nn.Conv1d(3, 5, 2)).eval(),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"),
}


@pytest.mark.parametrize("kind", PARAMETRISED)
def test_parametrisations(kind: str) -> None:
    """Spectral norm in eval mode here: in training its buffers move in every call."""
    torch.manual_seed(0)
    assert inexact(nn.Sequential(PARAMETRISED[kind](), nn.Tanh()), (randn(B, 3, 4),)) == []


def test_spectral_norm_in_training() -> None:
    """Its vectors are buffers that every call moves, and that attaching must not move twice."""
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(4, 5), n_power_iterations=30)
    assert inexact(nn.Sequential(layer, nn.Tanh()), (randn(B, 3, 4),)) == []


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "1 + weight": (lambda x, w: F.layer_norm(x, (4,)) * (1 + w), {"w": (4,)}, (5, 4)),
    "weight + 1": (lambda x, w: x * (w + 1.0), {"w": (4,)}, (5, 4)),
    "1 - weight": (lambda x, w: x * (1 - w), {"w": (4,)}, (5, 4)),
    "add": (lambda x, w: F.rms_norm(x, (4,), torch.add(w, 1)), {"w": (4,)}, (5, 4)),
    "exp": (lambda x, w: x * w.exp(), {"w": (4,)}, (5, 4)),
    "scaled table": (lambda x, w: F.linear(x, w * 0.5), {"w": (3, 4)}, (5, 4)),
    "negated": (lambda x, w: F.linear(x, -w), {"w": (3, 4)}, (5, 4)),
    "cast up": (lambda x, w: x * w.double(), {"w": (4,)}, (5, 4)),
    "cast and back": (lambda x, w: F.linear(x, w.to(torch.float64).to(x.dtype)), {"w": (3, 4)}, (5, 4)),
    "type_as": (lambda x, w: F.linear(x, w.type_as(x)), {"w": (3, 4)}, (5, 4)),
    "transposed": (lambda x, w: F.linear(x, w.t().contiguous()), {"w": (4, 3)}, (5, 4)),
    "viewed": (lambda x, w: F.linear(x, w.view(3, 4)), {"w": (12,)}, (5, 4)),
    "reshaped": (lambda x, w: x @ w.reshape(4, -1), {"w": (2, 2, 3)}, (5, 4)),
    "indexed": (lambda x, w: x + w[:5], {"w": (9, 4)}, (5, 4)),
    "stacked": (lambda x, v, w: F.linear(x, torch.stack([v, w])), {"v": (4,), "w": (4,)}, (5, 4)),
    "concatenated": (lambda x, v, w: F.linear(x, torch.cat([v, w])), {"v": (2, 4), "w": (3, 4)}, (5, 4)),
    "where": (lambda x, w: torch.where(w > 0, x, w), {"w": (4,)}, (5, 4)),
    "softmax of a parameter": (lambda x, w: x * w.softmax(0), {"w": (4,)}, (5, 4)),
    "a mixture of layers": (
        lambda x, w: sum(p * f for p, f in zip(w.softmax(0), (x, x.cos(), x.sin()), strict=True)), {"w": (3,)}, (5, 4),
    ),
    "kronecker": (lambda x, v, w: F.linear(x, torch.kron(v, w)), {"v": (2, 2), "w": (2, 2)}, (5, 4)),
    "low rank on a frozen": (
        lambda x, a, b: F.linear(x, torch.ones(3, 4, dtype=x.dtype) + b @ a), {"a": (2, 4), "b": (3, 2)}, (5, 4),
    ),
    "a table by a constant": (lambda x, w: x + F.embedding(torch.arange(5)[None], w), {"w": (9, 4)}, (5, 4)),
    "a table by a repeated constant": (lambda x, w: x + F.embedding(torch.tensor([[0, 3, 3, 0, 3]]), w), {"w": (4, 4)}, (5, 4)),
    "a table by a constant, with padding": (
        lambda x, w: x + F.embedding(torch.tensor([[0, 3, 3, 0, 2]]), w, padding_idx=3), {"w": (4, 4)}, (5, 4),
    ),
    "a bias by relative position": (
        lambda x, w: F.scaled_dot_product_attention(
            x[:, None], x[:, None], x[:, None],
            F.embedding((torch.arange(5)[:, None] - torch.arange(5)).clamp(-2, 2) + 2, w).permute(2, 0, 1)[None],
        ).squeeze(1),
        {"w": (5, 1)}, (5, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_parameters_that_are_changed_before_use(function: str) -> None:
    call, shapes, shape = FUNCTIONS[function]
    parameters = {name: randn(*size) + 0.1 * i for i, (name, size) in enumerate(shapes.items())}
    for size in (1, B, 5):
        assert inexact(Calls(call, **parameters), (randn(size, *shape),)) == [], size


def test_positions_keep_no_gradient_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are all different pick rows: norms are those of the sum's gradient, whatever the length of the table."""

    def refuse(self: Pulled) -> Tensor:
        raise AssertionError("instantiated")

    monkeypatch.setattr(Pulled, "instantiate", refuse)
    assert (
        inexact(Calls(lambda x, w: x + F.embedding(torch.arange(5)[None], w), w=randn(9, 4)), (randn(B, 5, 4),)) == []
    )
    with pytest.raises(AssertionError, match="instantiated"):  # its twin: an id that comes twice
        inexact(
            Calls(lambda x, w: x + F.embedding(torch.tensor([[0, 3, 3, 0, 3]]), w), w=randn(9, 4)), (randn(B, 5, 4),)
        )


class Returns(nn.Module):
    """Submodules that return tuples, named tuples and dicts, and that take keywords only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.inner = Inner(self.first)

    def forward(self, x: Tensor) -> dict[str, Any]:
        found = self.inner(x=x, scale=2.0)
        left, (right, _) = found["left"], found["rest"]
        return {"logits": self.second(left), "more": (self.third(right), None), "names": ["a"]}


class Inner(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *, x: Tensor, scale: float) -> dict[str, Any]:
        top = self.layer(x).topk(4, -1)
        return {"left": torch.tanh(top.values) * scale, "rest": (torch.tanh(self.layer(x)), top.indices)}


def test_tuples_dicts_and_keywords() -> None:
    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        found = model(x=batch[0])
        return (found["logits"] + 2 * found["more"][0]).square().flatten(1).mean(1)

    assert inexact(Returns(), (randn(B, 5, 4),), losses) == []


class Chance(nn.Module):
    """Dropout and stochastic depth: masks come from the samples here, so that one sample alone has the same."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            for layer in self.layers:
                match self.way:
                    case "dropout":
                        x = x + F.dropout(torch.tanh(layer(x)), 0.4)
                    case "alpha dropout":
                        x = x + F.alpha_dropout(torch.tanh(layer(x)), 0.4, training=True)
                    case "dropout of channels":
                        x = x + F.dropout1d(torch.tanh(layer(x)), 0.4)
                    case "stochastic depth":
                        x = (
                            x
                            + layer(torch.tanh(x)) * torch.bernoulli(torch.full((len(x), 1, 1), 0.6)).to(x.dtype) / 0.6
                        )
                    case "layers left out":
                        x = x + layer(torch.tanh(x)) if torch.rand(()) < 0.6 else x
                    case "weights dropped":
                        x = x + torch.tanh(F.linear(x, F.dropout(layer.weight, 0.4), layer.bias))
        return self.head(x)


@pytest.mark.parametrize(
    "way", ["dropout", "alpha dropout", "dropout of channels", "stochastic depth", "layers left out", "weights dropped"]
)
def test_chance(way: str) -> None:
    """With one sample the oracle draws the same; what doesn't depend on the batch it draws the same for any."""
    assert inexact(Chance(way), (randn(1, 5, 4),)) == []
    if way in ("layers left out", "weights dropped"):
        assert inexact(Chance(way), (randn(B, 5, 4),)) == []


class InPlace(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(4, 4, 1), activation, nn.GroupNorm(2, 4), activation, nn.ConvTranspose1d(4, 4, 2), activation, nn.Flatten(),
            nn.Linear(24, 5), activation, nn.LayerNorm(5), activation, nn.Linear(5, 3), activation,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(True), nn.SiLU(True), nn.ELU(inplace=True), nn.LeakyReLU(inplace=True), nn.Hardswish(True)],
    ids=str,
)
def test_in_place_activations(activation: nn.Module) -> None:
    assert inexact(InPlace(activation), (randn(B, 4, 5),)) == []


def test_in_place_on_the_output_of_every_rule() -> None:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bag, self.cell = nn.Embedding(5, 4), nn.EmbeddingBag(5, 4, mode="sum"), nn.GRUCell(4, 4)
            self.pairs, self.mixer, self.net = (
                nn.Bilinear(4, 4, 4),
                nn.Parameter(torch.zeros(4, 4)),
                nn.LSTM(4, 4, batch_first=True),
            )

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids).mul_(2)
            x, _ = self.net(x)
            x = x.tanh_().mean(1).add_(self.bag(ids).tanh_())
            x = self.cell(x).mul_(3)
            return torch.einsum("bd,de->be", self.pairs(x, x.cos()).sigmoid_(), self.mixer).tanh_()

    assert inexact(All(), (ids(5, B, 4),)) == []


class Buffers(nn.Module):
    """A buffer that scales, one that counts the calls, one that shifts the input; none takes a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("shift", torch.linspace(-1, 1, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[operator]
        return torch.tanh(self.layer(x - self.shift)) * self.scale  # type: ignore[operator]


def test_buffers() -> None:
    model = Buffers()
    assert inexact(model, (randn(B, 5, 4),)) == []
    assert {name for name, _ in model.named_buffers()} == {"scale", "calls", "shift"}
    assert all(not b.requires_grad and type(b) is Tensor for b in model.buffers())
