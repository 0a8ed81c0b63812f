"""Parquet files that unpack to too many bytes are refused by their footers; others are read unchanged."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpaudit.actors.storage import bounded_parquet
from dpaudit.actors.storage.bounded_parquet import read_bounded, read_footer
from dpaudit.errors import DataError, RunError

RNG = np.random.default_rng(3)
HONEST = pa.table(
    {
        "number": RNG.random(500),
        "bit": RNG.random(500) < 0.5,
        "text": [f"text {number}" * 20 for number in range(500)],
        "same": ["equal"] * 500,
        "none": pa.nulls(500, pa.string()),
        "codes": pa.array(["a", "b"] * 250).dictionary_encode(),
        "texts": pa.array([["x" * 30, "y"]] * 500),
        "pair": pa.array([[1.0, 2.0]] * 500, pa.list_(pa.float64(), 2)),
        "both": pa.array([{"a": 1, "b": "c"}] * 500),
    }
)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("suspicious", [False, True])
@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "row_group_size": 100}, {"use_dictionary": False}])
def test_a_plain_table_is_read_unchanged(
    options: dict[str, Any], suspicious: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = written(HONEST, **options)
    if suspicious:  # each text is held once until its size is known
        monkeypatch.setattr(bounded_parquet, "ALWAYS_ALLOWED", 1)
    table = read_bounded(io.BytesIO(content), "x")
    assert table.equals(pq.read_table(io.BytesIO(content)))
    assert table.schema == HONEST.schema
    assert read_bounded(io.BytesIO(content), "x", ["text", "pair"]).column_names == ["text", "pair"]


def test_the_footer_agrees_with_pyarrow() -> None:
    content = written(HONEST, row_group_size=100)
    footer, metadata = read_footer(io.BytesIO(content)), pq.read_metadata(io.BytesIO(content))
    assert footer.rows == 500
    chunks = [
        metadata.row_group(i).column(j) for i in range(metadata.num_row_groups) for j in range(metadata.num_columns)
    ]
    assert [(column.path, column.unpacked) for column in footer.columns] == [
        (chunk.path_in_schema, chunk.total_uncompressed_size) for chunk in chunks
    ]


def rows_of_zeros() -> pa.Table:
    return pa.table({"score": np.zeros(100_000_000, np.int64)})


def repeated_text() -> pa.Table:
    return pa.table({"key": pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), ["x" * 1000])})


def texts_in_lists() -> pa.Table:
    texts = pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), ["x" * 1000])
    return pa.table({"needs": pa.ListArray.from_arrays(np.array([0, 1_000_000], np.int32), texts)})


@pytest.mark.parametrize("bomb", [rows_of_zeros, repeated_text, texts_in_lists])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(bomb: Any) -> None:
    content = written(bomb(), compression="zstd", store_schema=False)
    assert len(content) < 1_000_000
    before = pa.total_allocated_bytes()
    pa.default_memory_pool().release_unused()
    with pytest.raises(DataError, match="it must unpack to at most 1,000 times its size"):
        read_bounded(io.BytesIO(content), "it")
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_a_table_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.plain_files.SMALL_FILE_BYTES", 1000)
    monkeypatch.setattr("dpaudit.plain_files.max_read_bytes", lambda: 1000)
    with pytest.raises(RunError, match="it must fit into half of the free memory"):
        read_bounded(io.BytesIO(written(HONEST)), "it")


def test_a_damaged_footer_is_refused() -> None:
    """With some of these footers, pyarrow's column metadata crashes the process."""
    content, rng = written(HONEST), np.random.default_rng(11)
    for _ in range(2000):
        damaged = bytearray(content)
        for at in rng.integers(len(content) - 4000, len(content), rng.integers(1, 20)):
            damaged[at] = rng.integers(256)
        try:
            read_bounded(io.BytesIO(damaged), "x")
        except (DataError, RunError, ValueError, OSError, pa.ArrowException):
            continue
    for end in range(0, len(content), 97):
        with pytest.raises((ValueError, pa.ArrowException)):
            read_bounded(io.BytesIO(content[:end]), "x")
