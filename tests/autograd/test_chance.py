"""Paths that random numbers decide on: how often a sample takes one doesn't hang on the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apart import Runs, attached, drawn, linear
from groupclip.alone.run import Alone
from groupclip.autograd import reads

RATE, B, PASSES = 0.2, 4, 100


def drops(m: Any, x: Tensor) -> Tensor:
    """LayerDrop: a layer is left out at random. The last column says so."""
    dropped = torch.rand([]) < RATE
    h = m.first(x)
    if not dropped:
        h = m.last(h).tanh()
    return torch.cat([h, h.new_full((1, 1), float(bool(dropped)))], 1)


def share_of_dropped() -> float:
    model = Runs(drops, first=linear(), last=linear()).double()
    engine, total = attached(model), 0.0
    torch.manual_seed(0)
    for _ in range(PASSES):
        total += float(model(drawn(B, 5))[:, -1].detach().sum())
        engine.discard()
    engine.detach()
    return total / (PASSES * B)


#: 4.5 standard deviations of 400 draws: a right share is beyond it once in 150,000 times.
BAND = 4.5 * (RATE * (1 - RATE) / (PASSES * B)) ** 0.5


def test_a_layer_is_dropped_as_often_as_for_a_sample_alone() -> None:
    assert abs(share_of_dropped() - RATE) < BAND


def test_twin_samples_that_run_again_where_they_disagree_drop_it_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "decides", lambda *_: False)
    assert share_of_dropped() < RATE - BAND


Asks = Callable[[Tensor, Tensor], Any]

#: of the inputs, and of a layer's output after dropout
BY_CHANCE: dict[str, Asks] = {
    "a draw": lambda x, h: torch.rand(()) < 0.5,
    "a draw of a number": lambda x, h: torch.randint(0, 9, (1,)).item() > 4,
    "in place": lambda x, h: torch.empty(3).uniform_().sum() > 1,
    "from a rate of the sample's": lambda x, h: torch.bernoulli(x.sigmoid()).sum() > 2,
    "after dropout": lambda x, h: h.sum() > 0,
    "a view": lambda x, h: h[0, 0] > 0,
    "in a list": lambda x, h: torch.stack([x[0, 0], h[0, 0]]).max() > 0,
    "written into another": lambda x, h: x.clone().index_put_((torch.tensor([0]), torch.tensor([0])), h[0, 0]).sum() > 0,
    "set": lambda x, h: written(x.clone(), h).sum() > 0,
    "a list of numbers": lambda x, h: sum(h[0].tolist()) > 0,
    "rows picked": lambda x, h: len(h[h > 0]) > 2,
    "rows counted": lambda x, h: len((h > 0).nonzero()) > 2,
    "a slice": lambda x, h: x[:, : (h > 0).sum()].sum() > 0,
    "repeated": lambda x, h: len(torch.arange(5).repeat_interleave((h[0] > 0).long())) > 2,
    "compared": lambda x, h: torch.equal(h > 0, x > 0),
    "a distribution": lambda x, h: torch.distributions.Bernoulli(0.5).sample() > 0,
    "gumbel": lambda x, h: F.gumbel_softmax(x, hard=True)[0, 0] > 0,
}

NOT_BY_CHANCE: dict[str, Asks] = {
    "the inputs": lambda x, h: x.sum() > 1e6,
    "its size": lambda x, h: h.shape[1] > 3 and h.size(0) == 1 and h.dim() == 2,
    "a rate of zero": lambda x, h: torch.rand([]) < 0.0,
    "a rate of one": lambda x, h: torch.rand([]) >= 1,
    "above one": lambda x, h: torch.rand([]) > 1.0,
    "numbers that are none": lambda x, h: torch.isnan(h).any() or not torch.isfinite(h).all(),
    "rows by their numbers": lambda x, h: h[:, torch.tensor([1, 0])].shape[1] > 9,
    "ordered": lambda x, h: h.gather(1, h.argsort(1)).shape[1] > 9,
}


def written(x: Tensor, h: Tensor) -> Tensor:
    x[0, 0] = h[0, 0]
    return x


def slow_samples(asks: Asks, training: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    counts: list[int] = []
    one_by_one = Alone._one_by_one

    def counted(self: Alone, function: Any, inputs: Any, rows: list[int], *more: Any, **options: Any) -> Any:
        counts.append(len(rows))
        return one_by_one(self, function, inputs, rows, *more, **options)

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.drop(m.first(x))
        return m.last(h.tanh() if asks(x.detach(), h.detach()) else h)

    monkeypatch.setattr(Alone, "_one_by_one", counted)
    model = Runs(run, first=linear(), last=linear(), drop=nn.Dropout(0.5)).double().train(training)
    engine = attached(model)
    torch.manual_seed(0)
    assert model(drawn(B, 5)).shape == (B, 5)
    engine.detach()
    return sum(counts)


@pytest.mark.parametrize("name", BY_CHANCE)
def test_samples_run_one_at_a_time_where_chance_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_samples(BY_CHANCE[name], True, monkeypatch) == B


@pytest.mark.parametrize("name", NOT_BY_CHANCE)
def test_and_together_where_it_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_samples(NOT_BY_CHANCE[name], True, monkeypatch) == 0


def test_dropout_that_is_off_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_samples(lambda x, h: (h + 1e6).sum() > 0, False, monkeypatch) == 0


def test_it_is_said_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return x if torch.rand([]) < RATE else self.layer(x)

    model = nn.Sequential(linear(), Skips())
    engine = attached(model)
    model(torch.randn(B, 5))
    assert "Skips (1) can't be run on all samples at once (random numbers decide on its path)" in caplog.text
    engine.detach()
