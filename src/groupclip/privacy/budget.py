"""A privacy budget that outlives a run: every training and release on one data set, in one file, as one figure.

The file grows by whole lines of JSON. The first says what may be spent; each other one opens an entry, counts a step of one, closes
one or opens it again. Every line is written and synced under a lock on the file, after what others wrote meanwhile was read. So two
processes can't both spend the last of it, and what was charged is charged whatever kills the process. A line that was cut off (a
full disk, a crash) was never acknowledged: nothing was released on the strength of it, and the next line takes its place.

An open entry counts with all steps that it planned, so nobody else can spend them. A closed one counts with the steps taken.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupclip.arguments import positive, whole
from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.privacy import entries
from groupclip.privacy.budgetfile import BudgetFile, begin, is_begun
from groupclip.privacy.entries import Entry
from groupclip.privacy.mechanism import UNITS, Mechanism
from groupclip.privacy.reservation import Reservation
from groupclip.privacy.sampled_step import ADJACENCIES
from groupclip.privacy.spent import PrivacySpent, checked_delta


class Budget(BudgetFile):
    """What may be spent on one data set, and what was, in a file; :class:`groupclip.Mechanism` says what a training spends.

    Args:
        path: of the file, beside the data. It is made if it isn't there. Never copy it to go on from the copy: both would be spent.
        epsilon, delta: what all releases together may spend. Of a file that is there they may be left out, or must be the same.
        adjacency, unit: what neighbouring data sets differ by, in every entry.

    Guarantee:
        the releases of all entries together are (``epsilon``, ``delta``) differentially private, composed by their privacy loss
        distributions, where each was made as its entry says and all of them were entered.

    Raises:
        ValueError: wrong arguments, or a file of another budget.
        PrivacyViolation: the file is damaged.
        OSError: the file can't be read or written.
    """

    def __init__(
        self, path: str | Path, *, epsilon: float | None = None, delta: float | None = None,
        adjacency: str | None = None, unit: str | None = None,
    ) -> None:  # fmt: skip
        for name, value, known in (("adjacency", adjacency, ADJACENCIES), ("unit", unit, UNITS)):
            if value is not None and value not in known:
                raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
        asked = {
            "epsilon": None if epsilon is None else positive("epsilon", epsilon),
            "delta": None if delta is None else checked_delta(delta),
            "adjacency": adjacency,
            "unit": unit,
        }
        path = Path(path)
        if not is_begun(path):
            if epsilon is None or delta is None:
                found = "is empty" if path.exists() else "isn't there"
                raise ValueError(f"{path} {found}: pass epsilon= and delta= to begin a budget, or the path of one")
            begin(path, {**asked, "adjacency": adjacency or ADJACENCIES[0], "unit": unit or UNITS[0]})
        super().__init__(path)
        with self._locked():
            assert self._head is not None
        differing = [name for name, value in asked.items() if value is not None and value != self._head[name]]
        if differing:
            raise ValueError(
                f"{self.path} is a budget of {', '.join(f'{name}={self._head[name]!r}' for name in differing)}; leave these "
                "arguments out, or begin another budget for other data"
            )

    @property
    def epsilon(self) -> float:
        """What may be spent at :attr:`delta`."""
        return self._facts["epsilon"]

    @property
    def delta(self) -> float:
        """At which :attr:`epsilon` may be spent."""
        return self._facts["delta"]

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets differ by, in every entry: one of :data:`groupclip.Mechanism`'s names."""
        return self._facts["adjacency"]

    @property
    def unit(self) -> str:
        """Whom the guarantee protects: "sample", "user" or "client"."""
        return self._facts["unit"]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return all entries as the file has them now."""
        with self._locked():
            return tuple(self._entries.values())

    def spent(self, *, delta: float | None = None) -> PrivacySpent:
        """Return what all steps that were taken and all releases have spent together, at the budget's delta by default."""
        return self._figure(self.entries, delta, taken=True)

    def spent_by_entries(self) -> tuple[PrivacySpent, int]:
        """Return what :meth:`spent` returns, and the number of entries whose figure it is: from one look at the file."""
        found = self.entries
        return self._figure(found, None, taken=True), len(found)

    def committed(self, *, delta: float | None = None) -> PrivacySpent:
        """Return the same with all steps that open entries may still take: what no other entry can spend."""
        return self._figure(self.entries, delta, taken=False)

    def add(self, mechanism: Mechanism, *, steps: int | None = None, label: str = "") -> str:
        """Enter ``steps`` steps of ``mechanism`` (all by default) before they are released; return the name of the entry.

        A noisy count or an evaluation is a mechanism with full batches and one step. ``label`` tells people what it is.

        Raises:
            BudgetExceeded: everything together would spend more than the budget. Nothing is entered then.
            ValueError: another adjacency or unit than the budget's.
        """
        count = mechanism.steps if steps is None else whole("steps", steps, least=1)
        mechanism.spent(delta=self.delta, steps=count)  # refuses what has no figure
        return self._enter(entries.steps_of(self._fitting(mechanism), label=label, taken=count))

    def add_search(self, mechanism: Mechanism, *, mean_runs: float, law: str | float = "geometric", label: str = "") -> str:
        """Enter a search, the best of a random number of runs of ``mechanism``; arguments as of :func:`groupclip.search_cost`."""
        return self._enter(entries.search_of(self._fitting(mechanism), mean_runs, law, label=label))

    def add_guarantee(self, *, epsilon: float, delta: float, label: str = "") -> str:
        """Enter a release that somebody else computed an (epsilon, delta) for, under this adjacency and unit; as of :meth:`add`."""
        return self._enter(entries.guarantee_of(epsilon, delta, label=label))

    def reserve(self, mechanism: Mechanism, *, label: str = "") -> Reservation:
        """Set all steps of ``mechanism`` aside, and charge them one by one, as :func:`groupclip.attach` does; as of :meth:`add`."""
        mechanism.spent(delta=self.delta)
        made = entries.steps_of(self._fitting(mechanism), label=label, taken=0, is_open=True)
        return Reservation(budget=self, name=self._enter(made), mechanism=mechanism)

    def go_on(self, mechanism: Mechanism, *, label: str) -> Reservation:
        """Set all steps of a ``mechanism`` aside that goes on in rounds (federated, or with restarts), or go on with what is left.

        It is known by its ``label``. Each round attaches with what this returns: its ledger begins with the steps that were
        charged, by whichever process, and ``engine.detach`` leaves the rest set aside. :meth:`close` frees it in the end.

        Raises:
            PrivacyViolation: the training of this label has another plan, such as another noise multiplier.
            BudgetExceeded: its steps don't fit into the budget, or it was closed and they don't any more.
            ValueError: no label, several trainings of this label, or another adjacency or unit than the budget's.
        """
        if not label:
            raise ValueError("a training that goes on needs a label, by which it is found again")
        mechanism.spent(delta=self.delta)
        made = entries.steps_of(self._fitting(mechanism), label=label, taken=0, is_open=True)
        with self._locked():
            known = [e for e in self._entries.values() if e.label == label]
            if len(known) > 1 or not all(e.is_training for e in known):
                raise ValueError(f"{self.path} has other entries, or several, with the label {label!r}: choose another label")
            name = known[0].name if known else uuid.uuid4().hex[:12]
            if not known:
                self._enter_as(name, made)
            elif known[0].mechanism != mechanism:
                raise PrivacyViolation(
                    f"the training {label!r} of {self.path} has another plan: {entries.differing(known[0], mechanism)}. The steps "
                    "that are left of it were set aside for its own noise and rate. Go on with its plan; or close it, and set a "
                    "training with a new label aside for the new plan, so that both count"
                )
            elif not known[0].is_open:
                self._reopen(known[0])
            entry = self._entries[name]
        before = {"groupclip": entry.taken - entry.theirs, "user": entry.theirs}
        return Reservation(budget=self, name=name, mechanism=mechanism, lasts=True, before=before, begun=entry.begun)

    def reopen(self, name: str) -> Reservation:
        """Go on with the training of the entry ``name``, as ``engine.state_dict()["ledger"]["budget"]`` names it.

        Steps that were charged stay charged, also those whose updates were lost in a crash: it has only the rest of its plan.

        Raises:
            BudgetExceeded: the rest of its steps doesn't fit into the budget any more.
            ValueError: there is no such training.
        """
        with self._locked():
            entry = self._training(name)
            if not entry.is_open:
                self._reopen(entry)
        assert entry.mechanism is not None  # it is a training
        return Reservation(budget=self, name=name, mechanism=entry.mechanism)

    def close(self, name: str) -> None:
        """Free the steps that the open entry ``name`` has not taken. Close one of another process only if that process is gone."""
        with self._locked():
            if self._training(name).is_open:
                self._write({"id": name, "open": False})

    def taken(self, name: str) -> int:
        """Return how many steps of the entry ``name`` were charged."""
        with self._locked():
            return self._training(name).taken

    def charge(self, name: str, *, sampling: str = "groupclip", anew: bool = False) -> int:
        """Charge one step of the open entry ``name``, durably, and return its number. After an error: don't take it.

        Args: ``sampling``: who drew the batch, "groupclip" or "user". ``anew``: its correlated noise is begun anew.

        Raises:
            BudgetExceeded: all steps of the entry were charged, or it was closed.
            OSError: the disk doesn't take it.
            PrivacyViolation: the file was deleted, replaced or damaged.
        """
        with self._locked():
            entry = self._training(name)
            if not entry.is_open or entry.taken >= entry.planned:
                raise BudgetExceeded(
                    f"entry {name} of {self.path} has {entry.taken} of {entry.planned} steps charged"
                    + ("" if entry.is_open else " and was closed")
                    + ": one more was never set aside for it. Plan a training with more steps, and attach it to the budget"
                )
            if (after := entry.begins(anew=anew)).rounds(taken=False) > entry.rounds(taken=False):
                self._admit({**self._entries, name: after})
            self._write({"id": name, "taken": entry.taken + 1, "sampling": sampling, **({"anew": True} if anew else {})})
            return entry.taken + 1

    def _enter(self, made: Mapping[str, Any]) -> str:
        name = uuid.uuid4().hex[:12]
        with self._locked():
            self._enter_as(name, made)
        return name

    def _enter_as(self, name: str, made: Mapping[str, Any]) -> None:
        line = {"id": name, **made}
        self._admit({**self._entries, name: Entry.from_line(line)})
        self._write(line)

    def _reopen(self, entry: Entry) -> None:
        self._admit({**self._entries, entry.name: entry.reopened()})
        self._write({"id": entry.name, "open": True})

    def _admit(self, after: Mapping[str, Entry]) -> None:
        amount = self._figure(tuple(after.values()), None, taken=False).epsilon
        if not amount <= self.epsilon:
            before = self._figure(tuple(self._entries.values()), None, taken=False).epsilon
            raise BudgetExceeded(
                f"{self.path} allows epsilon={self.epsilon:g} at delta={self.delta:g}, {before:.4g} of it is spent or set aside, "
                f"and with this entry it would be {amount:.4g}. Take more noise or fewer steps, close entries that take no more "
                "steps, or publish nothing more of these data"
            )

    def _figure(self, all_of_them: tuple[Entry, ...], delta: float | None, *, taken: bool) -> PrivacySpent:
        delta = self.delta if delta is None else checked_delta(delta)
        epsilon, who = entries.together(all_of_them, delta, taken=taken)
        steps = sum(entry.taken if taken else entry.counted for entry in all_of_them)
        theirs = sum(entry.theirs for entry in all_of_them)
        note = f"{theirs} steps were on batches that groupclip didn't draw: the figure holds if they were drawn as planned"
        return PrivacySpent(epsilon=epsilon, delta=delta, steps=steps, accountant=who, note=note if theirs else "")

    def _fitting(self, mechanism: Mechanism) -> Mechanism:
        if (mechanism.adjacency, mechanism.unit) != (self.adjacency, self.unit):
            raise ValueError(
                f"the mechanism has adjacency={mechanism.adjacency!r} and unit={mechanism.unit!r}, and {self.path} is a budget of "
                f"{self.adjacency!r} and {self.unit!r}: figures of different neighbours don't add up; plan it as the budget"
            )
        return mechanism

    def _training(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None or not entry.is_training:
            raise ValueError(f"{self.path} has no training {name!r}; its entries are {', '.join(self._entries) or 'none'}")
        return entry


def budget_in(path: str | Path) -> Budget:
    """Return the budget in a file that somebody named. ValueError, with the command that begins one, if it holds none yet."""
    if not is_begun(path := Path(path)):
        found = "is empty" if path.exists() else "isn't there"
        raise ValueError(
            f"{path} {found}: begin a budget by groupclip budget new --file {path} --epsilon E --delta D, or name the file of one"
        )
    return Budget(path)


def reserved(budget: Budget | Reservation | None, mechanism: Mechanism | None) -> Reservation | None:
    """Return the steps of ``mechanism``, set aside in a budget. ValueError or TypeError for a reservation of another plan."""
    if budget is None:
        return None
    if mechanism is None:
        raise ValueError("budget= is for a private training: pass a mechanism, or leave the budget out")
    if isinstance(budget, Budget):
        return budget.reserve(mechanism)
    if not isinstance(budget, Reservation):
        raise TypeError(f"budget={budget!r} must be a groupclip.Budget, or what budget.reopen returned")
    if budget.mechanism != mechanism:
        raise ValueError("the reservation is of another plan: attach with the mechanism of the training that goes on")
    return budget
