"""Rows of a CSV file (.tsv: tab-separated) with a header. Every error names the file, and the line where there is one."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from groupclip.sampling.names import plain


class _Reader(Protocol):
    """Describes what :func:`csv.reader` gives."""

    line_num: int  # read so far

    def __next__(self) -> list[str]: ...
    def __iter__(self) -> Iterator[list[str]]: ...


_LONGEST = 2**31 - 1  # characters of a field: the parser's own default, 131,072, is less than a long record has
_NO_TEXT = (
    (b"\xff\xfe", "UTF-16 does; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 does; save it as UTF-8"),
    (b"\x1f\x8b", "a gzip file does; unpack it first"),
    (b"PK\x03\x04", "a zip file or a spreadsheet does; unpack it, or save the sheet as CSV in UTF-8"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet does; save the sheet as CSV in UTF-8"),
    (b"PAR1", "a Parquet file does; save it as CSV in UTF-8"),
)
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_LINE_END = re.compile(r"\r\n|\r|\n")


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line, values of the columns)`` of each row; the line is the one where the row begins, from 1.

    Names in the header are compared without the white space around them, in one Unicode form. Blank lines are passed over.

    Raises:
        ValueError: not UTF-8, a NUL byte, no header, a column that isn't there or is there twice, a row with another number of
            fields than the header, quotes that aren't closed or stand in the middle of a field.
    """
    reader = _reader(path)
    header = _header(path, reader)
    places = [_column(path, header, name) for name in columns]
    while True:
        begins = reader.line_num + 1
        row = _next(path, reader, begins)
        if row is None:
            return
        if not row:
            continue  # a blank line, as at the end of many files
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {begins}: {len(row)} fields, but {len(header)} in the header; "
                "put texts that hold a separator or a line break in double quotes"
            )
        yield begins, [row[place] for place in places]


def has_column(path: Path, name: str) -> bool:
    """Return whether the header has a column, by the names that :func:`read_table` compares. Raises as that does."""
    return plain(name) in map(plain, _header(path, _reader(path)))


def _reader(path: Path) -> _Reader:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)


def _header(path: Path, reader: _Reader) -> list[str]:
    header = _next(path, reader, 1)
    if header is None:
        raise ValueError(f"{path} is empty; its first line should name the columns")
    return header


def _text(path: Path) -> str:
    raw = path.read_bytes()
    for beginning, kind in _NO_TEXT:
        if raw.startswith(beginning):
            raise ValueError(f"{path}, line 1: the file begins as {kind}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = _line(raw[: error.start].decode("latin-1"))
        raise ValueError(f"{path}, line {line}: the file is not UTF-8 ({error.reason}); save it as UTF-8") from error
    if (nul := text.find("\0")) >= 0:
        raise ValueError(
            f"{path}, line {_line(text[:nul])}: a NUL byte, which no text holds; save the file as UTF-8 (it may be UTF-16), or "
            "take the byte out"
        )
    return text


def _line(before: str) -> int:
    return len(_LINE_END.findall(before)) + 1


def _next(path: Path, reader: "_Reader", begins: int) -> list[str] | None:
    """Return the next row, or None at the end."""
    try:
        with _long_fields():
            return next(reader, None)
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise ValueError(
                f"{path}, line {begins}: a double quote opens a field of this row and none closes it; close it, "
                "and write a double quote inside a quoted field twice"
            ) from error
        row = "" if reader.line_num == begins else f" (in the row that begins in line {begins})"
        raise ValueError(f"{path}, line {reader.line_num}{row}: no well-formed CSV: {error}") from error


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Allow long fields inside. The limit belongs to the whole process, so it is put back after every row."""
    before = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _column(path: Path, header: list[str], name: str) -> int:
    names = [plain(field) for field in header]
    if names.count(plain(name)) != 1:
        if len(header) == 1 and (used := [words for mark, words in _SEPARATORS.items() if mark in header[0]]):
            raise ValueError(
                f"{path}, line 1: one column, {header[0]!r}, which holds {' and '.join(used)}: save the file with commas between "
                "its columns, or with tabs and a name that ends in .tsv"
            )
        found = "no" if plain(name) not in names else "more than one"
        raise ValueError(
            f"{path}, line 1: {found} column '{name}'; its columns are {header}. "
            "Name yours: text_column=..., label_column=... and, if users are protected, user_column=..."
        )
    return names.index(plain(name))
