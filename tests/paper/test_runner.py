"""Suites of runs: order, skipping, stopping, going on; dry runs; which runs a command means."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

from groupclip.paper import results
from groupclip.paper.catalogue import ORDER, catalogue
from groupclip.paper.cells import EXPERIMENT, Cell
from groupclip.paper.dryrun import dry_runs
from groupclip.paper.printed import printed_settings
from groupclip.paper.runner import Job, Stopped, paper_jobs, run_jobs
from groupclip.paper.scaled import choice
from groupclip.paper.scaled.experiment import ScaledCell, ScaledExperiment
from groupclip.paper.scores import unavailable
from groupclip.paper.selection import chosen, chosen_rows, split
from groupclip.paper.settings import TrainSettings
from groupclip.paper.source import StandIn
from groupclip.paper.workload import Workload

SETTINGS = TrainSettings(epsilon=3.0, delta=1e-5, batch_size=10, lr=0.1, steps=3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def workload(blocks: int = 2, losses=None) -> Workload:
    model = nn.Sequential(*[Block() for _ in range(blocks)], nn.Linear(4, 2))
    x = torch.randn(50, 4)
    per_sample = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")  # noqa: E731
    return Workload(
        name="double", model=model, train=TensorDataset(x, (x[:, 0] > 0).long()), collate=default_collate,
        losses=losses or per_sample, evaluate=lambda model: {"accuracy": 50.0},
    )  # fmt: skip


class Watcher:
    def __init__(self, stop_at: tuple[int, int] | None = None) -> None:
        self.told, self.stop_at, self.run = [], stop_at, 0

    def skipped(self, job, result):
        self.told.append(("skipped", job.cell["n"]))

    def begin(self, job, number, jobs):
        self.run = number
        self.told.append(("begin", job.cell["n"], number, jobs))

    def step(self, step, steps):
        if self.stop_at == (self.run, step):
            raise Stopped

    def done(self, job, result):
        self.told.append(("done", job.cell["n"]))


def jobs(count: int, built: list[int]) -> list[Job]:
    def preparing(n):
        def prepare():
            built.append(n)
            return workload(), SETTINGS

        return prepare

    return [Job(experiment="t", cell={"n": n}, title=str(n), prepare=preparing(n)) for n in range(count)]


def test_a_suite_that_was_stopped_goes_on_where_it_was(tmp_path):
    built: list[int] = []
    with pytest.raises(Stopped):
        run_jobs(jobs(3, built), tmp_path, Watcher(stop_at=(2, 2)))
    assert [r.cell for r in results.load_all(tmp_path, "t")] == [{"n": 0}] and built == [0, 1]
    watcher = Watcher()
    found = run_jobs(jobs(3, built), tmp_path, watcher)
    assert [r.cell["n"] for r in found] == [0, 1, 2] and built == [0, 1, 1, 2]
    assert watcher.told == [
        ("skipped", 0), ("begin", 1, 2, 3), ("done", 1), ("begin", 2, 3, 3), ("done", 2),
    ]  # fmt: skip


def test_a_full_scale_cell_is_trained_as_printed_on_the_records_that_there_are(tmp_path, monkeypatch):
    cell = Cell(
        model="m", data="sst2", epsilon=3, clipping="block-wise", clip="automatic", thresholds="fixed", epochs=1
    )
    cells = [cell, replace(cell), replace(cell, seed=1)]
    built = []

    def build(data, model, source):
        built.append((data, model, source, torch.initial_seed()))
        return workload()

    found = paper_jobs(cells, build, StandIn())
    assert len(found) == 2  # the same cell twice is one run
    made, settings = found[1].prepare()
    assert built == [("sst2", "m", StandIn(), 1)] and settings.delta == 1e-5 and settings.batch_size == 2000
    assert found[0].experiment == EXPERIMENT and found[0].cell == cell.key() and len(made.train) == 50


def test_options_choose_runs():
    table = catalogue()["vision"]
    assert len(chosen(table, {})) == 160
    (cell,) = chosen(
        table, {"model": ["vit-small"], "data": ["cifar10"], "epsilon": split("2.0"), "clipping": ["uniform:4"]}
    )
    assert (cell.model, cell.data, cell.epsilon, cell.clipping, cell.epochs) == (
        "vit-small",
        "cifar10",
        2,
        "uniform:4",
        5,
    )
    assert len(chosen(table, {"epsilon": ["2"]}, seeds=(0, 1))) == 160
    with pytest.raises(ValueError, match=r"no run with --model vit-tiny; --model: vit-small, vit-large"):
        chosen(table, {"model": ["vit-tiny"]})
    assert [c.epsilon for c in chosen(catalogue()["two-group"], {"epsilon": ["none"]})] == [None, None]
    assert len(chosen_rows(catalogue()["e2e"], {"model": ["gpt2-small"]})) == 7
    assert split("boundaries:2,6,uniform:4") == ["boundaries:2,6", "uniform:4"] and split("2,8.0") == ["2", "8"]


def test_a_dry_run_says_what_a_run_will_be():
    asked = []

    def build(data, model, source):
        asked.append((data, model, source))
        return workload(blocks=3)

    cells = [
        Cell(model="vit-small", data="cifar10", epsilon=e, clipping=c, clip="automatic", thresholds="fixed", epochs=5)
        for e, c in ((8.0, "all-layer"), (8.0, "uniform:3"), (None, "none"))
    ]
    found = {run.cell.clipping: run for run in dry_runs(cells, build)}
    assert asked == [("cifar10", "vit-small", StandIn())]
    assert found["none"].mechanism is None and found["none"].groups is None
    assert len(found["uniform:3"].groups) == 3 and len(found["all-layer"].groups) == 1
    plan = found["all-layer"].mechanism
    assert (plan.dataset_size, plan.expected_batch_size, plan.steps) == (50_000, 1000, 250)
    assert plan.noise_multiplier == pytest.approx(0.596, abs=0.002)  # docs/accounting.md: the paper's settings


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), "one a sample"),
        (lambda model, batch: model[0](batch[0]).sum(1), "no gradient for"),
    ],
)
def test_a_dry_run_finds_a_loss_that_is_not_one_a_sample_and_parameters_left_out(losses, message):
    cell = Cell(
        model="m", data="cifar10", epsilon=None, clipping="none", clip="automatic", thresholds="fixed", epochs=5
    )
    with pytest.raises(RuntimeError, match=message):
        list(dry_runs([cell], lambda data, model, source: workload(losses=losses)))


@pytest.mark.slow
def test_every_row_of_the_paper_can_be_dry_run():
    from groupclip.paper.build import build

    cells = list(dict.fromkeys(cell for name in ORDER for row in catalogue()[name].rows for cell in row.cells()))
    found = {run.cell: run for run in dry_runs(cells, lambda data, model, source: build(data, model, source=source))}
    assert set(found) == set(cells)
    for name in ORDER:
        for row in catalogue()[name].rows:
            for cell in row.cells():
                groups = 0 if found[cell].groups is None else len(found[cell].groups)
                # the one matrix that RoBERTa's word predictor shares with its embedding is one parameter here
                tied = row.model.startswith("roberta") and cell.clipping == "param-wise"
                assert row.groups is None or groups == row.groups - tied, (name, cell)


def test_tiny_language_models_and_images_can_be_dry_run():
    from groupclip.paper.build import build

    wanted = [
        ("vision", "vit-small", "gtsrb", "2"),
        ("e2e", "gpt2-small", "e2e", "8"),
        ("roberta", "roberta-base", "mnli", "3"),
    ]
    for name, model, data, epsilon in wanted:
        cells = chosen(
            catalogue()[name],
            {
                "model": [model],
                "data": [data],
                "epsilon": [epsilon],
                "clipping": ["layer-wise"],
                "thresholds": ["fixed"],
            },
        )
        (run,) = dry_runs(cells, lambda data, model, source: build(data, model, source=source))
        assert len(run.groups) == {"vit-small": 75, "gpt2-small": 76, "roberta-base": 103}[model]


def test_small_twins_are_chosen_by_the_same_options(tmp_path, monkeypatch):
    asked = []

    def cells(data, made):
        asked.append((data, made))
        facts = [
            {"model": m, "epsilon": e, "clipping": "uniform:2", "seed": s}
            for m in "ab"
            for e in (2.0, 8.0)
            for s in (0, 1)
        ]
        return [ScaledCell(cell=f, settings=SETTINGS, build=workload) for f in facts]

    twin = ScaledExperiment(name="x-small", title="", twin="vision", cells=cells, smoke=lambda made: ())
    monkeypatch.setattr(choice, "experiments", lambda: [twin, replace(twin, name="y-small", twin="e2e")])
    data = tmp_path / "data"
    found = choice.small_jobs("vision", {"model": ["a"], "epsilon": ["2"]}, data, tmp_path)
    assert [(j.experiment, j.cell["model"], j.cell["epsilon"], j.cell["seed"]) for j in found] == [
        ("x-small", "a", 2.0, 0), ("x-small", "a", 2.0, 1),
    ]  # fmt: skip
    assert asked == [(data, tmp_path / "made")] and found[0].prepare()[1] == SETTINGS
    with pytest.raises(ValueError, match="x-small has no run with --model vit-small; --model: a, b"):
        choice.small_jobs("vision", {"model": ["vit-small"]}, data, tmp_path)
    with pytest.raises(ValueError, match="no small twin; those with one: e2e, vision"):
        choice.small_jobs("sst2", {}, data, tmp_path)
    with pytest.raises(ValueError, match="needs --data-folder"):
        choice.small_jobs("vision", {}, None, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "thresholds"),
    [("vit-small", "svhn", "fixed"), ("roberta-base", "mnli", "adaptive"), ("gpt2-small", "e2e", "fixed")],
)
def test_a_row_is_trained_and_scored_from_stand_ins(tmp_path, model, data, thresholds):
    """The whole way of a full-scale run, on 24 made records: only sizes differ."""
    from groupclip.paper.build import build

    cell = Cell(
        model=model, data=data, epsilon=8.0, clipping="layer-wise", clip="automatic", thresholds=thresholds, epochs=1
    )
    (job,) = paper_jobs([cell], lambda data, model, source: build(data, model, source=source), StandIn())

    def prepare():
        made, settings = job.prepare()
        return made, replace(settings, batch_size=8, epochs=None, steps=2, microbatch=5)

    (found,) = run_jobs([replace(job, prepare=prepare, cell={**job.cell, "n": 0})], tmp_path, Watcher())
    wanted = {score.name for score in printed_settings().of(data).scores} - set(unavailable())
    assert wanted and wanted <= set(found.metrics) and found.privacy["steps"] == 2
    assert found.groups == {"vit-small": 75, "roberta-base": 103, "gpt2-small": 76}[model]
    assert found.settings["workload"]["source"].startswith("stand-ins")
