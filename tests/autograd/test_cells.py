"""What samples of several parts booked is brought together: one cell where that can be, and never a sample in two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from groupclip.autograd.cells import cells_of, placed
from groupclip.autograd.vmap import NATIVE, Part
from groupclip.persample.base import PerSample
from groupclip.persample.dense import Dense
from groupclip.persample.lookup import Lookup
from groupclip.persample.outer import Outer

B = 5
Booked = dict[str, list[tuple[Part, PerSample]]]


def single(row: int, batch: int = B) -> Part:
    return Part(torch.tensor([row]), 1, batch, NATIVE)


def outer(row: int, positions: int = 3) -> Outer:
    generator = torch.Generator().manual_seed(row)
    a, g = (torch.randn(1, positions, n, generator=generator, dtype=torch.float64) for n in (4, 2))
    return Outer(a, g)


def dense(row: int) -> Dense:
    return Dense(torch.full((1, 2), float(row), dtype=torch.float64))


def lookup(row: int) -> Lookup:
    return Lookup(torch.tensor([[row, 0]]), torch.ones(1, 2, 3, dtype=torch.float64), B)


def gradients(booked: Booked, key: str, row: int) -> torch.Tensor:
    """Of one sample, straight from what it booked."""
    found = [g.instantiate()[0] for part, g in booked[key] if part.rows is not None and part.rows.tolist() == [row]]
    return torch.stack(found).sum(0)


def in_order(rows: list[int]) -> Booked:
    parts = {row: single(row) for row in rows}
    weights: list[tuple[Part, PerSample]] = [(parts[r], outer(r)) for r in rows]
    return {
        "weight": weights + [(parts[r], outer(r + 10)) for r in reversed(rows)],
        "bias": [(parts[r], dense(r)) for r in rows],
        "table": [(parts[r], lookup(r)) for r in reversed(rows)],
    }


def of_another_length(booked: Booked) -> None:
    part, _ = booked["weight"][1]
    booked["weight"][1] = (part, outer(1, positions=4))


def without_one(booked: Booked) -> None:
    booked["bias"].pop()


def of_another_form(booked: Booked) -> None:
    part, grads = booked["weight"][0]
    booked["weight"][0] = (part, Dense(grads.instantiate()))


def twice_called(booked: Booked) -> None:
    for found in booked.values():  # another call of the model on the same samples
        again = {id(part): single(int(part.rows[0])) for part, _ in found if part.rows is not None}
        found += [(again[id(part)], grads) for part, grads in found]


def nothing(booked: Booked) -> None:
    del booked


@pytest.mark.parametrize("change", [nothing, of_another_length, without_one, of_another_form, twice_called])
def test_samples_that_ran_by_themselves_have_a_cell_each(change: Callable[[Booked], None]) -> None:
    rows = [0, 1, 2]
    booked = in_order(rows)
    change(booked)
    expected = {(key, row): gradients(booked, key, row) for key in booked for row in rows if (key, row) != ("bias", 2)}
    cells = cells_of(booked)
    assert sorted(row for cell in cells if cell.rows is not None for row in cell.rows.tolist()) == rows
    assert booked == {}
    for cell in cells:
        assert cell.rows is not None
        for place, row in enumerate(cell.rows.tolist()):
            for key in cell.uses:
                total = torch.stack([use.instantiate()[place] for use in cell.uses[key]]).sum(0)
                if (key, row) in expected:
                    torch.testing.assert_close(total, expected[key, row], rtol=0, atol=1e-14)


def test_values_of_samples_by_themselves_are_placed() -> None:
    found = placed([(single(3), torch.tensor([7.0])), (single(0), torch.tensor([5.0]))])
    assert found.tolist() == [5.0, 0.0, 0.0, 7.0, 0.0]


def test_calls_of_different_sizes_stay_apart() -> None:
    small, large = Part(None, 2, 2, 1), Part(None, 3, 3, 1)
    booked: Booked = {"weight": [(small, Dense(torch.ones(2, 4))), (large, Dense(torch.ones(3, 4)))]}
    assert [(cell.batch, cell.rows) for cell in cells_of(booked)] == [(2, None), (3, None)]


def test_an_empty_batch_has_no_samples() -> None:
    nobody = Part(None, 1, 0, 1)
    (cell,) = cells_of({"weight": [(nobody, Dense(torch.ones(1, 4)))]})
    assert cell.batch == 0 and cell.uses["weight"][0].num_samples == 0
    assert cells_of({}) == []
