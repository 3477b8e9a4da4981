"""What tests of runs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, for files that look at none: drawing them is a third of a run of a second."""
    monkeypatch.setattr("groupclip.statement.plots.svg", lambda figure: '<svg xmlns="http://www.w3.org/2000/svg"/>')
