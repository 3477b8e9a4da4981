"""The advice as a whole: groups for a memory, the time, the price of tuning; what train makes of it."""

from __future__ import annotations

import json

import pytest
import torch

import groupclip as gc
from groupclip.cli.app import run as command_line
from groupclip.models import build_model
from groupclip.run.config import checked_request

BATCH = (torch.empty(8, 1, 28, 28, device="meta"), torch.empty(8, dtype=torch.int64, device="meta"))


def small() -> torch.nn.Module:
    return build_model("cnn-small", input_shape=(1, 28, 28), num_classes=10).to("meta")


def test_without_a_model_it_says_numbers_and_why():
    found = gc.advise(dataset_size=20_000, epsilon=2.0, start="linear")
    plan = found.numbers.mechanism
    text = str(found)
    assert f"batch size {plan.expected_batch_size:,}, 200 steps" in text
    assert "tuning by 10 runs on the private data would spend epsilon" in text
    spent = gc.search_cost(plan, delta=1e-5, mean_runs=10).epsilon
    assert found.search_epsilon == spent > 2.0
    assert found.groups == "all-layer" and found.microbatch is None and found.seconds is None


def test_train_takes_its_settings():
    settings = gc.advise(dataset_size=20_000, epsilon=2.0, start="linear").settings()
    assert checked_request({"task": "digits", **settings})["lr"] == settings["lr"]


def test_groups_and_samples_at_once_fit_the_memory():
    roomy = gc.advise(dataset_size=2_000, epsilon=3.0, model=small(), example_batch=BATCH, memory="400MB")
    assert roomy.groups == "all-layer"
    plan = gc.plan(small(), BATCH, groups=1, samples=roomy.microbatch)
    assert plan.predicted_peak <= 400e6
    alone = gc.plan(small(), BATCH, groups=1, samples=1).predicted_peak
    least = gc.plan(small(), BATCH, groups=9, samples=1).predicted_peak
    if least < alone:
        tight = gc.advise(dataset_size=2_000, epsilon=3.0, model=small(), example_batch=BATCH, memory=(alone + least) // 2)
        assert isinstance(tight.groups, gc.Partition) and len(tight.groups) > 1
        assert "with one, not even a single sample fits" in tight.text()


def test_the_time_is_told_and_kept_to():
    found = gc.advise(dataset_size=50_000, epsilon=3.0, seconds_per_sample=0.01, hours=0.5)
    assert 0 < found.seconds <= 1800
    assert "There is no time for larger ones" in found.text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"memory": "1GB"}, "give model=, example_batch= and memory=, or none"),
        ({"hours": 1.0}, "give seconds_per_sample= and hours=, or none"),
        ({"hours": -1.0, "seconds_per_sample": 1.0}, "hours=-1.0 must be > 0"),
    ],
)
def test_what_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        gc.advise(dataset_size=1000, epsilon=3.0, **more)


def test_the_command(capsys):
    assert command_line(["advise", "--dataset-size", "5000", "--epsilon", "3", "--start", "linear", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["steps"] == 200 and told["reasons"]
    assert command_line(["advise", "--dataset-size", "5000", "--epsilon", "3", "--model", "cnn-small"]) == 2
    assert "give --model and --memory" in capsys.readouterr().err
    assert command_line(["advise", "--dataset-size", "5000", "--epsilon", "3", "--classes", "4"]) == 2
    assert "--classes is about a model" in capsys.readouterr().err
