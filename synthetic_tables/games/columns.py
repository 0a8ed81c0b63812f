"""Data frames of the same columns as tables of numbers and words with shared codes.

The kind of a column, the codes and the scales are functions of the cells of all tables together. They do not depend on
the file that a cell stands in, so that no code tells an attack which file a row came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpaudit.engine.data.cells import (
    DATE_STEPS,
    STEPS,
    Spelling,
    UnclearNumbers,
    canonical,
    comparable,
    missing_note,
    spelling,
    text_of,
    truths,
)
from dpaudit.errors import DataError, shortened
from dpaudit.synthetic_tables.games.view import MISSING, MixedTable

LARGEST = 1e300
"""Infinite numbers become this large, because sums and differences of numbers must stay finite."""


def encoded(training: pd.DataFrame, holdout: pd.DataFrame, *synthetic: pd.DataFrame) -> tuple[MixedTable, ...]:
    """Return the tables with shared codes, in the order of the arguments; see `read_as`."""
    return read_as(training, holdout, *synthetic)[0]


def read_as(
    training: pd.DataFrame, holdout: pd.DataFrame, *synthetic: pd.DataFrame
) -> tuple[tuple[MixedTable, ...], tuple[str, ...]]:
    """Return the tables with shared codes, and what was read as what, for each column that has unusual spellings.

    A column is numbers if its cells are numbers, booleans or dates, or texts of them (`cells.py`). Dates become
    seconds. If up to 1 % of the cells are other words, a column of words of the same name holds these words. All other
    columns are words. Texts are compared without blanks at their ends, and numbers in texts by their value, because a
    file with numbers only is read as numbers ("07" as 7). Codes of words follow their alphabetical order.

    Raises: DataError if columns differ or occur twice, if a table has no rows, if a cell holds several values, or if
        the cells of a column cannot be compared: numbers with dates, 45 % with 45.
    """
    files = ["training", "holdout", *(f"synthetic table {place}" for place in range(1, len(synthetic) + 1))]
    files = [*files[:2], "synthetic"] if len(synthetic) == 1 else files
    tables = dict(zip(files, (training, holdout, *synthetic), strict=True))
    _require_same_columns(tables)
    ends = np.cumsum([len(table) for table in tables.values()])
    rows = [np.arange(end - len(table), end) for end, table in zip(ends, tables.values(), strict=True)]
    parts = {str(name): [table[name] for table in tables.values()] for name in training.columns}
    columns, unclear = {}, {}
    for name in parts:
        try:
            columns[name] = _column(name, parts[name], files)
        except UnclearNumbers as err:
            unclear[name] = err
    marks = {column.decimal for column in columns.values() if column.decimal}
    for name, refusal in unclear.items():  # the other columns tell the decimal mark
        if len(marks) != 1:
            raise refusal
        columns[name] = _column(name, parts[name], files, *marks)
    ordered = [columns[name] for name in parts]
    notes = tuple(f"{each.name}: {each.note}" for each in ordered if each.note)
    numbers = [(column.name, column.numbers) for column in ordered if column.numbers is not None]
    words = [(column.name, column.codes, column.vocabulary) for column in ordered if column.codes is not None]
    whole = MixedTable(
        np.column_stack([np.empty((ends[-1], 0)), *(values for _, values in numbers)]),
        np.column_stack([np.empty((ends[-1], 0), np.int64), *(codes for _, codes, _ in words)]),
        np.array([len(vocabulary) for _, _, vocabulary in words], np.int64),
        tuple(name for name, _ in numbers),
        tuple(name for name, _, _ in words),
        tuple(vocabulary for _, _, vocabulary in words),
    )
    return tuple(whole.take(each) for each in rows), notes


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
        vocabulary: Words by their codes.
        note: What was read as what; "" for usual spellings.
        decimal: Decimal mark of numbers in texts; "" if there was none.
    """

    name: str
    numbers: NDArray[np.float64] | None
    codes: NDArray[np.int64] | None = None
    vocabulary: tuple[str, ...] = ()
    note: str = ""
    decimal: str = ""


