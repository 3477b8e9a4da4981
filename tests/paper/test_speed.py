"""docs/speed.md: its script measures what the page needs, and the page is made from what is kept."""

from __future__ import annotations

import copy
import json
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from benchmark import FOLDER, script

pytest.importorskip("opacus")
pytest.importorskip("transformers")
pytest.importorskip("peft")
DOCS = FOLDER.parent / "docs"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Opacus and torch hooks, which aren't under test here


def kept() -> dict[str, Any]:
    return json.loads((DOCS / "speed.json").read_text(encoding="utf-8"))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("speed_page", monkeypatch)


def test_the_page_is_made_from_the_figures_that_are_kept(page: ModuleType) -> None:
    assert (DOCS / "speed.md").read_text(encoding="utf-8") == page.page(kept())
    assert not re.search("@[A-Z_]+@", page.page(kept()))
    other = copy.deepcopy(kept())  # the twin: a figure that changes is another page
    other["models"]["mlp"]["ways"]["groupclip, all-layer"]["wall"]["ratio"]["median"] += 1
    assert page.page(other) != page.page(kept())


def test_every_model_and_size_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("speed", monkeypatch)
    assert list(kept()["models"]) == [*made.CASES, *made.ROUNDED]
    assert list(kept()["weights"]) == list(made.CASES)
    assert list(kept()["growth"]) == ["samples", "positions", "width", "depth"]
    assert all(len(rows) == 4 for rows in kept()["growth"].values())


def test_a_short_run_has_what_the_page_needs(monkeypatch: pytest.MonkeyPatch, page: ModuleType) -> None:
    made, tiny = script("speed", monkeypatch), script("tiny", monkeypatch)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, tiny.CLASSES))
    found = made.steps(tiny.Case("a net", net, (torch.randn(6, 8),), tiny.labels(6)), 2, made.STYLES)
    whole = kept()["models"]["mlp"]
    assert set(found) | {"load before", "rounds"} == set(whole)
    assert set(found["refused"]) == {"groupclip, block-wise"}  # it has no blocks
    plain = found["ways"]["plain"]
    assert plain["flops over plain"] == plain["memory over plain"] == 1.0
    for way, row in found["ways"].items():
        assert set(row) == set(whole["ways"]["plain"])
        assert (row["groups"] is not None) == way.startswith("groupclip"), way
        assert row["flops over plain"] >= 1.0
    assert found["ways"]["groupclip, all-layer"]["groups"] == 1
    assert found["ways"]["groupclip, param-wise"]["groups"] == 6
    assert "| groupclip, param-wise | 6 |" in page.model(found | {"load before": 0.0, "rounds": 2})


def test_a_language_model_has_one_loss_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("speed", monkeypatch)
    words = torch.randint(7, (3, 5))
    case = made.Words("words", nn.Embedding(7, 7), (words,), words)
    rows = [words[i : i + 1] for i in range(3)]
    alone = torch.cat([made.Words("one", case.model, (row,), row).losses(case.model) for row in rows])
    torch.testing.assert_close(case.losses(case.model), alone)


def test_mixed_precision_has_losses_in_float32_of_products_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tiny = script("speed", monkeypatch), script("tiny", monkeypatch)
    torch.manual_seed(0)
    case = made.rounded(tiny.mlp())
    seen = []
    case.model[0].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    losses = case.losses(case.model)
    assert losses.dtype == torch.float32 and seen == [torch.bfloat16] and case.name.endswith("bfloat16")
    exact = tiny.Case(case.name, case.model, case.inputs, case.labels).losses(case.model)
    assert not torch.equal(losses, exact)
    torch.testing.assert_close(losses, exact, rtol=0.02, atol=0.02)


def test_the_script_for_a_gpu_runs_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same path on the CPU, on a tiny model: what each way takes, and that each takes the step of single samples."""
    made, tiny = script("gpu", monkeypatch), script("tiny", monkeypatch)
    torch.manual_seed(0)
    device = torch.device("cpu")
    case = made.on(tiny.roberta(), device, half=True)
    assert case.logits(case.model).dtype == torch.bfloat16 and case.losses(case.model).dtype == torch.float32
    found = made.measured(case, device, 2, {"groupclip, all-layer": "all-layer"})
    assert not found["refused"] and set(found["ways"]) == {"plain", "groupclip, all-layer", tiny.HOOKS, tiny.GHOST}
    reads = {way: row["device reads"] for way, row in found["ways"].items()}
    assert reads["groupclip, all-layer"] - reads["plain"] <= 1
    monkeypatch.setattr(made, "TINY", {"mlp": tiny.mlp})
    assert made.parity(device) == {"mlp": dict.fromkeys(tiny.OVER_ALL_LAYERS, True)}


def test_every_workload_of_the_gpu_has_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made without numbers: each can be built, and names its sizes."""
    made = script("gpu", monkeypatch)
    with torch.device("meta"):
        case = made.vit("vit-base", 2)
    assert case.name == "vit-base, T=197, B=2" and case.trainable() > 100


def test_what_the_gradients_of_weights_take_is_measured_on_what_a_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three ways of each use give one sum and one norm a sample: that of plain training, where nothing is weighed."""
    made, tiny = script("weights", monkeypatch), script("tiny", monkeypatch)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, tiny.CLASSES))
    case = tiny.Case("a net", net, (torch.randn(6, 2, 8),), tiny.labels(6))
    found = made.uses(case)
    assert len(found) == 3
    plain = copy.deepcopy(net)
    case.losses(plain).sum().backward()
    sums = [made.plain(use) for use in found]
    for weight in [p for name, p in plain.named_parameters() if name.endswith("weight")]:
        assert weight.grad is not None
        same = [total for total in sums if total.numel() == weight.numel()]
        assert any(torch.allclose(total.reshape(weight.shape), weight.grad, atol=1e-6) for total in same)
    for use, total in zip(found, sums, strict=True):
        torch.testing.assert_close(made.anew(use).weighted_sum(torch.ones(6)).reshape(total.shape), total, rtol=1e-4, atol=1e-6)
        made.alone(use, torch.ones(6)), made.waiting(use, torch.ones(6))
    assert set(made.weights(case, 2)) | {"noise"} == set(kept()["weights"]["mlp"])
