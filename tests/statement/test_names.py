"""Facts are written in words and with commas, as the statement beside them has its numbers."""

from groupclip.statement.names import plain_name, with_commas


def test_counts_have_commas_and_nothing_else_changes():
    facts = {"train_size": 1437, "test_size": 360, "seed": 20240101, "name": "digits", "shared": True, "rate": 1234.5}
    assert with_commas(facts) == {**facts, "train_size": "1,437", "test_size": "360"}
    assert [plain_name(key) for key in with_commas(facts)][:2] == ["training samples", "held-out samples"]
