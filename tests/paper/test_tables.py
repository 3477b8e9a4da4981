"""Tables and plots: what was run stands beside the paper's number in its own cell, and what wasn't says so."""

import json
from dataclasses import replace

import pytest

from groupclip.cli.app import run
from groupclip.paper import results
from groupclip.paper.catalogue import catalogue
from groupclip.paper.cells import EXPERIMENT
from groupclip.paper.figures import figure_of, printed
from groupclip.paper.pages import environments, write_pages
from groupclip.paper.results import Result
from groupclip.paper.selection import chosen
from groupclip.paper.tables import Found, entry, scaled_table, table_page

ENVIRONMENT = {"processor": "P", "threads": "1", "device": "cpu", "torch": "2"}


def result(cell, metrics, groups=2, peak=None, experiment=EXPERIMENT, seconds=60.0) -> Result:
    return Result(
        experiment=experiment, cell=cell, settings={}, privacy={"epsilon": 2.0}, groups=groups, metrics=metrics, seconds=seconds,
        peak_bytes=peak, environment=ENVIRONMENT,
    )  # fmt: skip


def rows_of(page: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|") and "---" not in line]


def test_an_empty_table_holds_the_papers_numbers_and_says_not_run():
    page = table_page(catalogue()["vision"], Found([]))
    head, *body = rows_of(page)
    assert len(body) == 16 and len(head) == 3 + 10
    assert body[6][:4] == ["vit-small", "layer-wise (M=75)", "ours", "not run (96.60)"]
    assert page.count("not run (") == 160


def test_a_run_stands_in_its_own_cell_and_nowhere_else():
    table = catalogue()["vision"]
    (cell,) = chosen(table, {"model": ["vit-small"], "data": ["gtsrb"], "epsilon": ["8"], "clipping": ["uniform:3"]})
    runs = [result(replace(cell, seed=s).key(), {"accuracy": a}, groups=3) for s, a in ((0, 94.0), (1, 95.0))]
    page = table_page(table, Found(runs))
    head, *body = rows_of(page)
    place = head.index("GTSRB, epsilon 8")
    assert body[3][1] == "uniform (M=3)" and body[3][place] == "94.50 ± 0.71 (94.70)"
    assert page.count("not run (") == 159
    # the twin: another epsilon is another cell
    other = table_page(table, Found([result({**cell.key(), "epsilon": 4.0}, {"accuracy": 94.0})]))
    assert other.count("not run (") == 160


def test_several_scores_memory_and_rows_that_arent_run():
    table = catalogue()["two-group"]
    (cell,) = chosen(table, {"model": ["roberta-base"], "clipping": ["boundaries:8"]})
    page = table_page(table, Found([result(cell.key(), {"accuracy": 86.0}, peak=13 * 2**30)]))
    assert "| roberta-base | boundary 8 (M=2) | ours | 86.00 (86.38) | 13.00 (13.40) |" in page
    page = table_page(table, Found([result(cell.key(), {"accuracy": 86.0})]))
    assert "| 86.00 (86.38) | not measured (13.40) |" in page
    e2e = table_page(catalogue()["e2e"], Found([]))
    assert "| gpt2-small | RGP | Yu et al. 2021 | - (58.48) |" in e2e and "Not run: RGP" in e2e
    assert "not run (0.331)" not in e2e and "| not run | not run | not run |" in e2e  # the literature's missing scores
    mnli = table_page(catalogue()["roberta"], Found([]))
    assert "MNLI, epsilon 3, m" in mnli and "MNLI, epsilon 8, mm" in mnli


def test_a_number_of_groups_that_differs_is_said():
    table = catalogue()["roberta"]
    (cell,) = chosen(table, {"model": ["roberta-base"], "data": ["qqp"], "epsilon": ["3"], "clipping": ["param-wise"]})
    page = table_page(table, Found([result(cell.key(), {"accuracy": 80.0}, groups=202)]))
    assert "param-wise (M=203, here 202)" in page


def test_steps_that_crashes_lost_are_said():
    """They are charged, and the weights took fewer updates than the paper's."""
    table = catalogue()["roberta"]
    (cell,) = chosen(table, {"model": ["roberta-base"], "data": ["qqp"], "epsilon": ["3"], "clipping": ["param-wise"]})
    whole = result(cell.key(), {"accuracy": 80.0})
    crashed = replace(whole, privacy={"epsilon": 2.0, "steps_lost": 3})
    said = "3 charged step(s) of 1 run(s) have no update: crashes lost them."
    assert f"- {said}" in table_page(table, Found([crashed])) and said in environments([whole, crashed])
    assert "no update" not in table_page(table, Found([whole])) and "no update" not in environments([whole])


def test_entries():
    nan = float("nan")
    assert entry((1.0, nan), 2.0, 2, can_run=True, ran=True) == "1.00 (2.00)"
    assert entry((1.0, 0.5), None, 3, can_run=True, ran=True) == "1.000 ± 0.500"
    assert entry(None, None, 2, can_run=False, ran=False) == "-"
    assert entry(None, 3.0, 2, can_run=True, ran=True) == "- (3.00)"  # run, but without this score


def test_a_scaled_table_has_a_column_for_each_epsilon():
    cells = [
        result({"model": "a", "clipping": c, "epsilon": e, "seed": s}, {"accuracy": v}, groups=m, experiment="s")
        for c, m, e, s, v in (("all-layer", 1, 2, 0, 60.0), ("all-layer", 1, 2, 1, 62.0), ("layer-wise", 9, 8, 0, 50.0))
    ]
    none = replace(cells[0], cell={"model": "a", "clipping": "none", "epsilon": None, "seed": 0}, privacy={}, groups=0)
    assert rows_of(scaled_table([*cells, none])) == [
        ["model", "clipping", "M", "epsilon 2", "epsilon 8", "without privacy"],
        ["a", "all-layer", "1", "61.00 ± 1.41", "not run", "not run"],
        ["a", "layer-wise", "9", "not run", "50.00", "not run"],
        ["a", "none", "-", "not run", "not run", "60.00"],
    ]


def test_plots_are_of_what_was_run():
    table = catalogue()["vision"]
    assert figure_of(table, Found([])) is None
    some = chosen(
        table, {"data": ["cifar100"], "epsilon": ["2"], "model": ["vit-small"], "clipping": ["all-layer", "uniform:4"]}
    )
    runs = [result(c.key(), {"accuracy": 80.0}, groups=m) for c, m in zip(some, (1, 4), strict=True)]
    drawn = figure_of(table, Found(runs))
    assert drawn is not None and drawn.startswith("<?xml")
    assert figure_of(table, Found(runs[:1])) != drawn
    assert printed(some[1]) == (4, (80.45,)) and printed(replace(some[1], seed=5)) == (4, (80.45,))
    two = chosen(catalogue()["two-group"], {"clipping": ["boundaries:8", "all-layer"]})
    runs = [result(c.key(), {"accuracy": 80.0}, peak=2**30 * (i + 1)) for i, c in enumerate(two)]
    assert figure_of(catalogue()["two-group"], Found(runs)) and figure_of(catalogue()["non-uniform"], Found(runs))
    speed = chosen(catalogue()["same-speed"], {})
    assert figure_of(catalogue()["same-speed"], Found([result(c.key(), {"accuracy": 80.0}, peak=2**30) for c in speed]))
    assert figure_of(catalogue()["groups"], Found([result(c.key(), {"accuracy": 80.0}, peak=2**30) for c in speed]))


def test_the_command_writes_pages(tmp_path, capsys):
    table = catalogue()["vision"]
    (cell,) = chosen(table, {"model": ["vit-large"], "data": ["svhn"], "epsilon": ["2"], "clipping": ["uniform:2"]})
    results.save(tmp_path / "runs", result(cell.key(), {"accuracy": 91.23}))
    results.save(
        tmp_path / "runs", result({"model": "a", "epsilon": 2, "seed": 0}, {"accuracy": 60.0}, experiment="x-small")
    )
    assert (
        run(["reproduce", "tables", "--results", str(tmp_path / "runs"), "--out", str(tmp_path / "pages"), "--json"])
        == 0
    )
    files = json.loads(capsys.readouterr().out)["files"]
    assert str(tmp_path / "pages/vision.svg") in files and str(tmp_path / "pages/x-small.md") in files
    assert "91.23 (92.77)" in (tmp_path / "pages/vision.md").read_text()
    assert "1 run, 0.0 hours" in (tmp_path / "pages/x-small.md").read_text()


def test_gathered_files_are_drawn_too(tmp_path, capsys):
    """``docs/reproduction`` holds such files alone."""
    one = result({"model": "a", "epsilon": 2, "seed": 0}, {"accuracy": 60.0}, experiment="x-small")
    other = result({"model": "a", "epsilon": 2, "seed": 1}, {"accuracy": 70.0}, experiment="x-small")
    results.save(tmp_path / "runs", one)
    results.save(tmp_path / "runs", other)
    (tmp_path / "kept").mkdir()
    results.gather(tmp_path / "runs", "x-small", tmp_path / "kept/x-small.json")
    for folder in ("runs", "kept"):
        assert (
            run(["reproduce", "tables", "--results", str(tmp_path / folder), "--out", str(tmp_path / "of" / folder)])
            == 0
        )
    page = (tmp_path / "of/kept/x-small.md").read_text()
    assert "2 runs" in page and page == (tmp_path / "of/runs/x-small.md").read_text()
    # a run that is there as a file of its own as well isn't counted twice
    results.save(tmp_path / "kept", one)
    write_pages(tmp_path / "kept", tmp_path / "of/both")
    assert "2 runs" in (tmp_path / "of/both/x-small.md").read_text()
    (tmp_path / "kept/notes.json").write_text('{"a": 1}')
    with pytest.raises(results.ResultError, match=r"notes\.json holds no gathered results"):
        write_pages(tmp_path / "kept", tmp_path / "of/both")
    capsys.readouterr()


def test_a_folder_without_results_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match="holds no results"):
        write_pages(tmp_path, tmp_path)
    assert run(["reproduce", "tables", "--results", str(tmp_path)]) == 2
    assert "run an experiment with --out" in capsys.readouterr().err
