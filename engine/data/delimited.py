"""Text tables (CSV, TSV): their layout, Arrow's parser, and a slow one that only locates errors."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from dpaudit.engine.data.columns import NamedTable, fault, require_distinct
from dpaudit.engine.data.files import Source, reading, seekable, size_of
from dpaudit.errors import DataError, shortened
from dpaudit.plain_files import SMALL_FILE_BYTES, require_fits_memory

BLOCK_BYTES = 8 << 20
DELIMITERS = ",;\t|"
_SEPARATORS = {"\t": "tabs", ",": "commas", " ": "blanks", ";": "semicolons"}
_CELL = 8  # bytes of a number in memory
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+|\d*,\d+)([eE][-+]?\d+)?\s*")
_DECIMAL_COMMA = re.compile(
    rb'(?:^|[;\t|])[ "]*[-+]?(?:0,\d+|\d*,(?:\d{1,2}|\d{4,}))(?:[eE][-+]?\d+)?[ "]*(?=[;\t|\r\n]|$)', re.MULTILINE
)
"""A number with a decimal comma; three digits behind a comma may be thousands."""


@dataclass(frozen=True)
class Layout:
    """Layout of a text file."""

    columns: tuple[str, ...]  # names of the columns, in order
    delimiter: str = ","  # one character
    quoted: bool = True  # True if delimiters and line ends inside "..." belong to the cell
    skip: int = 0  # lines before the first row
    missing: tuple[str, ...] = ("",)  # cells that stand for a missing value


@dataclass(frozen=True)
class Text:
    """Layout of a text whose cells stay texts.

    Attributes:
        delimiter: Separator of cells; another usual one if the first line does not hold it.
        header: False if the first line is a row.
        missing: Texts that stand for a missing value in every column.
    """

    delimiter: str = ","
    header: bool = True
    missing: Sequence[str] = ("",)


def layout_of(source: Source, text: Text = Text(), *, blanks: bool = False) -> Layout:
    """Return the layout of a text by its first line; blank lines and lines that begin with "#" above it are skipped.

    Args:
        blanks: True if blanks separate the cells where the first line holds no other separator.

    Raises: DataError for a header of numbers, unless a comment above it names the columns.
    """
    line, skip, comment = _first_line(source)
    mark = _separator(line, text.delimiter, blanks=blanks)
    names, end = first_record(source, delimiter=mark, quoted=True, after=skip)
    if not text.header:
        names, end = [f"column-{place}" for place in range(1, len(names) + 1)], skip
    elif _are_a_row(names):
        count, end = len(names), skip
        names = [name.strip() for name in comment.split(mark)]
        if len(names) != count or not comment or any(map(_NUMBER.fullmatch, names)):
            usual = shortened(repr(mark.join(("score", "member")))) if count == 2 else "their names"
            must = f"{source} must name its columns in its first line, got numbers"
            raise DataError(f"{must}; write {usual} above them")
    require_distinct(str(source), names)
    return Layout(tuple(names), mark, skip=end, missing=tuple(text.missing))


def _separator(line: str, stated: str, *, blanks: bool) -> str:
    """Return the separator of the cells of a line: the stated one, or else the most frequent usual one."""
    unquoted = re.sub('"[^"]*"', "", line).strip(" \r\n")
    if stated in unquoted:
        return stated
    usual = max((stated, *DELIMITERS), key=unquoted.count)
    return " " if blanks and usual not in unquoted and " " in unquoted.strip() else usual


def _are_a_row(cells: Sequence[str]) -> bool:
    """Return True for numbers; names that count up are none: those that pandas gives from 0 on, or years."""
    first = int(cells[0]) if re.fullmatch(r"[1-9]\d{0,8}", cells[0]) and len(cells) > 1 else 0
    counted = [str(first + place) for place in range(len(cells))]
    return cells != counted and all(map(_NUMBER.fullmatch, cells))


def first_record(source: Source, *, delimiter: str, quoted: bool, after: int = 0) -> tuple[list[str], int]:
    """Return the cells of the first line behind `after` lines that is not blank, and the number of lines to its end."""
    for line, cells in _records(source, delimiter=delimiter, quoted=quoted, after=after):
        if any(map(_has_invalid_utf8, cells)):
            raise fault(source, "must be UTF-8 text", line=line, do="convert the file to UTF-8")
        return [cell.strip() for cell in cells], line
    raise fault(source, "is empty")


def tables(source: Source, layout: Layout) -> Iterator[pa.Table]:
    """Yield the rows in batches of some thousand, as text without surrounding blanks, null where missing.

    Raises: DataError with the line if a row does not have one cell for each column or is not UTF-8.
    """
    options = pacsv.ReadOptions(column_names=layout.columns, skip_rows=layout.skip, block_size=BLOCK_BYTES)
    # All columns as text: the type of a column must not depend on its first rows.
    types = pacsv.ConvertOptions(column_types=dict.fromkeys(layout.columns, pa.string()))
    try:
        with reading(source) as file:
            cut = _cut(layout)
            for batch in pacsv.open_csv(file, read_options=options, parse_options=cut, convert_options=types):
                table = pa.Table.from_batches([batch])
                yield pa.table({name: _text(table[name], layout.missing) for name in layout.columns})
    except (pa.ArrowInvalid, pa.ArrowKeyError) as err:
        raise _located(source, layout, err) from err


def read_texts(source: Source, layout: Layout, *, rows: int | None) -> NamedTable:
    """Return the first `rows` rows, or all if None; see `tables`."""
    parts, row_count, size = [], 0, 0
    for table in tables(source, layout):
        parts.append(table)
        row_count, size = row_count + len(table), size + table.nbytes
        require_fits_memory(size, source)
        if rows is not None and row_count >= rows:
            break
    if not row_count:
        raise fault(source, "has no rows")
    table = pa.concat_tables(parts).slice(0, rows).combine_chunks()
    return NamedTable(str(source), table, line=partial(line_of, source, layout))


def read_numbers(source: Source, layout: Layout) -> pa.Table:
    """Return all rows, with the types that Arrow finds: numbers, texts, bytes that are not UTF-8.

    Raises: RunError, before the text is parsed, if numbers in all cells do not fit into memory.
    """
    with reading(source) as opened:
        file = seekable(opened, str(source))
        first = file.read(1 << 20)
        if (size := size_of(file)) > SMALL_FILE_BYTES:
            marks = (layout.delimiter.encode(), b"\n", b"\r")
            cells = sum(part.count(mark) for part in iter(lambda: file.read(SMALL_FILE_BYTES), b"") for mark in marks)
            require_fits_memory(max(size, _CELL * cells), source)
        file.seek(0)
        comma = layout.delimiter != "," and _DECIMAL_COMMA.search(first) is not None
        try:
            return pacsv.read_csv(
                file,
                read_options=pacsv.ReadOptions(column_names=layout.columns, skip_rows=layout.skip),
                parse_options=_cut(layout),
                convert_options=pacsv.ConvertOptions(decimal_point="," if comma else "."),
            )
        except pa.ArrowInvalid as err:
            raise _located(source, layout, err) from err


def line_of(source: Source, layout: Layout, row: int) -> int:
    """Return the physical line, counted from 1, on which a row, counted from 0, ends."""
    return next(islice(_rows(source, layout), row, None))[0]


def _cut(layout: Layout) -> pacsv.ParseOptions:
    quote = '"' if layout.quoted else False
    return pacsv.ParseOptions(delimiter=layout.delimiter, quote_char=quote, newlines_in_values=layout.quoted)


def _text(column: pa.ChunkedArray, missing: tuple[str, ...]) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(missing)), pa.scalar(None, pa.string()), trimmed)


def _first_line(source: Source) -> tuple[str, int, str]:
    """Return the first line that is neither blank nor a comment, the number of lines above it, and the last comment."""
    comment = ""
    for above, line in enumerate(_lines(source)):
        if line.strip() and not line.lstrip().startswith("#"):
            return line, above, comment
        comment = line.strip().lstrip("# ") or comment
    raise fault(source, "is empty")


def _lines(source: Source) -> Iterator[str]:
    """Yield the lines of a text; DataError if one is longer than Arrow's reader accepts."""
    with reading(source) as file:
        # Bytes that are not UTF-8 become lone surrogates.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        for number, line in enumerate(iter(lambda: text.readline(BLOCK_BYTES + 1), ""), 1):
            if len(line) > BLOCK_BYTES:
                raise fault(source, f"must have lines of at most {BLOCK_BYTES:,} characters", line=number)
            yield line


