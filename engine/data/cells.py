"""Values that cells spell: one rule for numbers, dates, missing values and names of persons in all tables and files.

A column is read as a whole, because a cell alone is ambiguous: `1,234` is one number in a file with decimal commas and
another one in a file with separators of thousands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import DataError

MISSING_WORDS = frozenset(("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none", "nil", "?", "-", "--", "."))
"""Words in lower case that are missing values in a column whose other cells are numbers or dates."""
ODD_CELLS = 0.01
"""Largest share of words in a column of numbers or dates, of its cells that hold a value."""
UNIT_SHARE = 0.1
"""Smallest share of the cells of a column that have its unit."""
COLUMNS_NAMED = 6
"""Largest number of columns with unusual cells that an answer names."""
STEPS: Mapping[float, str] = {step: f"{step:g}" for step in (1, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)}
"""Steps of rounded numbers, from the coarsest, with their names."""
DATE_STEPS: Mapping[float, str] = {86_400: "a day", 60: "a minute", 1: "a second"}
"""Steps of rounded dates in seconds."""
SAMPLE = 100_000
"""Largest number of numbers of a source by which its digits are judged."""
MAX_SPELLED = 64
"""Largest number of characters of a number or a date."""
MAX_TRUTHS = 50
"""Largest number of different words that may all be truth values."""
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"), ("0", "1"))
"""Spellings of false and true in lower case."""

_AFFIXED = re.compile(
    r"(?P<sign>[-+]?)(?P<before>[$€£¥]?)\s*(?P<number>[-+]?(?:\d[\d.,'’\s]*|[.,]\d+)(?:[eE][-+]?\d+)?)"
    r"\s*(?P<after>[%‰$€£¥]|[^\W\d_][^\d\s,;]{0,11})?"
)
"""A number with its separators, and a currency or a unit such as `%`, `years` or `kg`."""
_FORMS = {
    mark: re.compile(rf"[-+]?(?:[1-9]\d{{0,2}}(?:[{other}'’\s]\d{{3}})+|\d*)(?:[{mark}]\d*)?(?:[eE][-+]?\d+)?")
    for mark, other in ((",", "."), (".", ","))
}
"""Numbers by their decimal mark."""
_DATE = re.compile(
    r"(?P<a>\d{1,4})(?P<mark>[-./ ])(?P<b>\d{1,2}|[A-Za-z]{3,9})(?P=mark)(?P<c>\d{1,4})"
    r"(?:[T ]+(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)\s*(?P<zone>Z|UTC|[-+]\d{2}:?\d{2})?)?"
)
_MONTHS = {"janfebmaraprmayjunjulaugsepoctnovdec"[3 * place : 3 * place + 3]: place + 1 for place in range(12)}
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_WHOLE_OR_ZEROS = re.compile(r"^(-?(?:0|[1-9]\d*))\.0*$", re.ASCII)


@dataclass(frozen=True, eq=False)
class Spelling:
    """The values of the different words of a column.

    Attributes:
        kind: Numbers, dates as seconds since 1970 by their clock, or words if more than 1 % of the cells are neither.
        values: NaN for missing values and for words, shape (words,).
        odd: True for words that are no value, shape (words,).
        how: Unusual spelling, such as "decimal commas"; "" for the usual one.
        unit: Unit of the numbers, "" for none.
        decimal: Decimal mark of the numbers, "" if none has one.
        unclear: A word with two meanings, because of which the column is words; "" for none.
        offset: Seconds of the clock of each date before UTC, NaN without a time zone, shape (words,).
    """

    kind: Literal["numbers", "dates", "words"]
    values: NDArray[np.float64]
    odd: NDArray[np.bool_]
    how: str = ""
    unit: str = ""
    decimal: str = ""
    unclear: str = ""
    offset: NDArray[np.float64] | None = None


class UnclearNumbers(DataError):
    """A column of numbers that have two meanings."""

    def __init__(self, place: str, word: str) -> None:
        super().__init__(
            f"{place} holds numbers such as {word}, whose comma may be a decimal comma or separate thousands. "
            "Write numbers such as 1234.5"
        )


def missing_note(words: Iterable[str]) -> list[str]:
    """Return the words that are missing values in a column of numbers or dates, as a list of at most one note."""
    missing = sorted({word for word in words if word and word.lower() in MISSING_WORDS})
    return [f"{', '.join(missing[:4])} as missing"] if missing else []


def read_as_line(notes: Sequence[str]) -> list[str]:
    """Return one line on what was read as what; none if all cells were spelled as usual."""
    more = f"; and {len(notes) - COLUMNS_NAMED:,} more" if len(notes) > COLUMNS_NAMED else ""
    return [f"read as: {'; '.join(notes[:COLUMNS_NAMED])}{more}"] if notes else []


def spelling(words: Sequence[str], counts: NDArray[Any], decimal: str = "") -> Spelling:
    """Return the values of the different words of a column, without blanks at their ends.

    Args:
        counts: Number of cells of each word, shape (words,).
        decimal: Decimal mark of the file where a column does not tell it; "" if the other columns do not either.
    """
    cells = np.where([word.lower() in MISSING_WORDS for word in words], 0, counts)

    frequent = np.argsort(-cells, kind="stable")[: 100 + len(words) // 25]
    if len(frequent) < len(words):  # a column of words is told by its most frequent ones
        part = spelling([words[place] for place in frequent.tolist()], cells[frequent], decimal)
        if np.isnan(part.values).all() and not part.unclear and cells[frequent].sum() > ODD_CELLS * cells.sum():
            return Spelling("words", np.full(len(words), np.nan), np.asarray(counts) > 0)

    def share(candidate: Spelling) -> float:
        return float(cells[np.isnan(candidate.values)].sum() / max(1, cells.sum()))

    plain = np.array([plain_number(word) for word in words], np.float64)
    best = Spelling("numbers", plain, cells > 0, decimal="." if any("." in word for word in words) else "")
    for reader in (_other_numbers, _dates):
        candidate = reader(words, cells, decimal) if share(best) > 0 else best
        if candidate.unclear and share(best) > ODD_CELLS >= share(candidate):
            return replace(best, kind="words", values=np.full(len(words), np.nan), unclear=candidate.unclear)
        best = candidate if not candidate.unclear and share(candidate) < share(best) else best
    values = np.where(cells > 0, best.values, np.nan)
    # A column of missing words alone holds words.
    kind = best.kind if cells.any() and share(best) <= ODD_CELLS else "words"
    holding = counts if kind == "words" else cells
    return replace(best, kind=kind, values=values, odd=np.isnan(values) & (holding > 0))


def plain_number(text: str) -> float:
    """Return the number that a text spells with a decimal point, NaN for other texts."""
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


def text_of(value: Any) -> str:
    """Return a value as text without blanks at its ends; equal numbers of all types are spelled alike."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    elif isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, Fraction):
        value = float(value)
    elif isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return str(value).strip()


