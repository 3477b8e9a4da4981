"""Results on disk: saved whole, found again, never taken for another cell's."""

from dataclasses import replace

import pytest

from groupclip.paper.results import Result, ResultError, cell_file, find, gather, gathered, load_all, save

RESULT = Result(
    experiment="vision-small",
    cell={"model": "vit", "data": "cifar10", "epsilon": 2, "clipping": "uniform:4", "clip": "automatic", "seed": 0},
    settings={"epochs": 1, "lr": 1e-3},
    privacy={"epsilon": 1.99, "delta": 1e-5},
    groups=4,
    metrics={"accuracy": 41.5},
    seconds=2.5,
    peak_bytes=None,
    environment={"torch": "2.13.0"},
)


def test_a_result_is_found_by_its_cell(tmp_path):
    assert find(tmp_path, "vision-small", RESULT.cell) is None
    save(tmp_path, RESULT)
    other = replace(RESULT, cell={**RESULT.cell, "seed": 1})
    save(tmp_path, other)
    assert find(tmp_path, "vision-small", RESULT.cell) == RESULT
    assert find(tmp_path, "vision-small", other.cell) == other
    assert len(load_all(tmp_path, "vision-small")) == 2
    assert load_all(tmp_path, "text-small") == []


def test_cells_whose_words_agree_have_files_of_their_own(tmp_path):
    one, two = {"clipping": "uniform:4"}, {"clipping": "uniform_4"}
    assert cell_file(tmp_path, "x", one) != cell_file(tmp_path, "x", two)


def test_a_broken_or_foreign_file_is_named(tmp_path):
    path = save(tmp_path, RESULT)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    with pytest.raises(ResultError, match="another cell"):
        find(tmp_path, "vision-small", RESULT.cell)
    path.write_text("{")
    with pytest.raises(ResultError, match=r"is no result .* delete it"):
        find(tmp_path, "vision-small", RESULT.cell)

def test_results_are_gathered_in_one_file_and_an_empty_folder_leaves_it(tmp_path):
    save(tmp_path, RESULT)
    file = tmp_path / "kept.json"
    gather(tmp_path, "vision-small", file)
    assert gathered(file) == [RESULT]
    with pytest.raises(ResultError, match="no results of text-small: give the folder"):
        gather(tmp_path, "text-small", file)
    assert gathered(file) == [RESULT] and gathered(tmp_path / "none.json") == []
