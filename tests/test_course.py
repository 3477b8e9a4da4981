"""The batch itself may be arranged otherwise than the two samples of a lesson: it is found out, and computed exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import groupclip as gc
from check_rules import Uses
from groupclip.call import SLOW

Batch = tuple[Any, ...]


class Runs(nn.Module):
    """``forward(model, *inputs)`` with modules and settings as attributes."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Tensor:
        return self.run(self, *inputs)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return model(*batch).square().flatten(1).sum(1)


def one(batch: Batch, i: int, shared: tuple[int, ...]) -> Batch:
    def cut(n: int, value: Any) -> Any:
        if n in shared or not isinstance(value, (Tensor, list)):
            return value
        return value[i : i + 1]

    return tuple(cut(n, value) for n, value in enumerate(batch))


def wrong(model: nn.Module, batches: list[Batch], shared: tuple[int, ...] = (), between: Any = None) -> list[str]:
    """The parameters whose per-sample norms or clipped sums in the last of the batches aren't those of single samples.

    shared: numbers of inputs that aren't per sample. between: called with the model before the last batch.
    """
    model = model.double()
    engine = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-2)
    for batch in batches[:-1]:
        engine.backward(losses(model, batch))
        engine.discard()
    if between is not None:
        between(model)
    engine.backward(losses(model, batches[-1]))
    norms, thresholds = engine.unsafe_norms(), dict(engine.thresholds)
    sums = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    engine.detach()
    named = dict(model.named_parameters())
    each = []
    for i in range(len(batches[-1][0])):
        loss = losses(model, one(batches[-1], i, shared)).sum()
        each.append(torch.autograd.grad(loss, list(named.values()), allow_unused=True))
    found = []
    for n, (name, p) in enumerate(named.items()):
        alone = [torch.zeros_like(p) if g[n] is None else g[n] for g in each]
        want = torch.stack([g.norm() for g in alone])
        total = sum(g * min(1.0, thresholds[name] / float(g.norm())) for g in alone if g.norm() > 0)
        if not torch.allclose(norms[name], want, rtol=1e-9, atol=1e-12) or (sums[name] - total).abs().max() > 1e-10:
            found.append(name)
    return found


def linear(a: int = 5, b: int = 4) -> nn.Linear:
    torch.manual_seed(a * 10 + b)
    return nn.Linear(a, b)


# ---------------------------------------------------------------- rows moved by values


def by_a_key(m: Any, x: Tensor) -> Tensor:
    order = (x[:, :, 0] > 0).sum(1).argsort(stable=True)
    return m.last(m.first(x)[order]).tanh()[order.argsort()]


def with_ties() -> Tensor:
    """The samples of a lesson (which takes sample 0 and the one that differs most) have the same key."""
    x = drawn(4, 3, 5)
    x[:, :, 0] = torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, -1, -1], [1, 1, -1]])
    return x


def kept_rows(way: str) -> Callable[..., Tensor]:
    def run(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        h = m.first(x)
        rows = h[mask] if way == "index" else torch.masked_select(h, mask[..., None]).view(-1, h.shape[2])
        out = m.last(rows).tanh()
        empty = out.new_zeros(*mask.shape, out.shape[1])
        if way == "write":
            return empty.index_put(mask.nonzero(as_tuple=True), out)
        return empty.masked_scatter(mask[..., None].expand(empty.shape), out)

    return run


EQUAL = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool()
UNEQUAL = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()  # as many rows, other counts


@pytest.mark.parametrize("way", ["index", "select", "write"])
def test_masked_rows_of_equal_number_in_the_lesson(way: str) -> None:
    model = Runs(kept_rows(way), first=linear(5, 5), last=linear())
    assert wrong(model, [(drawn(4, 3, 5), EQUAL), (drawn(4, 3, 5), UNEQUAL)]) == []


def test_masked_rows_of_the_inputs_themselves() -> None:
    def run(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        out = m.last(x[mask]).tanh()
        return out.new_zeros(*mask.shape, 4).masked_scatter(mask[..., None].expand(*mask.shape, 4), out)

    assert wrong(Runs(run, last=linear()), [(drawn(4, 3, 5), EQUAL), (drawn(4, 3, 5), UNEQUAL)]) == []
    two_equal = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]).bool()  # already in the first batch
    assert wrong(Runs(run, last=linear()), [(drawn(4, 3, 5), two_equal)]) == []


