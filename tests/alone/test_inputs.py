"""Inputs that are no samples, parameters as long as the batch, settings that arrange a batch otherwise: exact, by the same loop."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import groupclip as gc
from apart import Runs, attached, by_engine, differing, drawn, linear, single_samples, squares, wrong
from groupclip.alone.inputs import Roles
from groupclip.engine.engine import Engine
from groupclip.errors import PrivacyViolation

B = 4


# ------------------------------------------------------------------ inputs that are no samples


@pytest.mark.parametrize("rows", [2, 3])
def test_a_support_set_as_long_as_the_batch(rows: int) -> None:
    """Every sample is compared with every row of it. A batch of another size settles what it is."""

    def run(m: Any, x: Tensor, support: Tensor) -> Tensor:
        return (m.first(x)[:, None] - m.last(support)[None]).square().sum(-1)

    x, support = drawn(rows, 5), drawn(rows, 5).flip(0)
    model = Runs(run, first=linear(), last=linear())
    assert wrong(model, (x, support), shared=(1,)) == []
    assert wrong(model, [(x, support), (drawn(5, 5), support), (x, support)], shared=(1,)) == []


def test_candidates_as_many_as_the_batch() -> None:
    model = Runs(lambda m, x, ids: x @ m.table(ids).T, table=nn.Embedding(9, 5))
    assert wrong(model, (drawn(3, 5), torch.tensor([3, 5, 1])), shared=(1,)) == []


def test_masks_and_lengths_are_of_the_samples() -> None:
    def run(m: Any, x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        rows = h = m.first(x)
        out = m.last(h[mask]).tanh()
        kept = out.new_zeros(*mask.shape, 5).index_put(mask.nonzero(as_tuple=True), out)
        return kept.sum(1) + rows[torch.arange(len(x)), lengths - 1]

    equal = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool()
    unequal = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()  # as many rows, other counts
    model = Runs(run, first=linear(), last=linear(5, 5))
    x, lengths = drawn(B, 3, 5), torch.tensor([1, 3, 2, 3])
    assert wrong(model, [(x, equal, lengths), (x, unequal, lengths), (x[:3], unequal[:3], lengths[:3])]) == []


def test_packed_data_of_samples_of_any_lengths() -> None:
    def run(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(m.first(x), lengths, batch_first=True, enforce_sorted=False)
        data = m.last(packed.data).tanh()
        packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(packed, batch_first=True, total_length=5)[0]

    x = drawn(B, 5, 5)
    for lengths in ([3, 3, 3, 3], [1, 2, 4, 5], [5, 4, 2, 1]):
        model = Runs(run, first=linear(), last=linear())
        assert wrong(model, [(x, torch.tensor([3, 3, 3, 3])), (x, torch.tensor(lengths))]) == [], lengths


# ------------------------------------------------------------------ inputs of which nobody can tell what they are


def private(model: nn.Module) -> Engine:
    """An engine with noise to come."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = gc.Mechanism(dataset_size=100, expected_batch_size=4, steps=9, noise_multiplier=1.0)
    return gc.attach(model, optimizer, "param-wise", plan)


def beside(m: Any, x: Tensor, other: Tensor) -> Tensor:
    """Every sample meets all rows of the other input: candidates, or texts beside images."""
    return m.first(x) @ m.last(other).T


def test_rows_for_all_samples_that_may_be_of_the_samples_are_refused() -> None:
    """A contrastive loss: each sample would act on the gradients of all."""
    model = Runs(beside, first=linear(), last=linear()).double()
    engine = private(model)
    with pytest.raises(PrivacyViolation, match=r"the input 1 has as many rows as the batch \(3\)"):
        model(drawn(3, 5), drawn(3, 5))
    assert model(drawn(4, 5), drawn(4, 5)).shape == (4, 1)  # it follows the batch: each sample sees its own row
    engine.detach()


