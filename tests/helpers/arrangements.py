"""Ways in which a model may move, split or pick the rows of a batch before a layer, and put them back behind it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from apart import linear

Back = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Arrangement:
    """``to(h [B, T, C])`` gives tensors for the layer, and what puts the outputs ``[N, T, D]`` back where they came from.

    whole: the arrangement gives a batch's rows back where they were, so a batch gives what its samples give. Where it isn't,
    the model mixes samples in a batch, and each sample alone is what is right.
    """

    name: str
    to: Callable[[Tensor], tuple[Tensor, Back]]
    whole: bool = True


def by_order(order_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Back]]:
    def to(h: Tensor) -> tuple[Tensor, Back]:
        order = order_of(h)
        return h[order], lambda out: out[order.argsort()]

    return to


def keys(h: Tensor) -> Tensor:
    """``[B]`` with ties."""
    return (h.detach()[:, :, 0] > 0).sum(1)


def scripted(function: Any) -> Any:
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # torch 2.14 says so by the second
            warnings.simplefilter("ignore", category)
        return torch.jit.script(function)


@scripted
def scripted_flip(h: Tensor) -> Tensor:
    rows = [h[i : i + 1] for i in range(h.shape[0])]
    return torch.cat(rows[::-1])


@scripted
def scripted_sort(h: Tensor) -> tuple[Tensor, Tensor]:
    order = h.detach().flatten(1).sum(1).argsort()
    return h.index_select(0, order), order.argsort()


def undone_by(forth: Callable[[Tensor], Tensor], back: Back) -> Callable[[Tensor], tuple[Tensor, Back]]:
    return lambda h: (forth(h), back)


def strided(h: Tensor) -> tuple[Tensor, Back]:
    def back(out: Tensor) -> Tensor:
        whole = out.new_empty(out.shape)
        half = (len(out) + 1) // 2
        return torch.stack([out[i // 2 if i % 2 == 0 else half + i // 2] for i in range(len(whole))])

    return torch.cat([h[::2], h[1::2]]), back


def halves(h: Tensor) -> tuple[Tensor, Back]:
    n = len(h) // 2
    return torch.cat([h[n:], h[:n]]), lambda out: torch.cat([out[len(out) - n :], out[: len(out) - n]])


def pieces(h: Tensor) -> tuple[Tensor, Back]:
    parts = h.split(2)

    def back(out: Tensor) -> Tensor:
        return torch.cat(out.split([len(p) for p in parts[::-1]])[::-1])

    return torch.cat(parts[::-1]), back


def narrowed(h: Tensor) -> tuple[Tensor, Back]:
    n = len(h)
    rows = torch.cat([h.narrow(0, n - 1, 1), h.narrow(0, 0, n - 1)])
    return rows, lambda out: torch.cat([out.narrow(0, 1, n - 1), out.narrow(0, 0, 1)])


def sorted_slices(key: Callable[[Tensor], Any]) -> Callable[[Tensor], tuple[Tensor, Back]]:
    def to(h: Tensor) -> tuple[Tensor, Back]:
        slices = [(i, h[i : i + 1]) for i in range(len(h))]
        slices.sort(key=lambda item: key(item[1].detach()))

        def back(out: Tensor) -> Tensor:
            found: list[Any] = [None] * len(slices)
            for place, (i, _) in enumerate(slices):
                found[i] = out[place : place + 1]
            return torch.cat(found)

        return torch.cat([s for _, s in slices]), back

    return to


def padded(h: Tensor) -> tuple[Tensor, Back]:
    rows = sorted(range(len(h)), key=lambda i: int(keys(h)[i]), reverse=True)
    back = torch.tensor([rows.index(i) for i in range(len(rows))])
    return pad_sequence([h[i] for i in rows], batch_first=True), lambda out: out[back]


def grouped(h: Tensor) -> tuple[Tensor, Back]:
    """Experts: rows of one key after those of another, each group by itself."""
    groups = [(keys(h) == k).nonzero().flatten() for k in keys(h).unique()]
    order = torch.cat(groups)
    return torch.cat([h[g] for g in groups]), lambda out: torch.zeros_like(out).index_copy(0, order, out)


def time_first(h: Tensor) -> tuple[Tensor, Back]:
    """Entries of all samples, step by step, as rows of the layer's own length."""
    batch, steps, _ = h.shape
    rows = h.transpose(0, 1).reshape(steps * batch, -1).view(batch, steps, -1)
    return rows, lambda out: out.reshape(steps, batch, -1).transpose(0, 1)


