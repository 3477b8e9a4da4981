"""Which files of a folder are its images. What is left out is counted, with the reason."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from groupclip.sampling.names import plain

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm",
)  # fmt: skip
# thumbnails, forks and waste that a system puts beside images: a second copy of a record
OF_SYSTEMS = ("__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found", "system volume information")

HIDDEN = "its name, or that of a folder it is in, begins with a dot"
SYSTEM = "it is in a folder that a system made ({})"
NO_CLASS = "it lies beside the folders that are read, in none of them"
LOOP = "it is reached through a link to a folder that it is in"


class LeftOut:
    """Counts how many image files were left out for what reason, and how many files are of no image's kind."""

    def __init__(self) -> None:
        self.images: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def remarks(self) -> tuple[str, ...]:
        """Write remarks for the person who owns the data."""
        said = [f"{count} image file(s) left out: {reason}" for reason, count in sorted(self.images.items())]
        if self.others:
            kinds = ", ".join(f"{suffix} {count}" for suffix, count in sorted(self.others.items()))
            said.append(f"{self.others.total()} file(s) left out: no image by the end of the name ({kinds})")
        return tuple(said)


def class_folders(root: Path) -> dict[str, Path]:
    """Name, in one Unicode form, of each folder in ``root`` that may be a class.

    Raises:
        ValueError: two names that are one, a name that can't be shown, or a folder that can't be read.
    """
    found: dict[str, Path] = {}
    for entry in sorted(_entries(root), key=lambda entry: entry.name):
        if not _is_dir(entry) or passed_over(entry.name) is not None:
            continue
        path = Path(entry.path)
        if any(unicodedata.category(c) in ("Cc", "Cs") for c in entry.name):  # line ends; bytes that are no UTF-8
            raise ValueError(f"{root} has a folder whose name can't be shown, {entry.name!a}: rename it, as the name of a class")
        first = found.setdefault(plain(entry.name), path)
        if first != path:
            raise ValueError(
                f"{root} has two folders whose names differ in Unicode form or white space alone, {first.name!a} and "
                f"{path.name!a}: are they one class? Put their images into one folder"
            )
    return found


def beside(root: Path, read: Collection[str], left_out: LeftOut) -> None:
    """Count what lies in ``root`` outside the folders that are ``read``, which are given by name."""
    for entry in _entries(root):
        reason = passed_over(entry.name)
        if _is_dir(entry):
            if entry.name not in read:
                left_out.images[reason or NO_CLASS] += _images_below(Path(entry.path))
        elif _is_image(entry.name):
            left_out.images[reason or NO_CLASS] += 1
        elif reason is None:
            left_out.others[_kind(entry.name)] += 1
    left_out.images += Counter()  # without those of which there are none


def images_below(folder: Path, left_out: LeftOut) -> list[Path]:
    """Return every image file at any depth, links followed, in a fixed order.

    Raises:
        ValueError: a folder that can't be read.
    """
    found: list[Path] = []
    way = tuple(_identity(above) for above in (folder, *folder.resolve().parents))  # a link to any of them is a loop
    pending = [(folder, way)]
    while pending:
        here, way = pending.pop()
        for entry in _entries(here):
            path, reason = Path(entry.path), passed_over(entry.name)
            if _is_dir(entry):
                if reason is not None:
                    left_out.images[reason] += _images_below(path)
                elif (identity := _identity(path)) in way:
                    left_out.images[LOOP] += _images_below(path)
                else:
                    pending.append((path, (*way, identity)))
            elif _is_image(entry.name):
                if reason is None:
                    found.append(path)
                else:
                    left_out.images[reason] += 1
            elif reason is None:
                left_out.others[_kind(entry.name)] += 1
    left_out.images += Counter()
    return sorted(found)


def content_of(path: Path) -> bytes:
    """Return the bytes of a file. ValueError for what can't be read, or is no file (a pipe would wait for ever)."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is no regular file")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError("it is a link to nothing" if path.is_symlink() else "it is gone") from error
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def passed_over(name: str) -> str | None:
    """Say why a file or folder of this name holds no records, or None."""
    if name.startswith("."):
        return HIDDEN
    return SYSTEM.format(name) if name.casefold() in OF_SYSTEMS else None


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise ValueError(f"the folder {folder} can't be read: {error.strerror}") from error


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _images_below(folder: Path) -> int:
    return sum(_is_image(name) for _, _, names in os.walk(folder) for name in names)


def _identity(folder: Path) -> tuple[int, int]:
    facts = folder.stat()
    return facts.st_dev, facts.st_ino


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def _kind(name: str) -> str:
    return Path(name).suffix.lower() or "no ending"
