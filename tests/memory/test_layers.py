"""Every kind of layer that groupclip clips can be planned: the pass without numbers is the real one, to the byte."""

from __future__ import annotations

import gc as collector
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import groupclip as gc
from groupclip.errors import UnsupportedOperation
from groupclip.memory import measure
from groupclip.memory.passes import Sketched
from groupclip.memory.sketch import sketching

B, T = 4, 5


def squares(model: nn.Module, batch: Any) -> Tensor:
    """[B]: of the first tensor that the model returns."""
    out = model(*batch) if isinstance(batch, tuple) else model(batch)
    while not isinstance(out, Tensor):
        out = out[0]
    return out.square().flatten(1).sum(1)


class Calls(nn.Module):
    """A layer, called by a function of its own and the batch."""

    def __init__(self, layer: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.layer, *inputs)


def step_by_step(cell: nn.Module, x: Tensor) -> Tensor:
    state = None
    for t in range(x.shape[1]):
        state = cell(x[:, t], state)
    assert state is not None
    return state[0] if isinstance(state, tuple) else state


def packed(way: str) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    def call(layer: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        if way == "sorted by the model":
            order = lengths.argsort(descending=True, stable=True)
            given = pack_padded_sequence(x[order], lengths[order], batch_first=True)
        elif way == "pack_sequence":
            given = pack_sequence([x[i, :n] for i, n in enumerate(lengths.tolist())], enforce_sorted=False)
        else:
            given = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=way == "sorted")
        out, _ = pad_packed_sequence(layer(given)[0], batch_first=True, total_length=x.shape[1])
        return out[order.argsort()] if way == "sorted by the model" else out

    return call


def ids(high: int) -> Tensor:
    """[B, 6], all different: those of a pass without numbers are."""
    return torch.arange(B * 6).view(B, 6) % high


def offsets(bag: nn.Module, x: Tensor) -> Tensor:
    return bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1]))


def recurrent() -> dict[str, tuple[nn.Module, Any]]:
    found: dict[str, tuple[nn.Module, Any]] = {}
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        for options in ({}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.3, "bias": False}):
            layer = nn.Sequential(kind(3, 4, batch_first=True, **options))
            found[f"{kind.__name__} {options}"] = layer, torch.randn(B, T, 3)
        sequence_first = Calls(kind(3, 4), lambda layer, x: layer(x.transpose(0, 1))[0].transpose(0, 1))
        found[f"{kind.__name__} sequence first"] = sequence_first, torch.randn(B, T, 3)
        for way in ("unsorted", "pack_sequence", "sorted", "sorted by the model"):
            batch = torch.randn(B, T, 3), torch.tensor([5, 4, 2, 1] if way == "sorted" else [2, 5, 1, 4])
            found[f"{kind.__name__} packed, {way}"] = Calls(kind(3, 4, batch_first=True), packed(way)), batch
    for cell in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
        found[cell.__name__] = Calls(cell(3, 4), step_by_step), torch.randn(B, T, 3)
    found["RNN relu"] = nn.Sequential(nn.RNN(3, 4, batch_first=True, nonlinearity="relu")), torch.randn(B, T, 3)
    found["LSTM projected"] = nn.Sequential(nn.LSTM(3, 4, batch_first=True, proj_size=2)), torch.randn(B, T, 3)
    return found


