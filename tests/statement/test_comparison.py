"""The page that compares runs: complete, in one file, and no less careful than the runs' own statements."""

import functools
import re

import pytest
from torch import nn

from groupclip import partition
from groupclip.statement.comparison import MOST, ComparedRun, comparison
from groupclip.statement.plots import COLOURS, of_runs
from pages import Tags, figures

ODD = '<script>alert("run")</script>'
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))


def compared(name, style="all-layer", **changes):
    groups = partition(MODEL, style)
    facts = {
        "name": name, "task": "digits", "model": "mlp", "unit": "one sample", "adjacency": "add-or-remove-one", "epsilon": 2.0004,
        "delta": 1e-5, "steps": 8, "expected_batch_size": 100, "noise_multiplier": 1.5, "partition": groups,
        "thresholds": {g: 0.6 + 0.01 * i for i, g in enumerate(groups)}, "noise_stds": dict.fromkeys(groups, 1.5),
        "accuracy": 0.75, "chance": 0.1, "accuracies": [(4, 0.5), (8, 0.75)], "epsilons": [(s, s / 4) for s in range(1, 9)],
        "peak_bytes": 62_772_304, "seconds": 0.000298,
        "settings": {"lr": 0.1, "clipping": style, "thresholds": [0.5, 1.0], "task_options": {"text_column": "my_text"}},
    }  # fmt: skip
    return ComparedRun(**{**facts, **changes})


@functools.cache
def page():
    """Drawn once."""
    runs = [compared(ODD), compared("two", "uniform:2", accuracy=0.7, peak_bytes=59e6), compared("three", "layer-wise")]
    return comparison(runs, {"python": "3.11"})


def test_it_is_one_file_that_fetches_nothing_and_runs_nothing():
    tags = Tags()
    tags.feed(page())
    assert tags.open == []
    assert {"script", "link", "iframe"}.isdisjoint(tag for tag, _ in tags.seen)
    images = [attrs for tag, attrs in tags.seen if tag == "img"]
    assert all(attrs["src"].startswith("data:image/svg+xml;base64,") and attrs["alt"] for attrs in images)
    assert [attrs["alt"] for attrs in images] == [
        "Epsilon spent", "Accuracy over the groups", "Accuracy against peak memory", "Accuracy on the way",
        "Peak memory over the groups", "Time of a record over the groups", "Clipping threshold R_m", "Noise over the batch size",
    ]  # fmt: skip


def test_a_run_that_tells_of_no_search_is_contradicted_by_another_on_its_data():
    words = "that no settings were searched for, and this page has other runs on data of that name"
    assert f"one says {words}" in comparison([compared("one", search="none"), compared("two")], {})
    assert f"one and two say {words}" in comparison([compared("one", search="none"), compared("two", search="none")], {})
    for others in ([], [compared("two", task="mnist")]):
        assert words not in comparison([compared("one", search="none"), *others], {})
    assert words not in comparison([compared("one", search="counted"), compared("two")], {})


def test_names_are_escaped():
    assert ODD not in page() and "&lt;script&gt;alert(" in page()


@pytest.mark.parametrize(
    "fact",
    [
        "3 runs compared", "<td>75.0%</td>", "<td>70.0%</td>", "<td>62.8 MB</td>", "<td>59 MB</td>", "<td>298 µs</td>",
        "<td>2.01</td>", "<td>0.5, 1</td>",
        "<td>1e-05</td>", "Each figure protects one sample. Neighbouring data sets: add-or-remove-one.", "<td>0.62</td>",
        "<h3>two</h3>", "<td>groups</td><td>all-layer</td><td>uniform:2</td><td>layer-wise</td>",
        "<th>learning rate</th><td>0.1</td>",
        "column of texts: my_text", "3.11", "on made-up records",
    ],
)  # fmt: skip
def test_it_tells(fact):
    assert fact in page()


def test_what_all_have_in_common_has_no_column():
    head = page().split("</tr>")[0]
    assert "<th>model</th>" not in head
    other = comparison([compared("a"), compared("b", model="linear")], {})
    assert "<th>model</th>" in other.split("</tr>")[0]


def test_runs_add_up():
    assert "together they spend epsilon 6.01 at delta 3e-05 at the most" in page()  # rounded up
    assert "add up" not in comparison([compared("a")], {})
    users = comparison([compared("a"), compared("b", unit="one user")], {})
    assert "add up" not in users and "The figure of b protects one user." in users


