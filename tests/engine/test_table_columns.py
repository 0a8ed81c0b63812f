"""Data frames become tables of numbers and words whose codes do not depend on the file of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit.engine.games.tables.columns import LARGEST, encoded
from dpaudit.engine.games.tables.view import MISSING
from dpaudit.errors import DataError

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
