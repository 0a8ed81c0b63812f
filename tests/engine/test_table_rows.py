"""Rows with a schema: read exactly from files and frames, and refused where they do not fit."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpaudit
from dpaudit.engine.data.bundled import Wine
from dpaudit.engine.data.in_memory import InMemory
from dpaudit.engine.data.table_rows import ExampleRows, RowsFile
from dpaudit.engine.request.function_request import rows_with_schema
from dpaudit.errors import DataError
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

TEXT = "age, sex ,income,id\n39, f,1.5,r1\n?,m,-2,r2\n50,f,?,r3\n"
ROWS = {"age": [39, None, 50], "sex": ["f", "m", "f"], "income": [1.5, -2.0, None]}
SCHEMA: dict[str, Any] = {
    "age": {"range": [0, 120], "nullable": True},
    "sex": ["f", "m"],
    "income": {"range": [-10.0, 10.0], "nullable": True},
}


def loaded(data: InMemory) -> TableRows:
    rows = data.load()
    assert isinstance(rows, TableRows)
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_files_are_read_exactly(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({**ROWS, "id": ["r1", "r2", "r3"]}), path)
    else:
        path.write_bytes(gzip.compress(TEXT.encode()) if suffix.endswith(".gz") else TEXT.encode())
    rows = RowsFile(str(path), SCHEMA).load()
    assert rows.cells.to_pydict() == ROWS
    assert rows.schema == Schema.of(SCHEMA)
    assert not rows.inferred
    assert RowsFile(str(path), SCHEMA, rows=2).load().cells.num_rows == 2
    inferred = RowsFile(str(path), drop=("id",)).load()
    assert inferred.cells.to_pydict() == ROWS
    assert inferred.inferred
    assert "schema inferred" in inferred.name
    assert inferred.schema.columns == {
        "age": Number(39, 50, whole=True, nullable=True),
        "sex": Category(("f", "m")),
        "income": Number(-2.0, 1.5, nullable=True),
    }


def test_frames_keep_their_cells_and_their_schema_in_a_run_folder(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS).assign(grade=pd.Categorical(["1", "2", "1"]), member=[True, False, True])
    data = dpaudit.rows(frame)
    rows = loaded(data)
    assert rows.cells.to_pydict() == {**ROWS, "grade": ["1", "2", "1"], "member": ["true", "false", "true"]}
    data.keep(tmp_path)
    stored = loaded(InMemory(data.digest, data.contents).found_in(tmp_path))
    assert stored.cells.equals(rows.cells)
    assert stored.schema == rows.schema
    assert (stored.name, stored.inferred, stored.digest) == (rows.name, True, rows.digest)
    assert data.schema == rows.schema.columns


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"height": (0, 1)}, "must have the column 'height' of the schema; its columns are age, sex, income"),
        ({"age": (0, 45)}, "column 'age': all cells must fit the schema, 0 to 45, none missing; got null|got None"),
        ({"sex": ["f", "x"]}, "column 'sex': all cells must fit the schema, 2 words, none missing; got m"),
        ({"sex": (0, 1)}, "column 'sex': must hold numbers, as the schema says"),
        ({"income": {"range": [-5, 5], "nullable": True}}, "must hold whole numbers.*real numbers, .-5.0, 5.0."),
    ],
)
def test_rows_that_do_not_fit_are_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dpaudit.rows(pd.DataFrame(ROWS), schema)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"x": [np.nan, np.nan]}, "column 'x': must hold a value in some row"),
        ({"x": [np.inf, 1.0]}, "column 'x': numbers must be finite"),
        ({"x": []}, "must have rows, has none"),
    ],
)
def test_a_schema_that_cannot_be_inferred_is_refused(frame: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dpaudit.rows(pd.DataFrame(frame))


def test_examples_become_rows_with_their_class() -> None:
    rows = ExampleRows(Wine(standardise=False), label="cultivar").load()
    assert len(rows) == 178
    assert next(iter(rows.schema.columns)) == "x1"
    cultivar = rows.schema.columns["cultivar"]
    assert isinstance(cultivar, Category)
    assert len(cultivar.values) == 3


def test_check_takes_frames_and_paths_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(TEXT)
    assert rows_with_schema(str(path), SCHEMA) == RowsFile(str(path), SCHEMA)
    assert rows_with_schema(path, SCHEMA) == RowsFile(str(path), SCHEMA)
    assert loaded(rows_with_schema(pd.DataFrame(ROWS), SCHEMA)).cells.to_pydict() == ROWS
    assert rows_with_schema("wine", SCHEMA) == "wine"