def others() -> dict[str, tuple[nn.Module, Any]]:
    wide, mask = torch.randn(B, T, 8), nn.Transformer.generate_square_subsequent_mask(T)
    attention = {"batch_first": True, "embed_dim": 8, "num_heads": 2}
    found: dict[str, tuple[nn.Module, Any]] = {
        "Linear": (nn.Linear(3, 4), torch.randn(B, 3)),
        "Linear, no bias": (nn.Linear(3, 4, bias=False), torch.randn(B, T, 3)),
        "Bilinear": (Calls(nn.Bilinear(3, 3, 4), lambda layer, x: layer(x, 2 * x)), torch.randn(B, 3)),
        "Conv2d reflect": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), torch.randn(B, 3, 6, 6)),
        "Conv2d same": (nn.Conv2d(3, 4, 3, padding="same"), torch.randn(B, 3, 6, 6)),
        "LayerNorm": (nn.LayerNorm(3), torch.randn(B, T, 3)),
        "RMSNorm": (nn.RMSNorm(3), torch.randn(B, T, 3)),
        "GroupNorm": (nn.GroupNorm(2, 4), torch.randn(B, 4, 5, 5)),
        "PReLU": (nn.PReLU(3), torch.randn(B, 3)),
        "Embedding": (nn.Embedding(99, 4), ids(99)),
        "Embedding, padded": (nn.Embedding(99, 4, padding_idx=98), ids(98)),
        "MultiheadAttention": (Calls(nn.MultiheadAttention(**attention), lambda layer, x: layer(x, x, x)), wide),
        "MultiheadAttention, biased keys": (
            Calls(nn.MultiheadAttention(**attention, add_bias_kv=True), lambda layer, x: layer(x, x, x)), wide,
        ),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), wide),
        "TransformerDecoderLayer": (
            Calls(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), lambda layer, x: layer(x, x, tgt_mask=mask)), wide,
        ),
        "Transformer": (Calls(nn.Transformer(8, 2, 1, 1, 16, batch_first=True), lambda layer, x: layer(x, x)), wide),
        "attention, learnt bias": (LearntBias(), wide),
        "weight norm": (parametrizations.weight_norm(nn.Linear(3, 4)), torch.randn(B, 3)),
        "orthogonal": (parametrizations.orthogonal(nn.Linear(3, 4)), torch.randn(B, 3)),
    }  # fmt: skip
    for mode in ("sum", "mean", "max"):
        found[f"EmbeddingBag {mode}"] = nn.EmbeddingBag(99, 4, mode=mode), ids(99)
        found[f"EmbeddingBag {mode}, offsets"] = Calls(nn.EmbeddingBag(99, 4, mode=mode), offsets), ids(99)
    for n, sides in ((1, (7,)), (2, (7, 6)), (3, (7, 6, 5))):
        three, four = torch.randn(B, 3, *sides), torch.randn(B, 4, *sides)
        found[f"Conv{n}d"] = getattr(nn, f"Conv{n}d")(3, 4, 3, padding=1), three
        found[f"Conv{n}d, groups"] = getattr(nn, f"Conv{n}d")(4, 4, 3, groups=2, stride=2, padding=1), four
        found[f"ConvTranspose{n}d"] = getattr(nn, f"ConvTranspose{n}d")(3, 4, 3, stride=2), three
        found[f"InstanceNorm{n}d"] = getattr(nn, f"InstanceNorm{n}d")(3, affine=True), three
        found[f"BatchNorm{n}d, frozen statistics"] = getattr(nn, f"BatchNorm{n}d")(3).eval(), three
    return found


class LearntBias(nn.Module):
    """Attention to whose scores a parameter is added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 2, T, T))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.layer(x).unflatten(2, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, self.bias)


def several_paths(layer: nn.Module, x: Tensor, lengths: Tensor) -> Any:
    return layer(x) * (3 if (lengths > 2).any() else 2), torch.ones(3)


def tried_out() -> dict[str, tuple[nn.Module, Any]]:
    """Which inputs hold samples, where they lie in the outputs, and which go together: training finds it out by values too."""
    x, lengths = torch.randn(B, B, 3), torch.tensor([2, 5, 1, 4])
    normed = nn.Sequential(nn.BatchNorm1d(B), nn.Linear(3, 3)).eval()
    return {
        "positions as many as samples": (
            Calls(nn.Linear(3, 4), lambda layer, x, p: layer(x + p)),
            (x, torch.randn(B, 3)),
        ),
        "a mask": (Calls(nn.Linear(3, 4), lambda layer, x, m: layer(x) * m[:, :, None]), (x, torch.ones(B, B))),
        "buffers, and two inputs": (Calls(normed, lambda layer, x, y: layer(x * y)), (x, torch.randn(B, B, 3))),
        "two dimensions of 1": (Calls(nn.Linear(3, 4), lambda layer, x: layer(x).unsqueeze(1)), x[:, 0]),
        "several paths, and a constant": (Calls(nn.Linear(3, 4), several_paths), (x, lengths)),
    }


LAYERS = {**recurrent(), **others(), **tried_out()}


@contextmanager
def uncollected() -> Iterator[None]:
    """Errors caught on the way keep frames, and with them tensors, alive until Python's collector comes, which is at any time."""
    collector.collect()
    collector.disable()
    try:
        yield
    finally:
        collector.enable()


