"""``csv:PATH``: labelled texts from a CSV file (.tsv: tab-separated) with a header.

Errors name the line they are about: that is for the person at the terminal, who owns the data. Nothing here
goes into a task's description, so no line number or text reaches a release.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import TensorDataset

from groupclip.sampling.names import alike, plain

from .encoder import encoder
from .spec import Task, TaskOptions
from .split import SPLIT_RULE, held_out
from .table import has_column, read_table
from .tokenizer import HashTokenizer

_MANY_LABELS, _ROWS_A_LABEL = 20, 10  # more labels than both allow aren't taken as public unasked


class Row(NamedTuple):
    text: str
    label: str
    user: str  # "" where no column says
    line: int  # of the file, where the row begins


Rows = list[Row]


def load_csv(path: Path, options: TaskOptions) -> Task:
    """Load labelled texts as int64 token ids ``[T]``, hashed (:mod:`groupclip.tasks.tokenizer`).

    Without ``options.test``, one row in five is held out by a hash of its text, so equal texts stay together; with
    ``options.user_column`` one user in five, with all rows.
    Without ``options.classes``, the distinct labels in the files, sorted, are the classes, taken as public. Labels and users
    are taken in one Unicode form (NFC), without the white space around them.

    Raises:
        FileNotFoundError: no such file.
        ValueError: all that :func:`groupclip.tasks.table.read_table` raises, an empty label, no rows, fewer than two classes, more
            than 20 labels of fewer than ten rows on average where ``options.classes`` doesn't list them, an empty user, users who
            differ in writing alone, a label outside ``options.classes``.
    """
    defaults = HashTokenizer()
    reader = None if options.encoder is None else encoder(str(options.encoder), options.max_length)
    if reader is not None and (idle := [name for name in ("vocabulary", "prefix") if getattr(options, name) is not None]):
        raise ValueError(f"option {idle[0]} is about hashed words, and means nothing with option encoder: give one of them")
    tokenizer = HashTokenizer(
        vocabulary=defaults.vocabulary if options.vocabulary is None else options.vocabulary,
        max_length=defaults.max_length if options.max_length is None else options.max_length,
        prefix=defaults.prefix if options.prefix is None else options.prefix,
    )
    text_column = options.text_column or "text"
    label_column = options.label_column or "label"
    user_column = options.user_column
    given = tuple(map(plain, options.classes or ()))
    if len(set(given)) < len(given):
        raise ValueError(f"classes={','.join(given)} names a class twice")
    rows = _read(path, text_column, label_column, user_column)
    for option, other in (("test", options.test), ("public", options.public)):
        if other is not None and Path(other).exists() and path.samefile(other):
            raise ValueError(
                f"{option}={other} is the training file itself: what is measured there is told without noise"
            )
    if options.test is None:
        keys = [plain(row.text) if user_column is None else row.user for row in rows]
        train = [row for row, key in zip(rows, keys, strict=True) if not held_out(key)]
        test = [row for row, key in zip(rows, keys, strict=True) if held_out(key)]
        if not train or not test:
            kind = "different text(s)" if user_column is None else "user(s)"
            raise ValueError(
                f"{path} has {len(set(keys))} {kind}, too few to hold out one in five (equal texts stay together); give held-out "
                "rows a file of their own, test=PATH"
            )
    else:
        train, test = rows, _read_other(Path(options.test), text_column, label_column, user_column, rows)
    public = (
        None
        if options.public is None
        else _read_other(Path(options.public), text_column, label_column, user_column, train)
    )

    classes = given or tuple(sorted({row.label for row in train + test}))
    if len(classes) < 2:
        raise ValueError(f"{path}: column '{label_column}' has one label, {list(classes)}; two are the least")
    if not given and len(classes) > max(_MANY_LABELS, len(train + test) // _ROWS_A_LABEL):
        raise ValueError(
            f"{path}: column '{label_column}' has {len(classes)} different labels in {len(train + test)} rows, so it seems to hold "
            "numbers, names or texts and no classes. The labels that occur are taken as public and published with the weights, "
            "which would publish these: name the column of classes, label_column=..., or list the classes, classes=A,B,..."
        )
    number = {label: place for place, label in enumerate(classes)}
    files = ((path, rows), (options.test, [] if options.test is None else test), (options.public, public or []))
    for file, row in ((file, row) for file, part in files for row in part):
        if row.label not in number:
            raise ValueError(
                f"{file}, line {row.line}: label {row.label!r} is none of the classes {list(classes)}; list it: classes=A,B,..."
            )

    def records(part: Rows) -> TensorDataset:
        texts = [row.text for row in part]
        inputs = tokenizer.encode(texts) if reader is None else reader.encode(texts)
        return TensorDataset(inputs, torch.tensor([number[row.label] for row in part]))

    # where users are protected, how many rows they have is theirs
    owners = None if user_column is None else tuple(row.user for row in train)
    size = {"train_size": len(train)} if owners is None else {"train_users": len(set(owners))}

    private = records(train)
    return Task(
        name="csv",
        kind="text",
        train=private,
        owners=owners,
        test=records(test),
        public=None if public is None else records(public),
        input_shape=tuple(private.tensors[0].shape[1:]),
        classes=classes,
        vocabulary=tokenizer.vocabulary if reader is None else None,
        description={
            "name": "csv",
            **size,
            "test_size": len(test),
            "source": "local text file",
            "licence": "not known",
            "preprocessing": _preprocessing(tokenizer) if reader is None else reader.described(),
            "split": (
                "a test file was given" if options.test is not None else SPLIT_RULE if owners is None else _USER_RULE
            ),
            "label_set": "given" if options.classes else "the labels that occur, taken as public",
        },
    )


def _preprocessing(tokenizer: HashTokenizer) -> str:
    prefixes = f", and the first {tokenizer.prefix} letters of longer ones," if tokenizer.prefix else ""
    return (
        f"lower-cased words{prefixes} hashed into {tokenizer.vocabulary - 1} buckets, the first {tokenizer.max_length} words "
        "kept, fixed beforehand"
    )


_USER_RULE = "one user in five, with all records, by a hash of the user's name with a fixed public salt"


def _read(path: Path, text_column: str, label_column: str, user_column: str | None = None) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(
            f"task 'csv': there is no file {path}. It should be a CSV file with a header that names "
            f"the columns '{text_column}' and '{label_column}'"
        )
    named = (text_column, label_column) if user_column is None else (text_column, label_column, user_column)
    rows: Rows = []
    for line, (text, label, *user) in read_table(path, named):
        # one name, whatever Unicode form it was written in: or a user would count as two
        row = Row(text, plain(label), plain(user[0]) if user else "", line)
        if not row.label:
            raise ValueError(f"{path}, line {line}: no label; add it or take the row out")
        if user and not row.user:
            raise ValueError(f"{path}, line {line}: no user; add it or take the row out")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} has a header but no rows")
    if user_column is not None:
        _refuse_users_alike(path, rows)
    return rows


def _read_other(path: Path, text_column: str, label_column: str, user_column: str | None, train: Rows) -> Rows:
    """Return rows that are held out or public. Of a file that says whose they are, none may be of a user who is trained on."""
    told = user_column if user_column is not None and path.is_file() and has_column(path, user_column) else None
    rows = _read(path, text_column, label_column, told)
    private = {row.user: row.line for row in train} if told is not None else {}
    shared = [row for row in rows if row.user in private]
    if shared:
        raise ValueError(
            f"{path}, line {shared[0].line}: user {shared[0].user!a} is trained on too (line {private[shared[0].user]} there), and "
            f"what is measured here is told without noise; {len(shared)} row(s) are of such users. Keep each user in one file"
        )
    return rows


def _refuse_users_alike(path: Path, rows: Rows) -> None:
    lines: dict[str, int] = {}
    for row in rows:
        lines.setdefault(row.user, row.line)
    if (pair := alike(lines)) is not None:
        one, two = map(str, pair)
        raise ValueError(
            f"{path}, lines {lines[one]} and {lines[two]}: the users {one!a} and {two!a} differ in writing alone (case, "
            "white space, 1 and 1.0). If they are one person, that person would count as two, each protected as if alone: write "
            "them alike. If they are two, give them names that are told apart otherwise"
        )
