"""A rank is killed in mid-step: nobody steps, and what was counted stays counted."""

from __future__ import annotations

from pathlib import Path

import ranks


def test_nobody_steps_and_the_count_stays(tmp_path: Path) -> None:
    *others, lost = ranks.run(2, "lost_cases", tmp_path)
    assert lost == {}
    for found in (rank["case_killed_in_mid_step"] for rank in others):
        assert found["step"].startswith("RuntimeError")  # torch's own: the connection is gone
        assert found["steps"] == 1 and not found["moved"]
        assert "failed half-way" in found["again"]
