"""Values that cells spell: one rule for numbers, dates, missing values and names of persons in all tables and files.

A column is read as a whole, because a cell alone is ambiguous: `1,234` is one number in a file with decimal commas and
another one in a file with separators of thousands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
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
COMMAS = "commas between thousands"
MAX_SPELLED = 64
"""Largest number of characters of a number or a date."""
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"), ("0", "1"))
"""Spellings of false and true in lower case."""

_AFFIXED = re.compile(
    r"(?P<sign>[-+]?)(?P<before>[$€£¥]?)\s*(?P<number>[-+]?(?:\d[\d.,'’\s]*|[.,]\d+)(?:[eE][-+]?\d+)?)"
    r"\s*(?P<after>[%‰$€£¥]|[^\W\d_][^\d\s,;]{0,11})?"
)
"""A number with its separators, and a currency or a unit such as `%`, `years` or `kg`."""
_EXPONENT = r"(?:[eE][-+]?\d+)?"
_COMMA = re.compile(rf"[-+]?(?:[1-9]\d{{0,2}}(?:[.'’\s]\d{{3}})+|\d*)(?:,\d*)?{_EXPONENT}")
_POINT = re.compile(rf"[-+]?(?:[1-9]\d{{0,2}}(?:[,'’\s]\d{{3}})+|\d*)(?:\.\d*)?{_EXPONENT}")
_DATE = re.compile(
    r"(?P<a>\d{1,4})(?P<mark>[-./ ])(?P<b>\d{1,2}|[A-Za-z]{3,9})(?P=mark)(?P<c>\d{1,4})"
    r"(?:[T ]+(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)\s*(?P<zone>Z|UTC|[-+]\d{2}:?\d{2})?)?"
)
_MONTHS = {"janfebmaraprmayjunjulaugsepoctnovdec"[3 * place : 3 * place + 3]: place + 1 for place in range(12)}


@dataclass(frozen=True, eq=False)
class Spelling:
    """The values of the different words of a column.

    Attributes:
        kind: Numbers; dates as seconds since 1970; or words if more than 1 % of the cells are neither.
        values: NaN for missing values and for words, shape (words,). Dates are in the time of their own clock.
        odd: True for words that are no value, shape (words,).
        how: Unusual spelling, such as "decimal commas"; "" for the usual one.
        zoned: True for dates with a time zone, shape (words,).
        utc: The values, but dates with a time zone in UTC, shape (words,).
        unit: Unit of the numbers, "" for none.
        decimal: Decimal mark of the numbers, "" if none has one.
        unclear: A word with two meanings, because of which the column is words; "" for none.
    """

    kind: Literal["numbers", "dates", "words"]
    values: NDArray[np.float64]
    odd: NDArray[np.bool_]
    zoned: NDArray[np.bool_]
    utc: NDArray[np.float64]
    how: str = ""
    unit: str = ""
    decimal: str = ""
    unclear: str = ""

    def spread(self, places: NDArray[np.bool_]) -> Spelling:
        """Return the spelling of more words, of which these are the ones at `places`; the others have no value."""

        def spread(values: NDArray[Any], other: Any) -> NDArray[Any]:
            full = np.full(len(places), other)
            full[places] = values
            return full

        return replace(
            self,
            values=spread(self.values, np.nan),
            odd=spread(self.odd, False),
            zoned=spread(self.zoned, False),
            utc=spread(self.utc, np.nan),
        )


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


def spelling(words: Sequence[str], counts: NDArray[Any] | None = None, decimal: str = "") -> Spelling:
    """Return the values of the different words of a column, without blanks at their ends.

    Args:
        counts: Number of cells of each word; one if None.
        decimal: Decimal mark of the file where a column does not tell it; "" if the other columns do not either.
    """
    cells = np.ones(len(words)) if counts is None else np.asarray(counts, np.float64)
    missing = np.array([word.lower() in MISSING_WORDS for word in words], bool)
    present = max(1.0, float(cells[~missing].sum()))

    def share(candidate: Spelling) -> float:
        return float(cells[candidate.odd & ~missing].sum()) / present

    plain = np.array([plain_number(word) for word in words], np.float64)
    best = _of_numbers(plain, decimal="." if any("." in word for word in words) else "")
    for reader in (_other_numbers, _dates):
        if share(best) > 0:
            candidate = reader(words, cells * ~missing, decimal)
            if candidate.unclear and share(best) > ODD_CELLS >= share(candidate):
                return replace(_of_numbers(np.full(len(words), np.nan)), kind="words", unclear=candidate.unclear)
            best = candidate if not candidate.unclear and share(candidate) < share(best) else best
    # A column of missing words alone holds words.
    is_value = not missing.all() and share(best) <= ODD_CELLS
    values = np.where(missing, np.nan, best.values)
    return replace(best, kind=best.kind if is_value else "words", values=values, odd=best.odd & ~(missing & is_value))


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


_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_WHOLE_OR_ZEROS = re.compile(r"^(-?(?:0|[1-9]\d*))\.0*$", re.ASCII)


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

    codes, distinct = pd.factorize(pd.Series(values, dtype=object))
    names = [_WHOLE_OR_ZEROS.sub(r"\1", text_of(value)) for value in distinct]
    present = [name for name in names if name.lower() not in MISSING_WORDS]
    if not np.isnan([plain_number(name) for name in present]).any():
        names = ["" if name.lower() in MISSING_WORDS else name for name in names]
    of_names, _ = pd.factorize(np.array([*(name or None for name in names), None], dtype=object))
    return np.asarray(of_names, np.int64)[codes]


def truths(words: Sequence[str]) -> NDArray[np.float64] | None:
    """Return 0 and 1 for words that spell truth values in several ways, such as yes and 1; None for other words."""
    present = {canonical(word).lower() for word in words if word.lower() not in MISSING_WORDS}
    if not present <= {word for pair in _PAIRS for word in pair} or any(present <= set(pair) for pair in _PAIRS):
        return None
    values = {word: float(place) for pair in _PAIRS for place, word in enumerate(pair)}
    return np.array([values.get(canonical(word).lower(), np.nan) for word in words])


def at_one_precision(parts: Sequence[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], str]:
    """Return numbers rounded to 16 or 32 bits if some part, but not all, were; and the name of that type or "".

    A generator or a model that works in 32 bits returns 22026.46875 for 22026.47.
    """
    for kind, digits in ((np.float16, 5), (np.float32, 9)):
        fits = [_fit(part, kind) for part in parts]
        if all(fits) or not any(fit and _needs_more(part, digits) for fit, part in zip(fits, parts, strict=True)):
            continue
        return [_rounded(part, kind) for part in parts], np.dtype(kind).name
    return list(parts), ""


def _fit(part: NDArray[np.float64], kind: type[np.floating[Any]]) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(part, part.astype(kind), equal_nan=True))


def _needs_more(part: NDArray[np.float64], digits: int) -> bool:
    """True if a number of the part has more decimal digits than its type tells apart."""
    return any(float(f"{value:.{digits}g}") != value for value in part[np.isfinite(part)].tolist())


def _rounded(part: NDArray[np.float64], kind: type[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the shortest decimal numbers that are equal in the type."""
    with np.errstate(over="ignore"):
        distinct, place = np.unique(part.astype(kind), return_inverse=True)
    return np.array([float(str(value)) for value in distinct], np.float64)[place.reshape(-1)]


