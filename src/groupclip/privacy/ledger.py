"""What has been released: one event per optimizer step, and whose sampling made its batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.spent import PrivacySpent
from groupclip.privacy.stretches import begun_at, checked_begun, last_step, rounds_in

if TYPE_CHECKING:
    from groupclip.privacy.budget import Budget

SAMPLERS = ("groupclip", "user")
_KEYS = {"version", "mechanism", "plan_hash", "steps"}
_MORE = {"budget", "begun"}  # of a training that draws on a budget; of one with correlated noise


class Charged(Protocol):
    """Steps of a budget, set aside for one training: a :class:`groupclip.privacy.reservation.Reservation`, or what asks for one."""

    @property
    def budget(self) -> "Budget | None": ...

    @property
    def name(self) -> str: ...

    @property
    def lasts(self) -> bool: ...

    @property
    def before(self) -> Mapping[str, int]: ...

    @property
    def begun(self) -> tuple[int, ...]: ...

    def charge(self, sampling: str, *, anew: bool = False) -> int: ...

    def close(self) -> None: ...


class Ledger:
    """Counts the released steps of one mechanism; never past its plan, never backwards.

    Ask :meth:`check` before anything of a step is released and :meth:`record` once it is.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._steps: dict[str, int] = {sampler: 0 for sampler in SAMPLERS}
        self._begun: tuple[int, ...] = ()  # with correlated noise: steps counted when its noise was begun, and begun anew
        self._void = ""
        self._reservation: Charged | None = None
        self._hear: Callable[[tuple[int, ...]], object] | None = None

    def tell_beginnings(self, hear: Callable[[tuple[int, ...]], object] | None) -> None:
        """Call ``hear`` with where correlated noise was begun, before a step is counted that begins it. If that raises, none is."""
        self._hear = hear

    def draw_on(self, reservation: Charged) -> None:
        """Charge every step to a budget from now on, before it is counted here. Steps of earlier rounds count."""
        self._reservation = reservation
        self._steps.update(reservation.before)
        self._begun = reservation.begun or self._begun

    @property
    def lasts(self) -> bool:
        """Whether it is one of several in turn that count the steps of one training, each with those before it."""
        return self._reservation is not None and self._reservation.lasts

    @property
    def entry(self) -> str:
        """The entry of a budget that its steps are charged to; empty without one."""
        return "" if self._reservation is None else self._reservation.name

    @property
    def budget(self) -> "Budget | None":
        """The budget that its steps are charged to; None without one, or where another rank charges them."""
        return None if self._reservation is None else self._reservation.budget

    def close(self) -> None:
        """Take no more steps: what was set aside for them in a budget is free again."""
        if self._reservation is not None:
            self._reservation.close()

    def __repr__(self) -> str:
        return f"Ledger({self.steps} of {self.mechanism.steps} steps, sampling: {self.sampling})"

    @property
    def mechanism(self) -> Mechanism:
        """The plan, which doesn't change."""
        return self._mechanism

    @property
    def steps(self) -> int:
        """The number of released steps, those on empty batches included."""
        return sum(self._steps.values())

    @property
    def steps_by_sampler(self) -> dict[str, int]:
        """Released steps by whose sampling made the batch: {"groupclip": ..., "user": ...}."""
        return dict(self._steps)

    @property
    def sampling(self) -> str:
        """Whose sampling it was: "groupclip", "user", "mixed", or "none" before the first step."""
        used = [sampler for sampler in SAMPLERS if self._steps[sampler]]
        return "none" if not used else used[0] if len(used) == 1 else "mixed"

    @property
    def rounds(self) -> int:
        """What the released steps amount to: :meth:`groupclip.Mechanism.rounds`, of each stretch with its own correlated noise."""
        return self.rounds_after(self.steps)

    @property
    def begun_next(self) -> tuple[int, ...]:
        """Return how many steps there had been whenever correlated noise was begun, if the next step begins it anew."""
        return begun_at(self._begun, self.steps, self.mechanism.band_count, anew=True)

    @property
    def last_step(self) -> int:
        """The last step, from 1, that stays within the plan's rounds, and so its epsilon, if the next begins the noise anew."""
        return last_step(self._begun, self.steps, self.mechanism.steps, self.mechanism.band_count)

    def rounds_after(self, steps: int) -> int:
        """Return the same after so many steps in all, none of whose noise is begun anew."""
        return rounds_in(self._begun, steps, self.mechanism.band_count)

    def check(self) -> None:
        """Raise BudgetExceeded if one more step would lie past the plan. Releases and changes nothing."""
        if self.steps >= self.mechanism.steps:
            raise BudgetExceeded(
                f"all {self.mechanism.steps} planned steps are released: one more would spend more than the "
                "noise was calibrated for. Stop here, or plan more steps in a new Mechanism before training "
                "starts"
            )

    def record(self, sampling: str = "user", *, anew: bool = False) -> None:
        """Count one released step, batch by "groupclip" or "user". Raises BudgetExceeded past the plan.

        Args:
            anew: its correlated noise is independent of that of all steps before.
        """
        if sampling not in SAMPLERS:
            raise ValueError(f"sampling={sampling!r} must be one of {', '.join(SAMPLERS)}")
        self.check()
        begun = begun_at(self._begun, self.steps, self.mechanism.band_count, anew=anew)
        if self._hear is not None and begun != self._begun:
            self._hear(begun)
        if self._reservation is not None:
            charged = self._reservation.charge(sampling, anew=anew)
            if self.lasts and charged != self.steps + 1:
                raise PrivacyViolation(
                    f"{charged} steps of the training {self._reservation.name} are charged, and this ledger counts {self.steps}: "
                    "another process takes steps of it. Nothing was released by this one; let one process at a time train"
                )
        self._begun = begun
        self._steps[sampling] += 1

    @property
    def obstacle(self) -> str:
        """Why no epsilon is claimed for the released steps, in short, where nobody vouches for them; empty where one is."""
        if self._void:
            return self._void.partition(";")[0]
        if not self.mechanism.noise_multiplier:
            return "no noise was added"
        if self._steps["user"]:
            return f"{self._steps['user']} of the steps were not on whole batches that groupclip drew, in turn"
        return ""

    def void(self, reason: str) -> None:
        """Forbid to claim epsilon for these steps: :meth:`spent` and :meth:`epsilon` raise PrivacyViolation and say so."""
        self._void = reason

    def spent(self, *, delta: float, sampling_vouched_by_user: bool = False) -> PrivacySpent:
        """Return what the released steps have spent at ``delta``.

        Raises:
            PrivacyViolation: steps on batches that groupclip didn't draw, and nobody vouches for their sampling; noise that can
                be subtracted again.
        """
        if self._void:
            raise PrivacyViolation(self._void)
        if self._steps["user"] and not sampling_vouched_by_user:
            raise PrivacyViolation(
                f"{self._steps['user']} of {self.steps} steps were on batches that groupclip didn't draw, or not on exactly one "
                f"whole batch of those it drew, in turn. Epsilon holds for {self.mechanism.sampling} batches alone: batches that "
                "are shuffled, of a fixed size, or chosen by what is in them protect less. Draw batches by "
                "groupclip.logical_batches(dataset, mechanism), and take one step on each, also on an empty one. If the batches "
                "were drawn as the plan says, and you vouch for that, pass sampling_vouched_by_user=True"
            )
        return self.mechanism.spent(delta=delta, steps=self.steps, rounds=self.rounds)

    def epsilon(self, *, delta: float, sampling_vouched_by_user: bool = False) -> float:
        """Return epsilon of the released steps at ``delta``; 0 before the first. As :meth:`spent`."""
        return self.spent(delta=delta, sampling_vouched_by_user=sampling_vouched_by_user).epsilon

    def state_dict(self) -> dict[str, object]:
        """Return JSON-able values: the plan, its hash and the counts. They hold no secret."""
        return {
            "version": 1,
            "mechanism": self.mechanism.to_dict(),
            "plan_hash": self.mechanism.plan_hash,
            "steps": dict(self._steps),
            **({"begun": list(self._begun)} if self._begun else {}),
            **({} if self._reservation is None else {"budget": self._reservation.name}),
        }

    def steps_in(self, state: Mapping[str, object]) -> int:
        """Return the number of steps that a saved ledger counts. Raises ValueError for what isn't one."""
        if set(state) - _MORE != _KEYS:
            raise ValueError(f"not the state of a ledger: its keys are {sorted(state)}, they should be {sorted(_KEYS)}")
        return sum(_counts(state["steps"]).values())

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a saved ledger of the same plan. Raises what :meth:`check_state` raises."""
        self.check_state(state)
        begun = {*self._begun, *self._begun_in(state)}  # a budget may know of more
        self._steps, self._begun = _counts(state["steps"]), tuple(sorted(begun))

    def check_state(self, state: Mapping[str, object]) -> None:
        """Check that a saved ledger can be gone on from.

        Raises:
            ValueError: not a ledger's state.
            PrivacyViolation: another plan (or an edited one), or fewer steps than are counted here: both
                would make epsilon come out too small.
            BudgetExceeded: more steps than the plan has.
        """
        if set(state) - _MORE != _KEYS or state["version"] != 1:
            raise ValueError(
                f"not the state of a ledger (version 1): its keys are {sorted(state)}, they should be "
                f"{sorted(_KEYS)}; pass what Ledger.state_dict() returned"
            )
        steps = _counts(state["steps"])
        if "budget" in state and (self._reservation is None or self._reservation.name != state["budget"]):
            raise PrivacyViolation(
                f"the saved run draws on a budget, as its entry {state['budget']}, and this engine doesn't: its steps would be "
                f"charged to nothing, or twice. Attach with budget=gc.Budget(path).reopen({state['budget']!r})"
            )
        self._same_plan(state["mechanism"], state["plan_hash"])
        if sum(steps.values()) > self.mechanism.steps:
            raise BudgetExceeded(
                f"the saved ledger counts {sum(steps.values())} steps, the plan has {self.mechanism.steps}: "
                "the state was edited or belongs to another run"
            )
        if any(steps[sampler] < self._steps[sampler] for sampler in SAMPLERS):
            raise PrivacyViolation(
                f"this ledger already counts {self.steps} released steps and the saved one "
                f"{sum(steps.values())}: loading it would forget steps whose results may have been seen. "
                "Load it into a new engine (a new process) if those later steps were never released"
            )
        self._begun_in(state)  # raises where it doesn't fit

    def _begun_in(self, state: Mapping[str, object]) -> tuple[int, ...]:
        counted = sum(_counts(state["steps"]).values())
        return checked_begun(state.get("begun", []), counted, self.mechanism.band_count)

    def _same_plan(self, saved: object, saved_hash: object) -> None:
        own = self.mechanism.to_dict()
        if isinstance(saved, Mapping) and dict(saved) == own and saved_hash == self.mechanism.plan_hash:
            return
        differing = "the plan hash"
        if isinstance(saved, Mapping) and dict(saved) != own:
            names = sorted({*own, *saved})
            differing = ", ".join(
                f"{name} {saved.get(name)!r} (here {own.get(name)!r})"
                for name in names
                if saved.get(name) != own.get(name)
            )
        raise PrivacyViolation(
            f"the saved ledger is of another plan: {differing}. Epsilon is one figure for one plan; build "
            "the Mechanism with the saved run's facts (Mechanism.from_dict) to go on with it"
        )


def _counts(steps: object) -> dict[str, int]:
    """Return the counts, checked: whole, not negative, one per sampler."""
    if not isinstance(steps, Mapping) or set(steps) != set(SAMPLERS):
        raise ValueError(f"the saved ledger's steps={steps!r} must count {' and '.join(SAMPLERS)}")
    for sampler, count in steps.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"the saved ledger counts {count!r} {sampler} steps; not a whole number >= 0")
    return {sampler: steps[sampler] for sampler in SAMPLERS}


def charged_in(state: Mapping[str, Any], lost: int, *, begun: Sequence[int] = (), told: int = 0) -> dict[str, Any]:
    """Return the state of a ledger with ``lost`` more steps, that were charged after it was saved and whose updates are gone.

    Args:
        begun, told: of the first ``told`` steps it is known where correlated noise was begun. Of others it isn't, so each of them
            counts as a stretch of its own.
    """
    steps = dict(state["steps"])
    counted = sum(steps.values())
    ends = counted + max(0, lost)
    begun = sorted({*state.get("begun", []), *(at for at in begun if at < ends), *range(max(counted, told), ends)})
    banded = state["mechanism"].get("bands", 1) != 1 and lost > 0
    steps["groupclip"] += max(0, lost)
    return {**state, "steps": steps, **({"begun": begun} if banded else {})}
