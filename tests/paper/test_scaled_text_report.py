"""The page of the small text experiments says what its results say."""

from __future__ import annotations

import pytest

from groupclip.paper.results import Result
from groupclip.paper.scaled.text_report import Report

METRICS = {"loss": "loss, nats", "bleu": "BLEU"}


def _result(style: str, epsilon: float | None, seed: int, loss: float, groups: int, data: str = "e2e") -> Result:
    clip = "automatic" if epsilon is not None else ""
    return Result(
        experiment="e2e-small",
        cell={"model": "m", "data": data, "epsilon": epsilon, "clipping": style, "clip": clip, "seed": seed},
        settings={"workload": {"before": {"loss": 5.0, "bleu": 1.0}}},
        privacy={},
        groups=groups,
        metrics={"loss": loss, "bleu": 10 * loss},
        seconds=1.0,
        peak_bytes=None,
        environment={},
    )


@pytest.fixture
def results() -> list[Result]:
    private = [
        _result(style, 3.0, seed, loss + 0.02 * seed, groups)
        for style, loss, groups in (("all-layer", 2.0, 1), ("param-wise", 2.5, 28))
        for seed in (0, 1)
    ]
    return [_result("", None, 0, 1.0, 0), *private]


def test_tables_have_means_and_deviations(results: list[Result]) -> None:
    page = Report(results, "e2e", METRICS).values()
    assert "| m | all-layer | 1 | 2.010 ± 0.014 |" in page["TABLE_loss"]
    assert "| m | without privacy | - | 1.000 (one run) |" in page["TABLE_loss"]
    assert "layer-wise" not in page["TABLE_loss"]
    assert "| m | 5.00 | 1.00 |" in page["BEFORE"]
    assert page["OTHERS"] == "None."


def test_a_clear_gap_is_bold_and_none_is_claimed_of_single_runs(results: list[Result]) -> None:
    assert "**+0.500 ± 0.014**" in Report(results, "e2e", METRICS).gaps("loss")
    single = [r for r in results if r.cell["seed"] == 0]
    assert "+0.50 (one run each)" in Report(single, "e2e", METRICS).gaps("loss")


def test_cells_of_other_data_are_told_apart(results: list[Result]) -> None:
    other = _result("all-layer", 3.0, 0, 9.0, 1, data="other")
    report = Report([*results, other], "e2e", METRICS)
    assert "9.00" not in report.metric("loss")
    assert "| m | other | all-layer | automatic | 1 | 3 | 9.000 (one run) | 90.00 (one run) |" in report.others()


def test_the_plot_is_the_same_each_time(results: list[Result]) -> None:
    pytest.importorskip("matplotlib")
    first, again = (Report(results, "e2e", METRICS).over_groups() for _ in range(2))
    assert first == again
    assert first.startswith("<?xml")