def step_of(numbers: NDArray[np.float64], steps: Iterable[float]) -> float:
    """Return the first of some steps, the coarsest first, of which all numbers are multiples; 0 if there is none."""
    return next((step for step in steps if is_multiple(numbers, step).all()), 0.0)


def is_multiple(numbers: NDArray[np.float64], step: float) -> NDArray[np.bool_]:
    """True for each finite number that is a multiple of the step; shape (finite numbers,). All are multiples of 0."""
    ratios = numbers[np.isfinite(numbers)] / (step or np.inf)
    return np.asarray(np.abs(ratios - np.rint(ratios)) <= 1e-9 * np.maximum(1, np.abs(ratios)))


def _of_numbers(
    values: NDArray[np.float64], how: str = "", unit: str = "", decimal: str = "", unclear: str = ""
) -> Spelling:
    return Spelling(
        "numbers", values, np.isnan(values), np.zeros(len(values), bool), values, how, unit, decimal, unclear
    )


def _other_numbers(words: Sequence[str], present: NDArray[np.float64], decimal: str) -> Spelling:
    """Return numbers with decimal commas, separators of thousands, a currency or a unit."""
    matches = [_match(_AFFIXED, word.replace("−", "-"), use) for word, use in zip(words, present, strict=True)]
    units: Counter[str] = Counter()
    for match, count in zip(matches, present, strict=True):
        units.update({_unit(match): count} if _unit(match) else {})
    unit, cells = units.most_common(1)[0] if units else ("", 0)
    unit = unit if cells >= UNIT_SHARE * present.sum() else ""  # a rare one is a typing error, such as 1O
    numbers = [
        (
            match["sign"] + match["number"].strip()
            if match and _unit(match) in (unit, "" if unit != "%" else unit)
            else None
        )
        for match in matches
    ]
    commas, points = (_parsed(numbers, form, mark) for form, mark in ((_COMMA, ","), (_POINT, ".")))
    odd_commas, odd_points = int(np.isnan(commas).sum()), int(np.isnan(points).sum())
    differ = np.flatnonzero(~np.isnan(commas) & ~np.isnan(points) & (commas != points))
    unclear = ""
    if odd_commas != odd_points:
        mark = "," if odd_commas < odd_points else "."
    elif differ.size and not decimal:
        mark, unclear = ".", words[differ[0]]
    else:
        mark = decimal or "."
    values = (commas if mark == "," else points) * (0.01 if unit == "%" else 1)
    how = [f"unit {unit}"] if unit else []
    if any(number and "," in number for number in numbers):
        how.insert(0, "decimal commas" if mark == "," else COMMAS)
    decimal = mark if any(number and mark in number for number in numbers) or how[:1] == [COMMAS] else ""
    return _of_numbers(values, ", ".join(how) or "separated thousands", unit, decimal, unclear)


