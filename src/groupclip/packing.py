"""Small things are worked on together, as many at once as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def by_room(items: Iterable[Item], size: Callable[[Item], int], room: int) -> Iterator[list[Item]]:
    """Yield the items in order, as many at once as have no more than ``room`` in all; a larger one comes alone."""
    few: list[Item] = []
    left = room
    for item in items:
        needed = size(item)
        if few and needed > left:
            yield few
            few, left = [], room
        few.append(item)
        left -= needed
    if few:
        yield few