def numpy_order(h: Tensor) -> tuple[Tensor, Back]:
    order = h.detach().flatten(1).sum(1).numpy().argsort()
    return h[order.copy()], lambda out: out[order.argsort().copy()]


def by_size(h: Tensor) -> tuple[Tensor, Back]:
    if len(h) > 2:
        return h.flip(0), lambda out: out.flip(0)
    return h, lambda out: out


def by_value(h: Tensor) -> tuple[Tensor, Back]:
    if bool(h.detach().sum() > 0):
        return h.roll(1, 0), lambda out: out.roll(-1, 0)
    return h, lambda out: out


def vmapped(h: Tensor) -> tuple[Tensor, Back]:
    rolled = torch.vmap(lambda t: t.roll(2, 0), in_dims=2, out_dims=2)
    return rolled(h), lambda out: torch.vmap(lambda t: t.roll(-2, 0), in_dims=2, out_dims=2)(out)


def looped(h: Tensor) -> tuple[Tensor, Back]:
    """Takes a row off until none is left: a loop whose length hangs on the batch."""
    rows, taken = h, []
    while len(rows):
        taken.append(rows[-1])
        rows = rows[:-1]
    return torch.stack(taken), lambda out: torch.stack(out.unbind(0)[::-1])


def written(h: Tensor) -> tuple[Tensor, Back]:
    table = torch.zeros(h.shape, dtype=h.dtype)
    for i in range(len(h)):
        table[len(h) - 1 - i] = h[i]
    return table, lambda out: out.flip(0)


def gathered(h: Tensor) -> tuple[Tensor, Back]:
    order = h.detach().flatten(1).sum(1).argsort(descending=True)

    def moved(rows: Tensor, to: Tensor) -> Tensor:
        return rows.gather(0, to.view(-1, 1, 1).expand(rows.shape))

    return moved(h, order), lambda out: moved(out, order.argsort())


def multiplied(h: Tensor) -> tuple[Tensor, Back]:
    order = h.detach().flatten(1).sum(1).argsort()
    permutation = F.one_hot(order, len(h)).to(h.dtype)
    return torch.einsum("ij,jtc->itc", permutation, h), lambda out: torch.einsum("ij,itc->jtc", permutation, out)


def attended(h: Tensor) -> tuple[Tensor, Back]:
    weights = torch.einsum("btc,dtc->bd", h, h).softmax(1)
    return torch.einsum("bd,dtc->btc", weights, h), lambda out: out


