"""Thresholds: the equal split, given ones, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupclip.privacy.thresholds import group_thresholds, sensitivity

GROUPS = ("a", "b", "c", "d")


def test_a_number_is_split_so_that_the_vector_has_that_length() -> None:
    assert group_thresholds(3.0, GROUPS) == dict.fromkeys(GROUPS, 1.5)
    assert group_thresholds(2, ("all",)) == {"all": 2.0}


@given(st.floats(1e-6, 1e6), st.integers(1, 300))
def test_the_sensitivity_of_an_equal_split_is_the_number(r: float, count: int) -> None:
    """So the same noise serves every grouping: the paper's remark in section "Clipping thresholds"."""
    names = [f"g{i}" for i in range(count)]
    assert sensitivity(group_thresholds(r, names)) == pytest.approx(r, rel=1e-12)


def test_a_sequence_goes_by_order_and_a_mapping_by_name() -> None:
    wanted = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert group_thresholds([1, 2, 3, 4], GROUPS) == wanted
    assert group_thresholds((1.0, 2.0, 3.0, 4.0), GROUPS) == wanted
    mixed = group_thresholds({"d": 4, "c": 3, "b": 2, "a": 1}, GROUPS)
    assert mixed == wanted and list(mixed) == list(GROUPS)
    assert all(type(value) is float for value in mixed.values())
    assert sensitivity(wanted) == pytest.approx(math.sqrt(30), rel=1e-15)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan])
def test_a_threshold_must_be_positive_and_finite(value: float) -> None:
    for given_ in (value, [1.0, value, 1.0, 1.0], {"a": 1.0, "b": value, "c": 1.0, "d": 1.0}):
        with pytest.raises(ValueError, match=r"(threshold of group '[ab]' is |thresholds=).*: must be positive and finite"):
            group_thresholds(given_, GROUPS)


def test_as_many_as_groups() -> None:
    with pytest.raises(ValueError, match="thresholds has 3 numbers for 4 groups: give one a group"):
        group_thresholds([1, 2, 3], GROUPS)
    with pytest.raises(
        ValueError, match=r"missing: \['c'\], unknown: \['e'\]; the groups are \['a', 'b', 'c', 'd'\]"
    ):
        group_thresholds({"a": 1, "b": 1, "d": 1, "e": 1}, GROUPS)


@pytest.mark.parametrize("wrong", ["1.0", True, None, object()])
def test_wrong_types(wrong: object) -> None:
    with pytest.raises(TypeError, match="must be a number, a sequence of M numbers or a mapping"):
        group_thresholds(wrong, GROUPS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"threshold of group 'b' is .*: must be a number"):
        group_thresholds([1.0, wrong, 1.0, 1.0], GROUPS)  # pyright: ignore[reportArgumentType]
