"""Norms where they are hard: nearly equal tokens whose output gradients sum to nothing, in every precision and by each method.

Gram matrices with bfloat16 entries give squared norms there that are wrong by their own size, and often negative.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc

B, T, D, P = 8, 64, 48, 32
#: How far tokens lie from each other, relative to their length: for float32 this is far below what bfloat16 resolves.
SPREADS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9, torch.float32: 1e-4, torch.float64: 1e-6}


def tokens(dtype: torch.dtype, seed: int, batch: int = B) -> tuple[Tensor, Tensor]:
    """a ``[B, T, D]``, nearly equal over T, and g ``[B, T, P]`` with a sum over T of rounding errors alone."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(batch, 1, D, generator=generator, dtype=torch.float64)
    a = base * (1 + SPREADS[dtype] * torch.randn(batch, T, D, generator=generator, dtype=torch.float64))
    g = torch.randn(batch, T, P, generator=generator, dtype=torch.float64)
    return a.to(dtype), (g - g.mean(1, keepdim=True)).to(dtype)


def exact_norms(a: Tensor, g: Tensor) -> Tensor:
    """In float64, of the very numbers that the engine meets."""
    return torch.einsum("btp,btd->bpd", g.double(), a.double()).flatten(1).norm(dim=1)


class Model(nn.Module):
    """Its per-sample weight gradient is sum_t g_t a_t^T. ``use``: how the weight is used."""

    def __init__(self, use: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.use = use
        self.weight = nn.Parameter(torch.zeros(P, D, dtype=dtype))

    def forward(self, a: Tensor, g: Tensor) -> Tensor:
        if self.use == "linear":
            y = F.linear(a, self.weight)
        elif self.use == "matmul":
            y = a @ self.weight.t()
        elif self.use == "twice":  # half of the positions each: the norm is of the sum
            y = torch.cat([F.linear(a[:, ::2], self.weight), F.linear(a[:, 1::2], self.weight)], 1)
            g = torch.cat([g[:, ::2], g[:, 1::2]], 1)
        else:
            y = F.conv1d(a.transpose(1, 2), self.weight.unsqueeze(2)).transpose(1, 2)
        # The gradient of this is g itself, without rounding.
        return (y.float() * g.float()).flatten(1).sum(1) if y.dtype != torch.float64 else (y * g).flatten(1).sum(1)


@pytest.mark.parametrize("method", ["auto", "gram", "instantiated"])
@pytest.mark.parametrize("use", ["linear", "matmul", "twice", "convolution"])
@pytest.mark.parametrize("dtype", SPREADS)
def test_norms_of_nearly_equal_tokens(dtype: torch.dtype, use: str, method: str) -> None:
    """To 1e-3 of float64, and so never negative: 40 samples."""
    model = Model(use, dtype)
    engine = gc.attach(model, None, gc.partition(model, "all-layer").with_methods({"weight": method}), None)
    for seed in range(5):
        a, g = tokens(dtype, seed)
        engine.backward(model(a, g))
        want = exact_norms(a, g)
        torch.testing.assert_close(engine.unsafe_norms()["all"].double(), want, rtol=1e-3, atol=0)
        engine.discard()


@pytest.mark.parametrize("method", ["gram", "instantiated"])
@pytest.mark.parametrize("clip", ["flat-normalised", "abadi"])
@pytest.mark.parametrize("dtype", SPREADS)
def test_a_sample_whose_tokens_cancel_stays_below_the_threshold(dtype: torch.dtype, clip: str, method: str) -> None:
    """Rounding the weighted g would add what the gradient itself hasn't: 1.8 R in bfloat16. And not far below R."""
    model = Model("linear", dtype)
    groups = gc.partition(model, "all-layer").with_methods({"weight": method})
    engine = gc.attach(model, None, groups, None, clip=clip, thresholds=0.5)
    size = 1e4 if clip == "abadi" and dtype != torch.float16 else 1.0
    for seed in range(3):
        a, g = tokens(dtype, seed)
        for closer in (False, True):
            if closer:  # tokens all equal: the gradient is rounding errors alone
                a = a[:, :1].expand(-1, T, -1).contiguous()
            for i in range(B):
                engine.backward(model(a[i : i + 1], g[i : i + 1]) * size)
                assert model.weight.grad is not None
                length = float(model.weight.grad.double().norm()) / 0.5
                assert length <= 1.0 + 1e-9, (seed, closer, i)
                if clip == "flat-normalised" and float(exact_norms(a[i : i + 1], g[i : i + 1])) > 0:
                    assert length >= 0.97, (seed, closer, i)
                engine.discard()


def test_twin_gram_matrices_in_bfloat16_are_useless_here() -> None:
    """The case is as hard as it claims: squared norms from half-precision Grams are off by half, and some are negative."""
    squares, wants = [], []
    for seed in range(5):
        a, g = tokens(torch.bfloat16, seed)
        squares.append(((a @ a.mT) * (g @ g.mT)).float().sum((1, 2)))
        wants.append(exact_norms(a, g).square().float())
    got, want = torch.cat(squares), torch.cat(wants)
    assert (got < 0).any()
    assert ((got - want).abs() / want).median() > 0.5


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_norms_of_scales_and_biases_that_cancel(dtype: torch.dtype, norm: type[nn.Module]) -> None:
    """Summed over positions first, squared after; in float32 at least."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(D, dtype=dtype)  # type: ignore[call-arg]

        def forward(self, a: Tensor, g: Tensor) -> Tensor:
            return (self.norm(a).float() * g.float()).flatten(1).sum(1)

    model = Scaled()
    engine = gc.attach(model, None, "param-wise", None)
    a, g = tokens(dtype, 0)
    g = torch.randn(B, T, D).to(dtype)
    g = (g.float() - g.float().mean(1, keepdim=True) + 2.0**-6).to(dtype)
    engine.backward(model(a, g))
    with torch.no_grad():
        twin = norm(D, dtype=torch.float64)  # type: ignore[call-arg]
        normed = twin(a.double())
    norms = engine.unsafe_norms()
    want = {"norm.weight": (normed * g.double()).sum(1).norm(dim=1), "norm.bias": g.double().sum(1).norm(dim=1)}
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}[
        dtype
    ]  # of what is normalised in dtype
    for name, found in norms.items():
        torch.testing.assert_close(found.double(), want[name], rtol=1e-3 if name == "norm.bias" else tolerance, atol=0)


# ------------------------------------------------------------------ autocast


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.up, self.conv, self.down = nn.Linear(8, 16), nn.Conv1d(16, 16, 3, padding=1, groups=2), nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.gelu(self.up(self.norm(self.embed(ids))))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.down(x).mean(1).float().square().sum(1)


DEVICES = [
    ("cpu", torch.bfloat16),
    ("cpu", torch.float16),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    pytest.param("cuda", torch.float16, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@contextlib.contextmanager
def cast(device: str, dtype: torch.dtype, how: str) -> Iterator[None]:
    with torch.autocast(device, dtype, cache_enabled=how != "no cache"):
        yield


@pytest.mark.parametrize("how", ["cached", "no cache"])
@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_autocast_equals_single_samples_under_autocast(style: str, device: str, dtype: torch.dtype, how: str) -> None:
    """The truth here is torch's own backward pass of one sample, in the same precision: to the rounding of its products."""
    torch.manual_seed(0)
    model = Net().to(device)
    ids = torch.randint(11, (5, 7), device=device)
    groups = gc.partition(model, style)
    want: dict[str, list[float]] = {group: [] for group in groups}
    for i in range(len(ids)):
        with cast(device, dtype, how):
            loss = model(ids[i : i + 1]).sum()
        grads = dict(
            zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
        )
        for group in groups:
            want[group].append(
                float(torch.stack([grads[n].double().square().sum() for n in groups[group]]).sum().sqrt())
            )
    engine = gc.attach(model, None, groups, None)
    with cast(device, dtype, how):
        losses = model(ids)
    engine.backward(losses)
    for group, norms in engine.unsafe_norms().items():
        assert norms.dtype == torch.float32
        torch.testing.assert_close(norms.double().cpu(), torch.tensor(want[group]).double(), rtol=0.03, atol=1e-3)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_backward_inside_autocast() -> None:
    """Norms and factors don't fall to half precision where the backward pass runs inside, too."""
    torch.manual_seed(0)
    model, ids = Net(), torch.randint(11, (5, 7))
    engine = gc.attach(model, None, "layer-wise", None)
    results = []
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(ids)
            if inside:
                engine.backward(losses)
        if not inside:
            engine.backward(losses)
        results.append(({n: p.grad.clone() for n, p in model.named_parameters()}, engine.unsafe_norms()))  # type: ignore[union-attr]
        engine.discard()
    for group, norms in results[0][1].items():
        torch.testing.assert_close(results[1][1][group], norms, rtol=1e-5, atol=0)
    for n, g in results[0][0].items():
        torch.testing.assert_close(results[1][0][n], g, rtol=1e-5, atol=1e-6)
