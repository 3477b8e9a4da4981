"""Runs on several views of every image."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from groupclip.run import ConfigError, start, start_plain
from groupclip.run.losses import unit_losses, views_of
from groupclip.run.recipes import augmentation
from small_runs import REQUEST, STEPS


def test_a_run_with_views_says_so_and_spends_nothing_more(tmp_path):
    outcome = start({**REQUEST, "views": 3}, tmp_path / "run").train()
    stated = json.loads((outcome.release / "privacy.json").read_text())
    plain = start(REQUEST, tmp_path / "plain").train()
    assert (stated["views"], stated["sampling_used"]) == (3, {"groupclip": STEPS, "user": 0})
    assert outcome.epsilon == plain.epsilon
    card = (outcome.release / "README.md").read_text()
    assert "the mean gradient of 3 views of every sample" in card
    assert "augmentation: crop, 3 random views of an image in each step" in card
    settings = yaml.safe_load((outcome.out / "run.yaml").read_text())
    assert (settings["views"], settings["augment"]) == (3, "crop")
    assert "augmentation" not in (plain.release / "README.md").read_text()


def test_the_losses_of_views_are_means(tmp_path):
    """Of rows that are told apart: the model is called once, with the views of an image one after another."""
    run = start({**REQUEST, "views": 4, "augment": "crop-flip"}, tmp_path / "run")
    images, labels = run.task.train[:5]
    torch.manual_seed(3)
    losses = unit_losses(run.trainer, (images, labels))
    torch.manual_seed(3)
    rows = views_of(images, 4, "crop-flip")
    with torch.no_grad():
        expected = [
            F.cross_entropy(run.model(four), label.expand(4)) for four, label in zip(rows, labels, strict=True)
        ]
    assert torch.allclose(losses.detach(), torch.stack(expected), atol=1e-6)
    run.folder.close()


def test_views_of_padded_batches_have_their_sample_s_weight(tmp_path):
    request = {**REQUEST, "views": 2, "sampling": "truncated-poisson", "max_batch_size": 80, "microbatch": 32}
    request["adjacency"] = "zero-out"
    outcome = start(request, tmp_path / "run").train()
    assert outcome.updates == STEPS


def test_a_baseline_sees_views_too(tmp_path, monkeypatch):
    seen = []

    def same(x, k, how):
        seen.append((k, how))
        return x.unsqueeze(1).expand(-1, k, -1, -1, -1)

    monkeypatch.setattr("groupclip.run.plain.views_of", same)
    request = {key: REQUEST[key] for key in ("task", "model", "steps", "batch_size", "eval_every", "device")}
    start_plain({**request, "views": 2}, tmp_path / "run").train()
    assert set(seen) == {(2, "crop")} and len(seen) == STEPS


def test_digits_are_not_mirrored():
    assert [augmentation(task) for task in ("digits", "mnist", "fashion-mnist", "imagefolder")] == ["crop"] * 2 + ["crop-flip"] * 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"views": 0}, "views=0 must be at least 1"),
        ({"views": 2, "augment": "none"}, "would be 2 times the same"),
        ({"views": 2, "augment": "mixup"}, "augment='mixup' is unknown"),
    ],
)
def test_other_views_are_refused(tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        start({**REQUEST, **more}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_views_of_texts_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"word{n},{n % 2}\n" for n in range(40)))
    with pytest.raises(ConfigError, match="views are made of images, and task 'csv' has none"):
        start({"task": f"csv:{tmp_path / 't.csv'}", "epsilon": 3.0, "views": 2}, tmp_path / "run")


def test_features_of_images_are_the_linear_model_s_and_have_no_views(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (60, 12, 12), dtype=np.uint8), np.arange(60) % 10
    np.savez(tmp_path / "m.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    request = {"task": f"mnist:{tmp_path / 'm.npz'}", "task_options": {"features": "scattering"}, "epsilon": 3.0, "steps": 2}
    outcome = start({**request, "batch_size": 20}, tmp_path / "run").train()
    facts = json.loads((outcome.release / "config.json").read_text())
    assert (facts["model"], facts["input_shape"]) == ("linear", [81, 3, 3])
    with pytest.raises(ConfigError, match="views are made of images, and task 'mnist' has features"):
        start({**request, "views": 2}, tmp_path / "other")
    with pytest.raises(ConfigError, match="features='wavelets' is unknown"):
        start({**request, "task_options": {"features": "wavelets"}}, tmp_path / "other")
