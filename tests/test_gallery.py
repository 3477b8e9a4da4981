"""The gallery is made of its JSON, small, and complete."""

import json
import re

from benchmark import benchmark
from groupclip.statement import plots

GALLERY = benchmark("gallery")
FACTS = json.loads((GALLERY.DOCS / "gallery.json").read_text(encoding="utf-8"))


def words(svg):
    """What is written in a figure."""
    return re.findall(r"<!-- (.+) -->", svg)


def test_the_page_and_its_figures_are_made_of_the_json():
    assert (GALLERY.DOCS / "gallery.md").read_text(encoding="utf-8") == GALLERY.written(FACTS)
    kept = {f"figures/gallery/{path.name}" for path in (GALLERY.DOCS / "figures" / "gallery").iterdir()}
    drawn = GALLERY.drawn(FACTS)
    assert set(drawn) == kept
    for file, svg in drawn.items():
        assert words(svg) == words((GALLERY.DOCS / file).read_text(encoding="utf-8")) != []


def test_twin_another_run_is_seen():
    other = json.loads(json.dumps(FACTS))
    other["runs"][0]["accuracies"][-1][0] *= 2
    assert words(GALLERY.drawn(other)["figures/gallery/accuracy.svg"]) != words(
        (GALLERY.DOCS / "figures" / "gallery" / "accuracy.svg").read_text(encoding="utf-8")
    )


def test_every_plot_of_the_reports_is_in_it():
    made = {name: getattr(thing, "__annotations__", {}).get("return") for name, thing in vars(plots).items()}
    drawing = {name for name, kind in made.items() if kind == "str"}
    text = GALLERY.FILE.read_text(encoding="utf-8")
    assert {name for name in drawing if f"plots.{name}(" not in text} == {"svg", "in_units"}


def test_it_is_small():
    figures = [GALLERY.DOCS / plot.file for plot in GALLERY.PLOTS]
    assert all(figure.is_file() for figure in figures)
    assert sum(figure.stat().st_size for figure in {*figures, GALLERY.DOCS / "gallery.json"}) < 1_000_000


def test_it_holds_nothing_of_a_persons_machine():
    assert "/" not in "".join(run["name"] for run in FACTS["runs"])
    assert all(run["epsilon"] <= run["planned"] for run in FACTS["runs"])
