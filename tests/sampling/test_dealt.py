"""Dealing a draw to ranks: each unit once, as many micro-batches on each, and micro-batches that hold nobody."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from groupclip.distributed.ranks import Ranks
from groupclip.sampling.dealt import NOBODY, dealt
from groupclip.sampling.readers import BySample, ByUser, Fetch

DATA = TensorDataset(torch.arange(40).view(20, 2), torch.arange(20.0))


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("number", [0, 1, 2, 6, 13, 20])
def test_each_unit_is_with_one_rank_and_all_have_as_many_micro_batches(number: int, size: int) -> None:
    reader, drawn = BySample(DATA, 3, None), np.arange(20)[:number]
    parts = [
        dealt(drawn, Ranks(rank, size), lambda part: reader.plan(part, key=bytes(32), step=0)) for rank in range(size)
    ]
    assert len({len(part) for part in parts}) == 1
    units = [[row for piece in part for row in piece.rows] for part in parts]
    assert sorted(row for part in units for row in part) == drawn.tolist()
    assert max(map(len, units)) - min(map(len, units)) <= 1


def test_a_micro_batch_that_holds_nobody_looks_like_the_others() -> None:
    for found, like in zip(Fetch(DATA, None)([]), Fetch(DATA, None)([0, 1]), strict=True):
        assert (found.shape[0], found.shape[1:], found.dtype) == (0, like.shape[1:], like.dtype)
    assert NOBODY.parts(4) == [NOBODY]


class Named(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"ids": torch.full((3,), row), "label": torch.tensor(row)}


def test_a_mapping_that_holds_nobody() -> None:
    found = Fetch(Named(), None)([])
    assert {name: tuple(value.shape) for name, value in found.items()} == {"ids": (0, 3), "label": (0,)}


def test_users_of_whom_there_is_none() -> None:
    reader = ByUser(DATA, 4, None, [row // 2 for row in range(20)], None)
    found = reader.laid_out(NOBODY, reader.fetch(NOBODY.rows))
    assert found[0].shape[0] == 0
