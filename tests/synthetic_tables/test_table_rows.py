"""Rows with a schema: read exactly from files and frames, and refused where they do not fit."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import dpaudit
from dpaudit.engine.data.bundled import Wine
from dpaudit.engine.data.in_memory import InMemory
from dpaudit.engine.data.labelled_files import Csv
from dpaudit.engine.data.table_rows import ExampleRows, RowsFile
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.request.function_request import rows_with_schema
from dpaudit.errors import DataError
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from dpaudit.synthetic_tables.front_door.inputs import data_frame
from dpaudit.synthetic_tables.games.columns import read_as

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
        ({"x": [b"a", b"\xff"]}, "must hold one number or text in UTF-8 in each row, got binary"),
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


PEOPLE = pd.DataFrame({"age": [39, 7, 50, 61] * 30, "sex": ["f", "m", "f", "m"] * 30, "member": [1, 0, 1, 1] * 30})
SCORES = pd.DataFrame({"score": np.random.default_rng(1).normal(size=120).round(4), "member": [1, 0, 1, 1] * 30})
DESCRIBED: dict[str, Any] = {"age": (0, 100), "sex": ["f", "m"], "score": (-9.0, 9.0), "member": (0, 1)}


def with_views(frame: pd.DataFrame) -> pa.Table:
    """Return a frame as a table whose texts are views, as polars writes them."""
    table = pa.Table.from_pandas(frame)
    texts = [
        pa.string_view() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else kind
        for kind in table.schema.types
    ]
    return table.cast(pa.schema(zip(table.column_names, texts, strict=True)))


WRITTEN: dict[str, Callable[[pd.DataFrame, Path], object]] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "csv.xz": lambda frame, path: frame.to_csv(path, index=False),
    "csv.bz2": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "TSV": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "semicolons.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";"),
    "decimal commas.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=","),
    "comment.csv": lambda frame, path: path.write_text("# a comment\n\n" + frame.to_csv(index=False)),
    "utf16.csv": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-16"),
    "mark.csv": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-8-sig"),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "jsonl.gz": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "json": lambda frame, path: frame.to_json(path, orient="records"),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "pq": lambda frame, path: frame.to_parquet(path),
    "PARQUET": lambda frame, path: frame.to_parquet(path),
    "npz": lambda frame, path: np.savez(path, **{name: np.array(frame[name].tolist()) for name in frame}),
    "feather": lambda frame, path: frame.to_feather(path),
    "uncompressed.feather": lambda frame, path: frame.to_feather(path, compression="uncompressed", chunksize=7),
    "views.feather": lambda frame, path: feather.write_feather(with_views(frame), path),
}


def read_in_five_ways(path: Path, frame: pd.DataFrame) -> dict[str, Callable[[], dict[str, list[Any]]]]:
    """Return functions that read a file by each way in, and return its cells by column."""
    described = {column: DESCRIBED[column] for column in frame}

    def csv() -> dict[str, list[Any]]:
        examples = Csv(str(path), "member").load()
        features = examples.features
        cells = features.to_pydict() if isinstance(features, pa.Table) else {"score": features[:, 0].tolist()}
        return {**cells, "member": [int(examples.class_names[label]) for label in examples.labels]}

    def synthetic() -> dict[str, list[Any]]:
        (table, plain, _), notes = read_as(data_frame(path, "training"), frame, frame)
        assert notes == () or "decimal commas" in notes[0]
        assert (table.numbers.tolist(), table.words.tolist()) == (plain.numbers.tolist(), plain.words.tolist())
        return frame.to_dict("list")

    def estimate() -> dict[str, list[Any]]:
        table = SourceTable.of_file(path)
        return {
            column: (table.values(column) if column == "sex" else table.numbers(column)).tolist() for column in frame
        }

    return {
        "check --data": lambda: rows_with_schema(str(path), described).load().cells.to_pydict(),
        "rows": lambda: RowsFile(str(path)).load().cells.to_pydict(),
        "csv": csv,
        "synthetic": synthetic,
        "estimate": estimate,
    }


@pytest.mark.parametrize("frame", [PEOPLE, SCORES], ids=["people", "scores"])
@pytest.mark.parametrize("ending", WRITTEN)
def test_all_ways_in_read_all_files_alike(ending: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    WRITTEN[ending](frame, path := tmp_path / f"table.{ending}")
    for way, cells_of in read_in_five_ways(path, frame).items():
        cells = cells_of()
        for column, expected in frame.to_dict("list").items():
            exact = pytest.approx(expected, rel=1e-7) if way == "csv" and column == "score" else expected  # 32 bits
            assert cells[column] == exact, (way, column)


def test_a_first_line_of_numbers_names_no_columns_unless_it_counts_up(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("0.5,1\n0.7,0\n")
    for load in (RowsFile(str(path)).load, Csv(str(path), "1").load, partial(data_frame, path, "training")):
        with pytest.raises(
            DataError, match="must name its columns in its first line, got numbers; write 'score,member'"
        ):
            load()
    assert Csv(str(path), "column-2", header=False).load().features.tolist() == [[0.5], [np.float32(0.7)]]
    path.write_text("2023,2024\n1,2\n3,4\n")
    assert RowsFile(str(path)).load().cells.to_pydict() == {"2023": [1, 3], "2024": [2, 4]}


def test_cells_of_rows_are_read_by_one_rule(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("country;pay;zip;age\nNA;1,5;01234;39 years\nSE;2,25;98765;NA\nNO;-;01234;7 years\n")
    rows = RowsFile(str(path)).load()
    assert rows.cells.to_pydict() == {
        "country": ["NA", "SE", "NO"],
        "pay": [1.5, 2.25, None],
        "zip": ["01234", "98765", "01234"],
        "age": [39, None, 7],
    }
    assert rows.name.endswith("read as: pay: decimal commas, - as missing; age: unit year, NA as missing")
    examples = Csv(str(path), "country").load()
    assert examples.class_names == ("NA", "NO", "SE")
    assert examples.features[:, 0].tolist() == [1.5, 2.25, 1.875]
    with pytest.raises(DataError, match="column 'age': must hold a label, is missing"):
        Csv(str(path), "age").load()
    for nullable, cells in ((True, [None, "SE", "NO"]), (False, None)):
        data = RowsFile(str(path), {"country": {"values": ["SE", "NO"], "nullable": nullable}})
        if nullable:
            assert data.load().cells["country"].to_pylist() == cells
        else:
            with pytest.raises(DataError, match=r"column 'country': all cells must fit the schema, .* got NA"):
                data.load()
    path.write_text('x,y\n"1,234",0\n"2,250",1\n')
    for data in (RowsFile(str(path)), Csv(str(path), "y")):
        with pytest.raises(DataError, match="column 'x' holds numbers such as 1,234, whose comma"):
            data.load()
