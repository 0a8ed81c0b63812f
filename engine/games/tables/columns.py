"""Data frames of the same columns as tables of numbers and words with shared codes.

The kind of a column, the codes and the scales are functions of the cells of all tables together. They do not depend on
the file that a cell stands in, so that no code tells an attack which file a row came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpaudit.engine.games.tables.view import MISSING, MixedTable
from dpaudit.errors import DataError, shortened

ODD_CELLS = 0.01
"""Largest share of cells that are not numbers in a column of numbers, of the cells of all tables that hold a value."""
LARGEST = 1e300
"""Infinite numbers become this large, because sums and differences of numbers must stay finite."""


def encoded(training: pd.DataFrame, holdout: pd.DataFrame, *synthetic: pd.DataFrame) -> tuple[MixedTable, ...]:
    """Return the tables with shared codes, in the order of the arguments.

    A column is numbers if its cells are numbers, booleans or dates, or texts of them. Dates become seconds. If up to
    1 % of the cells are other words, a column of words of the same name holds these words. All other columns are words.
    Texts are compared without blanks at their ends, and numbers in texts by their value, because a file with numbers
    only is read as numbers ("07" as 7). Codes of words follow their alphabetical order.

    Raises: DataError if columns differ or occur twice, if a table has no rows, or if a cell holds several values.
    """
    files = ["training", "holdout", *(["synthetic"] if len(synthetic) == 1 else _numbered(len(synthetic)))]
    tables = dict(zip(files, (training, holdout, *synthetic), strict=True))
    _require_same_columns(tables)
    sizes = [len(table) for table in tables.values()]
    columns = [_column(str(name), [table[name] for table in tables.values()]) for name in training.columns]
    ends = np.cumsum(sizes)
    return tuple(_table(columns, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def _numbered(count: int) -> list[str]:
    return [f"synthetic table {place}" for place in range(1, count + 1)]


def _require_same_columns(tables: Mapping[str, pd.DataFrame]) -> None:
    names = list(next(iter(tables.values())).columns)
    for file, table in tables.items():
        if not len(table):
            raise DataError(f"the {file} table must have rows, got none. Give a table with at least one row")
        repeated = table.columns[table.columns.duplicated()]
        if len(repeated):
            raise DataError(
                f"the {file} table must have one column of each name, got {shortened(str(repeated[0]))!r} twice. "
                "Rename or drop one of them"
            )
        lacking = [name for name in names if name not in table.columns]
        surplus = [name for name in table.columns if name not in names]
        if lacking or surplus:
            what = f"lacks the column {lacking[0]!r}" if lacking else f"also has the column {surplus[0]!r}"
            raise DataError(
                f"all tables must have the same columns, but the {file} table {what}. "
                "Drop the columns that are not in all tables"
            )
    if not names:
        raise DataError("the tables must have columns, got none")


@dataclass(frozen=True, eq=False)
class _Column:
    """The cells of one column in all tables, one after another.

    Attributes:
        numbers: The numbers, NaN for other cells, shape (rows,); None for a column of words.
        codes: Codes of the words, `MISSING` for other cells, shape (rows,); None for a column of numbers only.
        levels: Number of codes.
    """

    name: str
    numbers: NDArray[np.float64] | None
    codes: NDArray[np.int64] | None
    levels: int


def _table(columns: Sequence[_Column], rows: slice) -> MixedTable:
    count = rows.stop - rows.start
    numbers = [(column.name, column.numbers[rows]) for column in columns if column.numbers is not None]
    words = [(column.name, column.codes[rows], column.levels) for column in columns if column.codes is not None]
    return MixedTable(
        np.column_stack([values for _, values in numbers]) if numbers else np.empty((count, 0)),
        np.column_stack([codes for _, codes, _ in words]) if words else np.empty((count, 0), np.int64),
        np.array([levels for _, _, levels in words], np.int64),
        tuple(name for name, _ in numbers),
        tuple(name for name, _, _ in words),
    )


def _column(name: str, parts: Sequence[pd.Series[Any]]) -> _Column:
    kinds = pd.api.types
    if all(kinds.is_bool_dtype(part.dtype) or kinds.is_numeric_dtype(part.dtype) for part in parts):
        if any(kinds.is_complex_dtype(part.dtype) for part in parts):
            raise DataError(f"column {name!r} must hold real numbers, got complex ones. Split it into two columns")
        return _Column(name, _finite(np.concatenate([_floats(part) for part in parts])), None, 0)
    if all(kinds.is_datetime64_any_dtype(part.dtype) for part in parts):
        return _Column(name, np.concatenate([_seconds(part) for part in parts]), None, 0)
    texts = np.concatenate([_texts(part, name) for part in parts])
    codes, distinct = pd.factorize(texts)
    words = [_canonical(text) for text in distinct]
    if not words:
        return _Column(name, np.full(len(texts), np.nan), None, 0)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    for values in (_numbers_in(words), _dates_in(words)):
        odd = np.isnan(values)
        if counts[odd].sum() <= ODD_CELLS * counts.sum():
            rows = np.where(codes >= 0, values[codes], np.nan)
            word_codes, levels = _codes([word if strange else None for word, strange in zip(words, odd, strict=True)])
            return _Column(name, _finite(rows), _spread(codes, word_codes) if odd.any() else None, levels)
    word_codes, levels = _codes(words)
    return _Column(name, None, _spread(codes, word_codes), levels)


def _floats(part: pd.Series[Any]) -> NDArray[np.float64]:
    return part.to_numpy(dtype=np.float64, na_value=np.nan)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(values, -LARGEST, LARGEST)


def _seconds(part: pd.Series[Any]) -> NDArray[np.float64]:
    """Return dates as seconds since 1970 in UTC; dates without a time zone count as UTC."""
    stamps = pd.to_datetime(part, utc=True)
    return _floats((stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s"))


def _texts(part: pd.Series[Any], name: str) -> NDArray[np.object_]:
    """Return the cells as texts, None where a value is missing, shape (rows,)."""
    try:
        codes, distinct = pd.factorize(part.astype(object))
    except TypeError as err:
        raise DataError(
            f"column {name!r} must hold one value in each cell, got a list or a mapping. Spread it over columns"
        ) from err
    texts = np.empty(len(distinct) + 1, object)  # the last one stands for missing cells, whose code is -1
    texts[:-1] = [_text(value) for value in distinct]
    texts[-1] = None
    return texts[codes]


def _text(value: Any) -> str | None:
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return str(value).strip() or None


_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?", re.ASCII)


def _canonical(text: str) -> str:
    """Return the text that all texts of the same number or truth value share; other texts unchanged."""
    if _WHOLE.fullmatch(text):
        return ("-" if text[0] == "-" else "") + (text.lstrip("+-0") or "0")
    number = _number(text)
    if np.isfinite(number):
        return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)
    return text.capitalize() if text.lower() in ("true", "false") else text


def _number(text: str) -> float:
    """Return the number that a text spells, NaN for other texts."""
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


def _numbers_in(words: Sequence[str]) -> NDArray[np.float64]:
    """Return the numbers that words spell, NaN for other words."""
    return np.array([_number(word) for word in words])


def _dates_in(words: Sequence[str]) -> NDArray[np.float64]:
    """Return the seconds of dates in ISO 8601 such as 2024-05-31 or 2024-05-31T12:00, NaN for other words."""
    plausible = pd.Series([word if _DATE.fullmatch(word) else None for word in words], dtype=object)
    return _seconds(pd.to_datetime(plausible, errors="coerce", utc=True, format="ISO8601"))


def _codes(words: Sequence[str | None]) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each word in the sorted set of words, `MISSING` for None, and the size of the set."""
    ranks = {word: rank for rank, word in enumerate(sorted({word for word in words if word is not None}))}
    return np.array([MISSING if word is None else ranks[word] for word in words], np.int64), len(ranks)


def _spread(codes: NDArray[np.int64], word_codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the code of the word of each row; rows of code -1 have none."""
    return np.where(codes >= 0, word_codes[codes], MISSING)
