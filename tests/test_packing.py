"""Items in order, no more at once than there is room for."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from groupclip.packing import by_room


@given(sizes=st.lists(st.integers(0, 12)), room=st.integers(1, 20))
def test_all_in_order_and_within_the_room(sizes: list[int], room: int) -> None:
    packs = list(by_room(sizes, int, room))
    assert [size for pack in packs for size in pack] == sizes
    assert all(pack and (sum(pack) <= room or len(pack) == 1) for pack in packs)
    assert all(sum(pack) + following[0] > room for pack, following in itertools.pairwise(packs))
