"""Settings: every wrong one is refused by name, and what is written is read back as it was."""

import pytest

from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.spent import default_delta
from groupclip.run import ConfigError, RunConfig, read_yaml, resolve, start, steps_of
from groupclip.run.build import build
from groupclip.run.config import checked_request, to_yaml
from groupclip.run.pretraining import check_pretrainable
from groupclip.tasks import load_task


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilom": 3}, "unknown setting 'epsilom'; did you mean 'epsilon'"),
        ({"epsilon": 0}, "epsilon=0 must be > 0"),
        ({"epsilon": "much"}, "epsilon='much' must be a number"),
        ({"epsilon": float("nan")}, "epsilon=nan must be > 0"),
        ({"epsilon": float("inf")}, "epsilon=inf must be > 0 and finite"),
        ({"epsilon": True}, "epsilon=True must be a number"),
        ({"delta": 1}, "delta=1 must be > 0 and < 1"),
        ({"lr": -1}, "lr=-1 must be > 0"),
        ({"lr": 10**400}, r"lr=10000000000000000000\.\. is beyond the numbers that can be counted with"),
        ({"epsilon": -(10**400)}, r"epsilon=-1000000000000000000\.\. is beyond"),
        ({"momentum": 1.0}, "momentum=1 must be >= 0 and < 1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be >= 0"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"batch_size": "64"}, "batch_size='64' must be a whole number"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be at most 9223372036854775807"),
        ({"eval_every": 10**30}, "eval_every=1000000000000000000000000000000 must be at most"),
        ({"task_options": {"image_size": 100_000}}, "task_options.image_size=100000 must be at most 4096"),
        ({"task_options": {"max_length": "1000000000"}}, "task_options.max_length=1000000000 must be at most 1048576"),
        ({"task_options": {"vocabulary": 10**12}}, "task_options.vocabulary=1000000000000 must be at most"),
        ({"steps": 5, "epochs": 1}, "steps and epochs are both given"),
        ({"optimizer": "adam"}, "optimizer='adam' is unknown; it is one of adamw, sgd"),
        ({"schedule": "step"}, "one of constant, linear, cosine"),
        ({"device": "tpu"}, "one of auto, cpu, cuda"),
        ({"thresholds": 0}, "thresholds=0 must be > 0"),
        ({"thresholds": [1.0, -1.0]}, "thresholds=-1 must be > 0"),
        ({"thresholds": {"a": "big"}}, r"thresholds\[a\]='big' must be a number"),
        ({"task": "csv:a.csv", "data": "b.csv"}, "has a path already"),
        ({"task": "csv:"}, "ends with a colon"),
        ({"task": ""}, "task='' must be text"),
        ({"task_options": {"colour": 1}}, "task_options has no option 'colour'"),
        ({"task_options": {"image_size": "big"}}, "task_options.image_size='big' must be a whole number"),
        ({"model_options": [1]}, "must be a mapping"),
        ({"clipping": 2}, "clipping=2 must be text"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given, message):
    with pytest.raises(ConfigError, match=message):
        checked_request(given)


@pytest.mark.parametrize("optimizer", ["adamw", None])  # None: the recipe's, which is adamw for images
def test_momentum_without_sgd_is_refused(tmp_path, optimizer):
    request = {"task": "digits", "model": "cnn-small", "epsilon": 3.0, "momentum": 0.9, "optimizer": optimizer}
    with pytest.raises(ConfigError, match=r"momentum=0\.9 is of sgd and means nothing with optimizer='adamw'"):
        start(request, tmp_path / "run")
    digits = load_task("digits")
    assert resolve(checked_request({**request, "optimizer": "sgd"}), digits).momentum == 0.9
    # the recipe's own momentum goes with the recipe's own optimizer
    assert resolve(checked_request({"task": "digits", "epsilon": 3.0}), digits).momentum == 0.9
    assert resolve(checked_request({"task": "digits", "epsilon": 3.0, "optimizer": "adamw"}), digits).momentum == 0.0


