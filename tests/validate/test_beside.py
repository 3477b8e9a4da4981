"""Draws in the attached model are those of each sample alone: in parts, one at a time, in turn, in layers that run natively."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import groupclip as gc
from groupclip.clipping.functions import Abadi
from groupclip.validate.beside import layout
from groupclip.validate.kinds import Drawn, Kind
from groupclip.validate.replay import Replays, Script
from groupclip.validate.samples import Batch
from groupclip.validate.single import alone
from groupclip.validate.sums import Sums
from groupclip.validate.tolerance import Tolerance
from small import Made, cross_entropy, images


def by_sign(m: Any, x: Tensor) -> Tensor:
    """Samples take one of two paths, and what is drawn on them differs in number and kind."""
    h = F.dropout(x, 0.5)
    h = F.dropout(m.body(h), 0.3).tanh() if x.sum() > 0 else h * (1 + torch.rand(len(x), 1)) + torch.randn_like(h)
    return m.head(F.dropout(h, 0.2))


def at_once(m: Any, x: Tensor) -> Tensor:
    """As a path by value in a plain batch: each row its own."""
    return torch.cat([by_sign(m, row[None]) for row in x])


def in_turn(m: Any, x: Tensor) -> Tensor:
    """What torch.vmap can't do at once is drawn in turn; draws before and behind it are not."""
    h = F.rrelu(m.body(F.dropout(x, 0.5)), training=True)
    return m.head(F.dropout(h, 0.3)) * (1 + torch.rand(len(x), 1))


def one_at_a_time(m: Any, x: Tensor) -> Tensor:
    shift = torch.from_numpy(np.asarray(x.detach().sum(1, keepdim=True))).to(x)
    return m.head(F.dropout(m.body(x) + shift, 0.4)) * (1 + torch.rand(len(x), 1))


def in_checkpoints(m: Any, x: Tensor) -> Tensor:
    h = checkpoint(lambda h: F.dropout(m.body(F.dropout(h, 0.3)), 0.5).tanh(), F.dropout(x, 0.1), use_reentrant=False)
    return m.head(F.dropout(checkpoint(lambda h: h + F.dropout(m.body(h), 0.2), h, use_reentrant=False), 0.3))


def numpy_too(m: Any, x: Tensor) -> Tensor:
    noise = torch.tensor(np.random.normal(size=(len(x), 4))).to(x)
    return m.head(F.dropout(x + noise, 0.5) * torch.tensor(np.random.rand(len(x), 1)).to(x))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **kwargs: Any) -> None:
        super().__init__()
        self.inside, self.head = kind(4, 5, num_layers=3, dropout=0.4, batch_first=True, **kwargs), nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.inside(x)[0], 0.2).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inside(x).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f.__name__: lambda f=f: Made(f, body=nn.Linear(4, 4))
        for f in (in_turn, one_at_a_time, in_checkpoints, numpy_too)
    },
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru, both directions": lambda: Recurrent(nn.GRU, bidirectional=True),
    "transformer": Attention,
}


@pytest.mark.parametrize("name", MODELS)
def test_draws_beside_others_are_those_of_a_sample_alone(name: str) -> None:
    torch.manual_seed(0)
    x, y = images(6, 5, 4) if name in ("lstm", "gru, both directions", "transformer") else images()
    model = MODELS[name]().train()
    model(x)
    assert len(gc.check(model, cross_entropy, (x, y), "layer-wise").replayed) >= 4


@pytest.mark.parametrize("drawn_before", [False, True])
def test_draws_of_samples_that_run_in_parts(drawn_before: bool) -> None:
    """Each part begins where the call began, not where another part, or a part of an earlier call, left off."""
    model = Made(lambda m, x: by_sign(m, x) if len(x) == 1 else at_once(m, x), body=nn.Linear(4, 4)).train()
    x, y = images()
    assert {bool(s) for s in x.sum(1) > 0} == {True, False}

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        noise = torch.randn_like(x) if drawn_before else 0.0
        return F.cross_entropy(m(x.abs()) + m(x + 0.1 * noise), y, reduction="none")

    engine_alone(model, losses, x, y)


def engine_alone(model: nn.Module, losses: Any, x: Tensor, y: Tensor) -> None:
    """Plain batches draw for one row after another here, which isn't what a sample draws alone, so only the attached pass is
    compared.
    """
    data, replays, groups = Batch((x, y)), Replays(model, losses, 3), gc.partition(model, "layer-wise")
    learn_kinds(replays, data)
    singles = [alone(replays, data.pick(i), i, groups) for i in range(data.size)]
    engine = gc.attach(model, None, groups, None, clip=Abadi(), thresholds=0.01)
    replays.tape = engine._tape
    order = [4, 2, 5, 0, 1, 3]
    Sums(engine, replays, data, Tolerance.of(torch.float32)).equal("all", order, [singles[i] for i in order])
    engine.detach()


def learn_kinds(replays: Replays, data: Batch) -> None:
    """Every draw is one of single samples, along dimension 0."""
    positive = next(i for i in range(data.size) if data.data[0][i].sum() > 0)
    with replays.alike((0,)) as made, torch.no_grad():
        replays.loss(data.pick(positive))
    single = made.draws.made
    replays.scripts[0] = Script([Kind(one, 0) for one in single], [], chance=False, single=single)


def test_layouts() -> None:
    mask = Drawn("bernoulli", None, (1, 4), (1, 4))
    assert (found := layout(mask, [torch.zeros(3, 1, 4)], 3)) is not None
    assert (found.axis, found.share) == (0, None)
    steps = Drawn("bernoulli", None, (5, 1, 4), (5, 1, 4))  # a recurrent layer has the sequence first
    assert (found := layout(steps, [torch.zeros(5, 3, 4)], 3)) is not None
    assert (found.axis, found.share) == (1, 1)
    assert layout(steps, [torch.zeros(7, 2)], 3) is None
    size = Drawn("rand", ((1, 2),), (1, 2), (1, 2))
    assert (found := layout(size, [[3, 1, 2]], 3)) is not None
    assert (found.axis, found.share) == (0, None)
