"""What is kept in a Trainer's own checkpoints: the ledger.

``checkpoint-N/groupclip_engine.json`` holds the engine's state: neither key, seed nor statistic of the data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...engine.engine import Engine
from ...errors import PrivacyViolation
from ...run.files import write_atomically
from ..keeping import go_on_from

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


def go_on(engine: Engine, checkpoint: Path, output: Path) -> None:
    """Load the ledger of a checkpoint, raised to the steps that were charged since.

    Raises:
        PrivacyViolation: no state, another plan, or no journal of the training in the output folder.
    """
    go_on_from(engine, read_state(checkpoint), output, checkpoint.name)
