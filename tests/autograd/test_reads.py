"""Models whose code looks at values, or whose results have a size that hangs on values: exact, whatever path a sample takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import groupclip as gc
from apart import Runs, drawn, linear, squares, wrong

Forward = Callable[[Any, Tensor], Tensor]


def rows(m: Any, x: Tensor) -> Tensor:
    return m.last(m.first(x))


# ------------------------------------------------------------------ a number or an order of the sample


def scaled(number: Callable[[Tensor], Any]) -> Forward:
    return lambda m, x: rows(m, x) * number(x.detach())


def one_of_two(asks: Callable[[Tensor], Any]) -> Forward:
    return lambda m, x: rows(m, x) if asks(x.detach()) else m.last(m.first(x).tanh())


def positive(x: Tensor) -> Tensor:
    return x[..., 0] > 0


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "item, rounded": lambda x: round(x.sum().item()),
    "float": lambda x: float(x[0, 0, 0]),
    "int": lambda x: int(positive(x).sum()),
    "tolist": lambda x: sum(v > 0 for v in x.flatten().tolist()),
    "numpy": lambda x: float(x.numpy().max()),
    "len of unique": lambda x: len((x > 0).sum(2).unique()),
    "counts of unique": lambda x: (x > 0).sum(2).unique(return_counts=True)[1].max(),
    "bincount": lambda x: torch.bincount((x > 0).sum(2).flatten()).max(),
    "masked_select": lambda x: x.masked_select(x > 0).mean(),
    "nonzero": lambda x: len(x.nonzero()),
    "arange": lambda x: torch.arange((x > 0).sum()).sum(),
    "a tensor of numbers": lambda x: torch.tensor([x[0, 0, 0], 2.0]).sum(),
    "format": lambda x: len(f"{x[0, 0, 0]:.4f}") + float(f"{x[0, 0, 0]:.2f}"),
    "text": lambda x: sum(map(ord, str(x[0]))),
    "max of a list": lambda x: max(x[0, :, 0]),
    "kthvalue": lambda x: x.flatten().kthvalue(3).values,
    "out": lambda x: torch.add(x, 1, out=torch.empty(x.shape, dtype=x.dtype)).sum(),
    "storage": lambda x: torch.empty(0, dtype=x.dtype).set_(x.contiguous().untyped_storage()).sum(),
    "histc": lambda x: torch.histc(x, 4).max(),
}
QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "any": lambda x: (x > 1.5).any(),
    "all": lambda x: (x > -1.5).all(),
    "equal": lambda x: torch.equal(x[:, 0] > 0, x[:, 1] > 0),
    "allclose": lambda x: torch.allclose(x[:, 0], x[:, 1], atol=1.5),
    "comparison": lambda x: x.sum() > 0,
    "in": lambda x: 1 in (x > 1).long(),
    "key of a dictionary": lambda x: {0: True, 1: False, 2: True, 3: False}[int(positive(x).sum())],
    "is_nonzero": lambda x: (x[0, 0, 0] > 0).is_nonzero(),
}


def weighed(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
    """Sample i's loss needs its own output, and no other's."""
    out = model(*batch)
    return squares(out * (2 + batch[0].mean((1, 2))).view(-1, *[1] * (out.dim() - 1)))


def exact(run: Forward, **parts: nn.Module) -> None:
    model = Runs(run, first=linear(), last=linear(5, 4), **parts)
    batches = [(drawn(6, 3, 5),), (drawn(3, 3, 5, seed=9),), (drawn(1, 3, 5, seed=2),)]
    assert wrong(model, batches, weighed) == []


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_read(name: str) -> None:
    exact(scaled(NUMBERS[name]))


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_path_that_is_chosen(name: str) -> None:
    exact(one_of_two(QUESTIONS[name]))


# ------------------------------------------------------------------ code that goes on after an error


def goes_on(x: Tensor) -> bool:
    try:
        return bool(x.sum() > 0)
    except Exception:
        return False


def goes_on_whatever_comes(x: Tensor) -> bool:
    try:
        return int(x.sum() > 0) == 1
    except:  # noqa: E722
        return False


def fails_after_it(x: Tensor) -> bool:
    """Without its answer the code doesn't come to its end."""
    answer = None
    with contextlib.suppress(BaseException):
        answer = bool(x.sum() > 0)
    return {True: True, False: False}[answer]  # pyright: ignore[reportArgumentType]


def leaves_torch(x: Tensor) -> bool:
    try:
        return bool(x.numpy().sum() > 0)
    except BaseException:
        return False


def does_what_vmap_cannot(x: Tensor) -> bool:
    """For a sample alone it is no error."""
    try:
        x.clone().requires_grad_().square().sum().backward()
    except RuntimeError:
        return False
    return bool(x.sum() > 0)


