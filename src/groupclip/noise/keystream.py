"""Secret random bytes: one AES-256-CTR stream per purpose, never used twice.

Every source of randomness that the privacy guarantee rests on (noise, sampling) reads from here and
from nowhere else: the generators of torch, NumPy and Python are neither read nor written, so a
framework's ``seed_everything`` can't fix the noise.
"""

import hashlib
import os
import secrets
from typing import NoReturn

import numpy as np

from groupclip.errors import PrivacyViolation

KEY_BYTES = 32
_ZEROS = bytes(1 << 18)  # CTR mode adds the stream to its input: the stream of zeros is the stream itself


def new_key() -> bytes:
    """Draw a 256-bit key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def derive_key(key: bytes, label: str) -> bytes:
    """Return the 256-bit key of one purpose: ``BLAKE2b(key, label)``. Different labels give independent keys.

    Raises:
        TypeError, ValueError: the key isn't 32 bytes. The message never shows it.
    """
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}; use secrets.token_bytes({KEY_BYTES}).")
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key has {len(key)} bytes, AES-256 needs {KEY_BYTES}; use secrets.token_bytes({KEY_BYTES})."
        )
    return hashlib.blake2b(label.encode(), key=key, digest_size=KEY_BYTES).digest()


class Keystream:
    """The AES-256-CTR stream of ``(key, label)``, read once from position 0 on.

    Guarantee: no position of the 128-bit counter is given out twice. A copy or a pickle would give
    positions out twice, so both are refused; a forked child starts a stream of its own under a new key.
    Without knowledge of the key the bytes can't be told from uniform ones, as far as AES is sound.
    Not for two threads at once.

    Args:
        key: 32 secret bytes. Only the derived cipher is kept.
        label: the purpose, for example ``"noise"``. Same key and label give the same stream.
    """

    def __init__(self, key: bytes, label: str) -> None:
        self._label = label
        self._start(derive_key(key, label))

    def _start(self, cipher_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(cipher_key), modes.CTR(bytes(16))).encryptor()
        self._pid = os.getpid()

    def fill(self, buffer: np.ndarray) -> None:
        """Overwrites a contiguous 1-D array of integers with the next bytes of the stream."""
        if os.getpid() != self._pid:  # the parent goes on with the old key, so the child must not
            self._start(new_key())
        view, zeros = buffer.view(np.uint8).data, memoryview(_ZEROS)
        for start in range(0, len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            self._cipher.update_into(zeros[: len(piece)], piece)

    def words(self, count: int) -> np.ndarray:
        """Return the next ``count`` uniform 64-bit words, ``uint64 [count]``."""
        words = np.empty(count, dtype=np.uint64)
        self.fill(words)
        return words

    def __repr__(self) -> str:
        return f"Keystream({self._label!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)


def refuse_copy(source: object) -> NoReturn:
    """Raises the error that meets every ``pickle``, ``copy`` and ``deepcopy`` of a secret source."""
    raise PrivacyViolation(
        f"{type(source).__name__} can't be copied or pickled: the copy would give out the same random "
        "numbers a second time, and a file would hold the key, with which the noise can be subtracted. "
        "Make a new one instead; a resumed run needs fresh noise, not the old stream."
    )
