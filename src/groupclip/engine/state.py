"""The state of an engine: what is saved of a run, and what a resumed run has to have in common with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..autograd.gate import Group
from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction
from ..distributed.agreement import digest, unanimous
from ..errors import PrivacyViolation
from ..noise.sources import KEY_GIVEN, NoiseSource
from ..partition.groups import Partition
from ..privacy.ledger import Ledger
from .earlier import Training
from .looks import Looks
from .provenance import REPRODUCIBLE, Provenance, vouched_for
from .step import PrivateStep


@dataclass(eq=False)
class State:
    """The parts of an engine that are saved.

    Attributes:
        provenance: of the noise of all steps so far.
    """

    partition: Partition
    clip: ClipFunction
    ledger: Ledger | None
    noise: NoiseSource
    amounts: GroupNoise
    groups: Sequence[Group]
    step: PrivateStep
    looks: Looks
    training: Training | None
    provenance: Provenance
    views: int = 1

    def to_dict(self) -> dict[str, Any]:
        """See :meth:`groupclip.Engine.state_dict`."""
        return {
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
            "thresholds": dict(self.amounts.thresholds),
            "partition": self.partition.to_json(),
            "clip": repr(self.clip),
            "unsafe": sorted(self.looks.taken),
            "noise": self.provenance.to_dict(),
            "earlier": [] if self.training is None else [e.to_dict() for e in self.training.before],
            "training": self.step.training,
            "views": self.views,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See :meth:`groupclip.Engine.load_state_dict`."""
        together = self.step.ranks
        if together is None:
            self._check(state)
        else:
            unanimous(together, lambda: self._check(state), lambda: {"the state": digest(state)}, "the state")
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
            self.step.resumed(self.ledger.steps, str(state.get("training", "")))
            if self.training is not None:
                self.training.loaded(state.get("earlier", ()))
        self.amounts.load(state["thresholds"])
        for group in self.groups:
            group.threshold = self.amounts.thresholds[group.name]
        self.looks.taken |= set(state["unsafe"])
        if self.ledger is not None and self.ledger.steps:
            self.provenance = self.provenance.after(state["noise"])
            if not self.provenance.secure:
                self.ledger.void(REPRODUCIBLE)

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise what :meth:`load` raises; change nothing."""
        # states of older versions tell of no earlier training and no views, and have no name
        if not isinstance(state, Mapping) or set(state) | {"earlier", "training", "views"} != set(self.to_dict()):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"not the state of an engine: {found}, and not {sorted(self.to_dict())}; pass what engine.state_dict() returned"
            )
        for name, mine in (
            ("thresholds", state["thresholds"] if self.amounts.moves else dict(self.amounts.thresholds)),
            ("partition", self.partition.to_json()),
            ("clip", repr(self.clip)),
            ("views", self.views),
        ):
            if state.get(name, 1) != mine:
                raise PrivacyViolation(
                    f"the saved run had other {name} than this engine: attach with the same settings as the run to be resumed"
                )
        if (state["ledger"] is None) != (self.ledger is None):
            raise PrivacyViolation(
                "of the saved run and this engine, one has a mechanism and one has none: attach this engine as the saved run's was"
            )
        if self.step.under_way:
            raise PrivacyViolation(
                "a logical batch is under way: it was clipped at the thresholds of this engine. Load the state before the first "
                "backward pass, or after optimizer.step(); engine.discard() gives the batch up"
            )
        if self.ledger is not None:
            saved = self.ledger.steps_in(state["ledger"])
            if self.step.released and state.get("training", "") != self.step.training:
                raise PrivacyViolation(
                    "the state is of another training (or of an older version, which doesn't tell), and this engine has taken "
                    f"steps: {self.ledger.steps} are counted here, {saved} there, and its own would be in no figure. Detach this "
                    "engine, attach a new one and load the state into that; what this one released stays spent"
                )
            if saved > self.ledger.steps and vouched_for(self.noise) == KEY_GIVEN:
                raise PrivacyViolation(
                    f"the saved run released {saved} steps, and this engine's noise is under a key that was given: if the saved "
                    "run had this key, the same noise comes a second time and can be subtracted. Attach without noise=, for a "
                    "fresh key"
                )
            self.ledger.check_state(state["ledger"])
