"""The report of a run: complete, in one file, and safe whatever names the groups have."""

import functools
import io
import re

import pytest
from matplotlib.figure import Figure
from torch import nn

from groupclip import partition
from groupclip.run import RunConfig
from groupclip.run.values import MODEL_OPTIONS
from groupclip.statement.html import RunReport, _above_noise, html_report
from groupclip.statement.names import plain_name
from groupclip.statement.plots import COLOURS, accuracy, drawing, epsilon, noisy_norms, short_names, svg
from groupclip.tasks import TaskOptions, load_task
from pages import Tags, figures

ODD = '<script>alert("group")</script>'


def report(**changes):
    groups = partition(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), {"0.*": ODD, "1.*": "top"})
    rows = [
        {"step": s, "updates": s, "epsilon": s / 4, "learning_rate": 0.1,
         "noisy_gradient_norm": {ODD: 1.5 + s, "top": None}} for s in range(1, 9)
    ]  # fmt: skip
    rows[3]["test_accuracy"], rows[7]["test_accuracy"] = 0.5, 0.75
    facts = {
        "title": "mlp on digits", "statement": [("Result", "It is <private>.")], "epsilon": 2.0, "delta": 1e-5,
        "planned_epsilon": 2.0, "steps": 8, "updates": 8, "test_accuracy": 0.75, "chance": 0.1, "partition": groups,
        "thresholds": {ODD: 0.6, "top": 0.8}, "noise_multiplier": 1.5, "noise_stds": {ODD: 1.5, "top": 2.5},
        "expected_batch_size": 100,
        "rows": rows, "lost": (), "data": {"name": "digits"}, "pretraining": {}, "settings": {"lr": 0.1, "clipping": {"0.*": ODD}},
        "environment": {"python": "3.11"},
    }  # fmt: skip
    return RunReport(**{**facts, **changes})


def test_a_figure_is_drawn_once_and_is_what_matplotlib_saves():
    def made(save):
        with drawing(1, width=4.2) as (figure, (axes,)):
            axes.plot([1, 2, 30], [0.1, 7.0, 90.0], label="a long name of a group", marker="o")
            axes.set(title="Norms", xlabel="step", ylabel="norm", yscale="log")
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
            return save(figure)

    def saved(figure):
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()

    draws, draw = [], Figure.draw
    with pytest.MonkeyPatch.context() as counting:
        counting.setattr(Figure, "draw", lambda figure, renderer: draws.append(draw(figure, renderer)))
        assert made(svg) == made(saved)
    assert len(draws) == 1 + 2


@functools.cache
def page():
    """Drawn once."""
    return html_report(report())


def test_it_is_one_file_that_fetches_nothing_and_runs_nothing():
    html = page()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert {"script", "link", "iframe"}.isdisjoint(tag for tag, _ in tags.seen)
    sources = [attrs["src"] for tag, attrs in tags.seen if tag == "img"]
    assert len(sources) == 5  # accuracy, epsilon, norms, sizes, thresholds
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert all(attrs["alt"] for tag, attrs in tags.seen if tag == "img")


def test_names_and_words_are_escaped():
    html = page()
    assert ODD not in html
    assert "&lt;script&gt;alert(" in html
    assert "It is &lt;private&gt;." in html


@pytest.mark.parametrize(
    "fact",
    [
        "75.0%",
        "2.00",
        "epsilon at delta 1e-05",
        "0.6",
        "0.8",
        "16",
        "10",
        "The noise multiplier is 1.5",
        "0.015",
        "0.025",
        "3.11",
    ],
)
def test_it_tells(fact):
    assert fact in page()


def test_epsilon_is_rounded_up():
    assert "<strong>2.01</strong>" in html_report(report(epsilon=2.0001))


def test_a_run_that_never_evaluated_says_so():
    rows = [{k: v for k, v in row.items() if k != "test_accuracy"} for row in report().rows]
    assert "<strong>not measured</strong>" in html_report(report(test_accuracy=None, rows=rows))


def test_lost_steps_are_told():
    assert "were lost" not in page()
    html = html_report(report(lost=((2, 4), (6, 6)), updates=4))
    assert "The updates of steps 2 to 4, 6 were lost, but these steps are charged" in html
    assert "The weights took 4 updates" in html


def test_public_pretraining_is_told():
    assert "pretraining" not in page()
    html = html_report(report(pretraining={"what": "600 steps on letters"}))
    assert "<h2>Public pretraining</h2>" in html
    assert "600 steps on letters" in html


def test_the_accuracy_of_lost_weights_is_not_drawn():
    kept, lost = (figures(html)[0] for html in (page(), html_report(report(lost=((4, 4),)))))
    marker = 'style="fill: #2563a8'  # of the curve: those of the axes have no filling
    assert kept.count(marker) == lost.count(marker) + 1


def test_the_same_run_gives_the_same_report():
    assert html_report(report()) == page()


def test_a_run_without_rows_has_a_report():
    assert len(figures(html_report(report(rows=[])))) == 4


