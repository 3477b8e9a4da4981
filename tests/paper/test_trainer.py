"""One cell: trained as plain code would train it, charged as the ledger says, and not trained twice."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

import groupclip as gc
from groupclip.paper import results
from groupclip.paper.settings import TrainSettings
from groupclip.paper.trainer import shuffled, to_device, train_cell, train_privately
from groupclip.paper.workload import Workload

CPU = torch.device("cpu")
PRIVATE = TrainSettings(epsilon=3.0, delta=1e-5, batch_size=32, lr=0.05, epochs=2, microbatch=16, clipping="layer-wise")


def workload(*, records: int = 200, dtype: torch.dtype = torch.float64) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    x = torch.randn(records, 5, dtype=dtype)
    y = (x[:, 0] > 0).long()

    def accuracy(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"accuracy": 100 * (model(x).argmax(1) == y).double().mean().item()}

    return Workload(
        name="tiny",
        model=model,
        train=TensorDataset(x, y),
        collate=default_collate,
        losses=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        evaluate=accuracy,
        description={"data": "drawn"},
    )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_without_privacy_it_is_plain_training(optimizer):
    settings = replace(
        PRIVATE, epsilon=None, optimizer=optimizer, momentum=0.9, weight_decay=0.01, schedule="cosine", seed=3
    )
    ours = workload()
    result = train_cell(ours, experiment="t", cell={"seed": 3}, settings=settings)

    twin = workload()
    made = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    }
    plain = made[optimizer](twin.model.parameters())
    steps = round(2 * 200 / 32)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(plain, T_max=steps)
    batches = shuffled(200, 32, 3)
    for _ in range(steps):
        rows = next(batches)
        x, y = twin.train[rows]
        plain.zero_grad()
        F.cross_entropy(twin.model(x), y).backward()
        plain.step()
        decay.step()
    for mine, theirs in zip(ours.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert result.privacy == {} and result.groups == 0


def test_privately_without_noise_and_clipping_it_is_plain_training_too():
    """Every record in every batch, thresholds that clip nothing, sigma 0: full-batch gradient descent."""
    ours, twin = workload(), workload()
    settings = replace(PRIVATE, clip="abadi", thresholds=1e6, optimizer="sgd", schedule="linear")
    mechanism = gc.Mechanism(dataset_size=200, expected_batch_size=200, steps=4, noise_multiplier=0.0)
    train_privately(ours, settings, mechanism, CPU)
    plain = torch.optim.SGD(twin.model.parameters(), lr=0.05)
    x, y = twin.train.tensors
    for step in range(4):
        plain.param_groups[0]["lr"] = 0.05 * (1 - step / 4)
        plain.zero_grad()
        F.cross_entropy(twin.model(x), y).backward()
        plain.step()
    for mine, theirs in zip(ours.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_a_private_cell_spends_what_was_asked_for_and_leaves_the_model_free():
    ours = workload()
    told = []
    result = train_cell(
        ours, experiment="t", cell={"seed": 0}, settings=PRIVATE, tell=lambda step, steps: told.append((step, steps))
    )
    privacy = result.privacy
    plan = gc.Mechanism(dataset_size=200, expected_batch_size=32, steps=12)
    assert told == [(step, 12) for step in range(1, 13)] and privacy["steps"] == 12
    assert 0.99 * 3.0 <= privacy["epsilon"] <= 3.0
    spent = replace(plan, noise_multiplier=privacy["noise_multiplier"]).epsilon(delta=1e-5)
    assert privacy["epsilon"] == pytest.approx(spent, rel=1e-12)
    assert privacy["sampling"] == "groupclip" and privacy["sample_rate"] == 32 / 200 and result.groups == 2
    # nothing of the engine is left: the model trains plainly again
    F.cross_entropy(ours.model(torch.randn(3, 5, dtype=torch.float64)), torch.tensor([0, 1, 0])).backward()


def test_moving_thresholds_cost_nothing_beside_the_plan():
    settings = replace(PRIVATE, thresholds=gc.Adaptive(quantile=0.9))
    result = train_cell(workload(), experiment="t", cell={}, settings=settings)
    fixed = train_cell(workload(), experiment="t", cell={}, settings=PRIVATE)
    assert result.privacy == fixed.privacy
    assert TrainSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_a_cell_with_a_result_isnt_trained_again(tmp_path):
    first = train_cell(workload(), experiment="t", cell={"seed": 0}, settings=PRIVATE, folder=tmp_path)
    ours = workload()
    before = [p.clone() for p in ours.model.parameters()]
    again = train_cell(ours, experiment="t", cell={"seed": 0}, settings=PRIVATE, folder=tmp_path)
    assert all(torch.equal(p, q) for p, q in zip(before, ours.model.parameters(), strict=True))
    assert again.metrics == first.metrics and again.seconds == first.seconds
    train_cell(ours, experiment="t", cell={"seed": 1}, settings=PRIVATE, folder=tmp_path)  # the twin: another cell is
    assert not all(torch.equal(p, q) for p, q in zip(before, ours.model.parameters(), strict=True))
    assert len(results.load_all(tmp_path, "t")) == 2


def test_batches_may_be_mappings():
    batch = {"ids": torch.ones(2), "more": (torch.zeros(1), ["text"])}
    moved = to_device(batch, torch.device("meta"))
    assert moved["ids"].is_meta and moved["more"][0].is_meta and moved["more"][1] == ["text"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 3}, "give one of them"),
        ({"epochs": None}, "give one of them"),
        ({"lr": 0.0}, "lr"),
        ({"batch_size": 0}, "batch_size"),
        ({"schedule": "step"}, "schedule='step' is unknown"),
        ({"optimizer": "adam"}, "optimizer='adam' is unknown"),
    ],
)
def test_settings_that_dont_fit(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PRIVATE, **change)


def test_planned_groups_are_planned_before():
    with pytest.raises(ValueError, match="as boundaries"):
        train_cell(workload(), experiment="t", cell={}, settings=replace(PRIVATE, clipping="planned:2"))


class Enough(Exception):
    pass


def stopping_at(last: int):
    def tell(step: int, steps: int) -> None:
        if step == last:
            raise Enough

    return tell


def test_without_privacy_a_run_that_was_stopped_ends_where_it_would_have(tmp_path):
    settings = replace(PRIVATE, epsilon=None, schedule="linear")
    whole, ours = workload(), workload()
    train_cell(whole, experiment="t", cell={"n": 0}, settings=settings)
    with pytest.raises(Enough):
        train_cell(ours, experiment="t", cell={"n": 0}, settings=settings, folder=tmp_path, tell=stopping_at(5))
    again = workload()
    told = []
    result = train_cell(
        again, experiment="t", cell={"n": 0}, settings=settings, folder=tmp_path, tell=lambda step, _: told.append(step)
    )
    assert told == list(range(6, 13)) and result.settings["steps_timed"] == 7
    for mine, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert [path.name for path in (tmp_path / "t").iterdir()] == [results.cell_file(tmp_path, "t", {"n": 0}).name]


@pytest.mark.parametrize("thresholds", [1.0, gc.Adaptive()])
def test_a_private_run_that_was_stopped_takes_the_steps_that_are_left(tmp_path, thresholds):
    settings = replace(PRIVATE, thresholds=thresholds)
    first, again = workload(), workload()
    with pytest.raises(Enough):
        train_cell(first, experiment="t", cell={}, settings=settings, folder=tmp_path, tell=stopping_at(7))
    kept = list((tmp_path / "t" / "underway").iterdir())
    assert [path.stat().st_mode & 0o077 for path in kept] == [0, 0]  # state and journal
    taken, steps = [], []

    def tell(step: int, _: int) -> None:
        steps.append(step)
        if not taken:
            taken.append([p.detach().clone() for p in again.model.parameters()])

    result = train_cell(again, experiment="t", cell={}, settings=settings, folder=tmp_path, tell=tell)
    assert steps == [8, 9, 10, 11, 12]
    assert (
        result.privacy["steps"] == 12 and result.privacy["epsilon"] <= 3.0 and result.privacy["sampling"] == "groupclip"
    )
    # the eighth AdamW step moves no coordinate by more than 1.03 lr (Cauchy-Schwarz over its averages) from where the stopped run
    # was; the start is further away: each step moves 66 coordinates by about lr, in directions that noise decides
    moved = [(p - q).abs().max().item() for p, q in zip(taken[0], first.model.parameters(), strict=True)]
    start = [(p - q).abs().max().item() for p, q in zip(taken[0], workload().model.parameters(), strict=True)]
    assert max(moved) <= 1.1 * settings.lr < max(start)
    assert not (tmp_path / "t" / "underway").exists()


def failing_after(passes: int, error: BaseException) -> Workload:
    ours, seen = workload(), []

    def failing(model, batch):
        seen.append(1)
        if len(seen) > passes:
            raise error
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return replace(ours, losses=failing)


@pytest.mark.parametrize("microbatch", [16, 4])
@pytest.mark.parametrize("every", [0.0, 600.0])
def test_a_step_that_fails_stays_charged_and_no_other_is_lost(tmp_path, every, microbatch):
    """Which batch runs out of memory depends on what is in it: it isn't drawn again, and epsilon is the plan's."""
    broken, told, steps = failing_after(20, RuntimeError("out of memory")), [], []
    with pytest.raises(RuntimeError, match="out of memory"):
        train_cell(
            broken, experiment="t", cell={}, settings=PRIVATE, folder=tmp_path, checkpoint_seconds=every,
            tell=lambda step, _: told.append(step),
        )  # fmt: skip
    again, taken = workload(), []

    def tell(step: int, _: int) -> None:
        steps.append(step)
        taken.append([p.detach().clone() for p in again.model.parameters()])

    smaller = replace(PRIVATE, microbatch=microbatch)
    result = train_cell(again, experiment="t", cell={}, settings=smaller, folder=tmp_path, tell=tell)
    assert told == list(range(1, told[-1] + 1)) and steps == list(range(told[-1] + 2, 13))
    assert result.privacy["steps"] == 12 and result.privacy["steps_lost"] == 1
    assert result.privacy["sampling"] == "groupclip" and result.privacy["epsilon"] <= 3.0
    moved = [(p - q).abs().max().item() for p, q in zip(taken[0], broken.model.parameters(), strict=True)]
    assert max(moved) <= 1.2 * PRIVATE.lr  # of AdamW, as above: from the weights of the last step that succeeded
    assert not (tmp_path / "t" / "underway").exists()


@pytest.mark.parametrize("epsilon", [3.0, None])
def test_an_average_is_scored_and_goes_on(tmp_path, epsilon):
    settings = replace(PRIVATE, epsilon=epsilon, average="last:3")
    kept, scored = [], []

    def run(tell, folder):
        ours = workload()

        def keep(step, steps):
            kept.append([p.detach().clone() for p in ours.model.parameters()])
            tell(step, steps)

        def score(model):
            scored.append([p.detach() for p in model.parameters()])
            return {"accuracy": 0.0}

        train_cell(replace(ours, evaluate=score), experiment="t", cell={"a": 1}, settings=settings, folder=folder, tell=keep)

    with pytest.raises(Enough):
        run(stopping_at(11), tmp_path)
    run(lambda *_: None, tmp_path)
    assert len(kept) == 12 and len(scored) == 1  # 2 * 200 / 32 steps
    for place, value in enumerate(scored[0]):
        mean = torch.stack([weights[place] for weights in kept[-3:]]).mean(0)
        torch.testing.assert_close(value.as_subclass(torch.Tensor), mean.as_subclass(torch.Tensor), rtol=0, atol=1e-12)


def test_an_average_that_is_none_is_no_setting():
    assert "average" not in PRIVATE.to_dict()  # of the results that are kept
    with pytest.raises(ValueError, match="is no average of weights"):
        replace(PRIVATE, average="swa")


class Killed(BaseException):
    """What no handler of errors sees."""


def test_what_a_kill_loses_stays_charged(tmp_path):
    with pytest.raises(Killed):
        train_cell(failing_after(20, Killed()), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path)
    (journal,) = (tmp_path / "t" / "underway").glob("*.jsonl")
    charged = json.loads(journal.read_text().splitlines()[-1])["charged"]
    steps = []
    result = train_cell(
        workload(), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path, tell=lambda step, _: steps.append(step)
    )
    assert charged > 2 and steps == list(range(charged + 1, 13))
    assert result.privacy["steps"] == 12 and result.privacy["steps_lost"] == charged
    assert result.privacy["sampling"] == "groupclip"


def test_a_cell_without_its_journal_is_not_gone_on_with(tmp_path):
    with pytest.raises(Enough):
        train_cell(workload(), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path, tell=stopping_at(2))
    (journal,) = (tmp_path / "t" / "underway").glob("*.jsonl")
    journal.unlink()
    with pytest.raises(gc.PrivacyViolation, match="is missing: it counts the steps"):
        train_cell(workload(), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path)


def test_a_state_of_other_settings_is_refused(tmp_path):
    with pytest.raises(Enough):
        train_cell(workload(), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path, tell=stopping_at(2))
    with pytest.raises(results.ResultError, match="other settings; delete it"):
        train_cell(workload(), experiment="t", cell={}, settings=replace(PRIVATE, lr=0.1), folder=tmp_path)


def test_scores_that_fail_dont_lose_the_training(tmp_path):
    ours = workload()

    def failing(model):
        raise RuntimeError("no METEOR here")

    with pytest.raises(RuntimeError, match="no METEOR"):
        train_cell(replace(ours, evaluate=failing), experiment="t", cell={}, settings=PRIVATE, folder=tmp_path)
    again, steps = workload(), []
    found = train_cell(
        again, experiment="t", cell={}, settings=PRIVATE, folder=tmp_path, tell=lambda step, _: steps.append(step)
    )
    assert steps == [] and found.privacy["steps"] == 12 and found.settings["steps_timed"] == 0
    assert all(torch.equal(p, q) for p, q in zip(ours.model.parameters(), again.model.parameters(), strict=True))
