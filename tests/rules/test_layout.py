"""Where samples lie is never guessed from lengths: sequences first, windows, views, samples in another order."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import Clipped, faults, gradients, inexact, members
from models import output_square

T, D = 4, 3  # sizes of batches below meet T, its divisors and its multiples
SIZES = [1, 2, 3, 4, 5, 8]


def sequences(size: int) -> tuple[Tensor, ...]:
    return (torch.randn(size, T, D, generator=torch.Generator().manual_seed(size)),)


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_found_wherever_they_lie(layout: str, size: int) -> None:
    assert inexact(LAYOUTS[layout](), sequences(size)) == []


def with_dropout() -> nn.Module:
    return SequenceFirst(nn.Linear(D, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))


FAST = {name: LAYOUTS[name] for name in LAYOUTS if name not in ("experts", "through numpy")} | {"dropout": with_dropout}


def takes_the_fast_way(model: nn.Module, batch: tuple[Tensor, ...]) -> bool:
    """Exact is every way; the slow one runs the model once for each sample."""
    engine, calls = gc.attach(model, None, "param-wise", None), []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    model(*batch)
    handle.remove()
    engine.detach()
    return len(calls) == 1


@pytest.mark.parametrize("size", [1, 3, 4, 8])
@pytest.mark.parametrize("layout", FAST)
def test_layouts_along_one_dimension_take_the_fast_way(layout: str, size: int) -> None:
    assert takes_the_fast_way(FAST[layout](), sequences(size))


def test_its_twin_that_leaves_torch_does_not() -> None:
    assert not takes_the_fast_way(ThroughNumpy(), sequences(4))


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


def shuffle_by_torch(n: int) -> list[int]:
    return torch.randperm(n).tolist()


def shuffle_by_numpy(n: int) -> list[int]:
    return np.random.permutation(n).tolist()


def shuffle_by_python(n: int) -> list[int]:
    order = list(range(n))
    random.shuffle(order)
    return order


@pytest.mark.parametrize("shuffle", [shuffle_by_torch, shuffle_by_numpy, shuffle_by_python])
def test_a_model_that_shuffles_its_samples_is_seen_to(shuffle) -> None:
    class Shuffles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            order = torch.tensor(shuffle(len(x)))
            return torch.tanh(self.layer(x[order]))[order.argsort()]

    torch.manual_seed(0)
    model, x = Shuffles().double(), torch.randn(6, 4, dtype=torch.float64)
    engine = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-3)
    engine.backward(model(x).square().sum(dim=1))
    norms = engine.unsafe_norms()["layer.bias"]
    alone = [torch.autograd.grad(torch.tanh(F.linear(x[i], model.layer.weight.detach(), b)).square().sum(), b)[0].norm()
             for i in range(6) for b in [model.layer.bias.detach().requires_grad_()]]  # fmt: skip
    torch.testing.assert_close(norms, torch.stack(alone), rtol=1e-10, atol=0)


class Positions(nn.Module):
    """Its second input is no batch: positions, which may be as many as there are samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table, self.head = nn.Linear(4, 5), nn.Embedding(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x) + self.table(positions))).sum(dim=1)


@pytest.mark.parametrize("length", [4, 6])
def test_an_input_that_is_no_batch_may_be_as_long_as_one(length: int) -> None:
    torch.manual_seed(0)
    model, x = Positions().double(), torch.randn(length, length, 4, dtype=torch.float64)
    alone = {name: [] for name, _ in model.named_parameters()}
    for i in range(length):
        loss = model(x[i : i + 1], torch.arange(length)).square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for name, grad in zip(alone, grads, strict=True):
            alone[name].append(grad.norm())
    engine = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-3)
    engine.backward(model(x, torch.arange(length)).square().sum(dim=1))
    for name, norms in engine.unsafe_norms().items():
        torch.testing.assert_close(norms, torch.stack(alone[name]), rtol=1e-10, atol=0)


def test_a_model_that_asks_for_its_own_batch_size_raises_its_own_error() -> None:
    """Lengths come first. The error says that it ran on one sample; a function of the samples does without the model's call."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, lengths: Tensor, x: Tensor) -> Tensor:
            if len(x) != 6:
                raise ValueError("six samples, always")
            return self.layer(x.flip(0)).flip(0) * lengths.unsqueeze(1)

    torch.manual_seed(0)
    model, lengths, x = Fixed().double(), torch.arange(1.0, 7.0).double(), torch.randn(6, 4, dtype=torch.float64)
    engine = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-3)
    with pytest.raises(ValueError, match="six samples, always") as refused:
        model(lengths, x)
    assert "runs every sample by itself, as a batch of one" in refused.value.__notes__[0]
    engine.detach()
    found = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-3)
    found.backward(found.per_sample(lambda n, x: model.layer(x) * n.unsqueeze(1), lengths, x).square().sum(dim=1))
    out = model.layer(x).detach() * lengths.unsqueeze(1)
    expected = (2 * out * lengths.unsqueeze(1)).norm(dim=1)
    torch.testing.assert_close(found.unsafe_norms()["layer.bias"], expected, rtol=1e-10, atol=0)
