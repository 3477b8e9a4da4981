"""What a private Trainer publishes: weights, card and record, and nothing else that lies in its output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard
from transformers import Trainer
from transformers.trainer_utils import HubStrategy

from ...engine.engine import Engine
from ...statement.card import privacy_section
from ...statement.record import PrivacyRecord

RECORD, CARD, RELEASE = "privacy.json", "README.md", "release"


class Publishing(Trainer):
    """The part of a private Trainer that writes and uploads what may be seen."""

    _privately: Any

    @property
    def engine(self) -> Engine:
        raise NotImplementedError

    def privacy_record(self) -> PrivacyRecord:
        """Return every fact of the guarantee of the steps so far, at the trainer's delta."""
        return self.engine.record(delta=self._privately.delta)

    def create_model_card(self, *facts: Any, tags: Any = None, **named: Any) -> None:
        """Write the trainer's own model card with a privacy section, and ``privacy.json`` beside it.

        Args:
            facts, tags, named: as the trainer's own ``create_model_card`` takes them; trl's takes others than transformers'.
        """
        record = self.privacy_record()
        given = [tags] if isinstance(tags, str) else list(tags or [])
        claimed = [] if record.obstacles else ["differential-privacy", "dp-sgd"]
        super().create_model_card(*facts, tags=list(dict.fromkeys([*claimed, "groupclip", *given])), **named)
        folder = Path(str(self.args.output_dir))
        card = ModelCard.load(folder / CARD)
        card.text = f"{card.text.rstrip()}\n\n{privacy_section(record)}\n"
        card.save(folder / CARD)
        write_record(folder, record)

    def write_release(self, **facts: Any) -> Path:
        """Write weights, tokenizer, card and record to ``output_dir/release``, and return that folder.

        The folder holds no optimizer, no log, no settings and no state of a random number generator.

        Args:
            facts: for the card, as ``create_model_card`` takes them.
        """
        self.create_model_card(**facts)
        output = Path(str(self.args.output_dir))
        folder = output / RELEASE
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)  # pyright: ignore[reportCallIssue, reportOptionalMemberAccess]
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)  # pyright: ignore[reportAttributeAccessIssue]
        (folder / CARD).write_text((output / CARD).read_text(encoding="utf-8"), encoding="utf-8")
        write_record(folder, self.privacy_record())
        return folder

    def push_to_hub(
        self, commit_message: str | None = "End of training", blocking: bool = True, token: str | None = None,
        revision: str | None = None, private: bool | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Upload :meth:`write_release`, and nothing else of the output folder. ``kwargs`` are those of the model card."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        name = self.args.hub_model_id or Path(str(self.args.output_dir)).name
        folder = self.write_release(model_name=kwargs.pop("model_name", name.split("/")[-1]), **kwargs)
        self._finish_current_push()
        return self._upload(folder, commit_message, blocking, token, revision)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload the weights after this step, as a release: the guarantee covers the weights after every step."""
        if self.args.hub_strategy == HubStrategy.END:
            return
        self._upload(self.write_release(), f"Training in progress, step {self.state.global_step}", True, None, None)

    def _upload(
        self, folder: Path, message: str | None, blocking: bool, token: str | None, revision: str | None
    ) -> Any:
        return HfApi(token=token or self.args.hub_token).upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=str(folder),
            commit_message=message,
            run_as_future=not blocking,
            revision=revision or self.args.hub_revision,
        )


def write_record(folder: Path, record: PrivacyRecord) -> None:
    """Write ``privacy.json``. Raises OSError."""
    (folder / RECORD).write_text(json.dumps(record.to_dict(), indent=2), encoding="utf-8")
