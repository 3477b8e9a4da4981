"""What the pages of scaled experiments say is what the results say."""

import math
import statistics
from pathlib import Path

import pytest

from groupclip.paper.results import Result
from groupclip.paper.scaled import vision
from groupclip.paper.scaled.summary import Difference, Score, Scores, table
from groupclip.paper.scaled.vision_report import Report

GROUPS = {"": 0, "all-layer": 1, "uniform:2": 2, "boundaries:5": 2, "uniform:3": 3, "planned:3": 3, "block-wise": 6}


def result(cell, accuracy, peak=2**20):
    groups = GROUPS.get(cell["clipping"], 40 if cell["clipping"] == "layer-wise" else 80)
    return Result(
        experiment="vision-small", cell=cell, groups=groups, metrics={"accuracy": accuracy, "loss": 1.0}, seconds=2.0,
        settings={"workload": {"parameters": 1000, "public_accuracy": 20.0}}, privacy={}, peak_bytes=peak, environment={},
    )  # fmt: skip


def all_results(tmp_path: Path) -> list[Result]:
    """Accuracies that fall by one a group style, and by 0.3 a seed."""
    order = ["", *vision.STYLES]
    return [
        result(c.cell, 60.0 - order.index(c.cell["clipping"]) - 0.3 * c.cell["seed"])
        for c in vision.real_cells(tmp_path, tmp_path)
    ]


def test_means_and_deviations():
    values = (61.0, 59.5, 62.5)
    score = Score(values)
    assert score.mean == pytest.approx(61.0) and score.deviation == pytest.approx(statistics.stdev(values))
    assert str(score) == "61.0 ± 1.5 (3)" and str(Score((3.14,))) == "3.1 (1)"
    assert math.isnan(Score((1.0,)).deviation)


def test_the_pooled_deviation_is_that_of_all_cells_with_their_own_means():
    cells = {"a": (1.0, 3.0), "b": (10.0, 10.0, 13.0), "c": (5.0,)}
    results = [
        result({"clipping": "", "model": name, "seed": seed}, value)
        for name, values in cells.items()
        for seed, value in enumerate(values)
    ]
    scores = Scores(results, "accuracy")
    assert scores.pooled() == pytest.approx(math.sqrt((2.0 + 6.0) / 3))  # one run has no freedom
    assert scores.pooled(lambda cell: cell["model"] == "a") == pytest.approx(math.sqrt(2.0))
    found = scores.difference({"clipping": "", "model": "b"}, {"clipping": "", "model": "a"}, 1.5)
    assert found == Difference(pytest.approx(9.0), pytest.approx(1.5 * math.sqrt(1 / 3 + 1 / 2)))  # type: ignore[arg-type]
    assert scores.difference({"clipping": "", "model": "b"}, {"clipping": "", "model": "d"}, 1.5) is None


def test_a_contrast_counts_a_cell_once_with_all_its_weight():
    results = [
        result({"clipping": "", "model": m, "seed": i}, v) for m, v in (("a", 1.0), ("b", 5.0)) for i in range(4)
    ]
    scores = Scores(results, "accuracy")
    a, b = {"clipping": "", "model": "a"}, {"clipping": "", "model": "b"}
    found = scores.contrast([(1.0, b), (1.0, b), (-1.0, a), (1.0, a)], 2.0)
    assert found == Difference(10.0, 2.0)  # 2 b, and sqrt(2^2 / 4) * 2


def test_a_difference_is_clear_beyond_two_standard_errors():
    assert Difference(2.1, 1.0).clear and Difference(-2.1, 1.0).clear and not Difference(1.9, 1.0).clear


def test_table_is_markdown():
    assert table(["a", "b"], [["x", 1]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1 |"]


def test_the_page_has_every_cell(tmp_path):
    report = Report(all_results(tmp_path))
    values = report.values()
    assert values["RUNS"] == str(len(report.results)) and values["DEVIATION"] == "0.30"
    for size in vision.SIZES:
        assert size in values["MODELS"]
    for style in vision.STYLES:
        assert style in values["EPSILON_2"]
    assert "not run" not in "".join(values.values())
    # one group against one a parameter: 1 point by construction, at every size and epsilon, and clear
    assert values["GAPS"].count("**+1.0 ± 0.2**") == 6
    # the same gaps everywhere: nothing shrinks. Three styles at both epsilons, two at one
    assert values["CHANGES"].count("| +0.0 ± 0.3 |") == 3 * 2 + 2 and values["CHANGES"].count("| +0.0 ± 0.2 |") == 3
    assert values["EQUAL"].count("boundaries:5 - block-wise") == 4
    assert values["EQUAL"].count("planned:3 - layer-wise") == 4
    assert values["ABADI"].count("vit-64") == 3
    for plot in (report.over_groups(), report.over_memory()):
        assert plot.lstrip().startswith("<?xml") and len(plot) < 100_000


def test_what_was_not_run_is_said(tmp_path):
    kept = [r for r in all_results(tmp_path) if not (r.cell["model"] == "vit-96" and r.cell["clipping"] == "uniform:2")]
    values = Report(kept).values()
    row = next(line for line in values["EPSILON_2"].splitlines() if line.startswith("| uniform:2 "))
    assert row.endswith("| not run |") and row.count("not run") == 1
    one = Report([r for r in kept if r.cell["seed"] == 0 or r.cell["model"] == "vit-32"])
    assert "(1)" in one.values()["EPSILON_2"]