def canonical(text: str) -> str:
    """Return the text that all texts of the same number or truth value share; other texts unchanged."""
    if _WHOLE.fullmatch(text):
        return ("-" if text[0] == "-" else "") + (text.lstrip("+-0") or "0")
    number = plain_number(text)
    if np.isfinite(number):
        return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)
    return text.capitalize() if text.lower() in ("true", "false") else text


def group_codes(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return a number for each person, group or stratum, shape (rows,), -1 for a missing one.

    7, 7.0 and "7" are one person and "007" is another one. Missing words are missing where all others are numbers.
    """
    import pandas as pd

    try:
        codes, distinct = pd.factorize(pd.Series(values, dtype=object))
    except TypeError as err:  # lists and mappings have no hash
        raise DataError(f"cells that name a person, group or stratum must be single values: {err}") from err
    names = [_WHOLE_OR_ZEROS.sub(r"\1", text_of(value)) for value in distinct]
    present = [name for name in names if name.lower() not in MISSING_WORDS]
    if not np.isnan([plain_number(name) for name in present]).any():
        names = ["" if name.lower() in MISSING_WORDS else name for name in names]
    of_names, _ = pd.factorize(np.array([*(name or None for name in names), None], dtype=object))
    return np.asarray(of_names, np.int64)[codes]


def truths(words: Sequence[str]) -> NDArray[np.float64] | None:
    """Return 0 and 1 for words that spell truth values in several ways, such as yes and 1; None for other words."""
    if len(words) > MAX_TRUTHS:
        return None
    present = {canonical(word).lower() for word in words if word.lower() not in MISSING_WORDS}
    if not present <= {word for pair in _PAIRS for word in pair} or any(present <= set(pair) for pair in _PAIRS):
        return None
    values = {word: float(place) for pair in _PAIRS for place, word in enumerate(pair)}
    return np.array([values.get(canonical(word).lower(), np.nan) for word in words])


def comparable(
    parts: Mapping[str, NDArray[np.float64]], steps: Mapping[float, str] = STEPS
) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Return numbers of several sources at one precision, and notes on how their digits differ.

    A generator or a model that works in 32 bits returns 22026.46875 for 22026.47, so that all numbers are rounded to 16
    or 32 bits if those of some source were.
    """
    rounded, kind = _at_one_precision(list(parts.values()))
    notes = [f"all numbers as {kind}"] if kind else []
    samples = {name: part[:: 1 + len(part) // SAMPLE] for name, part in zip(parts, rounded, strict=True)}
    samples = {name: sample[np.isfinite(sample)] for name, sample in samples.items() if np.isfinite(sample).any()}
    for step, words in steps.items():
        multiple = {name: np.isclose(part / step, np.rint(part / step), 1e-9, 1e-9) for name, part in samples.items()}
        coarse = [name for name, each in multiple.items() if each.all()]
        finer = [name for name, each in multiple.items() if each.mean() < 0.5]
        if coarse:
            notes += [f"in steps of {words} in {coarse[0]}, finer in {' and '.join(finer)}"] if finer else []
            break
    return rounded, notes


def _at_one_precision(parts: list[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], str]:
    with np.errstate(over="ignore"):
        for kind, digits in ((np.float16, 5), (np.float32, 9)):
            samples = [part[:: 1 + len(part) // SAMPLE] for part in parts]
            if len({np.array_equal(part, part.astype(kind), equal_nan=True) for part in samples}) < 2:
                continue
            fits = [np.array_equal(part, part.astype(kind), equal_nan=True) for part in parts]
            numbers = [part[np.isfinite(part)].tolist() for part, fit in zip(parts, fits, strict=True) if fit]
            # Numbers such as 0.5 fit too: those of the type have more digits than it tells apart.
            if any(float(f"{number:.{digits}g}") != number for each in numbers for number in each):
                shortest = [np.unique(part.astype(kind), return_inverse=True) for part in parts]
                return [np.array([float(str(x)) for x in each])[place] for each, place in shortest], np.dtype(kind).name
    return parts, ""


def _other_numbers(words: Sequence[str], cells: NDArray[Any], decimal: str) -> Spelling:
    """Return numbers with decimal commas, separators of thousands, a currency or a unit."""
    matches = [_match(_AFFIXED, word.replace("−", "-"), count) for word, count in zip(words, cells, strict=True)]
    units = Counter({"": 0})
    for match, count in zip(matches, cells.tolist(), strict=True):
        units[_unit(match)] += count
    unit = max(units, key=lambda unit: units[unit] if unit else UNIT_SHARE * cells.sum())  # a rare one is a slip: 1O
    used = (unit,) if unit == "%" else (unit, "")
    numbers = [match["sign"] + match["number"].strip() if match and _unit(match) in used else "" for match in matches]
    read_by = {mark: np.array([_number(number, mark) for number in numbers]) for mark in ",."}
    odd = {mark: int(np.isnan(values).sum()) for mark, values in read_by.items()}
    differ = np.flatnonzero(np.abs(read_by[","] - read_by["."]) > 0)
    mark = min(odd, key=lambda mark: odd[mark]) if odd[","] != odd["."] else decimal or "."
    unclear = words[differ[0]] if odd[","] == odd["."] and differ.size and not decimal else ""
    has_comma = any("," in number for number in numbers)
    how = ["decimal commas" if mark == "," else "commas between thousands"] * has_comma + [f"unit {unit}"] * bool(unit)
    values = read_by[mark] * (0.01 if unit == "%" else 1)
    decimal = mark if has_comma or any(mark in number for number in numbers) else ""
    return Spelling("numbers", values, cells > 0, ", ".join(how) or "separated thousands", unit, decimal, unclear)


def _match(form: re.Pattern[str], word: str, count: int) -> re.Match[str] | None:
    return form.fullmatch(word) if count and len(word) <= MAX_SPELLED else None


def _unit(match: re.Match[str] | None) -> str:
    """Return the currency or unit of a number, in the singular."""
    after = "" if match is None else match["after"] or match["before"]
    return after[:-1] if len(after) > 2 and after.endswith("s") else after


def _number(number: str, mark: str) -> float:
    """Return the number with this decimal mark, NaN for other texts."""
    if not number or not _FORMS[mark].fullmatch(number):
        return np.nan
    return plain_number(re.sub(rf"[^-+eE\d{mark}]", "", number).replace(mark, "."))


def _dates(words: Sequence[str], cells: NDArray[Any], decimal: str) -> Spelling:
    """Return dates in ISO 8601, 31.5.2024, 5/31/2024 or 31-May-2024, with or without a time."""
    matches = [_match(_DATE, word, count) for word, count in zip(words, cells, strict=True)]
    without_year_first = [match for match in matches if match and len(match["a"]) < 3]
    marked = [match for match in without_year_first if match["mark"] in "-/" and match["b"].isdigit()]
    day_first = any(int(match["a"]) > 12 for match in marked)
    month_first = not day_first and any(int(match["b"]) > 12 for match in marked)
    unclear = marked[0].group() if marked and not day_first and not month_first else ""
    stamps = [_stamp(match, month_first) if match else None for match in matches]
    epoch = datetime(1970, 1, 1)
    clock = [np.nan if each is None else (each.replace(tzinfo=None) - epoch).total_seconds() for each in stamps]
    offsets = [None if each is None else each.utcoffset() for each in stamps]
    offset = np.array([np.nan if each is None else each.total_seconds() for each in offsets], np.float64)
    how = "" if not without_year_first else "month before day" if month_first else "day before month"
    return Spelling("dates", np.array(clock, np.float64), cells > 0, how, unclear=unclear, offset=offset)


def _stamp(match: re.Match[str], month_first: bool) -> datetime | None:
    """Return the date and time of a match, None if there is no such day."""
    a, b, c = match["a"], str(_MONTHS.get(match["b"][:3].lower(), match["b"])), match["c"]
    by_month = month_first and match["mark"] in "-/" and match["b"].isdigit()
    year, month, day = (a, b, c) if len(a) == 4 else (c, a, b) if by_month else (c, b, a)
    time, zone = match["time"] or "00:00", (match["zone"] or "").replace("UTC", "Z")
    try:
        return datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}T{'0' if time[1] == ':' else ''}{time}{zone}")
    except ValueError:
        return None
