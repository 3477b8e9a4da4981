"""Two processes of gloo: a private run is refused, before and after attach; clipping alone sums over both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import groupclip as gc


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    script = str(Path(__file__).parents[1] / "helpers" / "two_processes.py")
    both = [subprocess.Popen([sys.executable, script, str(rank), str(folder)]) for rank in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_attach_is_refused_and_leaves_the_model_as_it_was(told: list[dict[str, Any]]) -> None:
    for found in told:
        assert "torch.distributed has 2 processes" in found["attach"]
        assert "Train on one process" in found["attach"]
        assert found["plain"]


def test_a_step_is_refused_where_the_group_came_later(told: list[dict[str, Any]]) -> None:
    for found in told:
        assert "2 noisy sums a step, of which the plan counts one" in found["step"]
        assert found["steps"] == 0 and not found["moved"]


def test_clipping_alone_sums_over_both(told: list[dict[str, Any]]) -> None:
    assert told[0]["clipped"] == told[1]["clipped"]
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    engine = gc.attach(model, None, "all-layer", None)
    engine.backward(model(torch.arange(12.0).reshape(4, 3)).square().sum(1))
    for grad, p in zip(told[0]["clipped"], model.parameters(), strict=True):
        # DistributedDataParallel divides by the number of processes
        assert 2 * torch.tensor(grad) == pytest.approx(p.grad.flatten(), rel=1e-5)
    engine.detach()
