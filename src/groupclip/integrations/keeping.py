"""A count of steps that no crash makes too low, beside the checkpoints of somebody else's trainer.

``_groupclip/`` in the output folder holds a journal for each training (see :mod:`groupclip.run.journal`): a step is charged there
before its batch is drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine.engine import Engine
from ..privacy.ledger import charged_in
from ..run.journal import Journal, read_begun, read_journal

_log = logging.getLogger("groupclip")


def journal_of(output: Path, training: str) -> Path:
    """Return where the steps of one training are counted. Its name begins with ``_``: transformers publishes no such file."""
    return output / "_groupclip" / f"{training}.jsonl"


def go_on_from(engine: Engine, state: Mapping[str, Any], output: Path, name: str) -> None:
    """Load the state of an engine, raised to the steps that were charged since.

    Args:
        state: of a checkpoint.
        output: the folder with the journals.
        name: of the checkpoint, for what is told.

    Raises:
        PrivacyViolation: another plan, or no journal of the training in the output folder.
    """
    own = engine.state_dict()
    journal = journal_of(output, str(state["training"]))
    charged = told = read_journal(journal)
    if own["training"] == state["training"] and engine.ledger is not None:
        charged = max(charged, engine.ledger.steps)
    lost = charged - sum(state["ledger"]["steps"].values())
    engine.load_state_dict({**state, "ledger": charged_in(state["ledger"], lost, begun=read_begun(journal), told=told)})
    if lost > 0:
        _log.warning(
            f"{lost} steps were made after {name} was saved, and what they released may have been seen: they stay "
            "spent, and their updates are lost"
        )


def open_journal(output: Path, engine: Engine) -> Journal:
    """Begin to count where the ledger stands. A batch that was drawn before and had no step is charged to the ledger here.

    Raises:
        OSError: the disk doesn't take it.
        BudgetExceeded: the plan is spent.
    """
    assert engine.ledger is not None
    path = journal_of(output, str(engine.state_dict()["training"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    engine.ledger.tell_beginnings(None)  # those that come now are in the journal from its first line on
    while path.is_file() and engine.ledger.steps < read_journal(path):
        engine.ledger.record("groupclip", anew=True)
    journal = Journal(path, engine.ledger.steps, engine.ledger.begun_next)
    engine.ledger.tell_beginnings(journal.begin)
    return journal
