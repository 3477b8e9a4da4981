"""The steps of an engine that is one of several ranks: all check, count and step together, or none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..autograd.slot import Slot
from ..clipping.budget import GroupNoise
from ..distributed.agreement import digest, unanimous
from ..distributed.ranks import Ranks, ranks
from ..distributed.release import release
from ..errors import PrivacyViolation, UnsupportedOperation
from ..noise.grid import HardenedNoise
from ..noise.jointly import add_to_all
from ..noise.sources import InsecureNoise, NoiseSource, SecureNoise
from ..privacy.ledger import Ledger
from ..sampling.claims import WHOLE, Owner

T = TypeVar("T")


class Together:
    """One of several ranks, at the steps of its engine.

    Args:
        ranks: of the training.
        ledger, owner, amounts, slots: of the engine.
        noise: of this rank; it draws for the coordinates that the rank owns.
        staged: each rank has parameters that no other has: its stage of a pipeline.

    Attributes:
        secure: no seed reproduces the noise.
    """

    def __init__(
        self, ranks: Ranks, ledger: Ledger, owner: Owner, amounts: GroupNoise, slots: Sequence[Slot], noise: NoiseSource,
        *, staged: bool = False,
    ) -> None:  # fmt: skip
        self.ranks, self._ledger, self._owner, self._amounts, self._slots = ranks, ledger, owner, amounts, slots
        self._noise, self.secure, self._staged = noise, noise.secure, staged

    def check(self, act: Callable[[], T]) -> T:
        """Return what ``act``, which checks a step, returns, where it returns on all ranks and they are at the same step."""

        def checked() -> T:
            result = act()
            if self.ranks.size > 1:
                self._owner.check_dealt(WHOLE if self._staged else (self.ranks.rank, self.ranks.size))
            return result

        return unanimous(self.ranks, checked, self._facts, "the step")

    def _facts(self) -> Mapping[str, Any]:
        training = [slot.name for slot in self._slots if slot.kept.requires_grad]
        return {
            "the steps that are counted": self._ledger.steps_by_sampler,
            "the noise": digest(self._amounts.stds),
            "the parameters that train": "of each stage its own" if self._staged else digest(training),
        }

    def is_claimed(self, own: bool) -> bool:
        """Return whether every rank has its part of one and the same logical batch, given whether this one has."""
        batch = self._owner.claimed if own else None
        told = {"own": own, "run": batch.run.public_name if batch else "", "step": batch.step if batch else -1}
        everybody = self.ranks.exchange(told)
        return own and all(other == told for other in everybody)

    def add_(self, tensor: Tensor, std: float) -> None:
        """Put the sum over all ranks into the tensor, and noise on it, once."""
        release(self.ranks, [(tensor, std)], self._noise.add_)

    def release(self, sums: Sequence[tuple[Slot, Tensor, float]], expected_batch_size: float) -> None:
        """Put the private gradient of all ranks' samples into the place of each sum: summed, with noise, divided.

        What is cut over ranks was summed as its groups closed: its owner, or one of those who keep the same part, adds the noise.
        What is of one stage is summed there, over all samples: no other rank has it.
        """

        def make_private(total: Tensor, std: float) -> None:
            self._noise.add_(total, std)
            total.div_(expected_batch_size)

        exact = [(self._peers(slot), _exact(total), std) for slot, total, std in sums]
        alone = [(total, std) for peers, total, std in exact if peers is None]
        add_to_all(self._noise, alone)
        for total, _ in alone:
            total.div_(expected_batch_size)
        for peers in dict.fromkeys(peers for peers, _, _ in exact if peers is not None):
            release(peers, [(total, std) for theirs, total, std in exact if theirs == peers], make_private)
        self.ranks.wait()
        for (_, total, _), (_, found, _) in zip(sums, exact, strict=True):
            if found is not total:
                total.copy_(found)

    def _peers(self, slot: Slot) -> Ranks | None:
        """Return the ranks that keep the same coordinates of a parameter as this one; None where no other does."""
        if self._staged:
            return None
        return self.ranks if slot.kept is slot.param else slot.kept.peers


def _exact(total: Tensor) -> Tensor:
    """Return the sum in a dtype that all ranks have it in, and in order: noise comes before any rounding to half precision."""
    wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
    return wide.contiguous()


def own_noise(noise: NoiseSource, ranks: Ranks) -> NoiseSource:
    """Return the source of noise of this rank, which no other rank's is correlated with.

    Raises:
        UnsupportedOperation: a source under a key, which all ranks would have, or one of the user's own.
    """
    if type(noise) is InsecureNoise:
        return noise.of_rank(ranks.rank)
    if type(noise) in (SecureNoise, HardenedNoise) and not noise.key_was_given:  # pyright: ignore[reportAttributeAccessIssue]
        return noise
    raise UnsupportedOperation(
        f"noise={noise!r} under several processes: each rank draws the noise of its own coordinates, and under one key, or from a "
        "source that groupclip doesn't know, ranks may draw the same numbers, which are seen side by side in one release. Leave "
        "noise= out: each rank draws a key of its own then"
    )


def check_ranks(own: Ranks | None) -> None:
    """Check that the process group is the one in which the engine was attached.

    Raises:
        PrivacyViolation: one was made or ended since.
    """
    now = ranks(even_one=own is not None)
    if now == own:
        return
    raise PrivacyViolation(
        f"the engine was attached with {_in_words(own)}, and now torch.distributed has {_in_words(now)}: the sums of which "
        "processes the step is for isn't known any more. Attach after torch.distributed.init_process_group, and detach before "
        "destroy_process_group"
    )


def _in_words(found: Ranks | None) -> str:
    return "one process" if found is None else f"{found.size} processes"
