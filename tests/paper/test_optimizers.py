"""The table of optimizers: runs go on where they were, learning rates come from runs apart, the page is made of its JSON."""

from __future__ import annotations

from benchmark import benchmark
from groupclip.paper.results import Result, gathered, load_all


def result(optimizer: str, lr: float, seed: int, accuracy: float) -> Result:
    cell = {"task": "digits, linear", "epsilon": 1.0, "optimizer": optimizer, "lr": lr, "seed": seed}
    return Result(
        experiment="optimizers", cell=cell, settings={}, privacy={}, groups=1, metrics={"accuracy": accuracy}, seconds=0.0,
        peak_bytes=None, environment={},
    )  # fmt: skip


def test_runs_that_chose_a_learning_rate_are_not_in_the_table():
    module = benchmark("optimizers")
    results = [result("Adam", 0.01, -1, 80.0), result("Adam", 0.03, -1, 90.0)]
    assert next(module.lines(results))[3] == "not run"
    results += [result("Adam", 0.03, 0, 85.0), result("Adam", 0.03, 1, 87.0), result("Adam", 0.01, 0, 99.0)]
    assert next(module.lines(results))[3] == "86.0 ± 1.4 (2), lr 0.03"


def test_differences_have_a_standard_error_and_clear_ones_are_bold():
    module = benchmark("optimizers")
    results = []
    for name, accuracies in (("SGD", (80.0, 82.0)), ("Adam", (88.0, 90.0)), ("noise-aware Adam", (89.0, 91.0))):
        results += [result(name, 0.03, -1, 90.0), *(result(name, 0.03, seed, a) for seed, a in enumerate(accuracies))]
    assert next(module.lines(results))[5:] == ["+1.0 ± 1.4", "**+9.0 ± 1.4**"]


def test_every_optimizer_runs_and_goes_on(tmp_path, monkeypatch):
    module = benchmark("optimizers")
    monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(module, "EPSILONS", (8.0,))
    module.measure(tmp_path, tmp_path / "out", ["digits, linear"], seeds=1)
    first = load_all(tmp_path / "out", "optimizers")
    assert len(first) == 3 * 6 and all(r.privacy["epsilon"] <= 8.0 for r in first)
    monkeypatch.setattr(module.gc, "attach", None)  # nothing is run a second time
    module.measure(tmp_path, tmp_path / "out", ["digits, linear"], seeds=1)
    assert load_all(tmp_path / "out", "optimizers") == first


def test_the_page_is_made_of_its_results():
    module = benchmark("optimizers")
    assert (module.DOCS / "optimizers.md").read_text(encoding="utf-8") == module.written(module.DOCS)
    results = gathered(module.DOCS / "optimizers.json")
    for line in module.lines(results):
        assert all("(5)" in cell for cell in line[2:5]), line