GOES_ON = [goes_on, goes_on_whatever_comes, fails_after_it, leaves_torch, does_what_vmap_cannot]


@pytest.mark.parametrize("asks", GOES_ON)
def test_code_that_goes_on_after_an_error_is_answered_all_the_same(asks: Callable[[Tensor], Any]) -> None:
    exact(one_of_two(asks))


def test_an_error_that_each_sample_sees_alone_may_be_caught() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        try:
            return m.first(x) @ x
        except RuntimeError:
            return rows(m, x)

    exact(run)


# ------------------------------------------------------------------ sizes that hang on values


def pooled(out: Tensor) -> Tensor:
    return out.reshape(-1, 4).sum(0)[None]


PICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mask": lambda h, x: h[positive(x)],
    "nonzero": lambda h, x: h[0][positive(x)[0].nonzero().flatten()],
    "nonzero as tuple": lambda h, x: h[positive(x).nonzero(as_tuple=True)],
    "where": lambda h, x: h[torch.where(positive(x))],
    "argwhere": lambda h, x: h[0, torch.argwhere(positive(x)[0])[:, 0]],
    "masked_select": lambda h, x: h.masked_select(positive(x)[..., None]).view(-1, 5),
    "slice from a tensor": lambda h, x: h[:, positive(x).sum() :],
    "slice of one size": lambda h, x: h[:, (x[0, 0, 0] > 0).long() : (x[0, 0, 0] > 0).long() + 2],
    "index": lambda h, x: h[:, int(x[0, :, 0].argmax())],
    "unique rows": lambda h, x: h[0, (x[0, :, 0] > 0).long().unique()],
    "loop": lambda h, x: sum((h * i for i in range(int(positive(x).sum()))), h),
    "sorted list": lambda h, x: torch.stack(sorted(h[0].unbind(0), key=lambda row: float(row.detach().sum()))),
    "a slice a time": lambda h, x: torch.cat([h[i : i + 1] for i in range(len(h))][::-1]),
    "a loop over the batch": lambda h, x: torch.stack([row * 2 for row in h]),
}


@pytest.mark.parametrize("name", PICKS)
def test_rows_that_are_picked(name: str) -> None:
    exact(lambda m, x: pooled(m.last(PICKS[name](m.first(x), x.detach()))))


def loops_until(m: Any, x: Tensor) -> Tensor:
    h, n = m.first(x), 0
    while h.norm() > 1.0 and n < 6:
        h, n = m.first(h) * 0.7, n + 1
    return m.last(h)


def adaptive_time(m: Any, x: Tensor) -> Tensor:
    h, n = m.first(x), 0
    spent, found = torch.zeros(h.shape[:2], dtype=h.dtype), torch.zeros_like(h)
    while (spent < 0.9).any() and n < 8:
        p = torch.sigmoid(m.last(h))[..., 0]
        spent, found, h, n = spent + p, found + p[..., None] * h, m.first(h).tanh(), n + 1
    return m.last(found)


@pytest.mark.parametrize("run", [loops_until, adaptive_time])
def test_a_loop_that_ends_when_values_say_so(run: Forward) -> None:
    exact(run)


# ------------------------------------------------------------------ writes of samples into constants


def into(write: Callable[[Tensor, Tensor, Tensor], Any]) -> Forward:
    def run(m: Any, x: Tensor) -> Tensor:
        table = torch.zeros(x.shape, dtype=x.dtype)
        write(table, m.first(x), x.detach())
        return m.last(table)

    return run


WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "copy_": lambda t, h, x: t.copy_(h),
    "copy_ into a view": lambda t, h, x: t[:, 1].copy_(h[:, 0]),
    "setitem": lambda t, h, x: t.__setitem__((0, 1), h[0, 0]),
    "setitem by mask": lambda t, h, x: t.__setitem__(positive(x), h[positive(x)]),
    "step by step": lambda t, h, x: [t.__setitem__((slice(None), i), h[:, -1 - i]) for i in range(3)],
    "add_": lambda t, h, x: t.add_(h),
    "+= on a view": lambda t, h, x: t[:, 1:].__iadd__(h[:, 1:]),
    "index_add_": lambda t, h, x: t.index_add_(1, torch.tensor([0, 1, 1]), h),
    "index_put_": lambda t, h, x: t.index_put_((torch.tensor([0]), torch.tensor([2])), h[0, :1]),
    "scatter_": lambda t, h, x: t.scatter_(1, x.argsort(1), h),
    "masked_scatter_": lambda t, h, x: t.masked_scatter_(x > 0, h),
    "addcmul_": lambda t, h, x: t.addcmul_(h, x),
    "baddbmm_": lambda t, h, x: t.baddbmm_(h @ h.transpose(1, 2), h),
    "twice": lambda t, h, x: (t.add_(h), t.mul_(2)),
}


