"""Messages and lists in the command line's words."""

import click
import pytest

from groupclip.cli.app import run
from groupclip.cli.calibrate import calibrate
from groupclip.cli.flags import in_flags
from groupclip.cli.options import MODEL_OPTIONS, TASK_OPTIONS
from groupclip.cli.train import train
from groupclip.models import MODELS
from groupclip.tasks import TASKS


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("batch_size=7 is larger", "--batch-size=7 is larger"),
        ("expected_batch_size=7.0 must", "--batch-size=7.0 must"),
        ("use adjacency='replace-one'", "use --adjacency='replace-one'"),
        ("(lr=0.1) is", "(--lr=0.1) is"),
        ("text_column=..., label_column=...", "--task-option text_column=..., --task-option label_column=..."),
        ("task_options.image_size=0 must", "--task-option image_size=0 must"),
        ("task option image_size=0 means", "--task-option image_size=0 means"),
        ("image_size=8 means nothing to model 'mlp'", "--model-option image_size=8 means nothing to model 'mlp'"),
        ("model_options.patch_size=0 must", "--model-option patch_size=0 must"),
        ("task_options has no option 'a'", "--task-option has no option 'a'"),
        ("adaptive.rate='a' must", "--adaptive rate='a' must"),
        ("adaptive has no option 'a'", "--adaptive has no option 'a'"),
        ("ask for it by name: lax_delta=true", "ask for it by name: --lax-delta"),
        # what is no setting of the command stays, and so does what is said in its words already
        ("give --lr=1, --task-option test=a", "give --lr=1, --task-option test=a"),
        ("/data/test=1/steps=2/a.csv is no folder", "/data/test=1/steps=2/a.csv is no folder"),
        ("num_classes=1 must; my_steps=2; x.lr=3", "num_classes=1 must; my_steps=2; x.lr=3"),
        ("use Mechanism.from_dict(epsilon=, delta=)", "use Mechanism.from_dict(epsilon=, delta=)"),
        ("use mechanism.calibrate(epsilon=, delta=)", "use groupclip calibrate"),
        ("groupclip.default_delta(dataset_size) is usual", "the default, min(1e-5, 1 / (2 * number of samples)), is usual"),
        ("row(s), delta=1", "row(s), --delta=1"),
        ("hardened=1 must be true or false", "hardened=1 must be true or false"),
    ],
)
def test_a_setting_is_named_as_its_option(message: str, told: str) -> None:
    assert in_flags(message, train) == told


def test_a_command_without_the_option_keeps_the_word() -> None:
    assert in_flags("lr=1, delta=2, text_column=a, task_options.test=b", calibrate) == (
        "lr=1, --delta=2, text_column=a, task_options.test=b"
    )
    assert in_flags("lr=1", click.Command("bare")) == "lr=1"


def test_the_listed_options_are_those_that_tasks_and_models_take() -> None:
    assert {task: tuple(options) for task, options in TASK_OPTIONS.items()} == {t: o for t, o in TASKS.items() if o}
    assert set(MODEL_OPTIONS) == {option for spec in MODELS.values() for option in spec.options}


@pytest.mark.parametrize("command", ["train", "check", "audit"])
def test_help_lists_the_options_of_tasks_and_models(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    told = capsys.readouterr().out
    for name, meaning in [*TASK_OPTIONS["csv"].items(), *TASK_OPTIONS["imagefolder"].items(), *MODEL_OPTIONS.items()]:
        assert any(line.split()[:1] == [name] and line.endswith(meaning) for line in told.splitlines())


def test_the_list_of_commands_has_whole_sentences(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    told = capsys.readouterr().out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(told) == 13
    assert all(line.endswith(".") and not line.endswith("...") for line in told)