ARRANGEMENTS = [
    Arrangement("roll", undone_by(lambda h: h.roll(2, 0), lambda out: out.roll(-2, 0))),
    Arrangement("flip", undone_by(lambda h: h.flip(0), lambda out: out.flip(0))),
    Arrangement("split reversed", pieces),
    Arrangement("stride", strided),
    Arrangement("halves swapped", halves),
    Arrangement("narrow", narrowed),
    Arrangement("index by tensor", by_order(lambda h: h.detach().flatten(1).sum(1).argsort())),
    Arrangement("index by list", by_order(lambda h: torch.tensor(list(range(len(h)))[::-1]))),
    Arrangement("index with ties", by_order(lambda h: keys(h).argsort(stable=True))),
    Arrangement("random order", by_order(lambda h: torch.randperm(len(h)))),
    Arrangement("numpy order", numpy_order),
    Arrangement("transpose and view", time_first, whole=False),
    Arrangement("stack of unbind", undone_by(lambda h: torch.stack(h.unbind(0)[::-1]), lambda out: out.flip(0))),
    Arrangement("slices by sum", sorted_slices(lambda row: float(row.sum()))),
    Arrangement("slices by length, tied", sorted_slices(lambda row: int(keys(row)))),
    Arrangement("pad_sequence", padded),
    Arrangement("groups", grouped),
    Arrangement("take", undone_by(
        lambda h: h.take(torch.arange(h.numel()).view(h.shape).flip(0)), lambda out: out.take_along_dim(
            torch.arange(len(out)).flip(0).view(-1, 1, 1), 0))),
    Arrangement("scripted", undone_by(scripted_flip, scripted_flip)),
    Arrangement("scripted sort", lambda h: (lambda rows, back: (rows, lambda out: out[back]))(*scripted_sort(h))),
    Arrangement("torch.ops", undone_by(
        lambda h: torch.ops.aten.roll(h, [1], [0]), lambda out: torch.ops.aten.roll.default(out, [-1], [0]))),
    Arrangement("nested vmap", vmapped),
    Arrangement("by size", by_size),
    Arrangement("by value", by_value),
    Arrangement("loop", looped),
    Arrangement("written into zeros", written),
    Arrangement("gather", gathered),
    Arrangement("permutation matrix", multiplied),
    # Not put back: a batch isn't what its samples are, and samples alone are what is right.
    Arrangement("rolled away", undone_by(lambda h: h.roll(1, 0), lambda out: out), whole=False),
    Arrangement("sorted along the samples", lambda h: (h.sort(0).values, lambda out: out), whole=False),
    Arrangement("mixed with the mean", lambda h: (h + h.mean(0, keepdim=True), lambda out: out), whole=False),
    Arrangement("cumulative", lambda h: (h.cumsum(0), lambda out: out), whole=False),
    Arrangement("attending to the batch", attended, whole=False),
    Arrangement("mixup by random order", lambda h: (h + h[torch.randperm(len(h))], lambda out: out), whole=False),
]  # fmt: skip


# ------------------------------------------------------------------ layers


@dataclass(frozen=True)
class Layer:
    """``run(m, h [N, T, 5])`` gives ``[N, T, D]``; ``parts`` makes what it needs of the model."""

    name: str
    parts: Callable[[], dict[str, Any]]
    run: Callable[[Any, Tensor], Tensor]


def parameter(*shape: int) -> nn.Parameter:
    generator = torch.Generator().manual_seed(sum(shape))
    return nn.Parameter(torch.randn(shape, generator=generator) / 2)


def module(make: Callable[[], nn.Module], run: Callable[[Any, Tensor], Tensor] | None = None) -> Callable[[str], Layer]:
    def parts() -> dict[str, Any]:
        torch.manual_seed(1)
        return {"layer": make()}

    return lambda name: Layer(name, parts, run or (lambda m, h: m.layer(h)))


def over_channels(m: Any, h: Tensor) -> Tensor:
    return m.layer(h.transpose(1, 2)).transpose(1, 2)


def stepped(m: Any, h: Tensor) -> Tensor:
    state = h.new_zeros(len(h), 4)
    states = []
    for step in h.unbind(1):
        state = m.layer(step, state)
        states.append(state)
    return torch.stack(states, 1)


def ids(h: Tensor) -> Tensor:
    return (h.detach()[:, :, 0].abs() * 3).long().clamp(max=8)


