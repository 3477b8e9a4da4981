"""Labelled texts from CSV files, and the tokenizer that learns nothing from them."""

import csv
import re
import subprocess
import sys

import pytest
import torch

from groupclip.tasks import TaskOptions, load_task
from groupclip.tasks.split import held_out
from groupclip.tasks.tokenizer import HashTokenizer

ROWS = [(f"film number {n} was fine", "good" if n % 2 else "bad") for n in range(40)]


def write(path, rows=ROWS, header="text,label"):
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in rows)]) + "\n", encoding="utf-8")
    return path


def test_a_plain_file(tmp_path):
    task = load_task(f"csv:{write(tmp_path / 'reviews.csv')}")
    assert (task.kind, task.classes, task.input_shape, task.vocabulary) == ("text", ("bad", "good"), (64,), 8192)
    assert len(task.train) + len(task.test) == 40 and 0 < len(task.test) < 20
    ids, labels = task.train.tensors
    assert ids.dtype == labels.dtype == torch.int64
    assert ids[:, :5].min() > 0 and (ids[:, 5:] == 0).all()  # five words each
    assert "reviews" not in str(task.description)
    assert task.description["label_set"] == "the labels that occur, taken as public"


def test_adding_a_row_moves_no_other(tmp_path):
    before = load_task("csv", data=write(tmp_path / "a.csv"))
    after = load_task("csv", data=write(tmp_path / "b.csv", [("a new one", "good"), *ROWS]))
    rows = lambda part: {tuple(row) for row in part.tensors[0].tolist()}  # noqa: E731
    new = {tuple(HashTokenizer().encode(["a new one"])[0].tolist())}
    assert rows(before.train) == rows(after.train) - new
    assert rows(before.test) == rows(after.test) - new


def test_equal_texts_stay_together(tmp_path):
    task = load_task("csv", data=write(tmp_path / "a.csv", ROWS * 3))
    train, test = ({tuple(row) for row in part.tensors[0].tolist()} for part in (task.train, task.test))
    assert not train & test


def test_columns_test_public_and_lengths(tmp_path):
    write(tmp_path / "train.csv", header="review,stars")
    write(tmp_path / "test.csv", ROWS[:4], header="review,stars")
    options = TaskOptions(
        text_column="review", label_column="stars", max_length=3, vocabulary=50, classes=("good", "bad", "mixed"),
        test=tmp_path / "test.csv", public=tmp_path / "test.csv",
    )  # fmt: skip
    task = load_task("csv", data=tmp_path / "train.csv", options=options)
    assert (len(task.train), len(task.test), len(task.public)) == (40, 4, 4)
    assert task.classes == ("good", "bad", "mixed") and task.test.tensors[1].tolist() == [1, 0, 1, 0]
    assert task.train.tensors[0].shape == (40, 3) and task.train.tensors[0].max() < 50
    assert task.description["label_set"] == "given"


