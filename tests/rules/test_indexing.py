import pytest
import torch

from check_engine import inexact
from check_rules import METHODS, B, Calls, ids, observed, randn, slow_operations

CASES = {
    "rows": (lambda x, t: t[x], (B, 5)),
    "grid": (lambda x, t: t[x], (B, 2, 3)),
    "one": (lambda x, t: t[x], (B,)),
    "negative": (lambda x, t: t[x - 7], (B, 5)),
    "derived": (lambda x, t: (2 * t)[x], (B, 5)),
    "number": (lambda x, t: torch.stack([t[v[0]] for v in x]), (B, 1)),
    "number, derived": (lambda x, t: torch.stack([(2 * t)[v[0]] for v in x]), (B, 1)),
    "none": (lambda x, t: t[x], (0, 5)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_a_table(case: str, method: str) -> None:
    call, shape = CASES[case]
    assert inexact(Calls(call, table=randn(7, 4)), (ids(7, *shape),), methods=method) == []


@pytest.mark.parametrize("case", ["rows", "grid", "one", "number"])
def test_they_go_by_a_rule(case: str) -> None:
    call, shape = CASES[case]
    assert slow_operations(Calls(call, table=randn(7, 4)), (ids(7, *shape),)) == set()


def test_what_is_no_index_of_rows_goes_another_way() -> None:
    """A mask, several indices, and slices beside an index: exact all the same."""
    for call in (lambda x, t: torch.stack([t[v > 3].sum(0) for v in x]), lambda x, t: t[x, x - 4], lambda x, t: t[x, 1:]):
        assert inexact(Calls(call, table=randn(7, 4)), (ids(7, B, 7),)) == []


def test_an_index_beyond_the_table_is_torchs_own_error() -> None:
    model = Calls(lambda x, t: t[x], table=randn(7, 4))
    with pytest.raises(IndexError), observed(model, (ids(7, B, 5) + 7,)):
        pass