LAYERS = {
    name: make(name)
    for name, make in {
        "Linear": module(lambda: nn.Linear(5, 4)),
        "Linear without bias, twice": module(lambda: nn.Linear(5, 5, bias=False), lambda m, h: m.layer(m.layer(h).tanh())),
        "Bilinear": module(lambda: nn.Bilinear(5, 5, 4), lambda m, h: m.layer(h, h.flip(1))),
        "Conv1d": module(lambda: nn.Conv1d(5, 4, 3, padding=1), over_channels),
        "Conv1d in groups": module(lambda: nn.Conv1d(5, 10, 1, groups=5), over_channels),
        "Conv2d": module(lambda: nn.Conv2d(1, 2, 3, padding=1), lambda m, h: m.layer(h[:, None]).transpose(1, 2).flatten(2)),
        "ConvTranspose1d": module(lambda: nn.ConvTranspose1d(5, 4, 3, padding=1), over_channels),
        "Embedding": module(lambda: nn.Embedding(9, 4), lambda m, h: m.layer(ids(h)) * h[..., :1]),
        "EmbeddingBag": module(lambda: nn.EmbeddingBag(9, 4), lambda m, h: m.layer(ids(h))[:, None] * h[..., :1]),
        "LayerNorm": module(lambda: nn.LayerNorm(5)),
        "GroupNorm": module(lambda: nn.GroupNorm(1, 5), over_channels),
        "RMSNorm": module(lambda: nn.RMSNorm(5)),
        "BatchNorm in eval mode": module(lambda: nn.BatchNorm1d(5).eval(), over_channels),
        "PReLU": module(lambda: nn.PReLU(5), over_channels),
        "LSTM": module(lambda: nn.LSTM(5, 4, batch_first=True), lambda m, h: m.layer(h)[0]),
        "LSTM, two ways and layers": module(
            lambda: nn.LSTM(5, 3, 2, batch_first=True, bidirectional=True), lambda m, h: m.layer(h)[0]),
        "GRU": module(lambda: nn.GRU(5, 4, batch_first=True), lambda m, h: m.layer(h)[0]),
        "RNN, steps first": module(lambda: nn.RNN(5, 4), lambda m, h: m.layer(h.transpose(0, 1))[0].transpose(0, 1)),
        "LSTM, last state": module(
            lambda: nn.LSTM(5, 4, batch_first=True), lambda m, h: m.layer(h)[1][0].transpose(0, 1).expand(-1, h.shape[1], -1)),
        "GRUCell": module(lambda: nn.GRUCell(5, 4), stepped),
        "MultiheadAttention": module(
            lambda: nn.MultiheadAttention(5, 1, batch_first=True), lambda m, h: m.layer(h, h, h, need_weights=False)[0]),
        "TransformerEncoderLayer": module(lambda: nn.TransformerEncoderLayer(5, 1, 6, dropout=0.0, batch_first=True)),
        "weight_norm": module(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))),
    }.items()
}  # fmt: skip
LAYERS |= {
    layer.name: layer
    for layer in (
        Layer("@", lambda: {"w": parameter(5, 4)}, lambda m, h: h @ m.w),
        Layer("@ from the left", lambda: {"w": parameter(4, 5)}, lambda m, h: (m.w @ h.transpose(1, 2)).transpose(1, 2)),
        Layer("+ and *", lambda: {"w": parameter(5), "v": parameter(1, 1, 5)}, lambda m, h: h * m.w + m.v),
        Layer("einsum", lambda: {"w": parameter(5, 4)}, lambda m, h: torch.einsum("ntc,cd->ntd", h, m.w)),
        Layer("einsum of two parameters", lambda: {"w": parameter(5, 3), "v": parameter(3, 4)},
              lambda m, h: torch.einsum("ntc,cd,de->nte", h, m.w, m.v)),
        Layer("prompt", lambda: {"w": parameter(2, 5)},
              lambda m, h: torch.cat([m.w.expand(len(h), -1, -1), h], 1).cumsum(1)[:, -h.shape[1] :]),
        Layer("cdist", lambda: {"w": parameter(4, 5)}, lambda m, h: torch.cdist(h, m.w.expand(len(h), -1, -1))),
        Layer("low rank", lambda: {"w": parameter(5, 2), "v": parameter(2, 4)}, lambda m, h: h @ (m.w @ m.v).tanh()),
        Layer("torch.ops", lambda: {"w": parameter(4, 5), "v": parameter(4)},
              lambda m, h: torch.ops.aten.linear(h, m.w, m.v)),
        Layer("addmm", lambda: {"w": parameter(5, 4), "v": parameter(4)},
              lambda m, h: torch.addmm(m.v, h.flatten(0, 1), m.w).unflatten(0, h.shape[:2])),
        Layer("vmapped", lambda: {"w": parameter(5, 4)}, lambda m, h: torch.vmap(lambda row: (row @ m.w).tanh())(h)),
        Layer("torch.func.grad", lambda: {"w": parameter(5, 4)},
              lambda m, h: torch.func.grad(lambda t: (t @ m.w).tanh().square().sum())(h)),
        Layer("F.linear with a mask", lambda: {"w": parameter(4, 5)},
              lambda m, h: F.linear(h, m.w * torch.ones(4, 5, dtype=h.dtype).tril())),
    )
}  # fmt: skip

__all__ = ["ARRANGEMENTS", "LAYERS", "Arrangement", "Layer", "linear"]
