"""docs/performance.md: its script measures equal work, writes what the page needs, and the page is made from what is kept."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark import FOLDER, benchmark, script

pytest.importorskip("opacus")
pytest.importorskip("transformers")
DOCS = FOLDER.parent / "docs"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Opacus and torch hooks, which aren't under test here


def kept() -> dict[str, Any]:
    return json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))


def shape(found: Any) -> Any:
    """Keys all the way down."""
    return {key: shape(value) for key, value in found.items()} if isinstance(found, dict) else None


def test_the_page_is_made_from_the_figures_that_are_kept() -> None:
    made = benchmark("performance_page")
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == made.page(kept())
    assert not re.search("@[A-Z_]+@", made.page(kept()))
    other = copy.deepcopy(kept())  # the twin: a figure that changes is another page
    other["models"]["mlp"]["ways"]["groupclip, all-layer"]["processor"]["ratio"]["median"] += 1
    assert made.page(other) != made.page(kept())
    other = copy.deepcopy(kept())
    other["first step"]["found"]["private over plain, s"]["wall"]["median"] += 1
    assert made.page(other) != made.page(kept())
    other = copy.deepcopy(kept())
    first = next(iter(other["histories"]["found"]["small"]["kinds"].values()))["over alone"]
    first["none, every, some"]["median"] = 1.2
    assert made.strayed(other["histories"]["found"]) != made.strayed(kept()["histories"]["found"])
    assert "greatest 1.2" in made.strayed(other["histories"]["found"])


def test_a_short_run_has_the_keys_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    program = script("performance", monkeypatch)
    found = program.measured(2, ["mlp"], ["every"], [1, 2])
    whole = {name: part for name, part in shape(kept()).items() if name not in program.APART}
    assert list(whole["models"]) == list(script("tiny", monkeypatch).CASES)
    assert len(whole["padding"]) == 6 and all(list(row) == ["none", "every", "some"] for row in whole["padding"].values())
    one = next(iter(whole["padding"].values()))
    assert shape(found) == whole | {
        "models": {"mlp": whole["models"]["mlp"]},
        "padding": {"every": {"every": one["every"]}},
        "sizes": {size: whole["sizes"][size] for size in ("1", "2")},
    }
    assert set(found["models"]["mlp"]["refused"]) == {"groupclip, block-wise"}  # it has no blocks
    for way, row in found["models"]["mlp"]["ways"].items():
        assert row["as single samples"] is not False, way
        assert (row["calls over plain a parameter"] > 0) == (way != "plain")
    assert benchmark("performance_page").page(found | {name: kept()[name] for name in program.APART})


def test_passes_after_every_history_have_the_keys_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("performance", monkeypatch)
    asked = ["--rounds", "2", "--models", "tiny", "--sizes", "1", "2", "--orders", "2"]
    (found,) = made.apart("histories", asked)["found"].values()
    whole = kept()["histories"]["found"]
    assert list(whole) == list(script("histories", monkeypatch).WIDTHS)
    kinds = [f"8 samples, {padded} padded" for padded in made.PADDED] + [f"{size} samples, none padded" for size in (1, 2)]
    assert list(found["kinds"]) == kinds
    assert all(set(met) == set(kinds) for met in found["histories"].values())
    assert len({tuple(met) for met in found["histories"].values()}) == 2
    for row in found["kinds"].values():
        assert row["ms alone"] > 0 and list(row["over alone"]) == list(found["histories"])
    for facts in whole.values():
        assert len(facts["kinds"]) == len(made.PADDED) + len(made.SIZES) - 1
        assert len({tuple(met) for met in facts["histories"].values()}) == 6
        assert all(set(met) == set(facts["kinds"]) for met in facts["histories"].values())
        assert {tuple(shape(row)) for row in facts["kinds"].values()} == {tuple(found["kinds"][kinds[0]])}


def test_a_first_step_in_a_fresh_process_has_the_keys_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("performance", monkeypatch)
    asked = ["--rounds", "1", "--batch", "4", "--tokens", "4", "--width", "64", "--layers", "2", "--threads", "1"]
    found = made.apart("first step", asked)
    assert shape(found) == shape(kept()["first step"])
    for clock in ("processor", "wall"):
        each = {way: taken[clock] for way, taken in found["found"]["ways"].items()}
        spent = sum(each["private"][name] for name in ("attach", "forward and backward", "step"))
        assert each["private"]["all"] == pytest.approx(spent, abs=2e-3)
        over = found["found"]["private over plain, s"][clock]
        assert over["median"] == pytest.approx(each["private"]["all"] - each["plain"]["all"], abs=2e-3)


def test_every_way_over_all_layers_takes_the_step_of_single_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("tiny", monkeypatch)
    torch.manual_seed(0)
    case = made.mlp()
    with torch.no_grad():  # so that norms are on both sides of the threshold
        case.inputs[0][::2] *= 30
    assert all(made.exact(case, way) for way in (*made.OVER_ALL_LAYERS, made.BARE))
    for way in ("plain", "groupclip, layer-wise"):  # the twins: what doesn't clip so is told apart
        assert not made.exact(case, way)


class Shifted(nn.Linear):
    """A layer with a parameter and a buffer, which Opacus refuses."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.get_buffer("shift"))


def test_what_a_library_refuses_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tiny = script("performance", monkeypatch), script("tiny", monkeypatch)
    net = nn.Sequential(nn.Linear(4, 8), Shifted(8), nn.Linear(8, 2))
    found = made.beside_opacus(tiny.Case("a custom layer", net, (torch.randn(6, 4),), tiny.labels(6)), 2)
    assert {"plain", "groupclip, all-layer", "groupclip, layer-wise"} == set(found["ways"])
    assert {tiny.HOOKS, tiny.GHOST} < set(found["refused"])
    assert all(re.match(r"\w+: .", why) and "\n" not in why for why in found["refused"].values())
    page = benchmark("performance_page")
    assert f"| {tiny.GHOST} | refuses: `" in page.model(found) and "Opacus refuses it" in page.verdict({"one": found})


@pytest.mark.parametrize("groups", [1, 2])
def test_flops_of_a_convolution(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of inputs and weight take as much as the convolution each, whatever its groups."""
    made = script("performance", monkeypatch)
    net, x = nn.Conv2d(4, 6, 3, groups=groups, bias=False), torch.randn(2, 4, 8, 8, requires_grad=True)
    once = 2 * 2 * 36 * 6 * (4 // groups) * 9  # two a multiplication and addition, of 2 images of 6 x 6 pixels
    assert made.flops(lambda: net(x.detach()).sum().backward()) == 2 * once
    assert made.flops(lambda: net(x).sum().backward()) == 3 * once