@pytest.mark.parametrize("behind", [False, True])
def test_a_sort_in_which_the_samples_of_the_lesson_tie(behind: bool) -> None:
    first = linear(5, 5) if behind else nn.Identity()
    assert wrong(Runs(by_a_key, first=first, last=linear()), [(with_ties(),)]) == []


MOVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "getitem": lambda h, order: h[order],
    "list": lambda h, order: h[order.tolist()],
    "numpy": lambda h, order: h[order.numpy()],
    "index_select": lambda h, order: h.index_select(0, order),
    "gather": lambda h, order: h.gather(0, order[:, None].expand_as(h)),
    "take_along_dim": lambda h, order: torch.take_along_dim(h, order[:, None], 0),
    "embedding": lambda h, order: torch.nn.functional.embedding(order, h),
    "index_copy": lambda h, order: torch.zeros_like(h).index_copy(0, order.argsort(), h),
    "index_add": lambda h, order: torch.zeros_like(h).index_add(0, order.argsort(), h),
    "scatter": lambda h, order: torch.zeros_like(h).scatter(0, order.argsort()[:, None].expand_as(h), h),
    "scatter_add": lambda h, order: torch.zeros_like(h).scatter_add(0, order.argsort()[:, None].expand_as(h), h),
    "index_put": lambda h, order: torch.zeros_like(h).index_put((order.argsort(),), h),
    "row by row": lambda h, order: torch.stack([h[i] for i in order.tolist()]),
}


@pytest.mark.parametrize("move", MOVES)
def test_every_way_to_move_rows_by_values(move: str) -> None:
    """The key is zero for the samples of the lesson, whose order it leaves; then it isn't."""

    def run(m: Any, x: Tensor) -> Tensor:
        order = x[:, 0].round().argsort(stable=True)
        out = m.last(MOVES[move](m.first(x), order)).tanh()
        return out[order.argsort()]

    first, then = drawn(4, 5), drawn(4, 5)
    first[:, 0], then[:, 0] = 0.0, torch.tensor([3.0, 1.0, 2.0, 0.0])
    model = Runs(run, first=linear(5, 5), last=linear())
    assert wrong(model, [(first,), (then,)]) == []


def test_sorted_values_and_top_rows() -> None:
    """``sort`` and ``topk`` along the samples, undone again by their own indices."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x) + 100 * x[:, :1]
        values, indices = h.sort(0) if m.whole else h.topk(len(h), 0, largest=False)
        out = (values * m.scale.weight[0]).tanh()
        return torch.zeros_like(out).scatter(0, indices, out)

    first, then = drawn(4, 5), drawn(4, 5)
    first[:, 0], then[:, 0] = torch.arange(4.0), torch.tensor([3.0, 1.0, 2.0, 0.0])
    for whole in (True, False):
        model = Runs(run, first=linear(5, 5), scale=nn.Linear(5, 1, bias=False), whole=whole)
        assert wrong(model, [(first,), (then,)]) == []


def test_packed_data_of_samples_of_equal_length_in_the_lesson() -> None:
    def run(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(m.first(x), lengths, batch_first=True, enforce_sorted=False)
        data = m.last(packed.data).tanh()
        packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(packed, batch_first=True, total_length=5)[0]

    x, even = drawn(4, 5, 5), torch.tensor([3, 3, 3, 3])
    for lengths in ([1, 2, 4, 5], [5, 4, 2, 1]):
        model = Runs(run, first=linear(5, 5), last=linear())
        assert wrong(model, [(x, even), (x, torch.tensor(lengths))]) == [], lengths


# ---------------------------------------------------------------- arranged otherwise


def in_views(m: Any, x: Tensor, views_first: bool) -> Tensor:
    batch, h = len(x), m.first(x)
    if views_first:
        return m.last(h.transpose(0, 1).flatten(0, 1)).tanh().view(2, batch, -1).transpose(0, 1)
    return m.last(h.flatten(0, 1)).tanh().view(batch, 2, -1)


def test_a_flag_that_arranges_the_batch_otherwise() -> None:
    x = drawn(4, 2, 5)
    by_argument = Runs(in_views, first=linear(5, 5), last=linear())
    assert wrong(by_argument, [(x, False), (x, True)]) == []
    by_attribute = Runs(lambda m, x: in_views(m, x, m.flag), first=linear(5, 5), last=linear(), flag=False)
    assert wrong(by_attribute, [(x,), (x,)], between=lambda m: setattr(m, "flag", True)) == []


def test_the_size_of_the_batch_arranges_it() -> None:
    model = Runs(lambda m, x: in_views(m, x, len(x) > 2), first=linear(5, 5), last=linear())
    assert wrong(model, [(drawn(4, 2, 5),)]) == []


def test_values_arrange_it() -> None:
    model = Runs(lambda m, x: in_views(m, x, bool(x.sum() > 0)), first=linear(5, 5), last=linear())
    x = drawn(4, 2, 5).abs()
    assert wrong(model, [(-x,), (x,)]) == []


def test_a_list_that_is_no_tensor_orders_the_samples() -> None:
    """It isn't cut with the batch, so the lesson fails or sees another order."""

    def run(m: Any, x: Tensor, lengths: list[int]) -> Tensor:
        order = torch.tensor(sorted(range(len(lengths)), key=lambda i: lengths[i]))
        return m.last(m.first(x)[order]).tanh()[order.argsort()]

    model = Runs(run, first=linear(5, 5), last=linear())
    assert wrong(model, [(drawn(4, 3, 5), [0, 1, 2, 3]), (drawn(4, 3, 5), [3, 2, 0, 1])]) == []