SLOW = {f"{kind} packed, {way}" for kind in ("RNN", "GRU") for way in ("pack_sequence", "sorted", "sorted by the model")}  # as LSTM


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in LAYERS])
def test_a_plan_of_every_kind_of_layer_holds_what_it_says(name: str) -> None:
    """One group, so that the order in which its layers close says nothing. Draws of dropout don't change what is held."""
    model, batch = LAYERS[name]
    with uncollected():
        plan = gc.plan(model, batch, groups=1, loss=squares)
        measured = measure(model, batch, plan.partition, loss=squares)
    assert plan.curve.peak == measured.peak
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("way", ["sorted", "sorted by the model"])
def test_sorted_sequences_are_planned_as_they_are_clipped(kind: type[nn.RNNBase], way: str) -> None:
    """To the byte, whatever the order in which samples of each length run."""
    model, batch = Calls(kind(3, 4, batch_first=True), packed(way)), (torch.randn(B, T, 3), torch.tensor([5, 4, 2, 1]))
    with uncollected():
        plan = gc.plan(model, batch, groups=1, loss=squares)
        measured = measure(model, batch, plan.partition, loss=squares)
    assert plan.curve.peak == measured.peak


def test_lengths_of_an_example_stand_for_those_of_a_larger_batch() -> None:
    """Sorted lengths stay sorted, which ``enforce_sorted`` asks for; twice the samples need about twice the memory."""
    model = Calls(nn.GRU(3, 4, batch_first=True), packed("sorted"))
    batch = torch.randn(B, T, 3), torch.tensor([5, 4, 2, 1])
    one, two = (gc.plan(model, batch, groups=1, loss=squares, samples=n).curve.peak for n in (B, 2 * B))
    assert two == pytest.approx(2 * one, rel=0.2)
    tall = torch.randn(2 * B, T, 3), torch.tensor([5, 5, 4, 4, 2, 2, 1, 1])
    assert (
        gc.plan(model, tall, groups=1, loss=squares).curve
        == gc.plan(model, batch, groups=1, loss=squares, samples=2 * B).curve
    )


class Asks(nn.Module):
    """A model with something of its own between a layer and the output."""

    def __init__(self, ask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(3, 4), ask

    def forward(self, x: Tensor) -> Tensor:
        return self.ask(x, self.layer(x))


def padded(x: Tensor, out: Tensor) -> Tensor:
    lengths = (x[:, :, 0] > 0).sum(1).clamp(min=1)
    return pad_packed_sequence(pack_padded_sequence(out, lengths, True, enforce_sorted=False), True, total_length=T)[0]


def spoilt(x: Tensor, out: Tensor) -> Tensor:
    """A tensor of known integers into which some that nobody knows are written."""
    order = torch.arange(len(x))
    order[:] = x[:, 0, 0].argsort()
    return out[order.tolist()]


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda x, out: out * float(x.abs().max()), "a number of a tensor"),
        (lambda x, out: out * (x[:, 0, 0] > 0).tolist().count(True), "the numbers of a tensor"),
        (lambda x, out: out[(x[:, 0, 0] > 0).nonzero().flatten()], "which entries of a tensor aren't zero"),
        (lambda x, out: out if torch.equal(x, 2 * x) else 2 * out, "whether two tensors are equal"),
        (lambda x, out: out + float(np.asarray(x.sum(-1).cpu()).max()), "the numbers of a tensor"),
        (padded, "the lengths of sequences"),
        (spoilt, "the numbers of a tensor"),
    ],
)  # fmt: skip
def test_what_depends_on_the_data_is_refused_by_name_and_place(ask: Callable[..., Tensor], what: str) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"test_layers\.py:\d+ .* needs .*{what}.*measure instead"):
        gc.plan(Asks(ask), torch.randn(B, T, 3), groups=1, loss=squares)


