"""Runs of every sampling, adjacency, unit, noise and kind of thresholds: what they write is what was asked for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from groupclip.run import ConfigError, RunInterrupted, resume, start
from groupclip.run.config import checked_request
from small_runs import REQUEST, SELDOM, STEPS, StopAfter

KINDS: dict[str, dict[str, Any]] = {
    "replace-one": {"adjacency": "replace-one"},
    "truncated": {"sampling": "truncated-poisson", "adjacency": "zero-out", "max_batch_size": 80, "microbatch": 32},
    "without replacement": {"sampling": "without-replacement", "adjacency": "replace-one"},
    "full batch": {"sampling": "full-batch", "batch_size": 1437, "microbatch": 1437},
    "by RDP": {"accountant": "RDP"},
    "adaptive": {"adaptive": {"quantile": 0.7, "share": 0.02}, "allocation": "threshold", "model": "mlp"},
    "hardened": {"hardened": True, "allocation": "dimension", "model": "mlp"},
}
FACTS = ("sampling", "adjacency", "max_batch_size")


def privacy_of(outcome: Any) -> dict[str, Any]:
    return json.loads((outcome.release / "privacy.json").read_text(encoding="utf-8"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_and_resumed_states_its_plan(kind: str, tmp_path: Path) -> None:
    asked = {**REQUEST, **KINDS[kind]}
    with pytest.raises(RunInterrupted):
        start(asked, tmp_path / "run", checkpoint_seconds=SELDOM).train(StopAfter(3))
    run = resume(tmp_path / "run", asked)
    mechanism = run.trainer.mechanism
    assert {name: getattr(mechanism, name) for name in FACTS if name in asked} == {
        n: asked[n] for n in FACTS if n in asked
    }
    outcome = run.train()
    stated = privacy_of(outcome)
    assert stated["sampling_used"] == {"groupclip": STEPS, "user": 0}
    assert stated["adjacency"] == mechanism.adjacency
    assert stated["epsilon"] == mechanism.epsilon(delta=stated["delta"]) <= 3.0
    assert stated["epsilon"] >= (2.97 if kind != "by RDP" else 2.0)
    assert stated["hardened_against_floating_point_attacks"] == (kind == "hardened")
    assert [entry["noise_multiplier"] > 0 for entry in stated["other_releases"]] == [True] * (kind == "adaptive")


def test_an_accountant_decides_the_noise(tmp_path: Path) -> None:
    runs = {name: start({**REQUEST, "accountant": name}, tmp_path / str(name)) for name in (None, "RDP")}
    for run in runs.values():
        run.folder.close()
    assert runs["RDP"].trainer.noise_multiplier > 1.01 * runs[None].trainer.noise_multiplier
    assert 2.97 <= runs["RDP"].trainer.mechanism.spent(delta=1e-5, accountant="RDP").epsilon <= 3.0


def notes(path: Path, users: int = 60) -> Path:
    """User i has 1 to 4 notes."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "patient"])
        for user in range(users):
            label = "ill" if user % 2 else "well"
            writer.writerows([f"note {n} of ward {user % 5}", label, f"p{user}"] for n in range(user % 4 + 1))
    return path


def by_user(path: Path) -> dict[str, Any]:
    return {
        "task": f"csv:{path}", "model": "mlp", "task_options": {"vocabulary": 64, "max_length": 6, "user_column": "patient"},
        "batch_size": 12, "clipping": "layer-wise", "epsilon": 3.0, "steps": 6, "eval_every": 3, "device": "cpu",
    }  # fmt: skip


def test_users_are_drawn_clipped_and_stated(tmp_path: Path) -> None:
    request = by_user(notes(tmp_path / "notes.csv"))
    with pytest.raises(RunInterrupted):
        start(request, tmp_path / "run", checkpoint_seconds=SELDOM).train(StopAfter(3))
    run = resume(tmp_path / "run")
    task, mechanism = run.task, run.trainer.mechanism
    assert task.owners is not None
    assert (mechanism.unit, mechanism.dataset_size) == ("user", len(set(task.owners)))
    assert mechanism.dataset_size < 60 < len(task.train)  # one user in five is held out
    outcome = run.train()
    stated = privacy_of(outcome)
    assert stated["unit_of_privacy"].startswith("one user")
    assert stated["sampling_used"] == {"groupclip": 6, "user": 0}
    # the model that is released is the one of samples
    weights = load_file(outcome.release / "model.safetensors")
    assert set(weights) == set(run.trainer.model.state_dict())
    card = (outcome.release / "README.md").read_text(encoding="utf-8")
    # how many notes there are depends on single users, and isn't told
    assert "- users in the training data: " in card and "- training samples: " not in card
    assert str(len(task.train)) not in (outcome.release / "privacy.json").read_text(encoding="utf-8")


def test_users_stay_on_one_side_of_the_split(tmp_path: Path) -> None:
    run = start(by_user(notes(tmp_path / "notes.csv")), tmp_path / "run")
    run.folder.close()
    assert run.task.owners is not None
    rows = sum(user % 4 + 1 for user in range(60) if f"p{user}" in run.task.owners)
    assert len(run.task.train) == rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sampling": "truncated-poisson"},
            "'truncated-poisson' with adjacency='add-or-remove-one' can't be accounted",
        ),
        ({"sampling": "without-replacement", "adjacency": "zero-out"}, "can't be accounted"),
        ({"sampling": "full-batch", "batch_size": 64}, "must be dataset_size=1437"),
        ({"max_batch_size": 70}, "has no meaning with sampling='poisson'"),
        ({"adjacency": "replace-one", "accountant": "RDP"}, "has no sound bound"),
        ({"adaptive": {"quantile": 2.0}}, "quantile=2.0 must be in"),
    ],
    ids=str,
)
def test_what_has_no_sound_accountant_is_refused_before_anything_is_written(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        start({**REQUEST, **settings}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling": "shuffled"}, "sampling='shuffled' is unknown; it is one of poisson"),
        ({"adjacency": "any"}, "adjacency='any' is unknown"),
        ({"accountant": "GDP"}, "accountant='GDP' is unknown"),
        ({"allocation": "mine"}, "allocation='mine' is unknown"),
        ({"hardened": "yes"}, "hardened='yes' must be true or false"),
        ({"adaptive": 0.5}, "adaptive=0.5 must be a mapping"),
        ({"adaptive": {"quantil": 0.5}}, "adaptive has no option 'quantil'"),
        ({"adaptive": {"quantile": "half"}}, r"adaptive\.quantile='half' must be a number"),
        ({"max_batch_size": 0}, "max_batch_size=0 must be at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_request(given)


@pytest.mark.parametrize(
    "other",
    [{"sampling": "full-batch"}, {"adjacency": "replace-one"}, {"hardened": True}, {"allocation": "threshold"},
     {"adaptive": {"quantile": 0.5}}, {"accountant": "RDP"}],
    ids=str,
)  # fmt: skip
def test_a_run_can_not_change_its_kind(other: dict[str, Any], stopped: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(other))}=.* differs from the run to be resumed"):
        resume(stopped, other)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(RunInterrupted):
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(StopAfter(1))
    return out


def test_padded_batches_have_one_shape(tmp_path: Path) -> None:
    """Truncated Poisson batches are filled up, so that neither shapes nor passes tell how many samples a step drew."""
    run = start({**REQUEST, **KINDS["truncated"]}, tmp_path / "run")
    run.folder.close()
    pieces = [[len(piece.weights) for piece in batch] for batch in run.loop._batches()]
    assert pieces == [[32, 32, 32]] * STEPS
