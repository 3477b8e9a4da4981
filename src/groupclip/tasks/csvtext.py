"""``csv:PATH``: labelled texts from a CSV file (.tsv: tab-separated) with a header.

Errors name the line they are about: that is for the person at the terminal, who owns the data. Nothing here
goes into a task's description, so no line number or text reaches a release.
"""

import csv
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from .spec import Task, TaskOptions
from .split import SPLIT_RULE, held_out
from .tokenizer import HashTokenizer

Rows = list[tuple[str, str]]  # (text, label)


def load_csv(path: Path, options: TaskOptions) -> Task:
    """Load labelled texts as int64 token ids ``[T]``, hashed (:mod:`groupclip.tasks.tokenizer`).

    Without ``options.test``, one row in five is held out by a hash of its text, so equal texts stay together.
    Without ``options.classes``, the distinct labels in the files, sorted, are the classes, taken as public.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not UTF-8, no header, an unknown column, an empty label, no rows, fewer than two classes,
            a label outside ``options.classes``.
    """
    defaults = HashTokenizer()
    tokenizer = HashTokenizer(
        vocabulary=defaults.vocabulary if options.vocabulary is None else options.vocabulary,
        max_length=defaults.max_length if options.max_length is None else options.max_length,
    )
    text_column = options.text_column or "text"
    label_column = options.label_column or "label"
    rows = _read(path, text_column, label_column)
    if options.test is None:
        train = [row for row in rows if not held_out(row[0])]
        test = [row for row in rows if held_out(row[0])]
        if not train or not test:
            raise ValueError(f"{path} has {len(rows)} row(s), too few to hold out one in five; set option test")
    else:
        train, test = rows, _read(Path(options.test), text_column, label_column)
    public = None if options.public is None else _read(Path(options.public), text_column, label_column)

    classes = options.classes or tuple(sorted({label for _, label in train + test}))
    if len(classes) < 2:
        raise ValueError(f"{path}: column '{label_column}' has one label, {list(classes)}; two are the least")
    number = {label: place for place, label in enumerate(classes)}
    for _, label in train + test + (public or []):
        if label not in number:
            raise ValueError(f"label {label!r} is none of the classes {list(classes)}; list it in option classes")

    def records(part: Rows) -> TensorDataset:
        ids = tokenizer.encode([text for text, _ in part])
        return TensorDataset(ids, torch.tensor([number[label] for _, label in part]))

    return Task(
        name="csv",
        kind="text",
        train=records(train),
        test=records(test),
        public=None if public is None else records(public),
        input_shape=(tokenizer.max_length,),
        classes=classes,
        vocabulary=tokenizer.vocabulary,
        description={
            "name": "csv",
            "train_size": len(train),
            "test_size": len(test),
            "source": "local text file",
            "licence": "not known",
            "preprocessing": f"lower-cased words hashed into {tokenizer.vocabulary - 1} buckets, the first "
            f"{tokenizer.max_length} kept, fixed beforehand",
            "split": SPLIT_RULE if options.test is None else "a test file was given",
            "label_set": "given" if options.classes else "the labels that occur, taken as public",
        },
    )


def _read(path: Path, text_column: str, label_column: str) -> Rows:
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
                rows.append((row[text_at], row[label_at].strip()))
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
            "Set text_column and label_column"
        )
    return header.index(name)
