"""The recipe for texts: what it advises, and that it learns where the words decide."""

import csv
import random

import pytest
import yaml

from groupclip.run import start
from groupclip.run.config import checked_request, task_options
from groupclip.run.resolve import advised_reading, resolve
from groupclip.tasks import load_task

pytestmark = pytest.mark.usefixtures("outlines")

COMMON = ["the", "a", "of", "it", "and", "to", "in", "is", "that", "with"]
TELLING = {"good": ["wonderful", "touching", "brilliant", "fun"], "bad": ["dreadful", "tedious", "clumsy", "flat"]}


def rows_of(number, seed=0):
    """Texts of common words and one that tells the label; a third are bad."""
    draw = random.Random(seed)
    for _ in range(number):
        label = "bad" if draw.random() < 1 / 3 else "good"
        words = [*draw.choices(COMMON, k=6), draw.choice(TELLING[label])]
        draw.shuffle(words)
        yield " ".join(words), label


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows_of(1000))
    return path


def config_of(path, **more):
    request = advised_reading(checked_request({"task": f"csv:{path}", "epsilon": 3, **more}))
    options = {name: value for name, value in request.get("task_options", {}).items() if name in ("max_length", "prefix")}
    return options, resolve(request, load_task("csv", path, task_options(request.get("task_options", {}))))


def test_a_text_task_has_a_linear_model_on_full_batches(reviews):
    options, config = config_of(reviews)
    assert (config.model, config.sampling, config.clip) == ("linear", "full-batch", "abadi")
    assert config.batch_size == len(load_task("csv", reviews).train)
    assert options == {"max_length": 128, "prefix": 4}
    assert config.task_options == options  # so that run.yaml, a resumed run and another version read the file alike


def test_what_a_person_says_wins(reviews):
    options, config = config_of(reviews, task_options={"prefix": 0}, lr=5)
    assert options == {"max_length": 128, "prefix": 0}
    assert config.lr == 5


@pytest.mark.parametrize("more", [{"batch_size": 100}, {"sampling": "poisson"}])
def test_a_batch_that_is_asked_for_is_sampled(reviews, more):
    _, config = config_of(reviews, **more)
    assert config.sampling == "poisson"
    assert config.batch_size < len(load_task("csv", reviews).train)


def test_models_with_hidden_layers_have_a_recipe_of_their_own(reviews):
    options, config = config_of(reviews, model="mlp")
    assert options == {}
    assert (config.optimizer, config.sampling) == ("adamw", "poisson")


def test_it_learns_where_the_words_decide(reviews, tmp_path):
    """At epsilon 3, some 800 texts: the least of 40 runs was 98.6 % of the held-out ones; guessing has two thirds."""
    outcome = start({"task": f"csv:{reviews}", "epsilon": 3}, tmp_path / "run").train()
    assert outcome.epsilon <= 3
    assert outcome.test_accuracy > 0.85
    settings = yaml.safe_load((outcome.out / "run.yaml").read_text())
    assert settings["task_options"] == {"max_length": 128, "prefix": 4}
