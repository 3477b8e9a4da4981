"""A training goes from 3 ranks to 2 and to 1: the same weights as by one process, and one ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kinds
import resume_cases
from ddp_cases import KEY
from one_process import results

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process reads the same files


@pytest.mark.parametrize(("case", "name"), [("case_goes_on", "known"), ("case_goes_on_cut", "cut known")])
def test_weights_are_those_of_one_process(
    told: Any, folder_of_ranks: Path, tmp_path: Path, case: str, name: str
) -> None:
    """Of three ranks that cut the model, of two that have it whole or cut it again, and of one."""
    for size in (3, 2):
        results(told, size, case)
    last = resume_cases.go_on(kinds.build("net", torch.float64), folder_of_ranks / name, KEY)
    for _ in range(resume_cases.STEPS):
        alone = resume_cases.go_on(kinds.build("net", torch.float64), tmp_path, KEY)
    for name, weight in alone["weights"].items():
        assert (last["weights"][name] - weight).abs().max() <= 1e-12 * max(1, weight.abs().max())
    assert last["state"]["ledger"]["steps"] == {"groupclip": 0, "user": 3}  # batches under a known key


@pytest.mark.parametrize("name", ["secret", "cut secret"])
def test_the_ledger_goes_on(told: Any, folder_of_ranks: Path, name: str) -> None:
    for steps, size in ((1, 3), (2, 2)):
        if name == "secret":
            states = [found["state"] for found in results(told, size, "case_goes_on_in_secret")]
        else:
            states = [found[name]["state"] for found in results(told, size, "case_goes_on_cut")]
        assert all(state == states[0] for state in states)
        assert states[0]["ledger"]["steps"] == {"groupclip": steps, "user": 0}
    last = resume_cases.go_on(kinds.build("net", torch.float64), folder_of_ranks / name, None)
    assert last["state"]["ledger"]["steps"] == {"groupclip": 3, "user": 0}
