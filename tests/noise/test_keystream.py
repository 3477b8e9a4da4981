"""The stream of secret bytes is AES-256 in counter mode, never repeats and shows no key."""

import copy
import os
import pickle
import re
import warnings

import numpy as np
import pytest

from groupclip.errors import PrivacyViolation
from groupclip.noise import keystream
from groupclip.noise.keystream import Keystream, derive_key, new_key

KEY = bytes(range(32))


def test_stream_is_aes_256_counter_mode_and_ignores_the_cut_into_reads():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(derive_key(KEY, "a")), modes.ECB()).encryptor()
    count = 80_000  # more than one read of zeros
    assert len(keystream._ZEROS) < 8 * 60_000
    expected = cipher.update(b"".join(i.to_bytes(16, "big") for i in range(count // 2)))
    stream = Keystream(KEY, "a")
    parts = [stream.words(n) for n in (0, 1, 2, 60_000, 19_997)]
    assert np.concatenate(parts).tobytes() == expected


def test_labels_give_independent_streams():
    first, second = (Keystream(KEY, label).words(10_000) for label in ("a", "b"))
    assert len(np.intersect1d(first, second)) == 0  # 64-bit words: false-alarm rate 1e-11
    assert (first == Keystream(KEY, "a").words(10_000)).all()


def test_new_keys_are_256_bits_and_differ():
    first, second = new_key(), new_key()
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_and_pickles_are_refused(copier):
    with pytest.raises(PrivacyViolation, match="can't be copied or pickled"):
        copier(Keystream(KEY, "a"))


def test_wrong_keys_are_refused_without_being_shown():
    with pytest.raises(ValueError, match="31 bytes") as caught:
        derive_key(b"\x07secret" + bytes(24), "a")
    assert "secret" not in re.sub(r"secrets\.token_bytes", "", str(caught.value))
    with pytest.raises(TypeError, match="must be bytes"):
        derive_key("0" * 32, "a")  # pyright: ignore[reportArgumentType]


def in_child(draw_bytes) -> bytes:
    """What ``draw_bytes()`` returns in a forked child."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork while other threads live
        pid = os.fork()
    if pid == 0:
        try:
            os.write(into, draw_bytes())
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return result


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_does_not_repeat_its_parent():
    stream = Keystream(KEY, "a")
    stream.words(10)
    child, sibling = (in_child(lambda: stream.words(4).tobytes()) for _ in range(2))
    parent = stream.words(4).tobytes()
    assert len(child) == 32
    assert len({child, sibling, parent}) == 3

    def without_noticing() -> bytes:
        stream._pid = os.getpid()
        return stream.words(4).tobytes()

    twin = in_child(without_noticing)
    assert twin == stream.words(4).tobytes()  # so the comparison above does see a repetition