def test_quotes_marks_tabs_and_blank_lines(tmp_path):
    body = '\ufefftext\tlabel\n"one, ""two""\nthree"\tgood\n\nplain\tbad\n'
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text(body, encoding="utf-8")
    task = load_task("csv", data=tmp_path / "a.tsv", options=TaskOptions(test=tmp_path / "b.tsv"))
    assert task.train.tensors[1].tolist() == [1, 0]
    assert task.train.tensors[0][0].tolist()[:7] == [*HashTokenizer().ids('one, "two" three'), 0]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "is empty; its first line should name the columns"),
        (b"text,label\n", {}, "has a header but no rows"),
        (b"text,label\na,b\n", {}, "has 1 different text(s), too few to hold out one in five (equal texts stay together)"),
        (b"text,label\n" + b"the same,a\nthe same,b\n" * 50, {}, "has 1 different text(s), too few to hold out one in five"),
        (b"text;label\na,b;c\n", {}, "line 1: one column, 'text;label', which holds semicolons: save the file with commas"),
        (b"text\tlabel\na\tb\n", {}, "line 1: one column, 'text\\tlabel', which holds tabs: save the file with commas"),
        (b"\x1f\x8b\x08\x00rest", {}, "a.csv, line 1: the file begins as a gzip file does; unpack it first"),
        (b"PK\x03\x04rest", {}, "a.csv, line 1: the file begins as a zip file or a spreadsheet does; unpack it, or save the sheet"),
        (b"words,label\na,b\n", {}, "line 1: no column 'text'; its columns are ['words', 'label']. Name yours: text_column="),
        (b"text,label,text\na,b,c\n", {}, "line 1: more than one column 'text'"),
        (b"text,label\na,b\nc\n", {}, "line 3: 1 fields, but 2 in the header; put texts that hold a separator"),
        (b"text,label\na,b\nc, \n", {}, "line 3: no label; add it or take the row out"),
        (b"text,label\ncaf\xe9,b\n", {}, "a.csv, line 2: the file is not UTF-8 (invalid continuation byte); save it as"),
        (b'text,label\n"a,b\n', {}, "a.csv, line 2: a double quote opens a field of this row and none closes it"),
        (b'text,label\na,b\n"c\n\nd,b\n', {}, "a.csv, line 3: a double quote opens a field of this row"),
        (b'text,label\na,b\n"c\nd"e,b\n', {}, "a.csv, line 4 (in the row that begins in line 3): no well-formed CSV: ',' expected"),
        (b'"text,label\n', {}, "a.csv, line 1: a double quote opens"),
        (b"text,label\r\na,b\rb\0,c\n", {}, "a.csv, line 3: a NUL byte, which no text holds"),
        ("text,label\na,b\n".encode("utf-16-le"), {}, "a.csv, line 1: a NUL byte"),
        ("text,label\na,b\n".encode("utf-16"), {}, "a.csv, line 1: the file begins as UTF-16 does; save it as UTF-8"),
        (b"text,label\n" + b"".join(b"t%d,same\n" % n for n in range(40)), {}, "'label' has one label, ['same']"),
        (b"text,label\n" + b"".join(b"t%d,l%d\n" % (n, n % 3) for n in range(40)), dict(classes=("l0", "l1")),
         "a.csv, line 4: label 'l2' is none of the classes ['l0', 'l1']; list it: classes=A,B"),
        (b"text,label\na,b\n", dict(classes=("jos\u00e9", "jose\u0301")), "classes=jos\u00e9,jos\u00e9 names a class twice"),
        (b"text,label\na,b\n", dict(vocabulary=1), "vocabulary=1 must be at least 2"),
        (b"text,label\na,b\n", dict(max_length=0), "max_length=0 must be at least 1 token"),
    ],
)  # fmt: skip
def test_files_and_options_that_cannot_be_used(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task("csv", data=tmp_path / "a.csv", options=TaskOptions(**options))


def labelled(tmp_path, count, labels):
    return write(tmp_path / "a.csv", [(f"text {n}", f"{n % labels / 7}") for n in range(count)])


@pytest.mark.parametrize(("count", "labels"), [(300, 300), (300, 31), (199, 21)])
def test_a_column_that_holds_no_classes_is_refused(tmp_path, count, labels):
    """Numbers, names, texts: the labels that occur would be published with the weights, each of one person perhaps."""
    with pytest.raises(ValueError, match=f"'label' has {labels} different labels in {count} rows, so it seems to hold numbers"):
        load_task("csv", data=labelled(tmp_path, count, labels))
    listed = tuple(f"{n / 7}" for n in range(labels))
    task = load_task("csv", data=tmp_path / "a.csv", options=TaskOptions(classes=listed))
    assert task.classes == listed


@pytest.mark.parametrize(("count", "labels"), [(40, 20), (300, 30), (2000, 200)])
def test_many_classes_are_no_such_column(tmp_path, count, labels):
    assert len(load_task("csv", data=labelled(tmp_path, count, labels)).classes) == labels


COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


def test_a_long_field_is_read_and_leaves_the_parsers_limit_alone(tmp_path):
    before = csv.field_size_limit()
    long = "word " * 40_000  # 200,000 characters; the parser stops at 131,072 by default
    task = load_task("csv", data=write(tmp_path / "a.csv", [(long, "good"), *ROWS]))
    assert len(task.train) + len(task.test) == 41
    assert csv.field_size_limit() == before


def test_one_label_in_two_unicode_forms_is_one_class(tmp_path):
    rows = [(text, (COMPOSED, f" {DECOMPOSED}", "other")[n % 3]) for n, (text, _) in enumerate(ROWS)]
    for options in (TaskOptions(), TaskOptions(classes=(DECOMPOSED, "other"))):
        assert load_task("csv", data=write(tmp_path / "a.csv", rows), options=options).classes == (COMPOSED, "other")


def users(tmp_path, names):
    """A file in which row n is of user ``names[n]``, and of 40 others."""
    everyone = [*names, *(f"u{n}" for n in range(40))]
    rows = [(f"{text},{user}", label) for (text, label), user in zip(ROWS * 2, everyone, strict=False)]
    return write(tmp_path / "users.csv", rows, header="text,who,label")


def test_one_user_in_two_unicode_forms_is_one_unit(tmp_path):
    names = [COMPOSED, DECOMPOSED, f" {COMPOSED}\u00a0"]
    task = load_task("csv", data=users(tmp_path, names), options=TaskOptions(user_column="who"))
    assert task.units == len(set(task.owners)) == len({*task.owners} - {COMPOSED}) + (COMPOSED in task.owners)
    assert DECOMPOSED not in task.owners
    assert task.owners.count(COMPOSED) in (0, 3)  # all on one side of the split


@pytest.mark.parametrize(
    ("one", "two"), [("anna", "Anna"), ("1", "1.0"), ("7", "007"), ("a b", "a  b"), ("ab", "a\u200bb"), ("A1", "\uff211")]
)
def test_users_who_differ_in_writing_alone_are_refused(tmp_path, one, two):
    file = users(tmp_path, ["first", one, "second", two])
    with pytest.raises(ValueError, match=r"users\.csv, lines 3 and 5: the users .* differ in writing alone") as caught:
        load_task("csv", data=file, options=TaskOptions(user_column="who"))
    assert ascii(one) in str(caught.value) and ascii(two) in str(caught.value)


def test_users_who_are_told_apart_are_not_refused(tmp_path):
    names = ["1", "10", "1.5", "-1", "a-b", "ab", "a b", "e1", "1e1", "jose", COMPOSED]
    task = load_task("csv", data=users(tmp_path, names), options=TaskOptions(user_column="who"))
    held = {name for name in names if held_out(name)}
    assert {*task.owners} >= {*names} - held and not {*task.owners} & held


@pytest.mark.parametrize("option", ["test", "public"])
def test_no_user_is_trained_on_and_measured(tmp_path, option):
    trained = load_task("csv", data=users(tmp_path, []), options=TaskOptions(user_column="who"))
    one = sorted({*trained.owners})[0]
    other = write(tmp_path / "other.csv", [("a,v1", "good"), (f"b, {one} ", "bad"), (f"c,{one}", "bad")], "text,who,label")
    options = TaskOptions(user_column="who", **{option: other})
    with pytest.raises(ValueError, match=rf"other\.csv, line 3: user '{one}' is trained on too .* 2 row\(s\) are of such users"):
        load_task("csv", data=tmp_path / "users.csv", options=options)
    write(other, [("a,v1", "good"), ("b,v2", "bad")], "text,who,label")
    load_task("csv", data=tmp_path / "users.csv", options=options)
    write(other, [("a", "good"), ("b", "bad")])  # doesn't say whose
    load_task("csv", data=tmp_path / "users.csv", options=options)


@pytest.mark.parametrize("user", ["", "   ", "\u00a0"])
def test_a_row_of_nobody_is_refused(tmp_path, user):
    with pytest.raises(ValueError, match=r"users\.csv, line 3: no user; add it or take the row out"):
        load_task("csv", data=users(tmp_path, ["first", user]), options=TaskOptions(user_column="who"))


def test_names_in_the_header_are_compared_without_space_in_one_form(tmp_path):
    write(tmp_path / "a.csv", header=f" caf\u00e9 , {DECOMPOSED}")
    options = TaskOptions(text_column="cafe\u0301", label_column=COMPOSED)
    assert load_task("csv", data=tmp_path / "a.csv", options=options).classes == ("bad", "good")


def test_one_text_in_two_unicode_forms_stays_on_one_side(tmp_path):
    rows = [(f"{name} {n}", "good" if n % 2 else "bad") for n in range(60) for name in (COMPOSED, DECOMPOSED)]
    task = load_task("csv", data=write(tmp_path / "a.csv", rows))
    train, test = ({tuple(row) for row in part.tensors[0].tolist()} for part in (task.train, task.test))
    assert not train & test and len(train | test) == 60


@pytest.mark.parametrize("option", ["test", "public"])
def test_the_training_file_is_neither_held_out_nor_public(tmp_path, option):
    (tmp_path / "link.csv").symlink_to(write(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=rf"{option}=.*link\.csv is the training file itself"):
        load_task("csv", data=tmp_path / "a.csv", options=TaskOptions(**{option: tmp_path / "link.csv"}))


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*gone\.csv\. It should be a CSV file with a header"):
        load_task("csv", data=tmp_path / "gone.csv")
    with pytest.raises(FileNotFoundError, match=r"no file .*test\.csv"):
        options = TaskOptions(test=tmp_path / "test.csv")
        load_task("csv", data=write(tmp_path / "a.csv"), options=options)


def test_the_tokenizer():
    tokenizer = HashTokenizer(vocabulary=1000, max_length=4)
    assert tokenizer.ids("Don't") == tokenizer.ids("don ' T")
    assert tokenizer.ids("caf\u00e9") == tokenizer.ids("cafe\u0301")  # one letter, two ways to write it
    assert len(tokenizer.ids("a b c d e f")) == 4
    assert tokenizer.encode(["", "a"]).tolist() == [[0, 0, 0, 0], [*tokenizer.ids("a"), 0, 0, 0]]
    ids = [tokenizer.ids(f"word{n}")[0] for n in range(20_000)]
    assert min(ids) == 1 and max(ids) == 999  # every bucket but padding is in use


def test_the_tokenizer_is_the_same_in_every_process():
    code = "from groupclip.tasks.tokenizer import HashTokenizer as H; print(H().ids('private data!'))"
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert runs == {f"{HashTokenizer().ids('private data!')}\n"}
    assert HashTokenizer().ids("private data!") == [4198, 2898, 6514]  # another hash would silently break saved models


def test_the_beginnings_of_longer_words_are_words_of_their_own():
    plain, tokenizer = HashTokenizer(vocabulary=1000), HashTokenizer(vocabulary=1000, max_length=3, prefix=4)
    moving, movies = tokenizer.ids("moving"), tokenizer.ids("movies")
    assert (len(moving), len(movies)) == (2, 2)
    assert moving[1] == movies[1] and moving[0] != movies[0]
    assert moving[0] == plain.ids("moving")[0]
    assert moving[1] != plain.ids("movi")[0]  # that is a word
    assert tokenizer.ids("a film, movies") == [*plain.ids("a film ,")][:3]  # three words, none longer than four letters
    assert tokenizer.encode(["movies", ""]).tolist() == [[*movies, 0, 0, 0, 0], [0] * 6]
    with pytest.raises(ValueError, match="prefix=-1 must be at least 0 letters"):
        HashTokenizer(prefix=-1)


def test_prefixes_of_a_file(tmp_path):
    options = TaskOptions(max_length=10, prefix=4)
    task = load_task("csv", data=write(tmp_path / "a.csv"), options=options)
    assert task.input_shape == (20,)
    assert task.train.tensors[0].shape[1] == 20
    assert "and the first 4 letters of longer ones, hashed into 8191 buckets" in task.description["preprocessing"]
