"""A rare class: weights are what they say, automatic clipping takes them out again, and runs go on where they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import groupclip as gc
from benchmark import script
from groupclip.paper.records.imbalance import KEPT, RARE, rows_of
from groupclip.paper.results import Result, load_all


@pytest.fixture
def module(monkeypatch):
    return script("imbalance", monkeypatch)


def test_the_rare_class_is_thinned_and_others_are_weighed_less(module):
    labels = torch.arange(10).repeat(60)
    x, y = module.thinned((torch.arange(600.0).unsqueeze(1), labels))
    assert (y == RARE).sum() == KEPT and len(y) == 540 + KEPT and torch.equal(labels[x[:, 0].long()], y)
    losses = module.weighed(torch.ones(3), torch.tensor([0, RARE, 9]), 16.0)
    assert losses.tolist() == [1 / 16, 1.0, 1 / 16]


@pytest.mark.parametrize("clip", ["automatic", "abadi"])
def test_automatic_clipping_takes_weights_out_again(module, clip):
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(6, 10), torch.randn(8, 6), torch.tensor([0, 1, RARE, 3, 4, RARE, 6, 7])

    def of_the_others(weight: float) -> torch.Tensor:
        """The summed gradient of the samples that aren't rare."""
        engine = gc.attach(model, None, "all-layer", None, clip=clip, thresholds=100.0)
        rows = y != RARE
        engine.backward(module.weighed(F.cross_entropy(model(x[rows]), y[rows], reduction="none"), y[rows], weight))
        found = model.weight.grad.clone()
        engine.detach()
        return found

    ratio = (of_the_others(16.0).norm() / of_the_others(1.0).norm()).item()
    assert ratio == pytest.approx(1 / 16, rel=1e-4) if clip == "abadi" else 0.9 < ratio <= 1.0


def test_runs_go_on_and_make_the_table(module, tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    split = {f"{name}_x": random.integers(0, 256, (300, 28, 28)).astype(np.uint8) for name in ("train", "test")}
    labels = {f"{name}_y": (np.arange(300) % 10).astype(np.uint8) for name in ("train", "test")}
    np.savez(tmp_path / "fashion_mnist.npz", **split, **labels)
    monkeypatch.setattr(module, "STEPS", 1)
    monkeypatch.setattr(module, "EPSILONS", (8.0,))
    module.measure(tmp_path, tmp_path / "out", 1)
    results = load_all(tmp_path / "out", "imbalance")
    assert len(results) == 2 * 4 + 2 and all(r.privacy["epsilon"] <= 8.0 for r in results if r.privacy)
    monkeypatch.setattr(module.gc, "attach", None)  # nothing is run a second time
    module.measure(tmp_path, tmp_path / "out", 1)
    assert load_all(tmp_path / "out", "imbalance") == results


def test_the_table_has_the_rare_class_and_all_classes():
    def result(epsilon: float | None, seed: int, rare: float) -> Result:
        cell = {"epsilon": epsilon, "clipping": "all-layer", "clip": "abadi", "weight": 16.0, "seed": seed}
        return Result(
            experiment="imbalance", cell=cell, settings={}, privacy={}, groups=1, metrics={"rare": rare, "mean": 70.0}, seconds=0.0,
            peak_bytes=None, environment={},
        )  # fmt: skip

    lines = rows_of([result(3.0, 0, 40.0), result(3.0, 1, 44.0)]).splitlines()
    assert [cell.strip() for cell in lines[5].split("|")[1:-1]] == [
        "all-layer",
        "abadi",
        "16",
        "",
        "42 ± 3 (70)",
        "",
        "",
    ]
