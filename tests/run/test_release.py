"""A run that releases an average of its weights: what it holds, what it says, and that it goes on."""

import json

import pytest
import torch
from safetensors.torch import load_file

from groupclip.run import ConfigError, RunInterrupted, resume, start
from groupclip.run.checkpoint import load
from groupclip.statement import Told, questions
from small_runs import REQUEST, SELDOM, STEPS, At, StopAfter

pytestmark = pytest.mark.usefixtures("outlines")


def weights_at_every_step(run):
    """Train, and keep the weights after each step."""
    kept = []

    def keep(row):
        kept.append({n: p.detach().clone().as_subclass(torch.Tensor) for n, p in run.model.named_parameters()})

    watcher = At(0, lambda: None)
    watcher.step = keep
    return run.train(watcher), kept


def test_the_average_is_what_is_released_evaluated_and_told(tmp_path):
    run = start({**REQUEST, "average": "last:3"}, tmp_path / "run")
    outcome, kept = weights_at_every_step(run)
    released = load_file(outcome.release / "model.safetensors")
    for name, value in released.items():
        assert torch.allclose(value, torch.stack([w[name] for w in kept[-3:]]).mean(0), atol=1e-6)
        assert not torch.equal(value, kept[-1][name])
    stated = json.loads((outcome.release / "privacy.json").read_text())
    assert stated["weights"] == "the mean of the weights after each of the last 3 steps"
    card = (outcome.release / "README.md").read_text()
    assert "The final weights are the mean of the weights after each of the last 3 steps: such an average costs no privacy" in card
    assert "mean of the weights" in outcome.report.read_text()
    images, labels = run.task.test[:]
    right = (images.flatten(1) @ released["head.weight"].T + released["head.bias"]).argmax(1) == labels
    assert outcome.test_accuracy == pytest.approx(right.double().mean().item())


def test_a_run_without_an_average_releases_the_last_weights(tmp_path):
    run = start(REQUEST, tmp_path / "run")
    outcome, kept = weights_at_every_step(run)
    assert all(torch.equal(value, kept[-1][name]) for name, value in load_file(outcome.release / "model.safetensors").items())
    assert json.loads((outcome.release / "privacy.json").read_text())["weights"] == "those after the last step"


@pytest.mark.parametrize("how", ["ema:0.9", "tail:0.5"])
def test_a_stopped_run_keeps_its_average(tmp_path, how):
    run = start({**REQUEST, "average": how}, tmp_path / "run", checkpoint_seconds=SELDOM)
    with pytest.raises(RunInterrupted):
        run.train(StopAfter(6))
    saved = load(run.folder.checkpoint)
    assert saved.average["updates"] == 6 and saved.average["averaged"] == {"ema:0.9": 6, "tail:0.5": 2}[how]
    means = run.trainer.average.state_dict()["means"]
    again = resume(tmp_path / "run")
    kept = again.trainer.average.state_dict()
    assert kept["updates"] == 6 and all(torch.equal(value, means[name]) for name, value in kept["means"].items())
    again.train()
    assert again.trainer.average.updates == STEPS


def test_an_average_begins_after_public_pretraining(tmp_path):
    request = {**REQUEST, "model": "vit-micro", "steps": 2, "pretrain_steps": 2, "average": "ema:0.9", "eval_every": 0}
    run = start(request, tmp_path / "run")
    begun = []
    watcher = At(0, lambda: None)
    watcher.begin = lambda _: begun.append(run.trainer.average.weights())
    run.train(watcher)
    assert not all(torch.equal(a, b) for a, b in zip(begun[0].values(), run.trainer.average.weights().values(), strict=True))
    first = start({**request, "steps": 1, "seed": 0}, tmp_path / "other")
    before = first.trainer.average.weights()
    assert any(not torch.equal(before[name], value) for name, value in begun[0].items())
    first.folder.close()


def test_other_averages_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"average='swa': 'swa' is no average of weights: .* or none"):
        start({**REQUEST, "average": "swa"}, tmp_path / "run")


def test_a_card_answers_what_the_run_knows_and_marks_the_rest(tmp_path):
    """As somebody reads it who answers for the data: the rows that are marked are what to ask of whoever trained."""
    told = {"search": "none", "trust": "The school trains on its own machine."}
    outcome = start({**REQUEST, "told": told}, tmp_path / "run").train()
    record = json.loads((outcome.release / "privacy.json").read_text())
    found = {each.topic: each for each in questions(record)}
    assert {topic for topic, each in found.items() if not each.known} == {
        "filtering", "versions and commit", "bias against small groups", "composition", "access and collection",
    }  # fmt: skip
    assert found["early stopping"].answer.startswith("No: the number of steps was fixed beforehand.")
    assert found["normalisation constants"].answer.startswith("No: (x / 16 - 0.5) / 0.5, fixed beforehand.")
    assert found["vocabulary"].answer.startswith("No: there is none.")
    card = (outcome.release / "README.md").read_text()
    rows = card.split("## Questions that readers ask")[1].split("###")[0].splitlines()
    assert sum(row.startswith("| ") for row in rows) == len(found) + 2
    assert "The school trains on its own machine." in card and "there was none, as whoever trained says" in card
    assert "told" in (tmp_path / "run" / "run.yaml").read_text()


def test_told_is_checked_before_anything_is_written(tmp_path):
    for wrong, message in (
        ({"colour": "red"}, "told has no option 'colour'"),
        ({"search": "some"}, "search='some' is unknown"),
        ({"search": "counted"}, "a search that is counted has an epsilon"),
        ({"trust": 3}, "told.trust=3 must be text"),
    ):
        with pytest.raises(ConfigError, match=message):
            start({**REQUEST, "told": wrong}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert Told.from_dict({"search": "counted", "search_epsilon": 4.0}).search_epsilon == 4.0
