"""Memory that isn't enough: told with what needs less, and a run goes on with smaller micro-batches."""

import pytest
import torch

from groupclip.cli.app import run as command
from groupclip.run import ConfigError, RunFailed, read_yaml, resume, start
from groupclip.run.shortage import enough_memory, is_shortage
from small_runs import REQUEST, STEPS, contents, stopped_run


def too_large() -> None:
    torch.empty(2**50, dtype=torch.uint8)  # 2^50 bytes: more than any machine has


def test_what_torch_says_of_memory_is_known():
    with pytest.raises(RuntimeError) as caught:
        too_large()
    assert is_shortage(caught.value) and is_shortage(MemoryError()) and is_shortage(torch.OutOfMemoryError())
    assert not is_shortage(RuntimeError("shapes differ")) and not is_shortage(ValueError("not enough memory"))


def test_a_shortage_names_the_settings_and_other_errors_pass():
    said = r"memory can't hold the model\. What needs less: smaller values of model=\.\.\., vocabulary=\.\.\.$"
    with pytest.raises(ConfigError, match=said), enough_memory("the model", "model", "vocabulary"):
        too_large()
    with pytest.raises(RuntimeError, match="shapes differ"), enough_memory("the model", "model"):
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("at", ["groupclip.run.loading.load_task", "groupclip.run.train.build", "groupclip.run.plain.model_of"])
def test_the_command_says_so_without_a_traceback(at, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(at, lambda *_, **__: too_large())
    asked = ["--no-privacy"] if "plain" in at else ["--epsilon", "3"]
    assert command(["train", "--task", "digits", "--steps", "1", *asked, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "memory can't hold" in said and ("--model=..." in said or "--task-option max_length=..." in said)
    assert not (tmp_path / "run").exists()


def test_a_step_that_memory_can_not_hold_goes_on_in_smaller_parts(tmp_path, monkeypatch):
    """The step stays charged; the rest of the run holds fewer records at once."""
    out = tmp_path / "run"
    stopped_run(out, 2)
    monkeypatch.setattr("groupclip.run.loop.unit_losses", lambda *_: too_large())
    with pytest.raises(RunFailed, match=r"step 3 failed: memory can't hold 64 records at once.*--resume .* --microbatch 32$"):
        resume(out).train()
    monkeypatch.undo()
    run = resume(out, {"microbatch": 32})
    assert run.config.microbatch == read_yaml(out / "run.yaml")["microbatch"] == 32
    run.folder.close()
    again = resume(out)  # it is kept
    assert again.config.microbatch == 32
    outcome = again.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 1)


def test_it_can_be_changed_in_run_yaml_too(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 2)
    text = (out / "run.yaml").read_text()
    (out / "run.yaml").write_text(text.replace("microbatch: 64", "microbatch: 7"))
    run = resume(out)
    assert run.config.microbatch == 7
    assert run.train().updates == STEPS


def test_groups_that_were_planned_for_it_hold_it(tmp_path):
    out = tmp_path / "run"
    run = start({**REQUEST, "clipping": "planned:2", "microbatch": 8}, out)
    run.loop.save()
    run.folder.close()
    before = contents(out)
    with pytest.raises(ConfigError, match="microbatch=4 differs from the run to be resumed"):
        resume(out, {"microbatch": 4})
    assert contents(out) == before
