"""A budget is one figure over everything that was entered, is never overdrawn, and loses nothing."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import groupclip as gc
from forking import begin_fork, end_fork, in_fork
from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.privacy.budget import Budget

PLAN = gc.Mechanism(dataset_size=1_000, expected_batch_size=50, steps=40, noise_multiplier=1.5)
OTHER = gc.Mechanism(dataset_size=1_000, expected_batch_size=100, steps=10, noise_multiplier=2.0)
COUNT = gc.Mechanism(dataset_size=1_000, expected_batch_size=1_000, steps=1, noise_multiplier=20.0, sampling="full-batch")
CHARGING = Path(__file__).parents[1] / "helpers" / "charging.py"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "data.budget"


def budget(path: Path, epsilon: float = 8.0) -> Budget:
    return Budget(path, epsilon=epsilon, delta=1e-5)


def test_it_is_one_figure_and_less_than_the_sum(path):
    made = budget(path)
    made.add(PLAN, label="first")
    assert made.spent().epsilon == PLAN.epsilon(delta=1e-5)
    made.add(OTHER)
    made.add(COUNT, label="evaluation")
    found = made.spent()
    alone = [plan.epsilon(delta=1e-5) for plan in (PLAN, OTHER, COUNT)]
    assert max(alone) < found.epsilon < 0.9 * math.fsum(alone) and found.steps == 51
    assert Budget(path).spent() == found  # by another object, from the file alone
    assert [entry.label for entry in made.entries] == ["first", "", "evaluation"]


def test_rounds_of_one_plan_are_one_long_run(path):
    made = budget(path)
    for _ in range(5):
        made.add(PLAN, steps=8)
    assert made.spent().epsilon == pytest.approx(PLAN.epsilon(delta=1e-5), rel=1e-9)


def test_a_search_and_given_guarantees_count(path):
    made = budget(path)
    made.add_search(OTHER, mean_runs=3)
    assert made.spent().epsilon == gc.search_cost(OTHER, delta=1e-5, mean_runs=3).epsilon
    made.add_guarantee(epsilon=0.25, delta=1e-7, label="a histogram")
    found = made.spent()
    half = gc.search_cost(OTHER, delta=5e-6, mean_runs=3).epsilon
    assert (found.epsilon, found.accountant) == (pytest.approx(0.25 + half, rel=1e-3), "PLD and RDP")
    assert found == Budget(path).spent()


def test_what_does_not_fit_is_refused_and_nothing_is_written(path):
    made = budget(path, epsilon=1.2 * PLAN.epsilon(delta=1e-5))
    made.add(PLAN)
    before = path.read_bytes()
    for enter in (
        lambda: made.add(PLAN),
        lambda: made.reserve(PLAN),
        lambda: made.add_search(PLAN, mean_runs=2),
        lambda: made.add_guarantee(epsilon=2.0, delta=0.0),
    ):
        with pytest.raises(BudgetExceeded, match="and with this entry it would be"):
            enter()
    assert path.read_bytes() == before
    made.add(COUNT)  # something small still fits


def test_steps_that_are_set_aside_are_nobody_elses(path):
    made = budget(path, epsilon=1.2 * PLAN.epsilon(delta=1e-5))
    reservation = made.reserve(PLAN)
    for step in range(3):
        assert reservation.charge("groupclip") == step + 1
    with pytest.raises(BudgetExceeded):
        Budget(path).add(PLAN)
    assert made.spent().epsilon == PLAN.epsilon(delta=1e-5, steps=3)
    assert made.committed().epsilon == PLAN.epsilon(delta=1e-5)
    reservation.close()
    assert made.committed() == made.spent()
    with pytest.raises(BudgetExceeded, match="3 of 40 steps charged and was closed"):
        reservation.charge("groupclip")
    made.add(PLAN, steps=37)
    with pytest.raises(BudgetExceeded, match="with this entry it would be"):
        made.add(PLAN, steps=37)


def test_a_closed_training_goes_on_only_if_its_rest_still_fits(path):
    made = budget(path, epsilon=1.1 * PLAN.epsilon(delta=1e-5))
    first = made.reserve(PLAN)
    first.charge("groupclip")
    first.close()
    again = made.reopen(first.name)
    assert again.charge("user") == 2
    assert "1 steps were on batches that groupclip didn't draw" in made.spent().note
    again.close()
    made.add(PLAN, steps=39)
    with pytest.raises(BudgetExceeded):
        made.reopen(first.name)
    assert not made.entries[0].is_open


def test_an_entry_is_charged_for_its_plan_and_no_more(path):
    made = budget(path)
    reservation = made.reserve(OTHER)
    for _ in range(10):
        reservation.charge("groupclip")
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded, match="10 of 10 steps charged"):
        reservation.charge("groupclip")
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", [False, True])
def test_kill_9_loses_no_charge(path, torn):
    made = budget(path)
    reservation = made.reserve(PLAN)
    done = subprocess.run(
        [sys.executable, str(CHARGING), str(path), reservation.name, "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9 and done.stdout.split() == [str(n) for n in range(1, 8)]
    if torn:  # as a power cut leaves it: the line was never acknowledged
        with path.open("ab") as file:
            file.write(b'{"id": "' + reservation.name.encode()[:4])
    after = Budget(path)
    assert after.taken(reservation.name) == 7 and after.entries[0].is_open
    assert after.committed().epsilon == PLAN.epsilon(delta=1e-5)  # all of it stays set aside
    assert after.reopen(reservation.name).charge("groupclip") == 8
    assert made.taken(reservation.name) == 8


def test_two_processes_charge_in_turn_and_together_never_too_much(path):
    reservation = budget(path).reserve(dataclasses.replace(PLAN, steps=400))
    command = [sys.executable, str(CHARGING), str(path), reservation.name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    each = [[int(line) for line in process.communicate()[0].split()] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(each[0] + each[1]) == list(range(1, 401))
    assert Budget(path).taken(reservation.name) == 400


def started_together(children):
    """Begin these in forked children that go on when all are there, and return what each returned."""
    reads, writes = os.pipe()

    def waiting(act):
        def wait_and_act():
            os.close(writes)
            os.read(reads, 1)  # until the parent closes it
            return act()

        return wait_and_act

    begun = [begin_fork(waiting(act)) for act in children]
    os.close(reads)
    os.close(writes)
    return [end_fork(child) for child in begun]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_that_were_forked_charge_in_turn_and_together_never_too_much(path):
    made = budget(path)
    reservation = made.reserve(dataclasses.replace(PLAN, steps=200))

    def charged():
        steps = []
        with contextlib.suppress(BudgetExceeded):
            while True:
                steps.append(reservation.charge("groupclip"))
        return json.dumps(steps)

    each = [json.loads(told) for told in started_together([charged] * 2)]
    assert sorted(each[0] + each[1]) == list(range(1, 201))
    assert made.taken(reservation.name) == 200 == Budget(path).taken(reservation.name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_of_forked_children_one_has_the_last_of_a_budget(path):
    made = budget(path, 1.05 * COUNT.epsilon(delta=1e-5))

    def added():
        try:
            return made.add(COUNT)
        except BudgetExceeded:
            return "refused"

    told = started_together([added] * 4)
    assert told.count("refused") == 3 and [entry.name for entry in made.entries] == [name for name in told if name != "refused"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_lock_of_a_forked_child_is_its_own(path):
    import fcntl

    made = budget(path)
    made.add(COUNT)
    held, go_on = os.pipe(), os.pipe()

    def hold():
        os.close(go_on[1])
        with made._locked():
            os.write(held[1], b"held")
            os.read(go_on[0], 1)
            return str(len(made._entries))

    child = begin_fork(hold)
    os.close(held[1])
    assert os.read(held[0], 4) == b"held"
    with pytest.raises(BlockingIOError):
        fcntl.flock(made._lines._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(go_on[1])
    assert end_fork(child) == "1"
    with made._locked():  # it can be had now
        pass
    os.close(held[0]), os.close(go_on[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_refuses_a_file_that_was_replaced(path):
    made = budget(path)
    moved = path.with_name("elsewhere")
    path.rename(moved)
    path.write_bytes(moved.read_bytes())

    def add():
        with pytest.raises(PrivacyViolation, match="deleted, replaced"):
            made.add(COUNT)
        return "refused"

    assert in_fork(add) == "refused"


class FullDisk:
    """Half of the next write, then ENOSPC, while it is full."""

    def __init__(self, monkeypatch) -> None:
        self.full, self._write = True, os.write
        monkeypatch.setattr("groupclip.durable.os.write", self)

    def __call__(self, descriptor, data):
        if not self.full:
            return self._write(descriptor, data)
        if len(data) > 1:
            return self._write(descriptor, bytes(data[: len(data) // 2]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_refuses_the_step_and_loses_nothing(path, monkeypatch):
    made = budget(path)
    reservation = made.reserve(PLAN)
    reservation.charge("groupclip")
    disk = FullDisk(monkeypatch)
    for act in (lambda: reservation.charge("groupclip"), lambda: made.add(COUNT), reservation.close):
        with pytest.raises(OSError, match="No space"):
            act()
    disk.full = False
    assert [(e.taken, e.is_open) for e in made.entries] == [(1, True)] == [(e.taken, e.is_open) for e in Budget(path).entries]
    assert reservation.charge("groupclip") == 2 == Budget(path).taken(reservation.name)


@pytest.mark.parametrize("damage", ["edited", "left out", "not JSON", "no budget"])
def test_a_damaged_file_is_refused_each_time(path, damage):
    reservation = budget(path).reserve(PLAN)
    for _ in range(3):
        reservation.charge("groupclip")
    lines = path.read_text().splitlines()
    if damage == "edited":
        lines[3] = lines[3].replace('"taken": 2', '"taken": 1')
    elif damage == "left out":
        del lines[3]
    elif damage == "not JSON":
        lines[3] = "{"
    else:
        del lines[0]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(PrivacyViolation, match="is damaged at the line"):
        Budget(path)


@pytest.mark.parametrize(
    "content", [b'{\n  "schema": "x"\n}', b"id,text\n1,hello\n2,the last row", b"no line", b"\x93\x00\x7f" * 50]
)
def test_a_file_that_is_no_budget_stays_as_it_is(path, content):
    path.write_bytes(content)
    for facts in ({}, {"epsilon": 1.0, "delta": 1e-5}):
        with pytest.raises(PrivacyViolation, match="is no budget, or is damaged"):
            Budget(path, **facts)
        assert path.read_bytes() == content


def test_reading_changes_nothing_and_what_was_cut_off_gives_way_to_the_next_line(path):
    made = budget(path)
    made.add(COUNT)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "0')
    for reader in (made, Budget(path)):
        assert len(reader.entries) == 1 and path.read_bytes() == whole + b'{"id": "0'
    made.add(OTHER)
    assert path.read_bytes().startswith(whole + b'{"id": "') and len(Budget(path).entries) == 2


def test_an_empty_file_is_none(path):
    path.touch()
    with pytest.raises(ValueError, match="is empty: pass epsilon= and delta="):
        Budget(path)
    budget(path).add(COUNT)
    assert len(Budget(path).entries) == 1 and path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("there", [False, True])
def test_a_budget_that_cannot_be_begun_leaves_nothing(path, monkeypatch, there):
    if there:
        path.touch()
    disk = FullDisk(monkeypatch)
    with pytest.raises(OSError, match="No space"):
        budget(path)
    assert [(file.name, file.stat().st_size) for file in path.parent.iterdir()] == [(path.name, 0)] * there
    disk.full = False
    budget(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("there", [False, True])
def test_of_several_that_begin_a_budget_one_does(path, there):
    if there:
        path.touch()

    def begun(epsilon):
        with contextlib.suppress(ValueError):
            return Budget(path, epsilon=epsilon, delta=1e-5).add(COUNT)
        return "it is another one's"

    told = started_together([partial(begun, 1.0 + n) for n in range(4)])
    entries = Budget(path).entries
    assert [entry.name for entry in entries] == [name for name in told if not name.startswith("it is")]
    assert len(entries) == 1 and [file.name for file in path.parent.iterdir()] == [path.name]


def head(**facts):
    return lambda lines: [json.dumps({**json.loads(lines[0]), **facts}), *lines[1:]]


def more(line, **facts):
    """Another entry, like that of this line but for ``facts``."""
    return lambda lines: [*lines, json.dumps({**json.loads(lines[line]), "id": "another", **facts})]


def more_of(line, facts, **steps):
    return lambda lines: more(line, mechanism={**json.loads(lines[line])["mechanism"], **facts}, **steps)(lines)


def given(epsilon, delta):
    return lambda lines: [*lines, json.dumps({"id": "another", "label": "", "guarantee": [epsilon, delta]})]


EDITS = {
    "epsilon true": head(epsilon=True),
    "epsilon negative": head(epsilon=-2.0),
    "epsilon a text": head(epsilon="9"),
    "epsilon too large a number": head(epsilon=10**400),
    "delta 2": head(delta=2),
    "delta true": head(delta=True),
    "no adjacency": head(adjacency=None),
    "an unknown unit": head(unit="house"),
    "another fact": head(more=1),
    "another version": head(groupclip_budget=2),
    "an entry of another adjacency": more_of(1, {"adjacency": "zero-out"}),
    "an entry of another unit": more_of(1, {"unit": "user"}),
    "a search of another adjacency": more_of(3, {"adjacency": "zero-out"}),
    "no noise": more_of(1, {"noise_multiplier": None}),
    "noise of zero": more_of(1, {"noise_multiplier": 0.0}),
    "a search without a mean": more(3, search=[0, "geometric"]),
    "a guarantee below zero": given(-5, 0),
    "a guarantee that is no number": given(math.nan, 0),
    "an endless guarantee": given(math.inf, 0),
    "a guarantee of a large delta": given(1, 1.5),
    "a guarantee of texts": given("1", "0"),
    "an open guarantee": lambda lines: [*given(1, 0)(lines), '{"id": "another", "open": true}'],
    "an open search": lambda lines: [*lines, json.dumps({"id": json.loads(lines[3])["id"], "open": True})],
    "a label that is no text": more(1, label={"a": 1}),
    "a name that is no text": more(1, id=["another"]),
    "taken true": more(1, taken=True),
    "open 1": more(1, open=1),
    "a fact of no entry": more(1, more=1),
    "an entry twice": lambda lines: [*lines, lines[1]],
    "an unknown sampling": lambda lines: [*lines, json.dumps({**json.loads(lines[4]), "taken": 2, "sampling": "nobody"})],
    "anew false": lambda lines: [*lines, json.dumps({**json.loads(lines[4]), "taken": 2, "anew": False})],
    "a list": lambda lines: [*lines, "[1, 2]"],
    "a number": lambda lines: [*lines, "3"],
    "a deep list": lambda lines: [*lines, "[" * 100_000],
    "an empty line": lambda lines: [*lines[:2], "", *lines[2:]],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> list[str]:
    """The lines of a budget."""
    path = tmp_path_factory.mktemp("budgets") / "written.budget"
    made = budget(path)
    made.add(OTHER)
    reservation = made.reserve(PLAN)
    made.add_search(OTHER, mean_runs=3)
    reservation.charge("groupclip")
    return path.read_text().splitlines()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_line_is_refused_and_named(path, edit, written):
    lines = list(written)
    edited = EDITS[edit](lines)
    number = next(n for n, line in enumerate(edited, 1) if lines[n - 1 : n] != [line])
    if edit == "an open guarantee":
        number += 1  # the first new line is as it could be
    path.write_text("\n".join(edited) + "\n")
    with pytest.raises(PrivacyViolation, match=rf"damaged at the line .*\(number {number}: "):
        Budget(path)
    path.write_text("\n".join(lines) + "\n")
    Budget(path)  # the twin


def test_damage_that_comes_later_is_met_by_every_call(path):
    made = budget(path)
    with path.open("a") as file:
        file.write("nonsense\n")
    for _ in range(2):
        with pytest.raises(PrivacyViolation, match="is damaged at the line 'nonsense'"):
            made.spent()


def test_a_file_that_was_replaced_or_cut_is_refused(path, tmp_path):
    made = budget(path)
    made.add(COUNT)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PrivacyViolation, match="made shorter"):
        made.add(COUNT)
    path.write_bytes(whole)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(PrivacyViolation, match="deleted, replaced"):
        made.add(COUNT)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"epsilon": 3.0}, "is a budget of epsilon=8.0"),
        ({"delta": 1e-6}, "is a budget of delta=1e-05"),
        ({"unit": "user"}, "is a budget of unit='sample'"),
        ({"adjacency": "nearby"}, "adjacency='nearby' is unknown"),
        ({"epsilon": -1.0}, "must be > 0"),
    ],
)
def test_a_file_of_another_budget_is_refused(path, facts, message):
    budget(path)
    with pytest.raises(ValueError, match=message):
        Budget(path, **facts)


def test_a_budget_begins_with_what_may_be_spent(path):
    with pytest.raises(ValueError, match="pass epsilon= and delta="):
        Budget(path)
    assert not path.exists()
    budget(path)
    assert json.loads(path.read_text())["epsilon"] == 8.0 and path.stat().st_mode & 0o077 == 0


def test_figures_of_other_neighbours_are_not_mixed(path):
    made = budget(path)
    other = gc.Mechanism(dataset_size=100, expected_batch_size=10, steps=3, noise_multiplier=3.0, adjacency="zero-out")
    with pytest.raises(ValueError, match="figures of different neighbours don't add up"):
        made.add(other)
    with pytest.raises(ValueError, match="has no training 'x'"):
        made.charge("x")


def test_a_training_in_rounds_goes_on_where_it_stood(path):
    plan = dataclasses.replace(PLAN, steps=12)
    for number in range(3):  # each by an object of its own, as after a restart
        part = Budget(path, epsilon=8.0, delta=1e-5).go_on(plan, label="rounds")
        assert part.before == {"groupclip": 4 * number, "user": 0}
        for _ in range(4):
            part.charge("groupclip")
        part.close()  # leaves the rest set aside
    made = Budget(path)
    (entry,) = made.entries
    assert (entry.taken, entry.is_open, entry.label) == (12, True, "rounds")
    assert made.spent().epsilon == plan.epsilon(delta=1e-5) == made.committed().epsilon
    with pytest.raises(BudgetExceeded, match="12 of 12 steps charged"):
        made.go_on(plan, label="rounds").charge("groupclip")


@pytest.mark.parametrize("changed", [{"noise_multiplier": 1.4}, {"steps": 41}, {"expected_batch_size": 51}])
def test_a_round_of_another_plan_is_refused(path, changed):
    made = budget(path)
    made.go_on(PLAN, label="rounds").charge("groupclip")
    before = path.read_bytes()
    (name, value), = changed.items()
    with pytest.raises(PrivacyViolation, match=f"{name} is {PLAN.to_dict()[name]!r}, and not {value!r}"):
        made.go_on(dataclasses.replace(PLAN, **changed), label="rounds")
    assert path.read_bytes() == before
    made.close(made.entries[0].name)  # what the ledger knows of is allowed: both plans count
    made.go_on(dataclasses.replace(PLAN, **changed), label="later rounds")
    assert made.committed().epsilon > dataclasses.replace(PLAN, **changed).epsilon(delta=1e-5)


def test_a_client_that_is_killed_within_a_round_goes_on_where_it_was_charged(path):
    part = budget(path).go_on(PLAN, label="rounds")
    done = subprocess.run([sys.executable, str(CHARGING), str(path), part.name, "7"], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    again = Budget(path).go_on(PLAN, label="rounds")
    assert again.before == {"groupclip": 7, "user": 0} and again.charge("groupclip") == 8
    assert Budget(path).committed().epsilon == PLAN.epsilon(delta=1e-5)


def test_rounds_of_a_training_that_was_closed_go_on_only_if_they_still_fit(path):
    made = budget(path, epsilon=1.1 * PLAN.epsilon(delta=1e-5))
    part = made.go_on(PLAN, label="rounds")
    part.charge("user")
    made.close(part.name)
    assert made.go_on(PLAN, label="rounds").before == {"groupclip": 0, "user": 1}
    made.close(part.name)
    made.add(PLAN, steps=39)
    with pytest.raises(BudgetExceeded):
        made.go_on(PLAN, label="rounds")


def test_a_label_that_is_no_single_training_is_refused(path):
    made = budget(path)
    with pytest.raises(ValueError, match="needs a label"):
        made.go_on(PLAN, label="")
    made.add_guarantee(epsilon=0.1, delta=0.0, label="given")
    for _ in range(2):
        made.reserve(OTHER, label="twice")
    for label in ("given", "twice"):
        with pytest.raises(ValueError, match="choose another label"):
            made.go_on(OTHER, label=label)
