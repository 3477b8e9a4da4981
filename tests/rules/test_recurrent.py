"""Recurrent layers and cells of torch, over their options: exact, the same output, and by a rule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.nn.utils.rnn import pack_sequence as pack
from torch.utils.checkpoint import checkpoint

from check_engine import inexact
from check_rules import B, ids, observed, randn, slow_operations

KINDS = [nn.RNN, nn.GRU, nn.LSTM]
CELLS = [nn.RNNCell, nn.GRUCell, nn.LSTMCell]


def joined(out: Tensor, state: Any, first: bool) -> Tensor:
    """[B, ..] of all that a layer returns: with gradients of different sizes for outputs, hidden and cell states."""
    states = state if isinstance(state, tuple) else (state,)
    out = out if first else out.transpose(0, 1)
    return torch.cat([out.flatten(1), *((2 + i) * s.transpose(0, 1).flatten(1) for i, s in enumerate(states))], 1)


class Recurs(nn.Module):
    """x [B, T, 3] -> everything that the layer returns; a layer before it if asked, so that inputs have gradients."""

    def __init__(self, kind: type[nn.RNNBase], front: bool = False, **options: Any) -> None:
        super().__init__()
        self.front = nn.Linear(3, 3) if front else nn.Identity()
        self.net, self.first = kind(3, 4, **options), options.get("batch_first", False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.front(x))
        return joined(*self.net(x if self.first else x.transpose(0, 1)), self.first)


OPTIONS: list[dict[str, Any]] = [
    {"batch_first": True},
    {},
    {"front": True},
    {"bias": False, "front": True},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "front": True},
    {"num_layers": 3, "bidirectional": True, "bias": False},
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    """B = 4 is as long as the sequence."""
    for size in (0, 1, 3, 4):
        model, batch = Recurs(kind, **options), (randn(size, 4, 3),)
        assert inexact(model, batch) == [], size
        assert size == 0 or slow_operations(model, tuple(t.double() for t in batch)) == set()


def test_relu_instead_of_tanh() -> None:
    model = Recurs(nn.RNN, nonlinearity="relu", num_layers=2)  # type: ignore[arg-type]
    assert inexact(model, (randn(B, 5, 3),)) == []
    assert slow_operations(model, (randn(B, 5, 3).double(),)) == set()


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}], ids=str
)
def test_projected_lstm(options: dict[str, Any]) -> None:
    model = Recurs(nn.LSTM, proj_size=2, **options)
    assert inexact(model, (randn(B, 5, 3),)) == []
    assert slow_operations(model, (randn(B, 5, 3).double(),)) == set()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step(kind: type[nn.RNNBase], first: bool) -> None:
    assert inexact(Recurs(kind, batch_first=first, bidirectional=True), (randn(B, 1, 3),)) == []


class Starts(nn.Module):
    """A given initial state: of the batch, a constant, or learnt (a parameter that every sample starts from)."""

    def __init__(self, kind: type[nn.RNNBase], way: str) -> None:
        super().__init__()
        self.net, self.way, self.states = kind(3, 4, num_layers=2), way, 2 if kind is nn.LSTM else 1
        self.maps = nn.ModuleList(nn.Linear(3, 8) for _ in range(self.states)) if way == "of the batch" else None
        self.learnt = nn.ParameterList(
            nn.Parameter(torch.zeros(2, 1, 4)) for _ in range(self.states if way == "learnt" else 0)
        )

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "of the batch":
                assert self.maps is not None
                states = [torch.tanh(m(x[:, 0])).unflatten(1, (2, 4)).transpose(0, 1) for m in self.maps]
            case "constant":
                states = [torch.full((2, len(x), 4), 0.3 * (i + 1), dtype=x.dtype) for i in range(self.states)]
            case _:
                states = [p.expand(-1, len(x), -1) for p in self.learnt]
        out, state = self.net(x.transpose(0, 1), tuple(states) if self.states == 2 else states[0])
        return joined(out, state, False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["of the batch", "constant", "learnt"])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_states(kind: type[nn.RNNBase], way: str) -> None:
    for size in (1, 2, 3):  # 2 is the number of layers
        assert inexact(Starts(kind, way), (randn(size, 4, 3),)) == [], size


class Packs(nn.Module):
    """Sequences of different lengths, given by the samples: x [B, T, 3] and lengths [B]."""

    def __init__(self, kind: type[nn.RNNBase], way: str, **options: Any) -> None:
        super().__init__()
        self.front = nn.Linear(3, 3)
        self.net, self.way, self.first = kind(3, 4, **options), way, options.get("batch_first", False)

    def pack(self, x: Tensor, lengths: Tensor) -> PackedSequence:
        match self.way:
            case "pack_sequence":
                return pack([x[i, :n] for i, n in enumerate(lengths.tolist())], enforce_sorted=False)
            case "sorted by the model":
                order = lengths.argsort(descending=True, stable=True)
                return pack_padded_sequence(x[order], lengths[order], batch_first=True)
            case _:
                x = x if self.first else x.transpose(0, 1)
                return pack_padded_sequence(x, lengths, batch_first=self.first, enforce_sorted=self.way == "sorted")

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed, state = self.net(self.pack(torch.tanh(self.front(x)), lengths))
        out, _ = pad_packed_sequence(packed, batch_first=self.first, total_length=x.shape[1])
        out = joined(out, state, self.first)
        if self.way == "sorted by the model":
            out = out[lengths.argsort(descending=True, stable=True).argsort()]
        return out


PACKED = ["unsorted", "sorted", "pack_sequence", "sorted by the model"]


def packed_batch(way: str, size: int) -> tuple[Tensor, ...]:
    lengths = torch.tensor([2, 4, 1, 4, 3, 5])[:size]
    return randn(size, 5, 3), lengths.sort(descending=True).values if way == "sorted" else lengths


@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", PACKED)
@pytest.mark.parametrize("options", [{"batch_first": True}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: type[nn.RNNBase], options: dict[str, Any], way: str) -> None:
    for size in (1, 4, 6):
        assert inexact(Packs(kind, way, **options), packed_batch(way, size)) == [], size


@pytest.mark.parametrize("way", ["unsorted", "pack_sequence"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_go_by_a_rule(kind: type[nn.RNNBase], way: str) -> None:
    batch = packed_batch(way, 6)
    assert slow_operations(Packs(kind, way, bidirectional=True), batch) == set()


def test_packed_projected_lstm() -> None:
    model = Packs(nn.LSTM, "unsorted", proj_size=2, num_layers=2, bidirectional=True)
    assert inexact(model, packed_batch("unsorted", 5)) == []


class Drops(nn.Module):
    """Dropout between layers, with numbers from a seed and masks that don't depend on the batch: the oracle can draw them too."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.net = kind(3, 4, num_layers=3, dropout=0.4, bidirectional=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return joined(*self.net(x.transpose(0, 1)), False)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers(kind: type[nn.RNNBase]) -> None:
    """Draws as torch does: the same losses from the same seed (``inexact`` compares them), and gradients of that pass.

    With one sample the oracle draws the same masks.
    """
    assert inexact(Drops(kind), (randn(1, 4, 3),)) == []
    assert inexact(Drops(kind).eval(), (randn(B, 4, 3),)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_draws_as_torch_does(kind: type[nn.RNNBase]) -> None:
    """Of sequences of one length; samples of other lengths run in parts, which draw one after another."""
    for model, batch in (
        (Drops(kind), (randn(B, 4, 3),)),
        (Drops(kind, bias=False), (randn(5, 3, 3),)),
    ):
        torch.manual_seed(8)
        plain = model(*batch)
        with observed(model, batch):
            torch.manual_seed(8)
            torch.testing.assert_close(model(*batch), plain)


@pytest.mark.parametrize("way", ["sorted by the model", "unsorted"])
def test_lengths_that_a_lesson_doesnt_show(way: str) -> None:
    """The first samples are equally long, so two of them keep their order when the model sorts; later ones don't."""
    lengths = torch.tensor([3] * 17 + [5, 1, 4])
    assert inexact(Packs(nn.GRU, way), (randn(20, 5, 3), lengths), styles=("all-layer",)) == []
    assert slow_operations(Packs(nn.GRU, way), (randn(20, 5, 3), lengths)) == set()


class Checkpointed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.front, self.net = nn.Linear(3, 3), kind(3, 4, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: self.net(x)[0], torch.tanh(self.front(x)), use_reentrant=False)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpointed_layer(kind: type[nn.RNNBase]) -> None:
    assert inexact(Checkpointed(kind), (randn(B, 4, 3),)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_on_outputs(kind: type[nn.RNNBase]) -> None:
    """The steps are computed again from the outputs, which the model may change: it has a copy."""

    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = kind(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out, state = self.net(x)
            return joined(out.add_(1).mul_(2).sigmoid_(), state, True)

    assert inexact(Changes(), (randn(B, 4, 3),)) == []


def test_a_copy_of_an_attached_model() -> None:
    model, batch = Packs(nn.LSTM, "unsorted"), packed_batch("unsorted", 4)
    with observed(model, batch):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            torch.testing.assert_close(twin(*batch), model(*batch))


class Words(nn.Module):
    """Characters [B, W, C]: one layer reads each word by itself, [B * W, C], another the words (sequence tagging)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3)
        self.spell, self.read = nn.GRU(3, 3, batch_first=True), nn.LSTM(3, 2, batch_first=True, bidirectional=True)

    def forward(self, characters: Tensor) -> Tensor:
        size, words, _ = characters.shape
        _, state = self.spell(self.table(characters.flatten(0, 1)))
        return self.read(state[0].view(size, words, -1))[0]


def test_words_of_characters() -> None:
    for size in (1, 3, 4):
        assert inexact(Words(), (ids(6, size, 3, 4),)) == [], size
    assert slow_operations(Words(), (ids(6, 4, 3, 4),)) == set()


class Shares(nn.Module):
    """One layer on both inputs, and its recurrent weight once more elsewhere."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.net = kind(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (x, _), (y, _) = (self.net(t.transpose(0, 1)) for t in (x, y))
        again = torch.nn.functional.linear(y, self.net.weight_hh_l0)
        return torch.cat([t.transpose(0, 1).flatten(1) for t in (x, again)], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_on_two_inputs(kind: type[nn.RNNBase]) -> None:
    assert inexact(Shares(kind), (randn(B, 4, 3), randn(B, 2, 3).cos())) == []


@pytest.mark.parametrize("frozen", ["weight_hh_l0", "weight_ih_l0", "bias_ih_l0", "hh"])
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parts(kind: type[nn.RNNBase], frozen: str) -> None:
    model = Recurs(kind, front=True, num_layers=2)
    for name, p in model.named_parameters():
        if frozen in name:
            p.requires_grad_(False)
    assert inexact(model, (randn(B, 4, 3),)) == []


class Computed(nn.Module):
    """A recurrent weight computed from two parameters, and a bias that is a slice of another."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.gain, self.more = nn.GRU(3, 4), nn.Parameter(torch.ones(12, 1)), nn.Parameter(torch.zeros(15))

    def forward(self, x: Tensor) -> Tensor:
        w, r, b, _ = self.net._flat_weights
        start = x.new_zeros(1, len(x), 4)
        weights = [w, self.gain * r / r.norm(dim=1, keepdim=True), b, self.more[3:]]
        out, _ = torch.gru(x.transpose(0, 1), start, weights, True, 1, 0.0, False, False, False)
        return out.transpose(0, 1)


def test_weights_that_are_computed() -> None:
    model = Computed()
    model.net.bias_hh_l0.requires_grad_(False)
    assert inexact(model, (randn(B, 4, 3),)) == []


class Loops(nn.Module):
    """A cell used at every step; its state starts as None, as a learnt row, or with the batch."""

    def __init__(self, kind: type[nn.RNNCellBase], way: str = "none", bias: bool = True) -> None:
        super().__init__()
        self.cell, self.way, self.pair = kind(3, 4, bias=bias), way, kind is nn.LSTMCell
        self.start = nn.Parameter(torch.zeros(1, 4)) if way == "learnt" else nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "learnt":
                state = self.start.expand(len(x), -1)  # type: ignore[operator]
            case "batch":
                state = self.start(x.mean(1))  # type: ignore[operator]
            case _:
                state = None
        if state is not None and self.pair:
            state = (state, torch.tanh(state))
        outs = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outs.append(state[0] if isinstance(state, tuple) else state)
        if self.way == "none":
            outs.append(self.start(x[:, -1]))  # type: ignore[operator]
        return torch.stack(outs, 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["none", "learnt", "batch"])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_used_at_every_step(kind: type[nn.RNNCellBase], way: str) -> None:
    for size in (1, 3, 4):
        assert inexact(Loops(kind, way), (randn(size, 4, 3),)) == [], size
    assert inexact(Loops(kind, way, bias=False), (randn(B, 1, 3),)) == []


@pytest.mark.parametrize("kind", CELLS)
def test_cells_go_by_a_rule(kind: type[nn.RNNCellBase]) -> None:
    assert slow_operations(Loops(kind), (randn(B, 4, 3),)) == set()


class Decodes(nn.Module):
    """Starts from one constant token for all samples and feeds its own output back."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(5, 3), nn.GRUCell(3, 4), nn.Linear(4, 3)
        self.encode = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.encode(x))
        step, outs = self.table(torch.zeros(len(x), dtype=torch.long)), []
        for _ in range(3):
            state = self.cell(step, state)
            step = self.head(state)
            outs.append(step)
        return torch.stack(outs, 1)


def test_decoding_from_a_constant_token() -> None:
    for size in (1, 3):
        assert inexact(Decodes(), (randn(size, 3),)) == [], size


def test_calls_with_keywords_and_uneven_memory() -> None:
    class Calls(nn.Module):
        def __init__(self, run: Callable[[nn.LSTM, Tensor], Tensor]) -> None:
            super().__init__()
            self.net, self.run = nn.LSTM(3, 4, batch_first=True), run

        def forward(self, x: Tensor) -> Tensor:
            return self.run(self.net, x)

    for run in (
        lambda net, x: net(input=x)[0],
        lambda net, x: net(x.mT.contiguous().mT)[0],
        lambda net, x: net(x[:, ::2], hx=None)[0],
        lambda net, x: net(x.expand(-1, -1, -1))[1][1].transpose(0, 1),
    ):
        assert inexact(Calls(run), (randn(B, 4, 3),)) == []
