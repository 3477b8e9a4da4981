"""Names of users that are one name, written in two ways: in the library's own interface."""

import pytest
import torch
from torch.utils.data import TensorDataset

from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.batches import logical_batches
from groupclip.sampling.names import alike, plain

COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


def test_plain_changes_the_unicode_form_and_the_space_around():
    assert plain(f"\t{DECOMPOSED} x\u00a0") == f"{COMPOSED} x"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (COMPOSED, DECOMPOSED), ("anna", "ANNA"), ("stra\u00dfe", "STRASSE"), ("1", "1.0"), ("1", 1), (2.0, "2"), ("7", "007"),
        ("+7", 7), (" a", "a"), ("a\tb", "a b"), ("ab", "a\u200bb"), ("\ufb01x", "fix"), (("ward", "A"), ("ward", "a")),
        ("\u0661\u0662", "12"), ("9" * 5000, "0" + "9" * 5000),
    ],
)  # fmt: skip
def test_what_a_person_reads_as_one(one, two):
    assert alike(["x", one, "y", one, two]) == (one, two)


@pytest.mark.parametrize(
    "names", [["1", "10", "1.5", "-1"], [1, 2, 2.5], ["jose", COMPOSED], ["a-b", "ab"], ["caf\u00e9", "cafe"], [b"a", "a"], []]
)
def test_what_a_person_tells_apart(names):
    assert alike(names * 2) is None


def drawn(users):
    plan = Mechanism(
        dataset_size=len(dict.fromkeys(users)), expected_batch_size=1, steps=1, noise_multiplier=1.0, unit="user"
    )
    return logical_batches(TensorDataset(torch.zeros(len(users), 2)), plan, users=users)


def test_users_who_differ_in_writing_alone_are_refused():
    with pytest.raises(ValueError, match=r"'Jos\\xe9' and 'Jose\\u0301', which differ in writing alone") as caught:
        drawn(["x", COMPOSED, "y", DECOMPOSED])
    assert "(sample 1)" in str(caught.value) and "(sample 3)" in str(caught.value)
    drawn(["x", COMPOSED, "y", COMPOSED])


@pytest.mark.parametrize("nobody", [None, "", " \t"])
def test_samples_of_nobody_are_refused(nobody):
    with pytest.raises(ValueError, match="for sample 2: it has to say whose the sample is"):
        drawn(["a", "b", nobody, "a"])


def test_an_entry_without_an_answer_is_refused():
    class Missing:  # as pandas.NA
        def __eq__(self, other):
            return self

        def __bool__(self):
            raise TypeError("boolean value of NA is ambiguous")

        def __hash__(self):
            return 0

    with pytest.raises(ValueError, match="doesn't equal itself as another entry"):
        drawn_of_missing = [Missing(), "a"]
        plan = Mechanism(dataset_size=2, expected_batch_size=1, steps=1, noise_multiplier=1.0, unit="user")
        logical_batches(TensorDataset(torch.zeros(2, 2)), plan, users=drawn_of_missing)
