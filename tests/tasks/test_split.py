"""The split in which every record decides for itself."""

import random

from groupclip.tasks.split import held_out


def test_one_in_five_is_held_out():
    count = sum(held_out(f"record {n}") for n in range(10_000))
    # binomial(10000, 0.2): deviation 40, so 6 deviations; false alarm rate 2e-9, and the keys are fixed anyway
    assert abs(count - 2000) < 240


def test_adding_a_record_moves_no_other():
    records = [f"record {n}" for n in range(500)]
    train = [r for r in records if not held_out(r)]
    neighbour = [r for r in [*records[:250], "new", *records[250:]] if not held_out(r)]
    assert [r for r in neighbour if r != "new"] == train


def test_a_seeded_shuffle_of_rows_would_move_others():
    # the twin: the usual way fails the test above, so the test can fail
    def shuffled_train(records):
        records = list(records)
        random.Random(0).shuffle(records)
        return set(records[len(records) // 5 :])

    records = [f"record {n}" for n in range(500)]
    assert shuffled_train([*records, "new"]) - {"new"} != shuffled_train(records)
