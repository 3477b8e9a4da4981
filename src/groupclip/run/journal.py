"""The write-ahead ledger of a run: no step is taken before it is charged on the disk.

What was released when a process dies between two checkpoints? Everything that left it: rows of
``metrics.jsonl``, what stood on the terminal. All of it is made from noisy gradients of steps that the last
checkpoint doesn't count. So before a step draws its batch, one line is appended here and synced. On resume

    charged = the largest of the steps in the checkpoint, in this journal and in metrics.jsonl,

and training goes on from the checkpoint's weights with ``planned - charged`` steps. The steps between the
checkpoint and the crash stay charged although their updates are lost: doing them again would be further uses
of the data, on fresh batches with fresh noise, and they'd have to be paid for a second time.

(``metrics.jsonl`` knows more than the other two only where ``resume/`` was restored from an older copy: its rows
left the process all the same. A copy of the whole folder, rows included, knows nothing of later steps: whoever
goes on from one has to count both runs, unless the run draws on a budget, which knows of all.)

Where correlated noise was begun is kept too, in the line of the step at which it is begun or beside it: such a step may cost a
round of its own, also inside one process (a parameter got another type).

So the count is never too low (a step that was charged and killed before its noise was drawn counts as well),
a run that is killed ends at the very ledger that it would have reached undisturbed, namely the plan, only
with fewer updates in its weights; and one that was stopped cleanly (Ctrl-C writes a checkpoint) loses
nothing at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import PrivacyViolation
from .errors import RunFailed
from .files import SECRET, Lines, write_atomically


class Journal:
    """Charged steps of one run. A new one begins at ``charged``, in a file that holds one line for them.

    Args:
        begun: how many there had been whenever correlated noise was begun, the beginning that comes now included.
    """

    def __init__(self, path: Path, charged: int, begun: Sequence[int] = ()) -> None:
        write_atomically(path, _line(charged, begun) + "\n", SECRET)
        self._lines = Lines(path, mode=SECRET, durable=True)
        self.charged, self._begun = charged, tuple(begun)

    def charge(self) -> int:
        """Charge one more step, durably, and return its number, from 1. After an error: don't take it.

        Raises:
            OSError: the disk doesn't take it.
            RunFailed: the journal was deleted or replaced meanwhile, so that whoever goes on wouldn't count this step.
        """
        self.charged += 1
        self._keep(_line(self.charged))
        return self.charged

    def begin(self, begun: Sequence[int]) -> None:
        """Keep, durably, where correlated noise was begun, if that isn't known: before the charged step that begins it is taken.

        Raises as :meth:`charge`.
        """
        if tuple(begun) != self._begun:
            self._keep(_line(self.charged, begun))
            self._begun = tuple(begun)

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        if not self.in_place():
            raise RunFailed(
                f"{self._lines.path} isn't the file any more that this run writes: it was deleted or replaced, or another "
                f"process goes on with the run. Step {self.charged} wasn't taken, and no checkpoint was written. See that no "
                "other process trains in this folder and that resume/ is complete, then go on with --resume"
            )

    def in_place(self) -> bool:
        """Return whether the file is still the one that a resumed run would read."""
        return self._lines.in_place()

    def close(self) -> None:
        self._lines.close()


def read_journal(path: Path) -> int:
    """Return the number of charged steps. A line that was cut off counts as a step.

    Raises:
        PrivacyViolation: no journal, or one that isn't as it was written: the steps of this run are not known then.
    """
    if not path.is_file():
        raise PrivacyViolation(
            f"{path} is missing: it counts the steps whose results may have been seen, and without it "
            "epsilon could be "
            "understated. Put it back, or start again in a new folder (and count both runs)"
        )
    *whole, cut = path.read_bytes().split(b"\n")
    charged = None
    for line in whole or [b""]:  # there is a line from the beginning on
        step, begins = _step(line)
        if step is None or (charged is not None and step != charged + (not begins)):
            raise PrivacyViolation(
                f"{path} is damaged at the line {line[:80].decode(errors='replace')!r}: the steps of this run can't be counted. "
                "Restore it, or start again in a new folder (and count both runs)"
            )
        charged = step
    assert charged is not None
    return charged + bool(cut)


def read_begun(path: Path) -> tuple[int, ...]:
    """Return where correlated noise was begun, as the journal that :func:`read_journal` reads tells. PrivacyViolation as there."""
    read_journal(path)
    found: set[int] = set()
    for line in path.read_bytes().split(b"\n")[:-1]:
        begun = json.loads(line).get("begun", [])
        if not isinstance(begun, list) or any(type(at) is not int for at in begun):
            raise PrivacyViolation(f"{path} is damaged: where correlated noise was begun isn't known. Restore it, or start again")
        found |= set(begun)
    return tuple(sorted(found))


def _step(line: bytes) -> tuple[int | None, bool]:
    """Return the number that a line holds, None where :class:`Journal` writes no such line, and whether it tells of a beginning."""
    try:
        facts = json.loads(line)
        step = facts["charged"]
    except (ValueError, KeyError, TypeError):
        return None, False
    return (step if type(step) is int and step >= 0 else None), "begun" in facts


def _line(charged: int, begun: Sequence[int] = ()) -> str:
    return json.dumps({"charged": charged, **({"begun": list(begun)} if begun else {})})
