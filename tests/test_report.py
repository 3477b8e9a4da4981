"""The report of a run: complete, in one file, and safe whatever names the groups have."""

import base64
import re
from html.parser import HTMLParser

import pytest
from torch import nn

from groupclip import partition
from groupclip.report import RunReport, html_report

ODD = '<script>alert("group")</script>'


class Tags(HTMLParser):
    """Opened tags with their attributes; fails on what is closed wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


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


def figures(html):
    return [base64.b64decode(part).decode() for part in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]


def test_it_is_one_file_that_fetches_nothing_and_runs_nothing():
    html = html_report(report())
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert {"script", "link", "iframe"}.isdisjoint(tag for tag, _ in tags.seen)
    sources = [attrs["src"] for tag, attrs in tags.seen if tag == "img"]
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert all(attrs["alt"] for tag, attrs in tags.seen if tag == "img")


def test_names_and_words_are_escaped():
    html = html_report(report())
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
        "Noise multiplier 1.5",
        "0.015",
        "0.025",
        "3.11",
    ],
)
def test_it_tells(fact):
    assert fact in html_report(report())


def test_epsilon_is_rounded_up():
    assert "<strong>2.01</strong>" in html_report(report(epsilon=2.0001))


def test_a_run_that_never_evaluated_says_so():
    rows = [{k: v for k, v in row.items() if k != "test_accuracy"} for row in report().rows]
    assert "<strong>not measured</strong>" in html_report(report(test_accuracy=None, rows=rows))


def test_lost_steps_are_told():
    assert "were lost" not in html_report(report())
    html = html_report(report(lost=((2, 4), (6, 6)), updates=4))
    assert "the updates of steps 2 to 4, 6 were lost, but they are charged" in html
    assert "The weights took 4 updates" in html


def test_public_pretraining_is_told():
    assert "pretraining" not in html_report(report())
    html = html_report(report(pretraining={"what": "600 steps on letters"}))
    assert "<h2>Public pretraining</h2>" in html
    assert "600 steps on letters" in html


def test_the_accuracy_of_lost_weights_is_not_drawn():
    kept, lost = (figures(html_report(report(lost=lost)))[0] for lost in ((), ((4, 4),)))
    marker = 'xlink:href="#m'
    assert kept.count(marker) == lost.count(marker) + 1


def test_the_same_run_gives_the_same_report():
    assert html_report(report()) == html_report(report())


def test_a_run_without_rows_has_a_report():
    assert len(figures(html_report(report(rows=[])))) == 3
