"""Live bytes counted by hand, and the account of CUDA's allocator."""

from __future__ import annotations

import pytest
import torch

from allocator import allocator_curve, allocator_peak, history_curve
from groupclip.memory.live import Live

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MEGA = 2**20


def megabytes(number: int, device: str) -> torch.Tensor:
    return torch.empty(number * MEGA, dtype=torch.uint8, device=device)


def four_then_two(device: str) -> None:
    """4 MB, 2 MB beside them, 4 MB freed, 1 MB: the peak is 6."""
    first = megabytes(4, device)
    second = megabytes(2, device)
    del first
    third = megabytes(1, device)
    del second, third


def test_live_bytes_of_a_pass_by_hand() -> None:
    before = megabytes(8, "cpu")
    with Live([before]) as seen:
        four_then_two("cpu")
        before.view(2, -1)  # a view of what was there: nothing new
    assert seen.peak == 6 * MEGA
    assert seen.curve == [4 * MEGA, 6 * MEGA, 3 * MEGA, 0]
    assert seen.live == 0


def test_the_level_follows_an_allocators_events() -> None:
    sizes = [
        ("alloc", 4),
        ("alloc", 2),
        ("free_requested", 4),
        ("free_completed", 4),
        ("segment_alloc", 9),
        ("alloc", 1),
    ]
    assert history_curve([{"action": action, "size": size} for action, size in sizes]) == (4, 6, 2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a CUDA device")
@pytest.mark.parametrize("account", [allocator_peak, allocator_curve])
def test_without_cuda_the_allocators_account_is_refused_before_anything_is_run(account) -> None:
    ran = []
    with pytest.raises(RuntimeError, match=r"needs a CUDA device; on the CPU, measure\(\) counts live bytes"):
        account(lambda: ran.append(1))
    assert not ran


@cuda
def test_the_allocators_peak_by_hand() -> None:
    held = megabytes(8, "cuda")  # what was there before doesn't count
    assert allocator_peak(lambda: four_then_two("cuda")) == 6 * MEGA
    del held


@cuda
def test_the_allocators_curve_by_hand() -> None:
    levels = allocator_curve(lambda: four_then_two("cuda"))
    assert max(levels) == 6 * MEGA
    assert levels[-1] == 0
    assert list(levels[:2]) == [4 * MEGA, 6 * MEGA]
