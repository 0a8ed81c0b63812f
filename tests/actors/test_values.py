"""Round trips of values through Arrow tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from dpaudit.actors.values import arrow_array, decode, encode, numpy_array
from dpaudit.errors import RunError


class Side(Enum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True, eq=False)
class Inner:
    points: NDArray[np.float32] | pa.Table
    name: str = ""


@dataclass(frozen=True, eq=False)
class Outer:
    vector: NDArray[np.int64]
    matrix: NDArray[np.float64]
    bits: NDArray[np.bool_]
    words: NDArray[np.str_]
    count: int
    share: float
    flag: bool
    side: Side
    several: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]
    metrics: Mapping[str, float]
    inner: Inner
    other: Inner | None = None
    missing: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Row:
    ROWS: ClassVar[bool] = True
    score: NDArray[np.float64] = field(metadata={"stored": "float32"})
    truth: NDArray[np.bool_]
    doubt: NDArray[np.float64] | None = None
    replay: int = field(default=0, metadata={"stored": "int32"})


def same(value: Any, other: Any) -> bool:
    if dataclasses.is_dataclass(value):
        return type(value) is type(other) and all(same(part, vars(other)[name]) for name, part in vars(value).items())
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, np.ndarray):
        return value.shape == other.shape and value.dtype.kind == other.dtype.kind and np.array_equal(value, other)
    if isinstance(value, pa.Table):
        return bool(value.equals(other))
    return type(value) is type(other) and bool(value == other)


def stored(table: pa.Table, path: Any) -> pa.Table:
    """Return `table` after a round trip through a Parquet file."""
    pq.write_table(table, path)
    return pq.read_table(path)


def example(seed: int, **changes: Any) -> Outer:
    rng = np.random.default_rng(seed)
    value = Outer(
        vector=rng.integers(0, 9, 5),
        matrix=rng.normal(size=(2, 3)),
        bits=rng.random(4) < 0.5,
        words=np.array(["a", "bc", ""]),
        count=3,
        share=0.1,
        flag=True,
        side=Side.TWO,
        several=(np.arange(3), np.arange(0), np.arange(2)),
        names=("x", "y"),
        metrics={"accuracy": 0.5},
        inner=Inner(rng.normal(size=(2, 1, 2)).astype(np.float32), "pictures"),
    )
    return dataclasses.replace(value, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"missing": np.array([1.5])},
        {"other": Inner(np.zeros((0, 4), np.float32))},
        {"inner": Inner(pa.table({"age": [1.0, None], "sex": ["f", "m"]}), "a table")},
        {"vector": np.zeros(0, np.int64), "matrix": np.zeros((0, 3)), "several": (), "names": ()},
        {"matrix": np.array(3.0)},
    ],
)
def test_a_value_is_restored(changes: dict[str, Any], tmp_path: Any) -> None:
    value = example(0, **changes)
    (restored,) = decode(stored(encode([value], Outer), tmp_path / "x.parquet"), Outer)
    assert same(value, restored)


def test_several_values_are_restored_in_order(tmp_path: Any) -> None:
    values = [example(0), example(1, missing=np.arange(2.0)), example(2, other=Inner(np.ones((1, 1), np.float32), "b"))]
    restored = decode(stored(encode(values, Outer), tmp_path / "x.parquet"), Outer)
    assert len(restored) == 3
    assert all(map(same, values, restored))


def test_rows_hold_a_matrix_as_a_column_of_lists(tmp_path: Any) -> None:
    values = [Row(np.full((n, 3), n + 0.5), np.ones(n, np.bool_), replay=n) for n in (2, 5)]
    restored = decode(stored(encode(values, Row), tmp_path / "x.parquet"), Row)
    assert all(map(same, values, restored))
    restored[1].score[0, 0] = 9.0
    assert restored[1].score[0].tolist() == [9.0, 5.5, 5.5]


def test_arrays_can_be_written_to() -> None:
    (restored,) = decode(encode([example(0)], Outer), Outer)
    restored.vector[0] = 100
    assert restored.vector[0] == 100


def test_rows_are_plain_columns(tmp_path: Any) -> None:
    scores = [
        Row(np.array([0.5, -1.0], np.float32).astype(float), np.array([True, False]), replay=number)
        for number in (4, 7)
    ]
    table = stored(encode(iter(scores), Row), tmp_path / "x.parquet")
    assert table.column_names == ["score", "truth", "doubt", "replay"]
    assert table.column("score").to_pylist() == [0.5, -1.0, 0.5, -1.0]
    assert table.column("replay").to_pylist() == [4, 4, 7, 7]
    assert (table.schema.field("score").type, table.schema.field("replay").type) == (pa.float32(), pa.int32())
    restored = decode(table, Row)
    assert [value.replay for value in restored] == [4, 7]
    assert all(
        same(row.truth, other.truth) and other.doubt is None for row, other in zip(scores, restored, strict=True)
    )


def test_values_with_equal_numbers_stay_separate() -> None:
    values = [Row(np.array([float(number)]), np.array([True])) for number in range(3)]
    assert [value.score.tolist() for value in decode(encode(values, Row), Row)] == [[0.0], [1.0], [2.0]]


def test_no_values_are_an_empty_table() -> None:
    assert decode(encode([], Row), Row) == decode(encode([], Outer), Outer) == []


@pytest.mark.parametrize("kind", [Row, Outer])
def test_tables_of_another_class_are_refused(kind: Any) -> None:
    with pytest.raises(RunError, match=f"must hold {kind.__name__}"):
        decode(pa.table({"bound": [1.0]}), kind)


@pytest.mark.parametrize(
    "values",
    [
        [1, None, -3],
        [1.5, None, float("inf")],
        [1, 2.5],
        [True, None, False] * 5,
        ["a", "", None, "ß∈"],
        [["a"], None, ["b", "c"], []],
        [(1, 2), (), (3,)],
        [[[1], [2, 3]], [[]]],
        [None, None],
        [],
        [[], []],
        np.arange(7, dtype=np.uint8),
        np.linspace(0, 1, 5, dtype=np.float32)[::2],
        np.arange(21) % 3 == 0,
        np.array(["x", "yz"]),
    ],
)
def test_arrays_equal_those_of_pyarrow(values: Any) -> None:
    restored, expected = arrow_array(values), pa.array(values)
    restored.validate(full=True)
    assert restored.type == expected.type
    assert restored.equals(expected)
    for column in (expected, expected.slice(1)):
        if not pa.types.is_nested(column.type):
            np.testing.assert_array_equal(numpy_array(column), column.to_numpy(zero_copy_only=False))
            assert numpy_array(column).dtype == column.to_numpy(zero_copy_only=False).dtype
