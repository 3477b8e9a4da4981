"""What was spent on weights before an engine was attached to them: a statement covers the weights as they are in the end.

Weights are known again by themselves (the same parameters) and by what they hold (a copy, or weights that were loaded), in one
process. Of a checkpoint that another process wrote nothing is known, and the statement says so.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ..autograd.slot import Slot
from ..distributed.shards import local
from ..privacy.earlier import EarlierTraining, numbers
from ..privacy.ledger import Ledger
from .unmoved import some_of


class Training:
    """The training of an engine, as later ones on the same weights are told of it.

    Args:
        slots: its parameters.
        ledger: what it spends.
        before: what was spent on them already.
    """

    def __init__(self, slots: Sequence[Slot], ledger: Ledger, before: tuple[EarlierTraining, ...]) -> None:
        self._slots, self._ledger = slots, ledger
        self._before = before
        self._number = next(numbers)
        self._untrained = frozenset(_contents(s.kept for s in slots))
        with _lock:
            _under_way.add(self)

    @property
    def before(self) -> tuple[EarlierTraining, ...]:
        """What was spent on the weights and isn't in the ledger: one that goes on in rounds counts its earlier rounds itself."""
        return tuple(e for e in self._before if not (self._ledger.lasts and e.entry == self._ledger.entry))

    def warn(self) -> None:
        """Say that the weights were trained before, unless the ledger, which knows of its own rounds by now, counts that."""
        if self.before:
            _log.warning(
                "these weights were trained before, by another engine of this process: engine.epsilon() covers this engine's "
                "steps alone. The statement tells the epsilon of both, and what they amount to together"
            )

    def loaded(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Take over a loaded state: what its ledger counts is no longer of another engine, and the weights may be of it."""
        self._untrained = frozenset()
        known = [*self.before, *map(EarlierTraining.from_dict, saved)]
        self._before = tuple(e for e in known if not e.carried_by(self._ledger))

    def told(self) -> tuple[EarlierTraining, ...]:
        """Return what the next engine on these weights is told."""
        if not self._ledger.steps:
            return self.before
        own = EarlierTraining(
            mechanism=self._ledger.mechanism,
            steps=self._ledger.steps,
            obstacle=self._ledger.obstacle,
            number=self._number,
            rounds=self._ledger.rounds if self._ledger.mechanism.bands != 1 else None,
            entry=self._ledger.entry,
        )
        return (*self.before, own)

    def holds(self, contents: Mapping[str, Any]) -> bool:
        """Return whether a parameter that this training moved holds what one of ``contents`` is made of."""
        return any(key in contents for key in self._moved())

    def end(self) -> None:
        """Remember the detached engine by its parameters and by what they hold."""
        told = self.told()
        with _lock:
            _under_way.discard(self)
            if not told:
                return
            for slot in self._slots:
                _by_parameter[slot.moved] = told
            if self._ledger.steps:
                _by_content.update((key, told) for key in self._moved())

    def _moved(self) -> list[str]:
        """Return what its weights hold: a start that many models share (a seed, a pretrained one) was not trained here."""
        return [key for key in _contents(s.kept for s in self._slots) if key not in self._untrained]


def earlier_trainings(params: Iterable[nn.Parameter]) -> tuple[EarlierTraining, ...]:
    """Return what is known to this process of trainings of these weights, the latest last."""
    params = [p for p in params if p.dtype in _TRAINED]
    contents = dict.fromkeys(_contents(map(local, params)))
    with _lock:
        same = [e for key in contents for e in _by_content.get(key, ())]
        maybe = [e for p in params for e in _by_parameter.get(p, ())]
        others = [t for t in _under_way if t._ledger.steps]
    same += [e for t in others if t.holds(contents) for e in t.told()]
    sure = {e.number: e for e in same}
    found = {e.number: EarlierTraining(**{**vars(e), "changed": True}) for e in maybe} | sure
    return tuple(found[number] for number in sorted(found))


def _contents(params: Iterable[Any]) -> list[str]:
    """Return names for what these weights hold. A few numbers say little: the first step of Adam moves each by +lr or -lr.

    So only weights of some size are told by what they hold, where there are such.
    """
    with torch._C.DisableTorchFunctionSubclass():
        weights = [p.detach() for p in params]
    telling = [w for w in weights if w.numel() >= _TELLING]
    return [key for key in map(_content, telling or weights) if key]


def _content(weight: Tensor) -> str:
    """Return a name for what a weight holds; empty for what many hold: one number, or all alike (biases before training)."""
    if weight.is_meta or weight.numel() < 2:
        return ""
    values = some_of(weight)
    if bool((values == values[0]).all()):
        return ""
    digest = hashlib.sha256(f"{tuple(weight.shape)} {weight.dtype} ".encode())
    digest.update(values.view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


_log = logging.getLogger("groupclip")
_TELLING = 16  # numbers
_TRAINED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # others (quantised ones) no engine trains
_lock = threading.Lock()
_under_way: weakref.WeakSet[Training] = weakref.WeakSet()
_by_parameter: Any = WeakTensorKeyDictionary()  # parameter -> what was spent on it
_by_content: dict[str, tuple[EarlierTraining, ...]] = {}