def test_a_run_without_a_claim_is_marked_and_nothing_is_added_up():
    html = comparison([compared("a"), compared("b", epsilon=None, obstacles=["the noise was made from a seed"])], {})
    assert "b claims no epsilon, so it is NOT PRIVATE: the noise was made from a seed." in html
    assert html.count("<td>none: NOT PRIVATE</td>") == 2
    assert "add up" not in html


def test_what_was_not_measured_is_left_out():
    html = comparison([compared("a", accuracy=None, chance=None, accuracies=[], seconds=None)], {})
    assert "None of the runs was measured on held-out records." in html
    assert "time of a record" not in html and "made-up records" not in html
    assert [attrs["alt"] for tag, attrs in read(html) if tag == "img"] == ["Epsilon spent", "Peak memory over the groups"]
    one = comparison([compared("a", seconds=None), compared("b", accuracy=None, chance=None, accuracies=[])], {})
    assert "<td>-</td>" in one and len(figures(one)) == 6


def read(html):
    tags = Tags()
    tags.feed(html)
    return tags.seen


def test_every_run_keeps_its_colour():
    """Also where another one has no points."""
    drawn = of_runs({"a": [(1, 2.0)], "b": [], "c": [(2, 3.0)]}, "", "step")
    assert COLOURS[0] in drawn and COLOURS[2] in drawn and COLOURS[1] not in drawn


def test_a_run_without_accuracy_leaves_the_others_their_colours():
    known = figures(comparison([compared("a"), compared("b")], {}))
    without = figures(comparison([compared("a", accuracy=None, accuracies=[]), compared("b")], {}))
    second = [COLOURS[1] in figure for figure in known]
    assert sum(second) >= 3 and [COLOURS[1] in figure for figure in without] == second
    assert sum(COLOURS[0] in figure for figure in without) < sum(COLOURS[0] in figure for figure in known)


def test_groups_are_marked_where_there_are_runs():
    drawn = of_runs({"a": [(1, 2.0)], "b": [(16, 3.0)]}, "", "groups M", points=True)
    axis = drawn[drawn.index('id="matplotlib.axis_1"') : drawn.index('id="matplotlib.axis_2"')]
    assert re.findall(r"<!-- (.+) -->", axis) == ["1", "16", "groups M"]


def joined(html):
    """Grey lines through the points of the figures."""
    return [len(re.findall(r'clip-path="[^"]+" style="fill: none; stroke: #667080', figure)) for figure in figures(html)]


def test_a_line_joins_runs_that_differ_in_their_groups_alone():
    assert joined(page())[1] == 1 and joined(page())[2] == 0
    two_models = [compared("a"), compared("b", "uniform:2", model="linear"), compared("c", "layer-wise")]
    assert set(joined(comparison(two_models, {}))) == {0}


def test_it_is_made_for_telephones_and_for_paper():
    widths = [float(re.search(r'<svg [^>]*width="([\d.]+)pt"', figure)[1]) for figure in figures(page())]
    assert all(width * 96 / 72 <= 410 for width in widths)  # CSS pixels: words are as large as they were drawn
    assert page().count("<table") == page().count('<div class="table" role="region"')
    print_rules = page()[page().index("@media print {") : page().index("</style>")]
    assert ".table { overflow: visible; }" in print_rules and "break-inside: avoid" in print_rules


def test_the_same_runs_give_the_same_page():
    assert comparison([compared("a")], {}) == comparison([compared("a")], {})


def test_long_lists_of_groups_are_cut_and_that_is_said():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))
    groups = partition(model, "layer-wise")
    run = compared("a", partition=groups, thresholds=dict.fromkeys(groups, 0.5), noise_stds=dict.fromkeys(groups, 1.0))
    assert "These are the first 24 of 30 groups; the run's own report lists all." in comparison([run], {})


def test_too_many_runs_and_equal_names_are_refused():
    with pytest.raises(ValueError, match=rf"13 runs are given: 1 to {MOST} can be told apart"):
        comparison([compared(f"{i}") for i in range(13)], {})
    with pytest.raises(ValueError, match="two runs have one name: a, a"):
        comparison([compared("a"), compared("a")], {})
