"""Text tables (CSV, TSV) as Arrow strings: a fast parser, and a slow one that only locates errors."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dpaudit.engine.data.columns import Refuse
from dpaudit.engine.data.files import fault, reading
from dpaudit.errors import DataError

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Layout:
    """Layout of a text file."""

    columns: tuple[str, ...]  # names of the columns, in order
    delimiter: str = ","  # one character
    quoted: bool = True  # True if delimiters and line ends inside "..." belong to the cell
    skip: int = 0  # lines before the first row
    missing: tuple[str, ...] = ("",)  # cells that stand for a missing value


def first_record(path: Path, *, delimiter: str, quoted: bool) -> tuple[list[str], int]:
    """Return the cells of the first line that is not blank, and the number of lines up to its end."""
    for line, cells in _records(path, delimiter=delimiter, quoted=quoted):
        if any(map(_has_invalid_utf8, cells)):
            raise fault(path, "must be UTF-8 text", line=line, do="convert the file to UTF-8")
        return [cell.strip() for cell in cells], line
    raise fault(path, "is empty")


def tables(path: Path, layout: Layout) -> Iterator[pa.Table]:
    """Yield the rows in batches of some thousand, as text without surrounding blanks, null where missing.

    Raises: DataError with the line if a row does not have one cell for each column or is not UTF-8.
    """
    try:
        with reading(path) as file:
            for batch in _batches(file, layout):
                table = pa.Table.from_batches([batch])
                yield pa.table({name: _text(table[name], layout.missing) for name in layout.columns})
    except (pa.ArrowInvalid, pa.ArrowKeyError) as err:
        raise _located(path, layout, err) from err


def read_table(path: Path, layout: Layout, *, rows: int | None) -> pa.Table:
    """Return the first `rows` rows, or all if None; see `tables`."""
    parts, row_count = [], 0
    for table in tables(path, layout):
        parts.append(table)
        row_count += len(table)
        if rows is not None and row_count >= rows:
            break
    if not row_count:
        raise fault(path, "has no rows")
    return pa.concat_tables(parts).slice(0, rows).combine_chunks()


def refusal(path: Path, layout: Layout) -> Refuse:
    """Return a function that returns an error with the line of a row."""

    def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
        line = None if row is None else line_of(path, layout, row)
        return fault(path, problem, line=line, column=column, do=do)

    return refuse


def line_of(path: Path, layout: Layout, row: int) -> int:
    """Return the physical line, counted from 1, on which a row, counted from 0, ends."""
    return next(islice(_rows(path, layout), row, None))[0]


def _batches(file: BinaryIO, layout: Layout) -> Iterator[pa.RecordBatch]:
    options = pa.csv.ReadOptions(column_names=layout.columns, skip_rows=layout.skip, block_size=BLOCK_BYTES)
    cut = pa.csv.ParseOptions(
        delimiter=layout.delimiter,
        quote_char='"' if layout.quoted else False,
        newlines_in_values=layout.quoted,
    )
    # All columns as text: the type of a column must not depend on its first rows.
    types = pa.csv.ConvertOptions(column_types=dict.fromkeys(layout.columns, pa.string()))
    yield from pa.csv.open_csv(file, read_options=options, parse_options=cut, convert_options=types)


def _text(column: pa.ChunkedArray, missing: tuple[str, ...]) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(missing)), pa.scalar(None, pa.string()), trimmed)


def _records(path: Path, *, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each record that is not blank; slow."""
    with reading(path) as file:
        # Bytes that are not UTF-8 become lone surrogates.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        lines = _lines(path, text)
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
        try:
            yield from ((reader.line_num, cells) for cells in reader if cells)
        except csv.Error as err:
            raise fault(path, f"is not a text table ({err})", line=reader.line_num) from err


def _lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a text; DataError if one is longer than Arrow's reader accepts."""
    for number, line in enumerate(iter(lambda: text.readline(BLOCK_BYTES + 1), ""), 1):
        if len(line) > BLOCK_BYTES:
            raise fault(path, f"must have lines of at most {BLOCK_BYTES:,} characters", line=number)
        yield line


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    records = _records(path, delimiter=layout.delimiter, quoted=layout.quoted)
    return ((line, cells) for line, cells in records if line > layout.skip)


def _located(path: Path, layout: Layout, err: Exception) -> DataError:
    width = len(layout.columns)
    separator = {"\t": "tabs", ",": "commas", " ": "blanks", ";": "semicolons"}.get(layout.delimiter, layout.delimiter)
    has_rows = False
    for line, cells in _rows(path, layout):
        has_rows = True
        if len(cells) != width:
            problem = f"must have {width} columns separated by {separator}, got {len(cells)}"
            return fault(path, problem, line=line, do="correct the row or the delimiter")
        for name, cell in zip(layout.columns, cells, strict=True):
            if _has_invalid_utf8(cell):
                return fault(path, "must be UTF-8 text", line=line, column=name, do="convert the file to UTF-8")
    return fault(path, str(err).splitlines()[0]) if has_rows else fault(path, "has no rows")


def _has_invalid_utf8(cell: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in cell)
