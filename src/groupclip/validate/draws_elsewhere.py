"""Draws of numpy and of Python's ``random`` held still, as :mod:`groupclip.validate.draws` does for torch.

A single number is the same in every call of a pass, for it isn't known whether it is one sample's or everybody's; an array
with an entry or a row for each sample is made sample by sample. Generators of the model's own aren't reached.

What the attached model draws so is drawn once, and is the same for all samples that run side by side; so it is compared with
single samples that all draw the same (``Replays.alike(.., one=True)``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from ..autograd.pass_state import Tape
from .kinds import CANDIDATES, Drawn, Kind, Stand, quantile, share_of, stream
from .places import Places

#: By round: with these seeds the first uniform number of ``random`` and numpy is of the middle, low, high, and the first
#: permutation of two and of three samples moves the first: of ``shuffle`` in the first rounds, of ``sample`` in the last, for
#: the two never agree (tests hold them to it).
SEEDS = ((10, 50), (139, 742), (625, 1989))

_default_rng = np.random.default_rng
_NO_DRAWS = {"seed", "getstate", "setstate", "get_state", "set_state", "get_bit_generator", "set_bit_generator"}
_IN_ORDER = {"shuffle", "permutation", "choice"}


class DrawsElsewhere:
    """The draws of one pass. ``made`` records arrays; ``numbers`` whether anything else was drawn, ``generators``
    whether generators were made.
    """

    def __init__(self, kinds: Sequence[Kind | None] | None, stand: Stand, tape: Tape | None) -> None:
        self._kinds, self._stand, self.places = kinds, stand, Places(tape, stand.samples)
        self._seeds = SEEDS[stand.round]
        self.made: list[Drawn] = []
        self.numbers = False
        self.generators = False

    @contextmanager
    def held(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, make in ((random, self._of_python), (np.random, self._of_numpy)):
                for name, function in _functions(module).items():
                    stack.enter_context(patch.object(module, name, make(name, function)))
            stack.enter_context(patch.object(np.random, "default_rng", self._make_anew))
            yield

    def _make_anew(self, seed: Any = None) -> Any:
        """Generators that are made in the pass: alike in every pass, though their numbers aren't told apart by sample."""
        self.generators = True
        return _default_rng(0 if seed is None else seed)

    def _of_python(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if not self.places.is_trying:
                self.numbers = True
                random.seed(self._seeds[0])
            return function(*args, **kwargs)

        return draw

    def _of_numpy(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if self.places.is_trying:
                return function(*args, **kwargs)
            np.random.seed(self._seeds[1])
            result = function(*args, **kwargs)
            if not isinstance(result, np.ndarray) or name in _IN_ORDER:
                self.numbers = True
                return result
            call = None if any(isinstance(a, np.ndarray) for a in (*args, *kwargs.values())) else (args, kwargs)
            here = self.places.here()
            self.places.passed(here)
            place, part = here[0], self.places.part
            self.made.append(Drawn(name, call, result.shape))
            kind = self._kinds[place] if self._kinds is not None and place < len(self._kinds) else None
            if kind is None or kind.axis is None or kind.single.what != name or kind.single.args is None:
                return result
            samples = self._stand.samples if part is None else self._stand.samples[:1]  # one draw, whoever runs
            return np.concatenate([self._of_sample(s, place, function, *kind.single.args) for s in samples], kind.axis)

        return draw

    def _of_sample(self, sample: int, place: int, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def from_(stream_of: int) -> np.ndarray:
            np.random.seed(stream(self._stand.round, place, stream_of) % 2**32)
            return function(*args, **kwargs)

        numbers = from_(sample)
        if numbers.size == 1:
            candidates = sorted(from_(i).item() for i in range(CANDIDATES))
            numbers[...] = quantile(candidates, share_of(sample, self._stand.total, self._stand.round))
        return numbers


def _functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of a module that draw from its hidden generator."""
    found = {n: f for n, f in vars(module).items() if callable(f) and not n.startswith("_") and n not in _NO_DRAWS}
    hidden = type(getattr(module.random, "__self__", None))
    return {n: f for n, f in found.items() if type(getattr(f, "__self__", None)) is hidden}
