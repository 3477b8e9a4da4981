"""Public pretraining before the private steps: done once, told, and free of privacy."""

import json

import pytest
import torch
from safetensors.torch import load_file

from groupclip.models import build_model
from groupclip.run import ConfigError, Nobody, RunInterrupted, resume, start
from small_runs import SELDOM, StopAfter

REQUEST = {
    "task": "digits", "model": "vit-micro", "model_options": {"patch_size": 4}, "clipping": "uniform:2", "epsilon": 3.0,
    "steps": 2, "batch_size": 32, "microbatch": 32, "eval_every": 0, "pretrain_steps": 3, "device": "cpu",
}  # fmt: skip


class Told(Nobody):
    """Remembers what it was told; asks to stop in the pretraining after a step of it, if one is given."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.pretrained: list[tuple[int, int]] = []
        self.stop_after = stop_after

    def pretraining(self, step, steps):
        self.pretrained.append((step, steps))

    def stop_requested(self):
        return len(self.pretrained) == self.stop_after


def initial_weights():
    return build_model("vit-micro", input_shape=(1, 8, 8), num_classes=10, patch_size=4, seed=0).state_dict()


def test_it_comes_before_the_private_steps_and_is_told(tmp_path):
    watcher = Told()
    run = start({**REQUEST, "lr": 1e-30, "optimizer": "sgd"}, tmp_path / "run")  # private steps move nothing then
    outcome = run.train(watcher)
    assert watcher.pretrained == [(1, 3), (2, 3), (3, 3)]
    weights, initial = load_file(outcome.release / "model.safetensors"), initial_weights()
    moved = {name for name in initial if not torch.allclose(weights[name], initial[name], atol=1e-6)}
    assert "blocks.0.attn.qkv.weight" in moved
    assert not any(name.startswith("head.") for name in moved)  # the head for letters is thrown away
    card = (outcome.release / "README.md").read_text()
    assert "trained after public pretraining on drawn letters" in card
    assert run.loop.progress.pretraining["what"] in card
    assert "Public pretraining" in outcome.report.read_text()
    assert "pretrain_steps: 3" in (outcome.out / "run.yaml").read_text()


def test_it_spends_no_privacy(tmp_path):
    first, second = (start({**REQUEST, "pretrain_steps": n}, tmp_path / str(n)).train() for n in (0, 2))
    facts = [json.loads((outcome.release / "privacy.json").read_text()) for outcome in (first, second)]
    assert facts[0] == facts[1]
    assert "from random weights" in (first.release / "README.md").read_text()


def test_stopped_in_it_a_resumed_run_begins_it_again(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted, match="stopped in the public pretraining, which will begin again"):
        start(REQUEST, out).train(Told(stop_after=2))
    watcher = Told()
    outcome = resume(out).train(watcher)
    assert watcher.pretrained == [(1, 3), (2, 3), (3, 3)]
    assert (outcome.steps, outcome.updates) == (2, 2)


def test_resumed_after_it_a_run_does_not_do_it_again(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted, match="after step 1"):
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(StopAfter(1))
    watcher = Told()
    run = resume(out)
    outcome = run.train(watcher)
    assert watcher.pretrained == []
    assert (outcome.steps, outcome.updates) == (2, 2)
    assert run.loop.progress.pretraining["what"] in (outcome.release / "README.md").read_text()


def test_a_model_that_cannot_have_it_is_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "run"
    request = {**REQUEST, "model": "linear", "model_options": {}, "clipping": "layer-wise"}
    with pytest.raises(ConfigError, match="only the ViTs and cnn-small can be pretrained on drawn letters, not linear"):
        start(request, out)
    assert not out.exists()


def test_the_recipe_asks_for_it_only_with_its_own_model(tmp_path):
    with_recipe = start({"task": "digits", "epsilon": 3.0}, tmp_path / "a")
    with_recipe.folder.close()
    assert with_recipe.config.pretrain_steps > 0
    other = start({"task": "digits", "epsilon": 3.0, "model": "linear"}, tmp_path / "b")
    other.folder.close()
    assert other.config.pretrain_steps == 0
