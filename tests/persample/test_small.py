"""Small parameters together: the same norms and sums as each by itself, and no two in one memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from groupclip.persample.base import PerSample
from groupclip.persample.dense import SMALL, Dense
from groupclip.persample.outer import Outer
from groupclip.persample.small import joint

B = 3


def made(dtype: torch.dtype = torch.float64) -> dict[str, PerSample]:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(B, *shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "bias": Dense(randn(7)), "scalar": Dense(randn()), "weight": Dense(randn(5, 4)), "large": Dense(randn(SMALL // B + 1)),
        "linear": Outer(randn(2, 4), randn(2, 3)), "other": Dense(randn(2, 2, 2)), "none": Dense(randn(0)),
        "float": Dense(randn(6).float()),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_together_is_as_apart(dtype: torch.dtype) -> None:
    grads, factors = made(dtype), torch.tensor([0.5, 0.0, 2.0])
    parts = joint(grads)
    assert len(parts) == (4 if dtype != torch.float32 else 3)  # the large one, the linear one, and one a dtype
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype != torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
    total = torch.stack([part.samples.square_norms().double() for part in parts]).sum(0)
    apart = torch.stack([samples.square_norms().double() for samples in made(dtype).values()]).sum(0)
    torch.testing.assert_close(total, apart, **close)
    sums = {key: value for part in parts for key, value in part.sums(factors)}
    assert sums.keys() == grads.keys()
    for key, samples in made(dtype).items():
        torch.testing.assert_close(sums[key].flatten(), samples.weighted_sum(factors).flatten(), **close)
    addresses = [value.untyped_storage().data_ptr() for value in sums.values() if value.numel()]
    assert len(set(addresses)) == len(addresses)


def test_chosen_samples_alone() -> None:
    keep, factors = torch.tensor([0, 2]), torch.tensor([1.0, 3.0], dtype=torch.float64)
    chosen = {k: v for part in joint(made()) for k, v in part.select(keep).sums(factors)}
    for key, samples in made().items():
        torch.testing.assert_close(chosen[key].flatten(), samples.select(keep).weighted_sum(factors).flatten())


def test_room_is_bounded_and_an_empty_batch_is_nothing() -> None:
    many = {n: Dense(torch.ones(16, SMALL // 16)) for n in range(5)}  # half the room, each
    assert [part.keys for part in joint(many)] == [(0, 1), (2, 3), (4,)]
    (part,) = joint({n: Dense(torch.ones(0, 4)) for n in range(3)})
    assert all(bool((value == 0).all()) for _, value in part.sums(torch.ones(0)))
    assert joint({}) == []
