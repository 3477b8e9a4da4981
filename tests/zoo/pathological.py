"""Hand-written models, each of which arranges its samples or uses its parameters in a way that is easy to get wrong.

Batches are samples first, as everywhere; what happens inside is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Batch, Entry, numbers, output_square, pair


class TwoInputs(nn.Module):
    """left, right [B, 4]: one encoder on both, one after the other, then compared by a shared matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))
        self.between = nn.Parameter(torch.zeros(4, 4))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.encoder(left), self.encoder(right)
        return ((a @ self.between) * b) @ self.between


class OneStack(nn.Module):
    """left, right [B, 4]: both in one batch of 2B through the encoder, the lefts first; then apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3), nn.GroupNorm(1, 3))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.encoder(torch.cat([left, right])).chunk(2)
        return a * b


class SequenceFirst(nn.Module):
    """x [B, T, 4]: transposed to [T, B, 4] in the middle, where T may be B."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
        self.scale = nn.Parameter(torch.ones(4))
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.into(x).transpose(0, 1)) * self.scale
        return self.out(torch.tanh(x)).transpose(0, 1)


class Keywords(nn.Module):
    """Takes keywords only, a dict among them, and returns a dict of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers, self.head = nn.Embedding(9, 4), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, *, features: dict[str, Tensor], weight: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        x = self.words(features["ids"]).mean(1) + self.numbers(features["numbers"])
        return {"out": (self.head(torch.tanh(x)), x * weight[:, None])}


def keyword_losses(model: nn.Module, batch: Batch) -> Tensor:
    ids, x, weight = batch
    left, right = model(features={"numbers": x, "ids": ids}, weight=weight)["out"]
    return left.square().sum(1) + right.square().mean(1)


def keyword_batch(size: int, generator: torch.Generator) -> Batch:
    ids = torch.randint(9, (size, 5), generator=generator)
    return ids, torch.randn(size, 3, generator=generator), torch.rand(size, generator=generator)


class InPlace(nn.Module):
    """x [B, T, 4]: activations that are changed in place, by themselves, by parameters and by parts of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.shift, self.token = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x += self.shift
        x = F.leaky_relu(x, inplace=True)
        y = self.second(x)
        y[:, 0] = y[:, 1] * 2
        y[:, 2] -= self.token
        y.sub_(x).clamp_(-3, 3)
        return self.last(y).sigmoid_()


class Sliced(nn.Module):
    """x [B, T, 4]: position parameters cut to the length at hand, and read backwards; as many positions as samples."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(9, 4))
        self.bias = nn.Parameter(torch.zeros(1, 9, 4))
        self.table = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x = torch.tanh(x + self.positions[:length] + self.bias[:, -length:])
        return self.head(x + self.table(torch.arange(length).flip(0)))


class Experts(nn.Module):
    """x [B, T, 4]: every token goes to the experts that its own router picks; how many go where differs."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            token, slot = (chosen == i).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(tokens[token]) * weights[token, slot, None])
        return self.head(out.view_as(x))


class Sorting(nn.Module):
    """x [B, T, 4]: samples are sorted by their first number, go through a layer, and are put back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0, 0].argsort()
        x = torch.tanh(self.first(x[order]))
        return self.last(x[order.argsort()])


class Windows(nn.Module):
    """x [B, 6, 4]: windows of two folded into the batch, samples first, then windows first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = torch.tanh(self.first(x.reshape(batch * 3, 8)))
        x = x.view(batch, 3, 8).transpose(0, 1).reshape(3 * batch, 8)
        x = self.second(self.norm(x) * self.gain)
        return x.view(3, batch, 4).transpose(0, 1)


class BothOrders(nn.Module):
    """x [B, 6, 4]: one parameter meets the same operation with samples first, and with windows first."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.last = nn.Parameter(torch.ones(8)), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = x.reshape(batch * 3, 8).tanh() * self.gain
        x = x.view(batch, 3, 8).transpose(0, 1).reshape(3 * batch, 8).sigmoid() * self.gain
        return self.last(x.view(3, batch, 8).transpose(0, 1))


class Counting(nn.Module):
    """x [B, 4]: counts its passes in an attribute, a buffer and a list; what it gives depends on the count."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.calls, self.history = 0, []
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.history.append(self.calls)
        layer = self.layers[self.calls % 2]
        return torch.tanh(layer(x)) * self.seen / len(self.history)


