"""Which reader lays out the batches of a plan: of samples, of samples in batches of one size, or of users."""

from collections.abc import Hashable, Sequence
from typing import Any

from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.names import check_users
from groupclip.sampling.readers import BySample, ByUser, Collate, InPaddedBatches, Reader


def by_sample(
    dataset: Any, size: int, mechanism: Mechanism, microbatch: int, collate: Collate | None,
    users: Sequence[Hashable] | None, samples_per_user: int | None, padded: bool,
) -> Reader:  # fmt: skip
    if users is not None or samples_per_user is not None:
        raise ValueError(
            "users= and samples_per_user= need a mechanism that was planned for users: Mechanism(unit='user', "
            "dataset_size=number of users, ..)"
        )
    if size != mechanism.dataset_size:
        raise ValueError(
            f"the data set holds {size} samples, the mechanism was planned for "
            f"dataset_size={mechanism.dataset_size}: the sample rate would be wrong. Build the Mechanism "
            "with dataset_size=len(dataset), and calibrate again"
        )
    if not padded:
        return BySample(dataset, microbatch, collate)
    if mechanism.sampling == "poisson":
        raise ValueError(
            "padded=True with sampling='poisson': such a batch has no largest size but the whole data set; plan with "
            "sampling='truncated-poisson' and adjacency='zero-out'"
        )
    largest = mechanism.expected_batch_size if mechanism.max_batch_size is None else mechanism.max_batch_size
    return InPaddedBatches(dataset, microbatch, collate, int(largest))


def by_user(
    dataset: Any, size: int, mechanism: Mechanism, microbatch: int, collate: Collate | None,
    users: Sequence[Hashable] | None, samples_per_user: int | None, padded: bool,
) -> Reader:  # fmt: skip
    if users is None:
        raise ValueError("the mechanism was planned for unit='user': pass users=, whose each sample is")
    if len(users) != size:
        raise ValueError(
            f"users has {len(users)} entries for {size} samples: give one a sample, in the data set's order"
        )
    check_users(users)
    if padded:
        raise ValueError("padded=True isn't available for users: their micro-batches have the shapes of their users")
    if samples_per_user is not None and samples_per_user < 1:
        raise ValueError(f"samples_per_user={samples_per_user} must be >= 1")
    reader = ByUser(dataset, microbatch, collate, users, samples_per_user)
    if reader.users != mechanism.dataset_size:
        raise ValueError(
            f"the samples are of {reader.users} users, the mechanism was planned for "
            f"dataset_size={mechanism.dataset_size}: the sample rate would be wrong. Build the Mechanism with "
            "dataset_size=number of users, and calibrate again"
        )
    return reader