def _match(form: re.Pattern[str], word: str, present: float) -> re.Match[str] | None:
    return form.fullmatch(word) if present and len(word) <= MAX_SPELLED else None


def _unit(match: re.Match[str] | None) -> str:
    """Return the currency or unit of a number, in the singular."""
    after = "" if match is None else match["after"] or match["before"]
    return after[:-1] if len(after) > 2 and after.endswith("s") else after


def _parsed(numbers: Sequence[str | None], form: re.Pattern[str], mark: str) -> NDArray[np.float64]:
    """Return numbers with this decimal mark, NaN for others."""
    other = re.compile(r"[.'’\s]" if mark == "," else r"[,'’\s]")
    return np.array(
        [
            plain_number(other.sub("", number).replace(mark, ".")) if number and form.fullmatch(number) else np.nan
            for number in numbers
        ],
        np.float64,
    )


def _dates(words: Sequence[str], present: NDArray[np.float64], decimal: str) -> Spelling:
    """Return dates in ISO 8601, 31.5.2024, 5/31/2024 or 31-May-2024, with or without a time."""
    matches = [_match(_DATE, word, use) for word, use in zip(words, present, strict=True)]
    marked = [
        match for match in matches if match and match["mark"] in "-/" and len(match["a"]) < 3 and match["b"].isdigit()
    ]
    day_first = any(int(match["a"]) > 12 for match in marked)
    month_first = any(int(match["b"]) > 12 for match in marked)
    unclear = marked[0].group() if marked and not day_first and not month_first else ""
    stamps = [_stamp(match, month_first and not day_first) if match else None for match in matches]
    wall, utc = (np.array(list(_seconds(stamps, in_utc)), np.float64) for in_utc in (False, True))
    zoned = np.array([stamp is not None and stamp.tzinfo is not None for stamp in stamps], bool)
    usual = all(len(match["a"]) == 4 for match in matches if match)
    how = "" if usual else "month before day" if marked and month_first else "day before month"
    return Spelling("dates", wall, np.isnan(wall), zoned, utc, how, unclear=unclear)


def _stamp(match: re.Match[str], month_first: bool) -> datetime | None:
    """Return the date and time of a match, None if there is no such day."""
    a, b, c = match["a"], str(_MONTHS.get(match["b"][:3].lower(), match["b"])), match["c"]
    marked = match["mark"] in "-/" and match["b"].isdigit()
    year, month, day = (a, b, c) if len(a) == 4 else (c, a, b) if marked and month_first else (c, b, a)
    if len(year) != 4 or not month.isdigit() or len(day) > 2:
        return None
    time = match["time"] or "00:00"
    zone = (match["zone"] or "").replace("UTC", "Z")
    try:
        return datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}T{'0' if time[1] == ':' else ''}{time}{zone}")
    except ValueError:
        return None


def _seconds(stamps: Sequence[datetime | None], in_utc: bool) -> Iterator[float]:
    """Yield seconds since 1970 in UTC, or by the clock of each stamp; NaN for None."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for stamp in stamps:
        if stamp is None:
            yield np.nan
            continue
        aware = stamp if in_utc and stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)
        yield (aware - epoch).total_seconds()