def counted_losses(model: nn.Module, batch: Batch) -> Tensor:
    """As in a first pass: the oracle's passes over single samples mustn't count as earlier ones."""
    model.calls, model.history = 0, []
    model.seen.zero_()
    return output_square(model, batch)


class Unpadded(nn.Module):
    """x [B, T, 4], lengths [B]: padding is cut out, and layers see the tokens of all samples in one row [N, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        tokens = self.norm(torch.tanh(self.first(x[mask])))
        x = torch.zeros_like(x).masked_scatter(mask[..., None], tokens)
        return self.last(x)


def ragged(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 5, 4, generator=generator), 2 + torch.arange(size) % 4


class Prompted(nn.Module):
    """ids [B, T]: learnt tokens before the words, a learnt first state, and a loop over time by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.prompt, self.start = nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(4))
        self.cell, self.head = nn.GRUCell(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        x = torch.cat([self.prompt.expand(len(ids), -1, -1), words], dim=1)
        state = self.start.expand(len(ids), -1)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Codebook(nn.Module):
    """x [B, T, 4]: the nearest code of a learnt book, passed straight through; and a penalty for the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.into, self.out = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        nearest = torch.cdist(x, self.codes).argmin(-1)
        codes = self.codes[nearest]
        penalty = (codes - x.detach()).square().mean(-1, keepdim=True)
        return self.out(x + (codes - x).detach()) + penalty


class Generated(nn.Module):
    """x [B, 4]: each sample makes the weights of its own layer, from a learnt mixture of learnt matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture, self.bases = nn.Linear(4, 3), nn.Parameter(torch.zeros(3, 4, 2))
        self.affine = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.einsum("bm,mdp->bdp", self.mixture(x).softmax(-1), self.bases)
        x = torch.tanh(torch.bmm(x[:, None], weights)[:, 0])
        scale, shift = self.affine(x).chunk(2, dim=-1)
        return x * (1 + scale) + shift


def tokens(size: int, generator: torch.Generator) -> Batch:
    return (torch.randint(9, (size, 4), generator=generator),)


def entry(
    name: str, build: Callable[[], nn.Module], draw: Any, losses: Callable[[nn.Module, Batch], Tensor] = output_square
) -> Entry:
    return Entry(name, build, draw, losses)


def two_calls(model: nn.Module, batch: Batch) -> Tensor:
    """A siamese loss: the model twice, and its outputs meet only in the loss."""
    left, right = batch
    return (model(left) - model(right).tanh()).square().mean(1)


PATHOLOGICAL = (
    entry("one module on two inputs", TwoInputs, pair(4)),
    entry("two inputs in one stack", OneStack, pair(4)),
    entry("siamese", lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), pair(4), two_calls),
    entry("sequence first in the middle", SequenceFirst, numbers(5, 4)),
    entry("sequence first, as long as the batch", SequenceFirst, numbers(4, 4)),
    entry("keywords and dicts", Keywords, keyword_batch, keyword_losses),
    entry("in place", InPlace, numbers(3, 4)),
    entry("positions cut to length", Sliced, numbers(5, 4)),
    entry("as many positions as samples", Sliced, numbers(4, 4)),
    entry("mixture of experts", Experts, numbers(5, 4)),
    entry("sorted samples", Sorting, numbers(3, 4)),
    entry("windows in the batch", Windows, numbers(6, 4)),
    entry("one parameter in both orders", BothOrders, numbers(6, 4)),
    entry("counters", Counting, numbers(4), counted_losses),
    entry("unpadded tokens", Unpadded, ragged),
    entry("prompt, first state, tied", Prompted, tokens),
    entry("codebook", Codebook, numbers(3, 4)),
    entry("generated weights", Generated, numbers(4)),
)
ENTRIES = {e.name: e for e in PATHOLOGICAL}