def test_a_generator_of_the_model_itself_shuffles() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        order = torch.randperm(len(x), generator=m.source)
        return m.last(m.first(x)[order]).tanh()[order.argsort()]

    model = Runs(run, first=linear(5, 5), last=linear(), source=torch.Generator().manual_seed(3))
    assert wrong(model, [(drawn(6, 5),)] * 4) == []


def test_one_of_many_layers_that_no_lesson_showed() -> None:
    """Another layer in every pass, more of them than lessons are given at once."""

    def run(m: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return m.layers[m.turn](m.first(x)[order]).tanh()[order.argsort()]

    layers = nn.ModuleList([nn.Linear(5, 4) for _ in range(14)])
    model: Any = Runs(run, first=linear(5, 5), layers=layers, turn=0).double()
    engine = gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=1e-2)
    x = drawn(4, 5)
    for turn in range(14):
        model.turn = turn
        engine.backward(losses(model, (x,)))
        got = engine.unsafe_norms()[f"layers.{turn}.bias"]
        engine.discard()
        out = model(x).detach()
        torch.testing.assert_close(got, (2 * out * (1 - out.square())).norm(dim=1), rtol=1e-9, atol=0)
        engine.discard()


# ---------------------------------------------------------------- inputs that are no samples


@pytest.mark.parametrize("rows", [2, 3])
def test_a_support_set_as_long_as_the_batch(rows: int) -> None:
    """Every sample is compared with every row of it. A batch of another size settles what it is."""

    def run(m: Any, x: Tensor, support: Tensor) -> Tensor:
        return (m.first(x)[:, None] - m.last(support)[None]).square().sum(-1)

    x, support = drawn(rows, 5), drawn(rows, 5).flip(0)
    model = Runs(run, first=linear(), last=linear())
    assert wrong(model, [(x, support)], shared=(1,)) == []
    assert wrong(model, [(x, support), (drawn(5, 5), support), (x, support)], shared=(1,)) == []


def test_candidates_as_many_as_the_batch() -> None:
    def run(m: Any, x: Tensor, ids: Tensor) -> Tensor:
        return x @ m.table(ids).T

    model = Runs(run, table=nn.Embedding(9, 5))
    assert wrong(model, [(drawn(3, 5), torch.tensor([3, 5, 1]))], shared=(1,)) == []


def test_two_towers_are_quick_once_a_batch_of_another_size_settles_what_they_read(caplog) -> None:
    """Until then the second input may be a support set for all that is known."""

    model: Any = Runs(lambda m, x, y: (m.first(x), m.last(y)), first=linear(), last=linear())
    engine = gc.attach(model, None, "param-wise", None)
    uses: list[set[str]] = []
    for size in (3, 3, 4, 3):
        engine._tape.observer = observer = Uses()
        a, b = model(drawn(size, 5).float(), drawn(size, 5).float())
        engine.backward((a * b).sum(1))
        engine.discard()
        uses.append({name for name, ways in observer.ways.items() if SLOW in ways})
    assert "input 2 is as long as the batch" in caplog.text
    assert uses[2] == uses[3] == set()


