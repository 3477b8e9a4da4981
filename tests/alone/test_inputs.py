"""Inputs that are no samples, parameters as long as the batch, settings that arrange a batch otherwise: exact, by the same loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import groupclip as gc
from apart import Runs, attached, drawn, linear, wrong
from groupclip.alone.inputs import Roles
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
        with pytest.raises(PrivacyViolation, match=r"tensor number 1 .* 4 rows for 3 samples"):
            self.read(roles, 3, 4)