def many(groups, factor):
    """A report of so many groups of Linear(6, 6), whose noisy gradients have ``factor`` times the norm of noise alone."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(groups)))
    split = partition(model, {f"{i}.*": f"encoder.layers.{i}.attention.output" for i in range(groups)})
    norms = {group: factor(i) * 2.0 * 42**0.5 / 100 for i, group in enumerate(split)}
    rows = [
        {"step": s, "updates": s, "epsilon": s / 8, "learning_rate": 0.1, "noisy_gradient_norm": norms}
        for s in range(1, 9)
    ]
    return report(
        partition=split, rows=rows, noise_stds=dict.fromkeys(split, 2.0), thresholds=dict.fromkeys(split, 0.5)
    )


def curves(figure):
    """Colours of the curves of the norms, and of the lines beside their names: not those of dots and axes."""
    return set(re.findall(r"fill: none; stroke: (#\w+); stroke-linecap: square", figure))


def test_no_two_groups_have_one_colour():
    html = html_report(many(12, lambda i: 1.5 + i))
    assert len(curves(figures(html)[2])) == 12
    assert "stand out most" not in html
    assert len(set(COLOURS)) == len(COLOURS)


def test_of_more_groups_than_colours_those_that_stand_out_most_are_drawn():
    html = html_report(many(14, lambda i: 1.5 + i))
    assert curves(figures(html)[2]) == set(COLOURS)
    assert f"The figure shows the {len(COLOURS)} of 14 groups that stand out most." in html


@pytest.mark.parametrize(("loud", "told"), [(0, "every group"), (1, "the other 3 groups"), (3, "the other group"), (4, "")])
def test_a_norm_of_noise_alone_is_not_drawn(loud, told):
    html = html_report(many(4, lambda i: 1.5 if i < loud else 1.02))
    drawn = figures(html)[2:]
    assert len(drawn) == (loud > 0)
    assert all(len(curves(figure)) == loud for figure in drawn)
    assert (f"The noisy gradient of {told} is about as large as the noise alone" in html) == bool(told)
    assert ("is about as large" in html) == bool(told)


def test_what_chance_alone_may_do_is_not_drawn():
    """Of few coordinates over few steps: half more is within four standard deviations."""
    assert _above_noise([1.22] * 2, 1.0, 4) == 0
    assert _above_noise([1.22] * 2, 1.0, 400) == pytest.approx(1.22**2 - 1)
    assert _above_noise([], 1.0, 4) == 0


def test_bars_are_drawn_where_groups_differ():
    assert len(figures(html_report(many(3, lambda i: 1.0)))) == 2  # of accuracy and epsilon


def test_a_figure_is_as_wide_as_a_telephone_and_stands_below_the_next_on_one():
    html = page()
    widths = [float(re.search(r'<svg [^>]*width="([\d.]+)pt"', figure)[1]) for figure in figures(html)]
    assert all(width * 96 / 72 <= 410 for width in widths)  # CSS pixels: words are as large as they were drawn
    assert "grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr))" in html


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20, 60, 1248])
def test_steps_are_whole(steps):
    """No mark of the axis stands at half a step."""
    curve = [(step, 1 / step) for step in range(1, steps + 1)]
    for figure in (accuracy(curve, {}), epsilon(curve, 2.0), noisy_norms({"a": curve}, {"a": 0.1})):
        axis = figure[figure.index('id="matplotlib.axis_1"') : figure.index('id="matplotlib.axis_2"')]
        marks = re.findall(r"<!-- (.+) -->", axis)
        assert marks.pop() == "step" and len(marks) >= 1
        assert all(re.fullmatch(r"[−\d]\d*", mark) for mark in marks), marks  # noqa: RUF001 (matplotlib's minus)


def test_every_table_scrolls_in_itself():
    html = page()
    assert html.count("<table") == html.count('<div class="table" role="region"') == 4
    assert re.search(r"\.table \{ overflow-x: auto; \}", html)


def test_keys_have_plain_names():
    html = html_report(
        report(
            data={"train_size": 9, "label_set": "given"},
            settings={"eval_every": 2, "hardened": False, "lr": 0.1, "clipping": ["a", "b"],
                      "task_options": {"text_column": "my_text"}, "thresholds": {"self_attention": 0.5}},
        )
    )  # fmt: skip
    for told in (
        "<th>training samples</th><td>9</td>", "<th>set of labels</th>", "<th>steps between evaluations</th><td>2</td>",
        "<th>noise on a grid (hardened)</th><td>no</td>", "<td>column of texts: my_text</td>",
        "<td>self_attention: 0.5</td>", "<td>a, b</td>",
    ):  # fmt: skip
        assert told in html
    assert "<th>coordinates</th>" in html


def test_every_setting_and_every_fact_of_a_task_has_a_plain_name():
    facts = {**load_task("digits").description, "train_users": 1, "label_set": 1}
    options = {*TaskOptions.__dataclass_fields__, *MODEL_OPTIONS}
    for key in (*RunConfig.__dataclass_fields__, *facts, *options):
        assert "_" not in plain_name(key)
    # words of its own, where the key alone doesn't tell
    for key in ("lr", "clip", "hardened", "microbatch", "seed", "lax_delta"):
        assert plain_name(key) != key.replace("_", " ")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        ([f"encoder.layers.{i}.attention.output" for i in (0, 1)], ["layers.0", "layers.1"]),
        (["x" * 30, "x" * 31], ["xxxxxxx...xxxxxxxxxxx 1", "xxxxxxx...xxxxxxxxxxx 2"]),
        (["a" * 30], ["aaaaaaa...aaaaaaaaaaa"]),
    ],
)
def test_long_names_of_groups_stay_different(names, short):
    assert short_names(names) == short
