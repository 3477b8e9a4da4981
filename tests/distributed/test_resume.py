"""A training goes from 3 ranks to 2 and to 1: the same weights as by one process, and one ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kinds
import ranks
import resume_cases
from ddp_cases import KEY

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process reads the same files


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("goes-on")
    found = {}
    for size in (3, 2):
        (folder / str(size)).mkdir()
        found[size] = ranks.run(size, "resume_cases", folder / str(size))
    return folder, found


def test_weights_are_those_of_one_process(told: Any, tmp_path: Path) -> None:
    folder, found = told
    for size in (3, 2):
        assert all("error" not in rank["case_goes_on"] for rank in found[size]), found[size][0]["case_goes_on"]
    last = resume_cases.go_on(kinds.build("net", torch.float64), folder / "known", KEY)
    for _ in range(resume_cases.STEPS):
        alone = resume_cases.go_on(kinds.build("net", torch.float64), tmp_path, KEY)
    for name, weight in alone["weights"].items():
        assert (last["weights"][name] - weight).abs().max() <= 1e-12 * max(1, weight.abs().max())
    assert last["state"]["ledger"]["steps"] == {"groupclip": 0, "user": 3}  # batches under a known key


def test_the_ledger_goes_on(told: Any) -> None:
    folder, found = told
    for steps, size in ((1, 3), (2, 2)):
        states = [rank["case_goes_on_in_secret"]["state"] for rank in found[size]]
        assert all(state == states[0] for state in states)
        assert states[0]["ledger"]["steps"] == {"groupclip": steps, "user": 0}
    last = resume_cases.go_on(kinds.build("net", torch.float64), folder / "secret", None)
    assert last["state"]["ledger"]["steps"] == {"groupclip": 3, "user": 0}
