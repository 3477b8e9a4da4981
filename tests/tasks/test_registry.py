"""load_task: names, paths and options, and what it says when they're wrong."""

import re

import pytest

from groupclip.tasks import TASKS, TaskOptions, load_task


def test_an_unknown_task_is_named_with_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown task 'digit'; did you mean 'digits'\? Tasks: digits, mnist:PATH"):
        load_task("digit")


def test_nothing_is_suggested_for_a_word_that_is_like_none():
    with pytest.raises(ValueError, match="unknown task 'zzz'; Tasks: digits"):
        load_task("zzz")


@pytest.mark.parametrize("name", [name for name in TASKS if name != "digits"])
def test_tasks_on_files_ask_for_a_path(name):
    for empty in (name, f"{name}:"):
        with pytest.raises(ValueError, match=f"task '{name}' needs the path of its data: write '{name}:PATH'"):
            load_task(empty)


def test_two_paths_are_refused():
    with pytest.raises(ValueError, match=r"task 'csv:a\.csv' has a path already, and data='b\.csv' is another"):
        load_task("csv:a.csv", data="b.csv")


def test_digits_takes_no_path():
    with pytest.raises(ValueError, match=r"task 'digits' ships with scikit-learn and takes no path, not 'x'"):
        load_task("digits", data="x")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", TaskOptions(image_size=8), "task option image_size=8 means nothing to task 'digits'; its options: none"),
        ("csv:x", TaskOptions(image_size=8), "its options: text_column, label_column, user_column"),
        ("imagefolder:x", TaskOptions(text_column="t"), "text_column=t means nothing to task 'imagefolder'"),
        ("mnist:x", TaskOptions(classes=("a", "b")), "classes=('a', 'b') means nothing to task 'mnist'"),
    ],
)  # fmt: skip
def test_options_without_a_meaning_are_refused(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task(name, options=options)


def test_every_option_means_something_to_a_task():
    used = {option for options in TASKS.values() for option in options}
    assert used == set(TaskOptions.__dataclass_fields__)