def test_numbers_that_the_program_makes_are_known() -> None:
    with sketching(torch.device("cpu")):
        steps = torch.tensor([4, 2, 1])
        assert steps.cumsum(0).tolist() == [4, 6, 7]
        assert int(torch.arange(5).flip(0)[0]) == 4
        assert (torch.zeros(3, dtype=torch.bool) | torch.ones(3, dtype=torch.bool)).nonzero().flatten().tolist() == [
            0,
            1,
            2,
        ]
        grid = torch.zeros(4, dtype=torch.int64)
        grid[steps[1]] = 7
        assert grid.tolist() == [0, 0, 7, 0]
        assert torch.arange(2**20).device.type == torch.zeros(2**20).device.type == "cpu"  # as the code there is told
    assert steps.tolist() == [4, 2, 1]


def test_an_error_of_torch_is_not_blamed_on_the_model(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looked for numbers is named as that; other errors come as they are, with a note."""
    monkeypatch.setattr("groupclip.alone.run._said", set())  # it is said once in a process

    def looks(x: Tensor, out: Tensor) -> Tensor:
        return out * torch.histogram(x, 3).hist[0]  # no implementation without numbers

    with pytest.raises(UnsupportedOperation, match=r"test_layers\.py:\d+ .* needs numbers .*measure instead"):
        gc.plan(Asks(looks), torch.randn(B, T, 3), groups=1, loss=squares)
    with pytest.raises(RuntimeError, match="same reduction dim") as caught:
        gc.plan(nn.Linear(3, 4), torch.randn(B, 7), groups=1, loss=squares)
    assert any("without numbers" in note for note in caught.value.__notes__)
    for model, x in ((Asks(looks), torch.randn(B, T, 3)), (nn.Linear(3, 4), torch.randn(B, 7))):
        with pytest.raises((UnsupportedOperation, RuntimeError)):
            Sketched(model, x, squares).private(gc.partition(model, "all-layer"))
    assert "one at a time" not in caplog.text  # it fails alone, too


def test_softmax_over_clusters_is_planned_or_refused_as_training_does() -> None:
    """Its clusters are filled by labels, which an example batch has."""
    model = Calls(nn.AdaptiveLogSoftmaxWithLoss(32, 10, [3, 6]), lambda layer, x, y: layer(x, y)[0][:, None])
    batch = torch.randn(B, 32), torch.tensor([0, 4, 7, 2])

    def outcome(run: Callable[[], int]) -> str:
        try:
            return str(run())
        except UnsupportedOperation as error:
            return str(error).partition(" ")[0]

    planned = outcome(lambda: gc.plan(model, batch, groups=1, loss=squares).curve.peak)
    assert planned == outcome(lambda: measure(model, batch, "all-layer", loss=squares).peak)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_lengths_are_known_for_a_model_of_another_device(kind: type[nn.RNNBase]) -> None:
    """Code in such a pass is told that all tensors are on the model's device, those of lengths included."""
    model, batch = LAYERS[f"{kind.__name__} packed, unsorted"]
    sketched = Sketched(model, batch, squares)
    groups = gc.partition(model, "all-layer")
    here = sketched.private(groups).peak
    sketched.device = torch.device("cuda")
    assert sketched.private(groups).peak == here


def test_uses_are_freed_as_they_are_joined() -> None:
    """A layer that is used n times books n uses. They are joined one layer at a time, so that no more than one is held twice."""
    width, layers, times = 16, 12, 16

    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(times):
                for layer in self.layers:
                    x = layer(x)
            return x

    x = torch.randn(2, width)
    booked = layers * times * 2 * x.numel() * x.element_size()  # inputs, and gradients of outputs
    with uncollected():
        peak = measure(Repeats(), x, "all-layer", loss=squares).peak
    assert peak < 1.5 * booked
