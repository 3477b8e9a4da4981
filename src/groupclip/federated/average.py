"""DP-FedAvg on the server: choose clients by chance, clip their updates by group, and release their noisy mean.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models" (2018), algorithm 1, with all
clients weighing alike and a fixed denominator (its estimator f_f).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import torch
from torch import Tensor, nn

from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction, clip_function
from ..errors import PrivacyViolation
from ..noise.grid import HardenedNoise
from ..noise.jointly import add_to_all
from ..noise.keystream import new_key
from ..partition.choose import partition
from ..partition.groups import Partition, check_covers
from ..privacy.budget import Budget, reserved
from ..privacy.ledger import Ledger
from ..privacy.mechanism import Mechanism
from ..privacy.planned import noise_multiplier
from ..privacy.reservation import Reservation
from ..privacy.thresholds import ReadOnly, Thresholds
from ..sampling.draws import draw
from ..statement.drawn import DrawnBudget
from ..statement.record import PrivacyRecord
from .updates import clipped_update

Client = TypeVar("Client", bound=Hashable)
SAMPLINGS = ("poisson", "full-batch")


class PrivateAverage:
    """Averages the updates of clients, round by round. Its unit of privacy is the client: all that its updates were made from.

    Args:
        model: whose trainable parameters clients update. It is looked at for their names, shapes and types, and left as it is.
        groups: a :class:`groupclip.Partition`, or a style for :func:`groupclip.partition`.
        mechanism: the plan, with ``unit="client"``. Its ``dataset_size`` is the number of clients, ``expected_batch_size`` how many
            take part in a round on average, and ``steps`` the number of rounds. Poisson sampling, or full batches.
        clip: the clip function; "abadi" keeps what is shorter than the threshold, as federated averaging does.
        thresholds: R (then ``R_m = R / sqrt(M)``), M numbers, or a mapping from group to R_m, for the lengths of updates.
        allocation: how the noise is shared among the groups; see :func:`groupclip.privacy.allocation.noise_stds`.
        budget: what all releases on these clients may spend together; to survive restarts, ``budget.go_on(mechanism, label=..)``.
            Each round is charged before it is released.

    Guarantee:
        each round releases ``(sum_k clip(update_k) + s_m N(0, I)) / expected_batch_size`` for every group m, where each client
        is chosen independently with the plan's probability, and no more. The noise is :class:`groupclip.HardenedNoise`, drawn
        once a round, and all groups' together amounts to the plan's noise multiplier. A client that doesn't answer adds zero,
        and one whose update is still being clipped as the round ends has not answered. Threads may add updates at once. It
        is against those who see what is released. Whoever runs the server sees the updates, and who was chosen.

    Raises:
        ValueError, TypeError, CoverageError: arguments that don't fit.
        BudgetExceeded: the plan doesn't fit into the budget.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Partition | str | Mapping[str, str] | Callable[[str], str],
        mechanism: Mechanism,
        *,
        clip: str | ClipFunction = "abadi",
        thresholds: Thresholds = 1.0,
        allocation: str | Mapping[str, float] = "equal",
        budget: Budget | Reservation | None = None,
    ) -> None:
        sigma = _checked(mechanism)
        self.partition = groups if isinstance(groups, Partition) else partition(model, groups)
        check_covers(self.partition, model)
        self.clip = clip_function(clip)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shapes = {name: (p.shape, p.dtype) for name, p in trained.items()}
        sizes = {group: sum(trained[n].numel() for n in self.partition[group]) for group in self.partition.names}
        self._noise = HardenedNoise()
        self._amounts = GroupNoise(thresholds, allocation, sizes, sigma, self._noise)
        self.thresholds: Mapping[str, float] = ReadOnly(self._amounts.thresholds)
        self._key = new_key()
        self.ledger = Ledger(mechanism)
        reservation = reserved(budget, mechanism)
        if reservation is not None:
            self.ledger.draw_on(reservation)
        self._process, self._turn = os.getpid(), threading.Lock()
        self._round = 0
        self._open: set[Hashable] | None = None  # those chosen in this round who haven't answered
        self._sums: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"PrivateAverage({self.ledger.steps} of {self.ledger.mechanism.steps} rounds)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a PrivateAverage holds secret sums and keys, and can't be copied or pickled: keep its budget's file")

    def choose(self, clients: Sequence[Client]) -> list[Client]:
        """Begin a round: return who takes part, each of ``clients`` with the plan's probability by itself. Secret; may be empty.

        Args:
            clients: those who can be reached, each once; at most ``mechanism.dataset_size``.

        Raises:
            BudgetExceeded: all planned rounds were released.
            PrivacyViolation: a round is under way: whom to leave out would no longer be chance's choice.
            ValueError: more clients than planned, or one twice.
        """
        with self._alone():
            return self._choose(clients)

    def _choose(self, clients: Sequence[Client]) -> list[Client]:
        self.ledger.check()
        if self._open is not None:
            raise PrivacyViolation(
                "a round is under way, and choosing anew would leave out clients for another reason than chance: call release(), "
                "also if few or none have answered (it is a round, and is counted)"
            )
        plan = self.ledger.mechanism
        clients = list(clients)
        if len(set(clients)) < len(clients):
            raise ValueError("a client is listed twice, so it could take part twice in one round: list each once")
        if len(clients) > plan.dataset_size:
            raise ValueError(
                f"there are {len(clients)} clients, the mechanism was planned for {plan.dataset_size}: plan for the most that can "
                "be reached at once"
            )
        drawn = draw(len(clients), plan.sample_rate, key=self._key, step=self.ledger.steps) if clients else ()
        chosen = [clients[index] for index in drawn]
        self._round += 1
        self._open = set(chosen)
        self._sums = {name: torch.zeros(shape, dtype=torch.float64) for name, (shape, _) in self._shapes.items()}
        return chosen

    def add(self, client: Hashable, update: Mapping[str, Tensor]) -> None:
        """Add a client's update, clipped by group, to the sum of the round.

        Args:
            update: name of each trainable parameter -> new weights less those that the client was sent, of the same shape.

        Raises:
            PrivacyViolation: the client wasn't chosen in this round, or has answered already; the round ended meanwhile.
            ValueError, TypeError: other names, shapes or types than the model's. Nothing was added, and it may answer again.
        """
        with self._alone():
            begun = self._round
            self._check_client(client, begun)
        self._check_update(client, update)
        clipped = clipped_update(update, self.partition, self.clip, self.thresholds)  # the long part, for all threads at once
        with self._alone():
            self._check_client(client, begun)  # again: it may have answered, or the round ended, since
            self._take(client, clipped)

    def _take(self, client: Hashable, clipped: Mapping[str, Tensor]) -> None:
        assert self._open is not None
        self._open.discard(client)
        for name, part in clipped.items():
            self._sums[name] += part

    def release(self) -> dict[str, Tensor]:
        """End the round: charge it, add the noise, and return the private mean update, in the types of the parameters.

        Clients that haven't answered by now add zero. The division is by the expected number of clients, whoever answered.

        Raises:
            PrivacyViolation: no round is under way.
            BudgetExceeded, OSError: it can't be charged. Nothing was released; call it again when that is put right.
        """
        with self._alone():
            return self._release()

    def _release(self) -> dict[str, Tensor]:
        if self._open is None:
            raise PrivacyViolation("no round is under way: call choose() first, which decides by chance who takes part")
        self.ledger.record("groupclip")  # before there is any noise: whatever fails from here on is counted
        sums, self._sums, self._open = self._sums, {}, None
        stds = self._amounts.stds
        add_to_all(self._noise, [(total, stds[self.partition.group_of(name)]) for name, total in sums.items()])
        expected = self.ledger.mechanism.expected_batch_size
        return {name: (total / expected).to(self._shapes[name][1]) for name, total in sums.items()}

    def epsilon(self, *, delta: float) -> float:
        """Return what the rounds so far have spent at ``delta``."""
        return self.ledger.epsilon(delta=delta)

    def record(self, *, delta: float) -> PrivacyRecord:
        """Return every fact that a reader of the guarantee needs."""
        return PrivacyRecord.of(
            self.ledger, delta=delta, partition=self.partition, thresholds=self.thresholds, noise_std=self._amounts.stds,
            clip=self.clip.name, secure_noise=True, rounding=self._amounts.rounding,
            budget=DrawnBudget.of(self.ledger.budget),
        )  # fmt: skip

    def statement(self, *, delta: float) -> str:
        """Tell the guarantee in words."""
        return self.record(delta=delta).text()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one thread at a time look at the round and change it."""
        if os.getpid() != self._process:  # before the lock, which a thread of the parent may hold in the copy for ever
            raise PrivacyViolation(
                "this PrivateAverage was made in another process, which was forked since: both have the sums and the choice of "
                "one round, and each would count its own releases alone. Use it where it was made, or make it after the fork"
            )
        with self._turn:
            yield

    def _check_client(self, client: Hashable, begun: int) -> None:
        if self._open is None or self._round != begun or client not in self._open:
            raise PrivacyViolation(
                f"client {client!r} wasn't chosen in this round, or has answered already: the noise covers one update of each "
                "client that choose() returned"
            )

    def _check_update(self, client: Hashable, update: Mapping[str, Tensor]) -> None:
        if set(update) != set(self._shapes):
            missing, extra = sorted(set(self._shapes) - set(update)), sorted(set(update) - set(self._shapes))
            raise ValueError(
                f"the update of client {client!r} isn't of the trainable parameters: missing {missing}, unknown {extra}"
            )
        for name, value in update.items():
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout != torch.strided:
                raise TypeError(f"the update of client {client!r} has no dense float tensor at {name!r}")
            if value.is_meta:
                raise TypeError(f"the update of client {client!r} has a tensor without values (on the meta device) at {name!r}")
            if value.shape != self._shapes[name][0]:
                raise ValueError(
                    f"the update of client {client!r} has the shape {tuple(value.shape)} at {name!r}, the model has "
                    f"{tuple(self._shapes[name][0])}"
                )


def _checked(mechanism: Mechanism) -> float:
    """Return the noise multiplier of a plan of rounds. ValueError or TypeError for what is none."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism is {type(mechanism).__name__}; it must be a groupclip.Mechanism")
    if mechanism.unit != "client":
        raise ValueError(
            f"the mechanism was planned for unit={mechanism.unit!r}, and a round is of clients: plan with unit='client', "
            "dataset_size= the number of clients and expected_batch_size= how many take part on average"
        )
    if mechanism.sampling not in SAMPLINGS:
        raise ValueError(
            f"the mechanism was planned for sampling={mechanism.sampling!r}, and clients are chosen one by one: use one of "
            f"{', '.join(SAMPLINGS)}"
        )
    return noise_multiplier(mechanism)
