"""Figures of memory: what a file's ending asks for, with every line named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark import benchmark

figures = benchmark("figures")

PEAKS = {"uniform:M": [(1, 400), (4, 300)], "planned:4": [(3, 200)]}
RATIOS = {"uniform:M": [(1, 0.8), (4, 0.7)], "planned:4": [(3, 0.75)]}


def test_peak_and_throughput_are_drawn_beside_each_other(tmp_path: Path) -> None:
    drawn = tmp_path / "trade.svg"
    figures.draw_trade(drawn, PEAKS, RATIOS, 150, "some net")
    text = drawn.read_text()
    for word in ("some net", "throughput / plain", "uniform:M", "planned:4", "without privacy"):
        assert word in text
    figures.draw_trade(tmp_path / "again.svg", PEAKS, RATIOS, 150, "some net")
    assert (tmp_path / "again.svg").read_text() == text  # the same data, the same file


def test_png(tmp_path: Path) -> None:
    figures.draw_trade(tmp_path / "trade.png", PEAKS, RATIOS, 150, "some net")
    assert (tmp_path / "trade.png").read_bytes().startswith(b"\x89PNG")


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"saved as \.png or \.svg"):
        figures.draw_lines(tmp_path / "lines.pdf", PEAKS, "some net", "groups")
    assert not list(tmp_path.iterdir())