def test_numbers_written_without_a_dot_are_numbers(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("delta: 1e-5\nlr: 2e-3\nthresholds: [1e-1, 1]\n")
    assert checked_request(read_yaml(path)) == {"delta": 1e-5, "lr": 2e-3, "thresholds": [0.1, 1.0]}


@pytest.mark.parametrize("text", ["- a\n- b\n", "", "a: [1\n", "\N{NULL}"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        read_yaml(path)


def test_the_path_of_a_task_becomes_absolute_so_that_the_settings_work_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checked_request({"task": "csv:notes.csv"}) == {"task": "csv", "data": str(tmp_path / "notes.csv")}
    options = checked_request({"task_options": {"test": "held_out.csv"}})["task_options"]
    assert options == {"test": str(tmp_path / "held_out.csv")}


def test_yaml_gives_the_same_settings_back(tmp_path):
    config = resolve(
        checked_request({
            "task": "digits", "epsilon": 2, "delta": 3e-7, "thresholds": {"a": 0.5, "b": 1}, "lr": 1e-9,
            "clipping": {"head*": "a", "*": "b"}, "model_options": {"patch_size": 2},
        }),
        load_task("digits"),
    )  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(config, "a heading\nof two lines"))
    assert RunConfig(**checked_request(read_yaml(path))) == config


def test_what_is_left_open_comes_from_the_recipe():
    config = resolve(checked_request({"task": "digits", "epsilon": 3}), load_task("digits"))
    assert config.model.startswith("vit")
    assert config.clipping == "uniform:2"
    assert config.delta == default_delta(1437)
    assert config.steps // config.eval_every <= 20


def test_epsilon_is_nobodys_default():
    with pytest.raises(ConfigError, match=r"no epsilon is given.*--epsilon 3"):
        resolve(checked_request({"task": "digits"}), load_task("digits"))


@pytest.mark.parametrize("delta", [0.1, 1 / 1437])
def test_a_delta_of_one_in_n_or_more_is_refused_unless_it_is_asked_for_by_name(tmp_path, delta):
    request = {"task": "digits", "model": "linear", "clipping": "layer-wise", "epsilon": 3, "delta": delta, "steps": 1}
    with pytest.raises(ConfigError, match=r"one in the number of samples \(1,437\).*at most delta=1e-05.*lax_delta=true"):
        start(request, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = start({**request, "lax_delta": True}, tmp_path / "run")
    run.folder.close()
    assert read_yaml(tmp_path / "run" / "run.yaml")["lax_delta"] is True
    start({**request, "delta": 1 / 1438}, tmp_path / "less").folder.close()


def test_a_batch_larger_than_the_data_is_refused():
    request = checked_request({"task": "digits", "epsilon": 3, "batch_size": 1438})
    with pytest.raises(ConfigError, match="batch_size=1438 is larger than the 1437 training samples"):
        resolve(request, load_task("digits"))


@pytest.mark.parametrize(
    ("epochs", "size", "batch", "steps"),
    [(5, 50_000, 1000, 250), (0.1, 100, 10, 1), (0.001, 100, 10, 1), (1, 1437, 256, 6), (0.3, 1000, 100, 3)],
)
def test_epochs_are_steps_rounded_up(epochs, size, batch, steps):
    assert steps_of(epochs, size, batch) == steps


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn-small", "vit-micro", "vit-tiny"])
def test_the_defaults_of_a_task_fit_every_model(model):
    task = load_task("digits")
    config = resolve(checked_request({"task": "digits", "epsilon": 3, "model": model}), task)
    mechanism = Mechanism(dataset_size=1437, expected_batch_size=config.batch_size, steps=config.steps, noise_multiplier=1)
    trainer = build(config, task, mechanism)
    check_pretrainable(config, trainer.model)
    trainer.engine.detach()
