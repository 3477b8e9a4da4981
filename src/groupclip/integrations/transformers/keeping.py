"""What is kept on the disk beside a Trainer's own checkpoints: the ledger, and a count of steps that no crash makes too low.

``checkpoint-N/groupclip_engine.json`` holds the engine's state: neither key, seed nor statistic of the data. ``_groupclip/`` in
the output folder holds a journal for each training (see :mod:`groupclip.run.journal`): a step is charged there before its batch is
drawn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...engine.engine import Engine
from ...errors import PrivacyViolation
from ...run.files import write_atomically
from ...run.journal import Journal, read_journal

_log = logging.getLogger("groupclip")

STATE = "groupclip_engine.json"
FORMAT = "groupclip-trainer-1"


def save_state(folder: Path, engine: Engine) -> None:
    """Write the engine's state into a checkpoint. Raises OSError."""
    write_atomically(folder / STATE, json.dumps({"format": FORMAT, "engine": engine.state_dict()}, indent=2))


def read_state(folder: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote.

    Raises:
        PrivacyViolation: there is none, or it isn't one: how much was spent is not known then.
    """
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        return found["engine"]
    except FileNotFoundError as error:
        raise PrivacyViolation(
            f"{folder} has no {STATE}: it wasn't saved by a private trainer, so what its weights have spent is not known. Go on "
            "from a checkpoint that was, or load the weights by from_pretrained and begin a new plan"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise PrivacyViolation(
            f"{folder / STATE} is damaged ({error}): restore it, or go on from another checkpoint"
        ) from error


def journal_of(output: Path, training: str) -> Path:
    """Return where the steps of one training are counted. Its name begins with ``_``: transformers publishes no such file."""
    return output / "_groupclip" / f"{training}.jsonl"


def go_on(engine: Engine, checkpoint: Path, output: Path) -> None:
    """Load the ledger of a checkpoint, raised to the steps that were charged since.

    Raises:
        PrivacyViolation: no state, another plan, or no journal of the training in the output folder.
    """
    state = read_state(checkpoint)
    own = engine.state_dict()
    charged = read_journal(journal_of(output, str(state["training"])))
    if own["training"] == state["training"] and engine.ledger is not None:
        charged = max(charged, engine.ledger.steps)
    lost = charged - sum(state["ledger"]["steps"].values())
    engine.load_state_dict(_charged(state, lost))
    if lost > 0:
        _log.warning(
            f"{lost} steps were made after {checkpoint.name} was saved, and what they released may have been seen: they stay "
            "spent, and their updates are lost"
        )


def _charged(state: Mapping[str, Any], lost: int) -> dict[str, Any]:
    ledger = dict(state["ledger"])
    ledger["steps"] = {**ledger["steps"], "groupclip": ledger["steps"]["groupclip"] + max(0, lost)}
    return {**state, "ledger": ledger}


def open_journal(output: Path, engine: Engine) -> Journal:
    """Begin to count where the ledger stands. A batch that was drawn before and had no step is charged to the ledger here.

    Raises:
        OSError: the disk doesn't take it.
        BudgetExceeded: the plan is spent.
    """
    assert engine.ledger is not None
    path = journal_of(output, str(engine.state_dict()["training"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    while path.is_file() and engine.ledger.steps < read_journal(path):
        engine.ledger.record("groupclip")
    return Journal(path, engine.ledger.steps)