@pytest.mark.parametrize("name", WRITES)
def test_samples_written_into_a_constant(name: str) -> None:
    """Each sample has its own of it, or runs by itself."""
    exact(into(WRITES[name]))


@pytest.mark.parametrize("name", ["clone", "from a list", "compared"])
def test_into_constants_made_otherwise(name: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        made = {
            "clone": lambda: m.table.clone(),
            "from a list": lambda: torch.tensor([[[0.5] * 5] * 3], dtype=x.dtype),
            "compared": lambda: (torch.arange(15).view(1, 3, 5) % 2).to(x.dtype) * 0.5,
        }[name]()
        made[:, 1] = m.first(x)[:, 0]
        return m.last(made)

    model = Runs(run, first=linear(), last=linear(5, 4))
    model.register_buffer("table", torch.ones(1, 3, 5), persistent=False)
    assert wrong(model, [(drawn(4, 3, 5),), (drawn(3, 3, 5),)]) == []


def test_a_view_and_a_change_in_place_make_nothing_new() -> None:
    """A copy of them would be written to in the stead of what the model goes on with."""

    def run(m: Any, x: Tensor) -> Tensor:
        table = torch.zeros(x.shape, dtype=x.dtype)
        moved = table.add_(1)
        moved[0, 0] = m.first(x)[0, 0]
        table.view(-1)[5:10] = m.first(x)[0, 1]
        table.detach().transpose(1, 2)[..., 2].copy_(m.first(x)[:, 2].detach())
        return m.last(table)

    exact(run)


def test_a_constant_of_all_samples_stays_one_where_another_is_written_to() -> None:
    """Kept on the module from pass to pass, it is what torch alone would keep."""

    def run(m: Any, x: Tensor) -> Tensor:
        steps = x.shape[1]
        if m.places is None or len(m.places) < steps:
            m.places = torch.arange(steps)
        table = torch.zeros(steps, 5, dtype=x.dtype)
        for t, row in enumerate(m.first(x)[0]):
            table[t] = row * 2
        return m.last((table + m.table(m.places[:steps]))[None].sum(1))

    model: Any = Runs(run, first=linear(), last=linear(5, 4), table=nn.Embedding(9, 5), places=None)
    assert wrong(model, [(drawn(b, t, 5),) for b, t in ((6, 3), (6, 3), (4, 5), (5, 5), (4, 5), (2, 6), (3, 6))]) == []
    assert torch.equal(model.places, torch.arange(6))


# ------------------------------------------------------------------ experts, packed sequences


def experts_by_index(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    flat = h.flatten(0, 1)
    top = m.gate(flat).topk(2, -1)
    out = torch.zeros_like(flat)
    for e, expert in enumerate(m.experts):
        rows, k = torch.where(top.indices == e)
        if len(rows):
            out.index_add_(0, rows, expert(flat[rows]) * top.values[rows, k, None].sigmoid())
    return m.last(out.view(h.shape))


def experts_by_mask(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    flat = h.flatten(0, 1)
    weights = m.gate(flat).softmax(-1)
    out = torch.zeros_like(flat)
    for e, expert in enumerate(m.experts):
        mine = weights.argmax(-1) == e
        if mine.any():
            out[mine] = expert(flat[mine]) * weights[mine, e : e + 1]
    return m.last(out.view(h.shape))


def experts_by_counts(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    flat = h.flatten(0, 1)
    chosen = m.gate(flat).argmax(-1)
    order = chosen.argsort(stable=True)
    parts = flat[order].split(torch.bincount(chosen, minlength=4).tolist())
    out = torch.cat([expert(part) for expert, part in zip(m.experts, parts, strict=True)])
    return m.last(out[order.argsort()].view(h.shape))


@pytest.mark.parametrize("run", [experts_by_index, experts_by_mask, experts_by_counts])
def test_a_mixture_of_experts(run: Forward) -> None:
    torch.manual_seed(0)
    exact(run, gate=nn.Linear(5, 4), experts=nn.ModuleList([nn.Linear(5, 5) for _ in range(4)]))


def packed(m: Any, x: Tensor, total: int | None) -> Tensor:
    lengths = positive(x).sum(1).clamp(min=1)
    states = m.rnn(pack_padded_sequence(m.first(x), lengths, batch_first=True, enforce_sorted=False))[0]
    return m.last(pad_packed_sequence(states, batch_first=True, total_length=total)[0])


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    exact(lambda m, x: packed(m, x, 3), rnn=nn.GRU(5, 5, batch_first=True))


def test_outputs_as_long_as_the_longest_are_refused() -> None:
    """What a batch would be padded to hangs on all its samples."""
    model = Runs(lambda m, x: packed(m, x, None), first=linear(), last=linear(5, 4), rnn=nn.GRU(5, 5, batch_first=True))
    with pytest.raises(gc.UnsupportedOperation, match="total_length"):
        wrong(model, (drawn(6, 3, 5),))
