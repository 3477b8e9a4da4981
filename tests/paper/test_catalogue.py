"""The catalogue: every number of the paper's tables, in its place; settings as printed; a command for every row."""

import json
import shlex

import pytest

from groupclip.paper.catalogue import ORDER, OURS, catalogue
from groupclip.paper.cells import Cell
from groupclip.paper.data.facts import DATASETS
from groupclip.paper.printed import printed_settings
from groupclip.paper.scores import METRICS

ROWS = {"styles": 7, "sst2": 8, "two-group": 14, "vision": 16, "e2e": 15, "roberta": 14}
NUMBERS = {"styles": 0, "sst2": 24, "two-group": 28, "vision": 160, "e2e": 150 - 6, "roberta": 140 - 12}


def test_every_table_is_there_with_every_row_and_number():
    tables = {name: table for name, table in catalogue().items() if table.kind == "table"}
    assert {name: len(table.rows) for name, table in tables.items()} == ROWS
    counted = {
        name: sum(n is not None for row in table.rows for column in row.numbers for n in column)
        for name, table in tables.items()
    }
    assert counted == NUMBERS


def test_every_figure_is_there():
    figures = {table.label for table in catalogue().values() if table.kind == "figure"}
    assert figures == {
        "fig:groups number", "fig:flowcharts", "fig:same speed", "fig:different DP optimization", "fig:blockwise fix bs",
        "fig:nonuniform breaks", "thm:convergence DPSGD AUTO",
    }  # fmt: skip
    assert all(table.rows or table.commands for table in catalogue().values())


def number(
    table: str,
    model: str,
    clipping: str,
    data: str,
    epsilon: float | None,
    reference: str = OURS,
    epochs: int | None = None,
):
    (found,) = [
        scores
        for row in catalogue()[table].rows
        if (row.model, row.clipping, row.reference) == (model, clipping, reference)
        for column, scores in zip(row.columns, row.numbers, strict=True)
        if (column.data, column.epsilon, column.epochs) == (data, epsilon, epochs)
    ]
    return found


def test_numbers_read_off_the_paper():
    assert number("vision", "vit-small", "param-wise", "gtsrb", 2) == (80.77,)
    assert number("vision", "vit-small", "boundaries:10", "cifar10", 8) == (97.11,)
    assert number("vision", "vit-large", "uniform:6", "food101", 8) == (81.59,)
    assert number("e2e", "gpt2-large", "block-wise", "e2e", 8) == (66.90, 69.87, 8.548, 0.444, 2.355)
    assert number("e2e", "gpt2-small", "layer-wise", "e2e", 3, "He et al. 2022") == (61.10, 65.12, None, None, None)
    assert number("roberta", "roberta-large", "layer-wise", "mnli", 8, "He et al. 2022") == (87.67, 87.57)
    assert number("roberta", "roberta-base", None, "mnli", 8, "Yu et al. 2021") == (80.5, None)
    assert number("sst2", "roberta-large", "layer-wise", "sst2", 3, epochs=20) == (94.27,)
    assert number("two-group", "vit-large", "boundaries:20", "cifar100", 2) == (88.89, 21.75)
    assert number("two-group", "roberta-base", "none", "qnli", None) == (87.34, 11.63)


def test_non_uniform_groups_of_the_vision_table_are_boundary_10():
    """Why boundaries:20 is taken for ViT-large: both tables print this number."""
    accuracy = number("two-group", "vit-large", "boundaries:20", "cifar100", 2)[0]
    assert number("vision", "vit-large", "boundaries:20", "cifar100", 2) == (accuracy,)
    assert number("two-group", "vit-large", "boundaries:12", "cifar100", 2)[0] == number(
        "vision", "vit-large", "uniform:2", "cifar100", 2
    )[0]  # fmt: skip


def test_settings_as_printed():
    printed = {name: (s.epochs, s.batch_size, s.learning_rate, s.weight_decay, s.feature)
               for name, s in printed_settings().data.items()}  # fmt: skip
    assert printed == {
        "cifar10": (5, 1000, 5e-4, 0.01, 224), "cifar100": (5, 1000, 5e-4, 0.01, 224), "svhn": (5, 1000, 5e-4, 0.01, 224),
        "food101": (5, 1000, 5e-4, 0.01, 224), "gtsrb": (10, 1000, 5e-4, 0.01, 224), "mnli": (18, 12000, 3e-4, 0.0, 256),
        "qqp": (18, 12000, 3e-4, 0.0, 256), "qnli": (6, 4000, 3e-4, 0.0, 256), "sst2": (3, 2000, 3e-4, 0.0, 256),
        "e2e": (10, 1000, 1e-3, 0.01, 100),
    }  # fmt: skip


def test_sizes_and_scores_are_those_of_the_data():
    for name, settings in printed_settings().data.items():
        assert settings.records == DATASETS[name].sizes[DATASETS[name].train], name
    assert set(printed_settings().data) == set(DATASETS)


def test_scores_have_the_names_that_evaluation_gives():
    for name, settings in printed_settings().data.items():
        given = METRICS if name == "e2e" else DATASETS[name].tests
        assert {score.name for score in settings.scores} == set(given), name


@pytest.mark.parametrize("name", ORDER)
def test_a_command_finds_its_row_and_no_other(name):
    table = catalogue()[name]
    for row in table.rows:
        if row.clipping is None:
            assert table.command(row) == "" and row.why_not and row.reference != OURS
            continue
        words = shlex.split(table.command(row))
        assert words[:3] == ["groupclip", "reproduce", name]
        wanted = dict(zip(words[3::2], words[4::2], strict=True))
        chosen = [r for r in table.rows if all(getattr(r, key[2:]) == value for key, value in wanted.items())]
        # two rows may ask for one run: then they are the same in everything that a run depends on
        assert row in chosen and {c for r in chosen for c in r.cells()} == set(row.cells())


def test_settings_of_a_cell():
    cell = Cell(
        model="roberta-base",
        data="sst2",
        epsilon=3,
        clipping="layer-wise",
        clip="abadi",
        thresholds="adaptive",
        epochs=20,
    )
    settings = cell.settings()
    assert (settings.epochs, settings.batch_size, settings.lr, settings.weight_decay) == (20, 2000, 3e-4, 0.0)
    assert settings.delta == 1 / (2 * 67_349) and settings.thresholds == printed_settings().adaptive
    assert settings.steps_on(67_349) == round(20 * 67_349 / 2000)


def test_a_run_has_one_name_whichever_table_asks_for_it():
    """Results are filed under the JSON of the cell: 2 and 2.0 would be two files."""
    keys = {
        json.dumps(cell.key(), sort_keys=True): cell
        for t in catalogue().values()
        for row in t.rows
        for cell in row.cells()
    }
    assert len(keys) == len(set(keys.values()))
