"""Private tensors whose dimension 0 is as long as the batch, or a multiple: some line up with the samples, some don't."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import B, Calls, observed, randn
from groupclip import aligned
from groupclip.call import DERIVED, RULE, SLOW, VMAP, Call, NotSplit
from groupclip.rules import generic
from models import output_square
from oracle import per_sample_gradients


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def ways_of(model: nn.Module, batch: tuple[Tensor, ...]) -> set[str]:
    with observed(model, batch) as (_, uses):
        model(*batch)
    return set().union(*uses.ways.values())


# ------------------------------------------------------------- tables as long as the batch that are none of its samples


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


@pytest.mark.parametrize("length", [B, B + 1])
@pytest.mark.parametrize("function", [layer, norm, expanded, scores, outputs, last])
def test_a_table_as_long_as_the_batch_is_not_the_batch(function, length: int) -> None:
    model = Calls(function, table=zeros(9, 4), weight=randn(4, 4))
    assert inexact(model, (randn(B, length, 4),)) == []


def backwards(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """The same row for every sample, so all agrees by chance; but row r meets sample B - 1 - r."""
    rows = F.embedding(torch.zeros(len(x), dtype=torch.long), table).flip(0)
    return x.mean(1) @ weight * (1 + rows)


@pytest.mark.parametrize("function", [scores, outputs, backwards])
def test_nor_is_it_where_values_agree_by_chance(function) -> None:
    assert worst_norm(Calls(function, table=zeros(9, 4), weight=randn(4, 4)), (randn(B, B, 4),)) < 1e-12


def test_without_trying_it_out_rows_would_be_credited_to_other_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned, "_row_by_row", lambda *_: True)
    assert worst_norm(Calls(backwards, table=zeros(9, 4), weight=randn(4, 4)), (randn(B, B, 4),)) > 1e-3


def worst_norm(model: nn.Module, batch: tuple[Tensor, ...]) -> float:
    """Of the parameters at hand, none of them moved: the largest error of a norm in float64."""
    model, batch = model.double(), tuple(t.double() for t in batch)
    samples = per_sample_gradients(model, output_square, batch)
    with observed(model, batch) as (engine, _):
        engine.backward(output_square(model, batch))
        return max(
            float((norms - torch.stack([g[name].norm() for g in samples])).abs().max())
            for name, norms in engine.unsafe_norms().items()
        )


# --------------------------------------------------------------------------------- those that line up with the samples


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
    bias = table[None, : x.shape[1]] + mask
    return (x + bias).softmax(-1).unflatten(0, (-1, 2))


def state(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """A learnt first state, by way of a layer, that meets the first step."""
    hidden = F.linear(table[:1].expand(x.shape[0], 4), weight, table[1])
    for step in x.unbind(1):
        hidden = torch.lerp(hidden, torch.tanh(step @ weight), 0.3)
    return hidden


@pytest.mark.parametrize("function", [for_every_head, windows, state])
def test_rows_of_samples_are_followed_from_where_they_meet_them(function) -> None:
    model = Calls(function, table=zeros(6, 4), weight=randn(4, 4))
    batch = (randn(B, 6, 4),)
    assert inexact(model, batch) == []
    assert SLOW not in ways_of(model.float(), batch)


def noisy(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    rows = F.linear(table[:1].expand(len(x), 4), weight)
    return F.scaled_dot_product_attention(x @ weight, rows[:, None], rows[:, None], dropout_p=0.5)


def test_trying_it_out_draws_no_random_number_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_this_way(call: Call) -> None:
        raise NotSplit

    monkeypatch.setattr(generic, "run_by_sample", not_this_way)  # which draws before it gives up
    model, x = Calls(noisy, table=randn(6, 4), weight=randn(4, 4)), randn(B, 5, 4)
    torch.manual_seed(0)
    plain = model(x).detach()
    with observed(model, (x,)):
        torch.manual_seed(0)
        assert torch.allclose(model(x).detach(), plain)


# --------------------------------------------------------------------------------------------- what is said to be slow


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return F.linear(x[order], weight)[order.argsort()]


def test_a_reordered_copy_of_the_inputs_counts_as_one_by_one() -> None:
    model = Calls(in_order, weight=randn(4, 4))
    assert SLOW in ways_of(model, (randn(B, 4),))


def test_a_constant_does_not() -> None:
    model = Calls(lambda x, weight: x @ (weight * torch.eye(4)), weight=randn(4, 4))
    assert ways_of(model, (randn(B, 4),)) <= {RULE, VMAP, DERIVED}


def test_lessons_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)  # sequence first

    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = model

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x.transpose(0, 1)).transpose(0, 1)

    assert ways_of(Middle(), (randn(B, 5, 4),)) == {RULE}
    assert not caplog.records
