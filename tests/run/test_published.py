"""What is read back of a finished run; what isn't one, or isn't of one piece, is refused."""

import json
import shutil
from pathlib import Path

import pytest

from groupclip.run import start, start_plain
from groupclip.run.errors import ConfigError
from groupclip.run.published import read_published
from small_runs import REQUEST, STEPS, stopped_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    return start(REQUEST, out).train()


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished.out, tmp_path / "copy"))


def test_it_is_what_the_run_told(finished):
    run = read_published(finished.out)
    assert run.name == "digits" and run.config.steps == STEPS
    assert run.record["epsilon"] == finished.epsilon
    assert run.facts["evaluation"] == {
        "accuracy": finished.test_accuracy, "commonest_class": finished.majority_share, "held_out_records": 360,
    }  # fmt: skip
    assert [step for step, _ in run.accuracies] == [4, 8] and run.accuracies[-1][1] == finished.test_accuracy


def test_a_run_that_never_evaluates_publishes_no_accuracy(tmp_path):
    outcome = start({**REQUEST, "eval_every": 0}, tmp_path / "run").train()
    assert "evaluation" not in read_published(outcome.out).facts


def test_the_accuracy_of_lost_weights_is_left_out(copied):
    """Step 4 was evaluated, and then the run went on from a checkpoint after step 2."""
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    for row in rows[4:]:
        row["updates"] -= 2
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [step for step, _ in read_published(copied).accuracies] == [8]


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_record_that_claims_other_than_its_facts_give_is_refused(copied):
    edit(copied / "release" / "privacy.json", epsilon=1.0)
    with pytest.raises(ConfigError, match=r"privacy\.json claims other than its facts give: epsilon: 2\."):
        read_published(copied)


@pytest.mark.parametrize("key", ["schema", "secure_noise"])
def test_a_record_of_another_version_is_named(copied, key):
    path = copied / "release" / "privacy.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))
    with pytest.raises(ConfigError, match=rf"privacy\.json: .*{key}.*; a run of this version of groupclip has what is missing"):
        read_published(copied)


def test_files_of_different_runs_are_refused(copied):
    text = (copied / "run.yaml").read_text()
    (copied / "run.yaml").write_text(text.replace("batch_size: 64", "batch_size: 65"))
    with pytest.raises(ConfigError, match=r"says batch_size=65, and release/privacy\.json 64: they are of different runs"):
        read_published(copied)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_file_that_cannot_be_read_is_named(copied, content):
    path = copied / "release" / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json .*put back what the run wrote"):
        read_published(copied)


def test_a_run_that_stopped_is_refused_with_how_to_go_on(tmp_path):
    stopped_run(tmp_path / "run", after=2)
    with pytest.raises(ConfigError, match=r"holds no release: finish it by groupclip train --resume .*run"):
        read_published(tmp_path / "run")


def test_a_run_without_privacy_is_refused(tmp_path):
    request = {k: v for k, v in REQUEST.items() if k not in ("epsilon", "clipping")}
    start_plain({**request, "no_privacy": True}, tmp_path / "plain").train()
    with pytest.raises(ConfigError, match="is a run without privacy: its accuracy tells of the training records without noise"):
        read_published(tmp_path / "plain")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        read_published(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="holds no release: name the folder of a run"):
        read_published(tmp_path)
