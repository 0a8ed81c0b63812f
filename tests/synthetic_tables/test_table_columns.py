"""Data frames become tables of numbers and words whose codes do not depend on the file of a row."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit.engine.data.cells import group_codes
from dpaudit.errors import DataError
from dpaudit.synthetic_tables.games.columns import LARGEST, encoded, read_as
from dpaudit.synthetic_tables.games.view import MISSING

DAYS = ["2020-01-01", "2020-01-03"]


def frames(**columns: tuple[Any, Any, Any]) -> tuple[pd.DataFrame, ...]:
    return tuple(pd.DataFrame({name: cells[place] for name, cells in columns.items()}) for place in range(3))


def test_numbers_booleans_and_dates_are_numbers() -> None:
    training, holdout, synthetic = encoded(
        *frames(
            age=([1, 2], [1.5, None], ["3", "4"]),
            active=([True, False], [True, True], [False, True]),
            day=(
                pd.Series(["2020-01-01", None], dtype="datetime64[us]"),
                ["2020-01-02", "2020-01-01T12:00"],
                ["2020-01-01"] * 2,
            ),
        )
    )
    assert training.number_names == ("age", "active", "day")
    assert training.word_names == ()
    assert np.isnan(holdout.numbers[1, 0])
    assert synthetic.numbers[0, 0] == 3
    assert training.numbers[:, 1].tolist() == [1, 0]
    assert (holdout.numbers[:, 2] - training.numbers[0, 2]).tolist() == [86_400, 43_200]
    assert np.isnan(training.numbers[1, 2])


def test_infinite_numbers_become_finite() -> None:
    training, _, _ = encoded(*frames(a=([np.inf, -np.inf], [1.0, 2.0], [1.0, 2.0])))
    assert training.numbers[:, 0].tolist() == [LARGEST, -LARGEST]


def test_words_share_sorted_codes() -> None:
    training, holdout, synthetic = encoded(*frames(tree=(["oak ", None], ["ash", " oak"], ["yew", "elm"])))
    assert training.word_names == ("tree",)
    assert training.levels.tolist() == [4]
    assert training.words[:, 0].tolist() == [2, MISSING]
    assert holdout.words[:, 0].tolist() == [0, 2]
    assert synthetic.words[:, 0].tolist() == [3, 1]


def test_rare_words_among_numbers_keep_a_column_of_their_own() -> None:
    cells = [str(number) for number in range(300)]
    tables = encoded(*frames(room=([*cells, "attic"], [*cells, "cellar"], [*cells, "attic"])))
    assert tables[0].number_names == ("room",)
    assert tables[0].word_names == ("room",)
    assert np.isnan(tables[1].numbers[-1, 0])
    assert tables[1].numbers[7, 0] == 7
    assert [table.words[-1, 0] for table in tables] == [0, 1, 0]
    assert set(tables[0].words[:-1, 0]) == {MISSING}


def test_codes_do_not_tell_the_file() -> None:
    """Files are read one by one, so a file of whole numbers alone holds 7 where another one holds "07"."""
    code, other = pd.Series([7, 8]), pd.Series(["07", "x"])
    first = encoded(pd.DataFrame({"c": code}), pd.DataFrame({"c": other}), pd.DataFrame({"c": other}))
    second = encoded(pd.DataFrame({"c": other}), pd.DataFrame({"c": code}), pd.DataFrame({"c": other}))
    assert first[0].words.tolist() == second[1].words.tolist()
    assert first[1].words.tolist() == second[0].words.tolist()
    assert first[0].words[0] == first[1].words[0]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (frames(a=([1], [1], [])), "the synthetic table must have rows"),
        ((pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1], "b": [1]}), pd.DataFrame({"a": [1]})), "also has .* 'b'"),
        ((pd.DataFrame({"a": [1], "b": [1]}), pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]})), "lacks .* 'b'"),
        ((pd.DataFrame([[1, 2]], columns=["a", "a"]),) * 3, "'a' twice"),
        (frames(a=([[1]], [[1]], [[1]])), "one value in each cell"),
        (frames(a=([1j], [1j], [1j])), "real numbers"),
        ((pd.DataFrame(index=[0]),) * 3, "must have columns"),
    ],
)
def test_unusable_tables_are_refused(tables: tuple[pd.DataFrame, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encoded(*tables)


PRICES = [1234.56, 2.25, 0.5, 1000.0]
TIMES = pd.date_range("2020-05-31 12:00", periods=4, freq="D")
DAYS_IN = [31, 1, 2, 3]
ZONED = pd.Series(TIMES).dt.tz_localize("Europe/Berlin")
SMALL = pd.Series(PRICES, dtype="float32")
SPELLED: dict[str, tuple[Any, list[Any], str]] = {
    "decimal commas": (["1234,56", "2,25", "0,5", "1000"], PRICES, "numbers, decimal commas in synthetic"),
    "and points": (["1.234,56", "2,25", "0,5", "1.000"], PRICES, "decimal commas"),
    "and blanks": (["1 234,56", "2,25", "0,5", "1\u00a0000"], PRICES, "decimal commas"),
    "thousands": (["1,234.56", "2.25", ".5", "1,000"], PRICES, "commas between thousands"),
    "apostrophes": (["1'234.56", "2.25", "0.5", "1'000"], PRICES, "separated thousands"),
    "dollars": (["$1,234.56", "$2.25", "$0.5", "$1,000"], PRICES, "unit $"),
    "euros": (["1.234,56 €", "2,25 €", "0,5 €", "1.000 €"], PRICES, "decimal commas, unit €"),
    "years": (["39 years", "1 year", "2 years", "3 years"], [39, 1, 2, 3], "unit year"),
    "exponents": (["1.23456e3", "225E-2", "5e-1", "1E3"], PRICES, ""),
    "minus": (["\u22125", "3", "\u22122", "1"], [-5, 3, -2, 1], "separated"),
    "leading zeros": (["007", "08", "1.50", "+4"], [7, 8, 1.5, 4], ""),
    "decimals": ([Decimal("1234.56"), Decimal("2.250"), Decimal("0.5"), Decimal(1000)], PRICES, ""),
    "fractions": ([Fraction(1, 3), Fraction(9, 4), Fraction(1, 2), Fraction(4)], [1 / 3, 2.25, 0.5, 4], ""),
    "categories": (pd.Series(PRICES, dtype="category"), PRICES, ""),
    "nullable": (pd.Series([7, None, 8, 9], dtype="Int64"), [7, np.nan, 8, 9], ""),
    "bytes": ([b"1234.56", b"2.25", b"0.5", b"1000"], PRICES, ""),
    "32 bits": (SMALL, PRICES, "as float32"),
    "32 bits as 64": (SMALL.astype(float), PRICES, "as float32"),
    "32 bits in a file": (SMALL.astype(float).map(repr), PRICES, "as float32"),
    "missing": (["NA", "null", "2", "-"], [np.nan, np.nan, 2, np.nan], "-, NA, null as missing"),
    "infinite": (["inf", "-Infinity", "2", "3"], [np.inf, -np.inf, 2, 3], ""),
    "yes": (["yes", "no", "No", "YES"], [1, 0, 0, 1], "yes and no in several spellings as 1 and 0"),
    "true": (["True", "f", "n", "on"], [1, 0, 0, 1], "yes and no in several spellings as 1 and 0"),
    "day first": ([f"{time.day:02}.{time.month}.{time.year}" for time in TIMES], TIMES.normalize(), "day before month"),
    "day first by a slash": ([f"{time:%d/%m/%Y %H:%M}" for time in TIMES], TIMES, "day before month"),
    "month first": ([f"{time:%m/%d/%Y %H:%M:%S}" for time in TIMES], TIMES, "month before day"),
    "names of months": ([f"{time:%d-%b-%Y 12:00}" for time in TIMES], TIMES, "day before month"),
    "no zone": ([f"{time:%Y-%m-%d %H:%M}" for time in TIMES], ZONED, "by their own clocks, as some have no time zone"),
    "a zone": ([f"{time:%Y-%m-%dT%H:%M}+02:00" for time in TIMES], ZONED, ""),
    "another zone": ([f"{time:%Y-%m-%dT}10:00:00Z" for time in TIMES], ZONED, ""),
    "microseconds": (pd.Series(TIMES).astype("datetime64[us]"), pd.Series(TIMES).astype("datetime64[ns]"), ""),
    "dates of Python": ([datetime.date(time.year, time.month, time.day) for time in TIMES], TIMES.normalize(), ""),
}


@pytest.mark.parametrize("kind", SPELLED)
def test_the_same_values_in_other_spellings_are_equal(kind: str) -> None:
    """The synthetic file spells otherwise than the real ones; and the other way round."""
    spelled, plain, note = SPELLED[kind]
    plain, spelled = pd.DataFrame({"x": plain}), pd.DataFrame({"x": spelled})
    (training, _, synthetic), notes = read_as(plain, plain, spelled)
    assert training.number_names == synthetic.number_names == ("x",)
    assert training.word_names == ()
    np.testing.assert_array_equal(training.numbers, synthetic.numbers)
    assert (note in notes[0]) if note else not notes
    swapped = encoded(spelled, plain, plain)
    np.testing.assert_array_equal(swapped[0].numbers, swapped[2].numbers)


NOT_COMPARED: dict[str, tuple[list[Any], list[Any], str]] = {
    "a comma of two meanings": (["1,234", "2,250"], ["1,234", "2,250"], "'x' holds numbers such as 1,234, whose comma"),
    "per cent": (
        [0.45, 0.5],
        ["45 %", "50%"],
        "numbers in the holdout table, numbers with the unit % in the synthetic",
    ),
    "two units": (["5 kg", "6 kg"], ["5 lb", "6 lb"], "with the unit kg in the holdout .* unit lb in the synthetic"),
    "seconds": (["2020-05-31", "2020-06-01"], [1590883200, 1590969600], "dates in the holdout .* numbers in the"),
    "Excel's days": (
        ["31.05.2020", "01.06.2020"],
        [43982, 43983],
        "dates in the holdout table, numbers in the synthetic",
    ),
    "codes": (["1", "2"], ["male", "female"], "numbers in the holdout table, words in the synthetic table"),
    "dates of two meanings": (
        ["2020-02-01", "2020-03-02"],
        ["01/02/2020", "02/03/2020"],
        "dates .* words in the synthetic",
    ),
}


@pytest.mark.parametrize("kind", NOT_COMPARED)
def test_values_that_cannot_be_compared_are_refused(kind: str) -> None:
    real, synthetic, message = NOT_COMPARED[kind]
    with pytest.raises(DataError, match=message):
        encoded(*frames(x=(real, real, synthetic)))


def test_other_columns_tell_the_decimal_mark() -> None:
    cells = {"a": ["1,234", "2,250"], "b": ["1,5", "2"]}
    assert encoded(*[pd.DataFrame(cells)] * 3)[0].numbers.tolist() == [[1.234, 1.5], [2.25, 2]]
    assert encoded(*[pd.DataFrame({**cells, "b": ["1.5", "2"]})] * 3)[0].numbers.tolist() == [[1234, 1.5], [2250, 2]]


WORDS: dict[str, tuple[list[str], str]] = {
    "countries": (["NA", "SE", "NO", "NULL"], ""),
    "only missing": (["NA", "NA", "?", "?"], ""),
    "dates of two meanings": (["01/02/2020", "02/03/2020"], "x: words, because 01/02/2020 may be two dates"),
    "open ends": (["1", "2", "3", "90+"], "x: words, because 25 % of its cells are no numbers, such as '90+'"),
    "versions": (["1.2.3", "10.0.0.1", "2.0.1"], ""),
    "yes and no": (["yes", "no"], ""),
    "two units": (["3 apples", "4 pears", "5 figs"], ""),
    "long": (["1" + " " * 100_000 + "!", "x"], ""),
}


@pytest.mark.parametrize("kind", WORDS)
def test_other_words_are_words(kind: str) -> None:
    cells, note = WORDS[kind]
    (training, _, _), notes = read_as(*frames(x=(cells, cells, cells)))
    assert training.word_names == ("x",)
    assert training.levels.tolist() == [len(set(cells))]
    assert MISSING not in training.words
    assert notes == ((note,) if note else ())


def test_digits_that_differ_are_said() -> None:
    cells = [1.2345678, 2.3456789, 3.1]
    _, notes = read_as(*frames(x=(np.round(cells, 2), cells, np.round(cells, 2)), n=([1, 2, 3], [3, 4, 5], [5, 6, 7])))
    assert notes == ("x: in steps of 0.01 in training, finer in holdout",)
    days = [f"2020-01-0{day}" for day in range(1, 4)]
    _, notes = read_as(*frames(x=(days, days, [f"{day} 12:34:56" for day in days])))
    assert notes == ("x: in steps of a day in training, finer in synthetic",)


def test_persons_are_equal_in_all_types() -> None:
    assert group_codes([7, "7", 7.0, " 7 ", b"7", np.int8(7), "007", "8"]).tolist() == [0, 0, 0, 0, 0, 0, 1, 2]
    assert group_codes(["NA", "SE", "NA", "1E5", "100000"]).tolist() == [0, 1, 0, 2, 3]
    assert group_codes(["7", "NA", "", None, np.nan]).tolist() == [0, -1, -1, -1, -1]
