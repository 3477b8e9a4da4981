"""Decoding all files of a task once, before a run begins: what can't be read is told at once, and copies are found."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from .finding import content_of
from .pictures import decoded
from .telling import Told, UnreadableImages

_BEFORE = "Repair them or take them out. No run has begun, and nothing is spent"
_LATER = (
    "It could be read when the data was loaded, and its content was another or is gone now: put it back as it was. A run counts "
    "every record that it began with, so it can't go on without one"
)


@dataclass(frozen=True, eq=False)
class Seen:
    """A file that was decoded. ``pixels``: as of :class:`groupclip.tasks.pictures.Picture`, or None if they aren't kept."""

    path: Path
    label: int
    digest: bytes
    several: bool
    pixels: Tensor | None


def see(files: Sequence[tuple[Path, int, bool]], size: int, workers: int, told: Told | None) -> list[Seen]:
    """Decode ``(path, label, whether to keep the pixels)``, in order, by ``workers`` threads (the decoders run beside each other).

    Raises:
        UnreadableImages: all files that can't be decoded.
    """
    seen: list[Seen] = []
    bad: list[tuple[Path, str]] = []
    with _quiet(), ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for place, one in enumerate(pool.map(lambda file: _see(file, size), files), 1):
                if isinstance(one, Seen):
                    seen.append(one)
                else:
                    bad.append(one)
                if told is not None:
                    told(place, len(files))
        except BaseException:  # Ctrl-C: don't decode the rest first
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if bad:
        raise UnreadableImages(bad, _BEFORE)
    return seen


def again(path: Path, size: int, digest: bytes) -> Tensor:
    """Decode a file that was seen before. UnreadableImages if it isn't what it was."""
    try:
        content = content_of(path)
        if _digest(content) != digest:
            raise ValueError("it has changed")
        with _quiet():
            return decoded(content, size).pixels
    except ValueError as error:
        raise UnreadableImages([(path, str(error))], _LATER) from error


def _see(file: tuple[Path, int, bool], size: int) -> Seen | tuple[Path, str]:
    path, label, keep = file
    try:
        content = content_of(path)
        picture = decoded(content, size)
    except ValueError as error:
        return path, str(error)
    return Seen(path, label, _digest(content), picture.several, picture.pixels if keep else None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the decoder's warnings of damaged tags and large images: none names its file, and what matters is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