# ---------------------------------------------------------------- what stays quick


def slow(model: nn.Module, batches: list[Batch]) -> list[set[str]]:
    """In each pass, the operations whose samples couldn't be told apart."""
    engine = gc.attach(model, None, "param-wise", None)
    found = []
    for batch in batches:
        engine._tape.observer = uses = Uses()
        engine.backward(losses(model, batch))
        engine.discard()
        found.append({name for name, ways in uses.ways.items() if SLOW in ways})
    engine.detach()
    return found


def test_moving_entries_inside_samples_is_quick() -> None:
    """The last token, chosen tokens, a table of positions: rows stay with their sample."""

    def run(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        h = m.first(x)
        last = h[torch.arange(len(x)), lengths - 1]
        chosen = h.gather(1, (h[..., :1].argsort(1)[:, :2]).expand(-1, -1, h.shape[2]))
        placed = chosen + m.table[lengths.clamp(max=3)][:, None]
        return m.last(last) + m.last(placed).sum(1)

    model = Runs(run, first=nn.Linear(5, 5), last=nn.Linear(5, 4))
    model.register_buffer("table", torch.randn(4, 5))
    sizes = (4, 3, 6, 2, 5)
    batches = [
        (drawn(n, 6, 5).float(), torch.randint(1, 7, (n,), generator=torch.Generator().manual_seed(n))) for n in sizes
    ]
    assert slow(model, batches) == [set()] * len(sizes)


def test_loops_over_samples_and_steps_are_quick() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        rows = torch.stack([m.first(x)[i] for i in range(len(x))])
        state = rows.new_zeros(len(x), 4)
        for t in range(rows.shape[1]):
            state = m.cell(rows[:, t], state)
        return state

    model = Runs(run, first=nn.Linear(5, 5), cell=nn.GRUCell(5, 4))
    assert slow(model, [(drawn(n, 6, 5).float(),) for n in (4, 3, 7, 5)]) == [set()] * 4


def test_an_arrangement_met_for_the_first_time_is_slow_once() -> None:
    """At the end of that pass a lesson is given on its own batch."""
    x = drawn(4, 2, 5).float()
    model = Runs(in_views, first=nn.Linear(5, 5), last=nn.Linear(5, 4))
    first, changed, *after = slow(model, [(x, False), (x, True), (x, True), (x, False), (x, True)])
    assert first == set() and changed != set()
    # either way is known to occur at this place now, so it goes by what led there
    assert after == [set(), set(), set()]


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
    assert slow(Conditions(), [(drawn(4, 5).float(),), (drawn(3, 5).float(),)]) == [set(), set()]


def test_the_mode_is_left_after_an_error_in_the_model() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        if m.fails:
            raise RuntimeError("no such luck")
        return m.last(x)

    model: Any = Runs(run, last=nn.Linear(5, 4), fails=False)
    engine = gc.attach(model, None, "param-wise", None)
    engine.backward(losses(model, (drawn(4, 5).float(),)))
    engine.discard()
    depth = torch._C._len_torch_function_stack()
    model.fails = True
    with pytest.raises(RuntimeError, match="no such luck"):
        model(drawn(4, 5).float())
    assert torch._C._len_torch_function_stack() == depth == 0
    model.fails = False
    engine.backward(losses(model, (drawn(3, 5).float(),)))


def test_a_computed_parameter_that_is_added_in_two_arrangements() -> None:
    """With three samples the first sum lines up by its shape, too, with what lessons saw of the second alone."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.first, self.last = nn.Parameter(torch.ones(3, 1, 4)), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            shifted = (1 + self.weight).tanh() + self.first(x).transpose(0, 1)  # [3, B, 4]
            inner = self.last(shifted.tanh().transpose(0, 1))
            return (1 + self.weight[:, 0]).tanh().expand(len(x), 3, 4) + inner

    for size in (2, 3, 4, 6):
        torch.manual_seed(0)
        assert wrong(Adds(), [(drawn(4, 3, 4),), (drawn(size, 3, 4),)]) == [], size
