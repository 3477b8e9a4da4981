"""``csv:PATH``: labelled texts from a CSV file (.tsv: tab-separated) with a header.

Errors name the line they are about: that is for the person at the terminal, who owns the data. Nothing here
goes into a task's description, so no line number or text reaches a release.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import TensorDataset

from .spec import Task, TaskOptions
from .split import SPLIT_RULE, held_out
from .tokenizer import HashTokenizer


class Row(NamedTuple):
    text: str
    label: str
    user: str  # "" where no column says


Rows = list[Row]


def load_csv(path: Path, options: TaskOptions) -> Task:
    """Load labelled texts as int64 token ids ``[T]``, hashed (:mod:`groupclip.tasks.tokenizer`).

    Without ``options.test``, one row in five is held out by a hash of its text, so equal texts stay together; with
    ``options.user_column`` one user in five, with all rows.
    Without ``options.classes``, the distinct labels in the files, sorted, are the classes, taken as public.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not UTF-8, no header, an unknown column, an empty label, no rows, fewer than two classes,
            an empty user, a label outside ``options.classes``.
    """
    defaults = HashTokenizer()
    tokenizer = HashTokenizer(
        vocabulary=defaults.vocabulary if options.vocabulary is None else options.vocabulary,
        max_length=defaults.max_length if options.max_length is None else options.max_length,
    )
    text_column = options.text_column or "text"
    label_column = options.label_column or "label"
    user_column = options.user_column
    rows = _read(path, text_column, label_column, user_column)
    if options.test is None:
        keys = [row.text if user_column is None else row.user for row in rows]
        train = [row for row, key in zip(rows, keys, strict=True) if not held_out(key)]
        test = [row for row, key in zip(rows, keys, strict=True) if held_out(key)]
        if not train or not test:
            kind = "row(s)" if user_column is None else "user(s)"
            raise ValueError(f"{path} has {len(set(keys))} {kind}, too few to hold out one in five; set option test")
    else:
        train, test = rows, _read(Path(options.test), text_column, label_column)
    public = None if options.public is None else _read(Path(options.public), text_column, label_column)

    classes = options.classes or tuple(sorted({row.label for row in train + test}))
    if len(classes) < 2:
        raise ValueError(f"{path}: column '{label_column}' has one label, {list(classes)}; two are the least")
    number = {label: place for place, label in enumerate(classes)}
    for row in train + test + (public or []):
        if row.label not in number:
            raise ValueError(f"label {row.label!r} is none of the classes {list(classes)}; list it in option classes")

    def records(part: Rows) -> TensorDataset:
        ids = tokenizer.encode([row.text for row in part])
        return TensorDataset(ids, torch.tensor([number[row.label] for row in part]))

    # where users are protected, how many rows they have is theirs
    owners = None if user_column is None else tuple(row.user for row in train)
    size = {"train_size": len(train)} if owners is None else {"train_users": len(set(owners))}

    return Task(
        name="csv",
        kind="text",
        train=records(train),
        owners=owners,
        test=records(test),
        public=None if public is None else records(public),
        input_shape=(tokenizer.max_length,),
        classes=classes,
        vocabulary=tokenizer.vocabulary,
        description={
            "name": "csv",
            **size,
            "test_size": len(test),
            "source": "local text file",
            "licence": "not known",
            "preprocessing": f"lower-cased words hashed into {tokenizer.vocabulary - 1} buckets, the first "
            f"{tokenizer.max_length} kept, fixed beforehand",
            "split": (
                "a test file was given" if options.test is not None else SPLIT_RULE if owners is None else _USER_RULE
            ),
            "label_set": "given" if options.classes else "the labels that occur, taken as public",
        },
    )


_USER_RULE = "one user in five, with all records, by a hash of the user's name with a fixed public salt"


def _read(path: Path, text_column: str, label_column: str, user_column: str | None = None) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(
            f"task 'csv': there is no file {path}. It should be a CSV file with a header that names "
            f"the columns '{text_column}' and '{label_column}'"
        )
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows: Rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, None)
            if header is None:
                raise ValueError(f"{path} is empty; its first line should name the columns")
            text_at, label_at = (_column(path, header, name) for name in (text_column, label_column))
            user_at = None if user_column is None else _column(path, header, user_column)
            for row in reader:
                if not row:
                    continue  # a blank line, as at the end of many files
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(row)} fields, but {len(header)} in the header; "
                        "put texts that hold a separator or a line break in double quotes"
                    )
                if not row[label_at].strip():
                    raise ValueError(f"{path}, line {reader.line_num}: no label; add it or take the row out")
                user = "" if user_at is None else row[user_at].strip()
                if user_at is not None and not user:
                    raise ValueError(f"{path}, line {reader.line_num}: no user; add it or take the row out")
                rows.append(Row(row[text_at], row[label_at].strip(), user))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} is no well-formed CSV file: {error}") from error
    if not rows:
        raise ValueError(f"{path} has a header but no rows")
    return rows


def _column(path: Path, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        found = "no" if name not in header else "more than one"
        raise ValueError(
            f"{path} has {found} column '{name}'; its columns are {header}. "
            "Set text_column, label_column and, if users are protected, user_column"
        )
    return header.index(name)