class _Texts(NamedTuple):
    """The different texts of a column.

    Attributes:
        words: The texts.
        codes: Position of the text of each cell in `words`, -1 for an empty cell: one array for each table.
        counts: Number of cells of each text in each table, shape (tables, words).
    """

    words: list[str]
    codes: list[NDArray[np.int64]]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, name: str, parts: Sequence[pd.Series[Any]]) -> _Texts:
        codes, distinct = pd.factorize(np.concatenate([_texts(part, name) for part in parts]))
        of_tables = np.split(codes, np.cumsum([len(part) for part in parts])[:-1])
        counts = [np.bincount(each[each >= 0], minlength=len(distinct)) for each in of_tables]
        return cls(list(distinct), of_tables, np.array(counts))

    def word_codes(self, words: Sequence[str | None]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the rank of the word of each cell in the sorted set of words, `MISSING` for None, and that set."""
        ranks = {word: rank for rank, word in enumerate(sorted({word for word in words if word is not None}))}
        codes = np.array([*(MISSING if word is None else ranks[word] for word in words), MISSING], np.int64)
        return codes[np.concatenate(self.codes)], tuple(ranks)


def _column(name: str, parts: Sequence[pd.Series[Any]], files: Sequence[str], decimal: str = "") -> _Column:
    kinds = pd.api.types
    if any(kinds.is_complex_dtype(part.dtype) for part in parts):
        raise DataError(f"column {name!r} must hold real numbers, got complex ones. Split it into two columns")
    if all(kinds.is_bool_dtype(part.dtype) or kinds.is_numeric_dtype(part.dtype) for part in parts):
        floats = [part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts]
        return _of_numbers(name, dict(zip(files, floats, strict=True)))
    texts = _Texts.of(name, parts)
    if not texts.words:
        return _Column(name, np.full(sum(map(len, parts)), np.nan))
    truth = truths(texts.words)
    if truth is not None:
        values = np.append(truth, np.nan)[np.concatenate(texts.codes)]
        return _Column(name, values, note="yes and no in several spellings as 1 and 0")
    joint = spelling(texts.words, texts.counts.sum(axis=0), decimal)
    of_tables = dict.fromkeys(files, joint)
    if joint.kind == "words" or (texts.counts @ joint.odd > texts.counts.sum(axis=1) / 2).any():
        each_table = (spelling(texts.words, counts, decimal) for counts in texts.counts)
        of_tables = dict(zip(files, each_table, strict=True))
        joint = _agreed(name, joint, of_tables)
    if joint.kind != "words":
        return _of_texts(name, texts, of_tables)
    codes, vocabulary = texts.word_codes([canonical(word) for word in texts.words])
    return _Column(name, None, codes, vocabulary, _why_words(joint, texts))


def _agreed(name: str, joint: Spelling, of_tables: Mapping[str, Spelling]) -> Spelling:
    """Return a spelling with values if all tables hold values of one kind, else `joint` as words.

    Raises: DataError if the values of a table can be compared with nothing in another one.
    """
    unclear = next((each.unclear for each in (joint, *of_tables.values()) if each.unclear), "")
    if "," in unclear:
        raise UnclearNumbers(f"column {name!r}", unclear)
    values = {file: each for file, each in of_tables.items() if each.kind != "words"}
    words = [file for file, each in of_tables.items() if each.odd.any() and np.isnan(each.values).all()]
    kinds = {each.kind + (f" with the unit {each.unit}" if each.unit else ""): file for file, each in values.items()}
    kinds |= {"words": words[0]} if words else {}
    units = {each.unit for each in values.values()}
    units -= set() if "%" in units else {""}  # 45 % may be 45 or 0.45, but 3 kg are 3
    if values and (len(units) > 1 or len({kind.split()[0] for kind in kinds}) > 1):
        listed = ", ".join(f"{kind} in the {file} table" for kind, file in kinds.items())
        raise DataError(
            f"column {name!r} must hold values that can be compared, got {listed}. Write them alike in all tables, or "
            "leave the column out"
        )
    if values and all(each.kind != "words" or not each.odd.any() for each in of_tables.values()):
        return next(iter(values.values()))
    return replace(joint, kind="words", unclear=unclear)


def _of_texts(name: str, texts: _Texts, of_tables: Mapping[str, Spelling]) -> _Column:
    """Return a column of numbers or dates, and of the few words among them."""
    spelled = [each for each in of_tables.values() if each.kind != "words"]
    differ = len({each.how for each in spelled}) > 1
    notes = [each.how + (f" in {file}" if differ else "") for file, each in of_tables.items() if each.how]
    offsets = [each.offset[~np.isnan(each.values)] for each in spelled if each.offset is not None]
    zoned = ~np.isnan(np.concatenate([*offsets, []]))
    notes += ["by their own clocks, as some have no time zone"] if zoned.any() and not zoned.all() else []
    notes += missing_note(texts.words)
    cells = {}
    for (file, each), codes in zip(of_tables.items(), texts.codes, strict=True):
        values = each.values if each.offset is None or not zoned.all() else each.values - each.offset
        cells[file] = np.append(values, np.nan)[codes]
    column = _of_numbers(name, cells, DATE_STEPS if spelled[0].kind == "dates" else STEPS)
    odd = np.any([each.odd for each in spelled], axis=0)
    strange = [canonical(word) if is_odd else None for word, is_odd in zip(texts.words, odd, strict=True)]
    note = ", ".join([spelled[0].kind, *dict.fromkeys(notes)]) if notes else ""
    decimal = next((each.decimal for each in spelled if each.decimal), "")
    column = replace(column, note="; ".join(filter(None, (note, column.note))), decimal=decimal)
    if not odd.any():
        return column
    word_codes, vocabulary = texts.word_codes(strange)
    return replace(column, codes=word_codes, vocabulary=vocabulary)


def _of_numbers(name: str, parts: Mapping[str, NDArray[np.float64]], steps: Mapping[float, str] = STEPS) -> _Column:
    """Return a column of the numbers of each table."""
    rounded, notes = comparable(parts, steps)
    return _Column(name, np.clip(np.concatenate(rounded), -LARGEST, LARGEST), note="; ".join(notes))


def _why_words(joint: Spelling, texts: _Texts) -> str:
    """Return why a column of numbers or dates is read as words; "" for other columns."""
    if joint.unclear:
        return f"words, because {shortened(joint.unclear)} may be two dates"
    counts = texts.counts.sum(axis=0)
    share = counts[joint.odd].sum() / counts.sum()
    example = texts.words[int(joint.odd.argmax())]
    if share >= 0.5:
        return ""
    return f"words, because {100 * share:.2g} % of its cells are no numbers, such as {shortened(example)!r}"


def _texts(part: pd.Series[Any], name: str) -> NDArray[np.object_]:
    """Return the cells as texts, None where a value is missing, shape (rows,)."""
    try:
        codes, distinct = pd.factorize(part.astype(object))
    except TypeError as err:
        raise DataError(
            f"column {name!r} must hold one value in each cell, got a list or a mapping. Spread it over columns"
        ) from err
    texts = np.empty(len(distinct) + 1, object)  # the last one stands for missing cells, whose code is -1
    texts[:-1] = [text_of(value) or None for value in distinct]
    texts[-1] = None
    return texts[codes]
