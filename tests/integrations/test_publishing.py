"""What leaves the machine: weights, card and record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
hub = pytest.importorskip("huggingface_hub")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer  # noqa: E402
from trainers import KEY, plan, settings, work  # noqa: E402

RELEASED = {"README.md", "config.json", "model.safetensors", "privacy.json"}


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every upload, with the names of its files."""
    found: list[dict[str, Any]] = []

    def upload_folder(self: Any, **given: Any) -> str:
        folder = Path(given["folder_path"])
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        card = (folder / "README.md").read_text(encoding="utf-8")
        found.append(given | {"files": files, "card": card})
        return "https://example.invalid/commit"

    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(
        hub.HfApi, "create_repo", lambda self, name, **_: hub.RepoUrl(f"https://huggingface.co/me/{name}")
    )
    return found


def trained(folder: Path, **others: Any) -> PrivateTrainer:
    given = work("sequence classification")
    named = {"sampling_key": others.pop("sampling_key")} if "sampling_key" in others else {}
    args = settings(folder, save_strategy="steps", save_steps=2, logging_steps=1, hub_token="secret token", **others)
    trainer = PrivateTrainer(
        given.model, args, given.collate, given.records, mechanism=plan(), groups="block-wise", delta=1e-6, **named
    )
    trainer.train()
    return trainer


def test_the_card_tells_the_guarantee(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    trainer.create_model_card(model_name="reviews", tags="text-classification")
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert {"differential-privacy", "dp-sgd", "groupclip", "text-classification"} <= set(card.data.tags)
    assert card.text.count("## Privacy") == 1 and "# reviews" in card.text
    epsilon = trainer.engine.epsilon(delta=1e-6)
    record = json.loads((tmp_path / "privacy.json").read_text())
    assert record["epsilon"] == epsilon and record["delta"] == 1e-6 and record["steps_taken"] == 3
    assert "| group | threshold R_m | noise std |" in card.text
    trainer.create_model_card(model_name="reviews")
    assert hub.ModelCard.load(tmp_path / "README.md").text.count("## Privacy") == 1


def test_a_run_without_a_guarantee_has_no_tag_of_one(tmp_path: Path) -> None:
    trainer = trained(tmp_path, sampling_key=KEY)
    trainer.create_model_card()
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert "differential-privacy" not in card.data.tags and "groupclip" in card.data.tags
    assert json.loads((tmp_path / "privacy.json").read_text())["epsilon"] is None


def test_a_push_uploads_the_release_alone(tmp_path: Path, uploads: list[dict[str, Any]]) -> None:
    trainer = trained(tmp_path)
    (tmp_path / "notes.txt").write_text("of the training data")
    trainer.push_to_hub(commit_message="done")
    assert [up["files"] for up in uploads] == [RELEASED]
    assert uploads[0]["repo_id"] == f"me/{tmp_path.name}" and uploads[0]["commit_message"] == "done"
    assert "## Privacy" in uploads[0]["card"]
    assert {p.name for p in tmp_path.iterdir()} > {"checkpoint-2", "notes.txt", "_groupclip"}  # which stay here


def test_saving_on_the_way_uploads_releases(tmp_path: Path, uploads: list[dict[str, Any]]) -> None:
    trained(tmp_path, push_to_hub=True, hub_strategy="every_save")
    assert [up["commit_message"] for up in uploads] == ["Training in progress, step 2", "Training in progress, step 3"]
    assert all(up["files"] == RELEASED for up in uploads)
    taken = [up["card"].split("| steps")[1].split("\n")[0] for up in uploads]
    assert taken[0] != taken[1]  # each tells of its own steps


def test_hub_strategy_end_uploads_nothing_on_the_way(tmp_path: Path, uploads: list[dict[str, Any]]) -> None:
    trained(tmp_path, push_to_hub=True, hub_strategy="end").push_to_hub()
    assert len(uploads) == 1 and uploads[0]["files"] == RELEASED


def test_the_release_loads_as_ever(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    folder = trainer.write_release()
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert all(bool((a == b).all()) for a, b in zip(model.parameters(), trainer.model.parameters(), strict=True))
    trainer.engine.detach()
    assert gc.__name__ not in str(list(trainer.model.state_dict()))


def test_a_release_tells_of_the_steps_that_its_weights_took(tmp_path: Path) -> None:
    """Also where there is a card of fewer steps."""
    given = work("sequence classification")
    trainer = PrivateTrainer(
        given.model,
        settings(tmp_path, max_steps=1),
        given.collate,
        given.records,
        mechanism=plan(),
        groups="block-wise",
    )
    told = []
    for _ in range(2):
        trainer.train()
        folder = trainer.write_release(model_name="reviews")
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "# reviews" in card
        told.append(card.split("| steps")[1].split("\n")[0])
        assert json.loads((folder / "privacy.json").read_text())["steps_taken"] == len(told)
    assert told[0] != told[1]
