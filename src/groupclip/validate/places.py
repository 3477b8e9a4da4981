"""Which draw of a pass this is, and whose: also where the attached model runs samples side by side, in parts, or one at a time.

Every part of the samples runs the model from its beginning, each sample as a batch of one: the draws that it makes there are
those of a sample alone, at the same places of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..autograd.pass_state import Tape
from ..autograd.vmap import Part


class Places:
    """Counts the draws of one pass.

    Args:
        tape: of the engine, where the model is attached: says which samples run.
        samples: at each place of the batch.
    """

    def __init__(self, tape: Tape | None, samples: Sequence[int]) -> None:
        self._tape, self._samples = tape, tuple(samples)
        self._begun: set[Part] = set()
        self._known: dict[tuple[Part | None, bytes], tuple[int, int]] = {}
        self._next, self._start = (0, 0), 0

    @property
    def part(self) -> Part | None:
        """The samples that run together; None outside of a call of the attached model."""
        return None if self._tape is None else self._tape.part

    @property
    def is_trying(self) -> bool:
        """Whether the engine tries the model out on a few samples, with draws of its own."""
        return self._tape is not None and self._tape.part is None and self._tape.entered_here

    @property
    def samples(self) -> tuple[int, ...]:
        """Those that draw now."""
        part = self.part
        return (
            self._samples if part is None or part.rows is None else tuple(self._samples[i] for i in part.rows.tolist())
        )

    def call_begins(self) -> None:
        """Hear that the attached model is called: its parts begin here."""
        self._start = self._next[0]

    def here(self, state: bytes | None = None) -> tuple[int, int]:
        """Count the draws that came before, and the samples that made this one: told by torch's generator, which checkpoints put
        back to draw again; without it, counted.
        """
        part = self.part
        if part is not None and part not in self._begun:
            self._begun.add(part)
            self._next = (self._start, 0)
        elif state is not None:
            return self._known.get((part, state), self._next)
        return self._next

    def passed(self, here: tuple[int, int], turns: int = 1) -> None:
        """Hear that this draw is made, which ``turns`` samples make one after another."""
        place, turn = here
        self._next = (place, turn + 1) if turn + 1 < turns else (place + 1, 0)

    def note(self) -> None:
        """Remember the place by where torch's generator stands now."""
        self._known[self.part, state_of_torch()] = self._next


def state_of_torch() -> bytes:
    """Return where torch's generator stands."""
    return torch.get_rng_state().numpy().tobytes()
