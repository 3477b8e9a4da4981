"""The train/test split for data that comes without one.

Every record decides for itself, by a hash of its own key with a public salt. So adding or removing one record
moves no other record across the split, and the training sets of neighbouring data sets are neighbours too.
A seeded shuffle of row numbers doesn't have this property.
"""

from hashlib import blake2b

TEST_SHARE = 5  # one record in five is held out

SPLIT_RULE = "one record in five, by a hash of the record's own key with a fixed public salt"


def order(key: str) -> int:
    """Return a fixed pseudo-random 64-bit number for a key: same on every machine, depends on no other record."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"groupclip/split").digest(), "big")


def held_out(key: str) -> bool:
    """True if the record with this key belongs to the test set."""
    return order(key) % TEST_SHARE == 0
