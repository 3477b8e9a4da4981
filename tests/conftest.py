"""What every test is run under, and what of the large grids the default suite runs."""

import math
import sys
import weakref

import pytest
from hypothesis import HealthCheck, settings

# A profile of its own, for hypothesis chooses another one where the variable CI is set: what passes there must pass everywhere.
# An example is judged by what it finds, not by how long it takes.
settings.register_profile("groupclip", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("groupclip")


def in_default_suite(indices: list[int], number: int, first: int = 0) -> bool:
    """Whether a combination, by its index in each ``parametrize``, is the one in ``number`` that isn't left to the slow tests.

    Along every axis that has a companion with at least ``number`` values, all values stay.
    """
    return sum(indices) % number == first


def position(item: pytest.Item) -> list[int]:
    """The item's index along each ``parametrize``: pytest numbers the combinations, the decorator next to the function slowest."""
    axes = [len(axis.args[1]) for axis in item.iter_markers("parametrize")]
    (number,) = set(item.callspec.indices.values())
    assert number < math.prod(axes), f"{item.nodeid}: one_in is for what parametrize makes, alone"
    indices = []
    for length in reversed(axes):
        number, index = divmod(number, length)
        indices.append(index)
    return indices


@pytest.fixture(autouse=True)
def of_no_other_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep batches and trainings of one test from another, whose plan and first weights may be equal: tests share one process."""
    monkeypatch.setattr("groupclip.sampling.claims._runs", [])
    if "groupclip.engine.earlier" in sys.modules:
        monkeypatch.setattr("groupclip.engine.earlier._under_way", weakref.WeakSet())
        monkeypatch.setattr("groupclip.engine.earlier._by_content", {})


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("one_in"):
            if not in_default_suite(position(item), *mark.args, **mark.kwargs):
                item.add_marker("slow")
