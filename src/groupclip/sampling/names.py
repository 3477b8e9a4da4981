"""Whether two names are one, written in two ways.

Whoever counts as two users is protected half as well as the statement says. So names in one Unicode form are compared (the
composed one, NFC), and names that are still told apart, but only by how they are written, are refused instead of guessed at.
"""

import re
import unicodedata
from collections.abc import Hashable, Iterable
from typing import Any

from torch import Tensor

_WHOLE_NUMBER = re.compile(r"([+-]?)0*(\d+)(\.0*)?")


def plain(name: str) -> str:
    """Return ``name`` in the composed Unicode form (NFC), without white space around it. Nothing that a reader can see changes."""
    return unicodedata.normalize("NFC", name).strip()


def alike(names: Iterable[Hashable]) -> tuple[Hashable, Hashable] | None:
    """Return the first two different names that differ in writing alone, or None.

    In writing alone: in Unicode form, case, width, white space, invisible characters, or as numbers do (``1``, ``"1"``, ``"01"``
    and ``"1.0"``).
    """
    seen: dict[Hashable, Hashable] = {}
    for name in dict.fromkeys(names):
        first = seen.setdefault(_read(name), name)
        if first != name:
            return first, name
    return None


def check_users(users: Iterable[Any]) -> None:
    """Refuse entries that can't say whose a sample is.

    Raises:
        ValueError: an entry that is missing or blank, that doesn't equal itself, or that another one only differs from in writing.
    """
    distinct: dict[Hashable, int] = {}
    for place, user in enumerate(users):
        if isinstance(user, Tensor) or not _equals_itself(user):
            raise ValueError(
                f"users holds {user!r}, which doesn't equal itself as another entry: samples of one user would count as of "
                "several. Name each sample's user by a text or a whole number (tensor.tolist())"
            )
        if user is None or (isinstance(user, str) and not user.strip()):
            raise ValueError(
                f"users holds {user!r} for sample {place}: it has to say whose the sample is, or a user with other samples counts "
                "as two. Name the user, or take the sample out"
            )
        distinct.setdefault(user, place)
    if (pair := alike(distinct)) is not None:
        one, two = pair
        raise ValueError(
            f"users holds {one!r} (sample {distinct[one]}) and {two!r} (sample {distinct[two]}), in code points "
            f"{one!a} and {two!a}, which differ in writing alone: if they are one person, that person would count as "
            "two. Write them alike (unicodedata.normalize('NFC', user) makes one of two Unicode forms), or name two people apart"
        )


def _equals_itself(user: Any) -> bool:
    try:
        return bool(user == user)  # not so: nan; no answer: pandas.NA
    except TypeError:
        return False


def _read(name: Hashable) -> Hashable:
    """Equal for names that a person would read as one."""
    if isinstance(name, tuple):
        return tuple(map(_read, name))
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    if isinstance(name, int):
        name = str(int(name))
    if not isinstance(name, str):
        return name
    # there may be millions of names, most of which have nothing of Unicode to look at
    text = " ".join(name.casefold().split()) if name.isascii() else _visible(name)
    number = _WHOLE_NUMBER.fullmatch(text)
    return text if number is None else number[1].strip("+") + "".join(str(unicodedata.digit(c)) for c in number[2])


def _visible(name: str) -> str:
    """Write a name in lower case, one width and one form, with single spaces, and without what isn't seen."""
    visible = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.casefold().split()))