@pytest.mark.parametrize("way", ["a dimension in front", "a buffer", "another batch first"])
def test_the_advice_for_rows_for_all_samples(way: str) -> None:
    model = Runs(beside, first=linear(), last=linear()).double()
    x, candidates = drawn(3, 5), drawn(3, 5, seed=2)
    right = single_samples(model, (x, candidates), shared=(1,))
    engine = private(model)
    if way == "a buffer":
        model.register_buffer("candidates", candidates)
        model.run = lambda m, x: beside(m, x, m.candidates)
        out = model(x)
    elif way == "a dimension in front":
        model.run = lambda m, x, other: beside(m, x, other[0])
        out = model(x, candidates[None])
    else:
        model(drawn(5, 5), candidates)
        out = model(x, candidates)
    engine.backward(squares(out))
    norms = engine.unsafe_norms()
    assert all(torch.allclose(norms[name].double(), right.norms[name], rtol=1e-9) for name in right.norms)
    engine.detach()


def test_an_input_is_known_by_its_place_and_not_by_its_number() -> None:
    """Candidates in one call, and weights of the samples in the next."""

    def run(m: Any, x: Tensor, candidates: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        if candidates is not None:
            return beside(m, x, candidates)
        assert weights is not None
        return m.last(m.first(x)) * (weights / weights.sum())

    model, x = Runs(run, first=linear(), last=linear()).double(), drawn(4, 5)
    right = single_samples(model, (x, drawn(4, 1).abs()), lambda m, b: squares(m(b[0], weights=b[1])))
    engine = attached(model)
    model(x, candidates=drawn(4, 5))
    got = by_engine(engine, lambda: squares(model(x, weights=drawn(4, 1).abs())))
    assert differing(got, right) == []
    engine.detach()


def test_several_rows_for_each_sample_are_refused_when_a_second_batch_shows_them() -> None:
    """Crops in one tensor: every sample would see those of all."""
    model = Runs(lambda m, x, crops: m.first(x) * m.last(crops).mean(0), first=linear(), last=linear()).double()
    engine = attached(model)
    model(drawn(3, 5), drawn(6, 5))
    with pytest.raises(PrivacyViolation, match="2 rows for each sample, in a batch of 3 and in one of 4"):
        model(drawn(4, 5), drawn(8, 5))
    engine.detach()


def test_a_table_that_has_a_multiple_of_the_batch_by_chance() -> None:
    model = Runs(lambda m, x, table: m.first(x) * m.last(table).mean(0), first=linear(), last=linear())
    table = drawn(12, 5)
    assert wrong(model, [(drawn(n, 5), table) for n in (3, 6, 4, 1, 12, 2)], shared=(1,)) == []


# ------------------------------------------------------------------ inputs that the model changes


def changed_first(m: Any, x: Tensor, *more: Tensor) -> Tensor:
    x.mul_(2)
    return m.last(m.first(x)) + sum(more)


def test_inputs_that_the_model_changes_in_place_are_changed_once() -> None:
    """What tries the model out works on copies: both inputs are as long as the batch, and the outputs doubtful."""
    model = Runs(lambda m, *b: changed_first(m, *b).unsqueeze(1).transpose(0, 1), first=linear(), last=linear())
    assert wrong(model, (drawn(3, 5), drawn(3, 5, seed=1)), lambda m, b: squares(m(*[t.clone() for t in b])[0])) == []


@pytest.mark.parametrize("why", ["paths", "NumPy"])
def test_inputs_changed_in_place_by_a_model_that_must_run_again_are_refused(why: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = changed_first(m, x)
        asked = x.sum() > 0 if why == "paths" else x.numpy().sum() > 0
        return h.tanh() if asked else h

    model = Runs(run, first=linear(), last=linear()).double()
    engine = attached(model)
    with pytest.raises(gc.UnsupportedOperation, match=r"changes the input 0 in place, and it must run again .* x = x.clone\(\)"):
        model(drawn(6, 5))
    engine.detach()
    model.run = lambda m, x: run(m, x.clone())
    assert wrong(model, (drawn(6, 5),)) == []


# ------------------------------------------------------------------ lists and arrays


def rows_by(m: Any, x: Tensor, lengths: Any) -> Tensor:
    out = m.first(x)
    return m.last(torch.stack([out[i, : int(n)].sum(0) for i, n in enumerate(lengths)]))


def zipped(m: Any, x: Tensor, weights: Any) -> Tensor:
    """It stops where the shorter one ends, so a sample alone takes the first entry."""
    return torch.stack([m.last(m.first(row).sum(0)) * float(w) for row, w in zip(x, weights, strict=False)])


def weighted(m: Any, x: Tensor, weights: Any) -> Tensor:
    """A sample's loss would be by all weights: it broadcasts."""
    return (m.last(m.first(x)).square().sum((1, 2)) * torch.tensor(weights)).mean().view(1, 1)


def by_text(m: Any, x: Tensor, names: Any) -> Tensor:
    return torch.stack([m.last(m.first(row).sum(0)) * len(name) for row, name in zip(x, names, strict=False)])


OF_SAMPLES: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "a list of lengths": (rows_by, [3, 2, 1, 2]),
    "a tuple": (rows_by, (3, 2, 1, 2)),
    "an array": (rows_by, np.array([3, 2, 1, 2])),
    "numbers' tensors": (rows_by, [torch.tensor(n) for n in (3, 2, 1, 2)]),
    "weights": (zipped, [1.0, 2.0, 1.0, 0.5]),
    "weights, the first ones equal": (zipped, [1.0, 1.0, 1.0, 2.0]),
    "weights that broadcast": (weighted, [1.0, 2.0, 1.0, 0.5]),
    "text": (by_text, ["a", "bcd", "", "ef"]),
    "lists of lists": (lambda m, x, spans: rows_by(m, x, [len(s) for s in spans]), [[0], [0, 1], [2], [1, 0, 2]]),
}


@pytest.mark.parametrize("name", OF_SAMPLES)
@pytest.mark.parametrize("way", ["place", "keyword", "in a dictionary"])
def test_what_has_an_entry_for_each_sample_and_is_not_cut_is_refused(name: str, way: str) -> None:
    run, entries = OF_SAMPLES[name]
    model = Runs(run, first=linear(), last=linear(5, 4))
    if way == "keyword":
        model.run = lambda m, x, *, more: run(m, x, more)
    elif way == "in a dictionary":
        model.run = lambda m, x, more: run(m, x, more["entries"])
    x = drawn(B, 3, 5)
    engine = attached(model.double())
    with pytest.raises(gc.UnsupportedOperation, match=rf"as long as the batch \({B}\).* Pass it as a tensor"):
        if way == "keyword":
            model(x, more=entries)
        else:
            model(x, {"entries": entries} if way == "in a dictionary" else entries)
    with pytest.raises(gc.UnsupportedOperation, match=rf"as long as the batch \({B}\).* Pass it as a tensor"):
        engine.per_sample(lambda t, more: run(model, t, more), x, entries)
    engine.detach()


class Held:
    """An object that isn't looked into."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights


class Slotted:
    __slots__ = ("unset", "weights")

    def __init__(self, weights: Any) -> None:
        self.weights = weights


def by_mean(m: Any, x: Tensor, weights: Any) -> Tensor:
    return m.last(m.first(x)).sum(1) * float(torch.as_tensor(weights).mean())


def matched(m: Any, x: Tensor, targets: Any) -> Tensor:
    return torch.stack([m.last(m.first(row).sum(0)) * t.mean() for row, t in zip(x, targets, strict=False)])


HIDDEN: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "an object": (lambda m, x, held: by_mean(m, x, held.weights), Held(drawn(B))),
    "an object in a list": (lambda m, x, held: by_mean(m, x, held[0].weights), [Held(drawn(B)), "text"]),
    "an object in an object": (lambda m, x, held: by_mean(m, x, held.weights.weights), Held(Held(drawn(B)))),
    "slots": (lambda m, x, held: by_mean(m, x, held.weights), Slotted(drawn(B))),
    "a namespace": (lambda m, x, held: by_mean(m, x, held.weights), SimpleNamespace(weights=drawn(B).numpy())),
    "tensors of other lengths": (matched, [drawn(n) for n in (2, 3, 1, 2)]),
    "mappings": (lambda m, x, held: matched(m, x, [h["boxes"] for h in held]), [{"boxes": drawn(n)} for n in (2, 3, 1, 2)]),
    "objects": (lambda m, x, held: matched(m, x, [h.weights for h in held]), [Held(drawn(n)) for n in (2, 3, 1, 2)]),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_has_an_entry_for_each_sample_and_is_hidden_is_refused(name: str) -> None:
    run, entries = HIDDEN[name]
    model = Runs(run, first=linear(), last=linear(5, 4)).double()
    engine = private(model)
    with pytest.raises(gc.UnsupportedOperation, match=rf"as long as the batch \({B}\).* Pass it as a tensor"):
        model(drawn(B, 3, 5), entries)
    engine.detach()


def test_objects_that_hold_other_things_are_free() -> None:
    class Options(Enum):
        FEW = (1, 2, 3, 4)

    def run(m: Any, x: Tensor, *more: Any) -> Tensor:
        del more
        return m.last(m.first(x))

    more = (Held(drawn(7)), Held([1, 2]), Options.FEW, linear, nn.Linear(B, B), torch.float32, {1, 2, 3, 4}, Held(drawn(1, B)))
    assert wrong(Runs(run, first=linear(), last=linear(5, 4)), (drawn(B, 3, 5), *more)) == []


def test_numbers_that_every_sample_may_read_together_are_refused_where_noise_is_to_come() -> None:
    """The longest length, a mean of weights: a trial can't tell them from settings. Another batch can."""
    model = Runs(by_mean, first=linear(), last=linear(5, 4)).double()
    engine = private(model)
    with pytest.raises(gc.UnsupportedOperation, match=rf"as long as the batch \({B}\)"):
        model(drawn(B, 3, 5), [1.0, 2.0, 3.0, 4.0])
    model(drawn(3, 3, 5), [1.0, 2.0, 3.0, 4.0])
    assert len(model(drawn(B, 3, 5), [1.0, 2.0, 3.0, 4.0])) == B
    engine.detach()


def test_views_have_no_lists_either() -> None:
    model = Runs(lambda m, x, weights: m.first(x) * sum(weights), first=linear()).double()
    engine = gc.attach(model, None, "param-wise", None, views=2)
    with pytest.raises(gc.UnsupportedOperation, match=r"as long as the batch \(3\)"):
        model(drawn(3, 2, 5), [1.0, 2.0, 3.0])
    engine.detach()


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_one_sample_has_one_entry(name: str) -> None:
    run, entries = OF_SAMPLES[name]
    assert wrong(Runs(run, first=linear(), last=linear(5, 4)), (drawn(1, 3, 5), entries[:1])) == []


@pytest.mark.parametrize("batch", [2, 3])
def test_the_advice_for_what_has_an_entry_for_each_sample(batch: int) -> None:
    """As a tensor it is cut."""
    model = Runs(rows_by, first=linear(), last=linear(5, 4))
    assert wrong(model, [(drawn(batch, 3, 5), torch.tensor([3, 2, 1])[:batch])]) == []


SETTINGS: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "a size": (lambda m, x, size: m.last(F.adaptive_avg_pool2d(m.first(x)[:, None], size)), (4, 5)),
    "a shape": (lambda m, x, shape: m.last(m.first(x).flatten(1).view(-1, *shape)), (3, 1, 5)),
    "scales for all": (lambda m, x, scales: m.last(sum(m.first(x) * s for s in scales)), [1.0, 3.0, 2.0, 4.0]),
    "a table": (lambda m, x, table: m.last(m.first(x) @ torch.from_numpy(table)), drawn(5, 5).numpy()),
    "equal entries": (lambda m, x, sizes: m.last(m.first(x[:, : sizes[0]])), [2, 2, 2, 2]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_as_long_as_the_batch_by_chance(name: str) -> None:
    run, setting = SETTINGS[name]
    model = Runs(run, first=linear(), last=linear(5, 4))
    for batch in (len(setting), 1, 2, len(setting)):
        assert wrong(model, [(drawn(batch, 3, 5), setting), (drawn(len(setting), 3, 5), setting)]) == []


def test_settings_that_a_batch_of_another_size_showed() -> None:
    """Nothing has to be tried out, which random numbers would foil."""

    def run(m: Any, x: Tensor, scales: Any) -> Tensor:
        torch.rand(len(x))
        return m.last(F.dropout(m.first(x) * sum(scales), m.rate))

    model = Runs(run, first=linear(), last=linear(5, 4), rate=0.5).double()
    scales, x = [1.0, 3.0], drawn(3, 3, 5)
    engine = attached(model)
    with pytest.raises(gc.UnsupportedOperation, match="as long as the batch"):
        model(x[:2], scales)
    model(x, scales)
    assert model(x[:2], scales).shape == (2, 3, 4)
    engine.detach()


# ------------------------------------------------------------------ flags, turns, passes inside passes


def in_views(m: Any, x: Tensor, views_first: bool) -> Tensor:
    batch, h = len(x), m.first(x)
    if views_first:
        return m.last(h.transpose(0, 1).flatten(0, 1)).tanh().view(2, batch, -1).transpose(0, 1)
    return m.last(h.flatten(0, 1)).tanh().view(batch, 2, -1)


def test_a_flag_that_arranges_the_batch_otherwise() -> None:
    x = drawn(4, 2, 5)
    by_argument = Runs(in_views, first=linear(), last=linear())
    assert wrong(by_argument, [(x, False), (x, True)]) == []
    by_attribute = Runs(lambda m, x: in_views(m, x, m.flag), first=linear(), last=linear(), flag=False)
    assert wrong(by_attribute, [(x,), (x,)], between=lambda m: setattr(m, "flag", True)) == []


def test_size_and_values_arrange_it() -> None:
    by_size = Runs(lambda m, x: in_views(m, x, len(x) > 2), first=linear(), last=linear())
    assert wrong(by_size, [(drawn(n, 2, 5),) for n in (4, 2, 1)]) == []
    by_value = Runs(lambda m, x: in_views(m, x, bool(x.sum() > 0)), first=linear(), last=linear())
    x = drawn(4, 2, 5)
    assert wrong(by_value, [(-x.abs(),), (x.abs(),), (x,)]) == []


def test_a_generator_of_the_model_itself_shuffles() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        order = torch.randperm(len(x), generator=m.source)
        return m.last(m.first(x)[order]).tanh()[order.argsort()]

    class Source(torch.Generator):
        def __deepcopy__(self, memo: Any) -> torch.Generator:
            return torch.Generator().manual_seed(3)

    model = Runs(run, first=linear(), last=linear(), source=Source().manual_seed(3))
    assert wrong(model, [(drawn(6, 5),)] * 4) == []


def test_another_layer_in_every_pass() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return m.layers[m.turn](m.first(x)[order]).tanh()[order.argsort()]

    torch.manual_seed(0)
    model = Runs(run, first=linear(), layers=nn.ModuleList([nn.Linear(5, 4) for _ in range(14)]), turn=0)

    def on(m: Any) -> None:
        m.turn += 1

    assert wrong(model, [(drawn(4, 5),)] * 14, between=on) == []


def test_a_pass_inside_another_ends_nothing() -> None:
    """The model calls itself without gradients, as self-conditioning does."""

    class Conditions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x: Tensor, deep: bool = True) -> Tensor:
            if deep:
                with torch.no_grad():
                    x = x + self(x, False)
            return self.last(self.first(x).tanh())

    torch.manual_seed(0)
    assert wrong(Conditions(), [(drawn(4, 5),), (drawn(3, 5),)]) == []


# ------------------------------------------------------------------ parameters as long as the batch, which are none of its samples


def layer(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return x + F.linear(F.embedding(torch.arange(x.shape[1]), table), weight)


def norm(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    rows = F.embedding(torch.arange(x.shape[1]), table)
    return x + F.layer_norm(rows.tanh(), (4,), weight[0])


def expanded(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return x + F.linear(table[:1].expand(x.shape[1], 4), weight).tanh() * torch.arange(x.shape[1])[:, None]


def scores(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("btd,cd->bt", x, F.embedding(torch.arange(x.shape[1]), table) @ weight)


def outputs(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x @ weight, F.embedding(torch.arange(x.shape[1]), table).tanh())


def last(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight)[:, 0, :B] + F.embedding(torch.arange(B), table)[:, 0].sigmoid()


def backwards(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """The same row for every sample, but row r meets sample B - 1 - r."""
    rows = F.embedding(torch.zeros(len(x), dtype=torch.long), table).flip(0)
    return x.mean(1) @ weight * (1 + rows)


def for_every_head(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """DeBERTa: keys of relative positions, repeated for every sample, heads folded into the batch."""
    heads = x.unflatten(2, (2, 2)).transpose(1, 2).flatten(0, 1)  # [2B, T, 2]
    keys = F.linear(table, weight).unflatten(1, (2, 2)).transpose(0, 1).repeat(x.shape[0], 1, 1)
    found = torch.bmm(heads @ weight[:2, :2], keys.transpose(-1, -2))
    found += 1
    return found.unflatten(0, (-1, 2)).flatten(1)


def windows(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """Swin: a relative bias plus a mask that is repeated for every sample, windows folded into the batch."""
    x = F.linear(x, weight).unflatten(1, (2, -1)).flatten(0, 1)  # [2B, T/2, 4]
    mask = torch.arange(2.0)[None, :, None, None].expand(len(x) // 2, 2, 1, 4).reshape(len(x), 1, 4)
    return (x + table[None, : x.shape[1]] + mask).softmax(-1).unflatten(0, (-1, 2))


def state(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """A learnt first state, by way of a layer, that meets the first step."""
    hidden = F.linear(table[:1].expand(x.shape[0], 4), weight, table[1])
    for step in x.unbind(1):
        hidden = torch.lerp(hidden, torch.tanh(step @ weight), 0.3)
    return hidden


def two_arrangements(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """With as many steps as samples the first sum lines up with either."""
    steps = (1 + table[: x.shape[1], None]).tanh()  # [T, 1, 4]
    shifted = steps + F.linear(x, weight).transpose(0, 1)
    return (1 + table[: x.shape[1]]).tanh().expand(len(x), -1, 4) + shifted.tanh().transpose(0, 1) @ weight


def windows_first(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """The first window of every sample in front; then back."""
    rows = x.transpose(0, 1).reshape(-1, 4).tanh()
    rows = torch.addcmul(torch.zeros_like(rows), rows, table[0]) @ weight
    return rows.view(x.shape[1], -1, 4).transpose(0, 1) + x.mean(2, keepdim=True)


def over_the_batch(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """A batch as one signal, in which every sample would see its neighbours."""
    signal = F.conv1d(x[:, 0].tanh().t(), weight[..., None].expand(-1, -1, 3), padding=1)
    return signal.t() * (1 + table.sum())


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("length", [B, 6])
@pytest.mark.parametrize(
    "function",
    [layer, norm, expanded, scores, outputs, last, backwards, for_every_head, windows, state, two_arrangements, windows_first,
     over_the_batch],
)  # fmt: skip
def test_a_table_as_long_as_the_batch(function: Callable[..., Tensor], length: int, zero: bool) -> None:
    """At zero nothing shows where its rows go."""

    def run(m: Any, x: Tensor) -> Tensor:
        return function(x, m.table, m.weight)

    table = nn.Parameter(torch.zeros(9, 4) if zero else drawn(9, 4))
    if function is for_every_head:
        table = nn.Parameter(table.detach()[:length])
    model = Runs(run, table=table, weight=nn.Parameter(drawn(4, 4)))
    assert wrong(model, [(drawn(B, length, 4),), (drawn(3, length, 4),)]) == []


def test_parameters_that_moving_would_take_out_of_their_domain() -> None:
    model = Runs(lambda m, x: torch.pow(m.weight, x), weight=nn.Parameter(torch.full((4,), 0.1)))
    assert wrong(model, (drawn(B, 3, 4),)) == []


class TestWithoutTries:
    """Where a model is cut over ranks, none may run it to find out what an input holds."""

    @staticmethod
    def read(roles: Roles, batch: int, other: int) -> bool:
        """Whether the second of two inputs is taken for samples."""
        first, second = torch.zeros(batch, 3), torch.zeros(other, 3)

        def probe(*_: Any) -> Any:
            raise AssertionError("the model was run")

        return id(second) in roles.read((first, second), {}, probe).samples

    def roles(self) -> Roles:
        roles = Roles()
        roles.tries = False
        return roles

    def test_what_is_as_long_as_the_batch_holds_samples(self) -> None:
        roles = self.roles()
        assert all(self.read(roles, batch, batch) for batch in (3, 3, 4, 1, 0))

    def test_what_had_that_length_beside_another_batch_is_the_same_for_all(self) -> None:
        roles = self.roles()
        assert [self.read(roles, batch, 4) for batch in (3, 5, 4)] == [False, False, False]

    def test_what_turns_out_not_to_follow_the_batch_is_refused(self) -> None:
        roles = self.roles()
        assert self.read(roles, 4, 4)
        with pytest.raises(PrivacyViolation, match=r"the input 1 .* 4 rows for 3 samples"):
            self.read(roles, 3, 4)