def _records(source: Source, *, delimiter: str, quoted: bool, after: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each record behind `after` lines that is not blank; slow."""
    lines = islice(_lines(source), after, None)
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
    try:
        yield from ((after + reader.line_num, cells) for cells in reader if cells)
    except csv.Error as err:
        raise fault(source, f"is not a text table ({err})", line=after + reader.line_num) from err


def _rows(source: Source, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    return _records(source, delimiter=layout.delimiter, quoted=layout.quoted, after=layout.skip)


def _located(source: Source, layout: Layout, err: Exception) -> DataError:
    width = len(layout.columns)
    separator = _SEPARATORS.get(layout.delimiter, layout.delimiter)
    has_rows = False
    for line, cells in _rows(source, layout):
        has_rows = True
        if len(cells) != width:
            problem = f"must have {width} columns separated by {separator}, got {len(cells)}"
            return fault(source, problem, line=line, do="correct the row or the delimiter")
        for name, cell in zip(layout.columns, cells, strict=True):
            if _has_invalid_utf8(cell):
                return fault(source, "must be UTF-8 text", line=line, column=name, do="convert the file to UTF-8")
    return fault(source, str(err).splitlines()[0]) if has_rows else fault(source, "has no rows")


def _has_invalid_utf8(cell: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in cell)
