"""Rows in the caller's memory: arrays, data frames, Arrow tables, scikit-learn bunches, `Examples`.

A spec names them by a hash of their content. Each run folder stores a copy under that hash (`data/<digest>.parquet`),
so that `dpaudit resume` loads the same rows.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.engine.data.columns import check_names, examples_of, is_numeric, is_text, labels_of, plain, typed
from dpaudit.engine.data.frames import column, frame, is_frame, matrix, refusing, require_one_index, text_of_name
from dpaudit.engine.data.table_rows import rows_of
from dpaudit.errors import DataError, InputError, SpecError, require, shortened
from dpaudit.field_checks import checked_argument
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.plain_files import read_bytes, write_atomically
from dpaudit.registry import register

FOLDER = "data"
"""Name of the folder with the rows inside a run folder."""
_NO_DESCRIPTION = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Raised by a stored description of rows that is malformed."""
MAX_FLOAT32 = np.finfo(np.float32).max
MAX_NAMES = 1_000_000
"""Largest number of columns that a caller may name; an iterator may be infinite."""


@register("data", "in-memory", source="arrays and tables in the caller's memory")
@dataclass(frozen=True)
class InMemory:
    """Rows from Python, identified in a spec by the hash of their content; a run folder stores a copy.

    Created by `Audit(data=...)` from Examples, (X, y) or a scikit-learn Bunch, by `dpaudit.table(frame, label=...)`,
    and by `dpaudit.rows(frame)` for functions on rows and generators of tables.

    Attributes:
        digest: SHA-256 of features, labels, names of classes and of categorical columns, or of rows and schema; 32
            hexadecimal digits.
        contents: Description of rows, features and classes.
    """

    digest: str
    contents: str = ""

    def __post_init__(self) -> None:
        # It names a file in the run folder, so it must not contain a path.
        valid = re.fullmatch("[0-9a-f]{32}", self.digest) is not None
        require(valid, "digest must be 32 hexadecimal digits", digest=self.digest)

    def load(self, *, seed: int = 0) -> Examples | TableRows:
        """Return the rows in their order; `seed` is not used.

        Raises: DataError if they are not in the memory of this process.
        """
        examples = self.__dict__.get("_rows")
        if examples is None:
            raise DataError(
                f"these data were in the memory of another program ({self.contents or self.digest}). Continue with "
                "`dpaudit resume RUN`, whose folder stores them, or pass them again: Audit(data=...)"
            )
        return cast("Examples | TableRows", examples)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """Columns of rows with a schema; None for examples, and for rows that are in another program."""
        rows = self.__dict__.get("_rows")
        return rows.schema.columns if isinstance(rows, TableRows) else None

    def holding(self, examples: Examples | TableRows) -> InMemory:
        """Return the same data with its rows, which are no field, so that units of work do not carry them."""
        data = InMemory(self.digest, self.contents)
        data.__dict__["_rows"] = examples
        return data

    def keep(self, folder: Path) -> None:
        """Write the rows into a run folder, unless they are there."""
        path = self._path(folder)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = _to_table(self.load())
        write_atomically(path, lambda file: pq.write_table(rows, file, compression="zstd", compression_level=1))

    def found_in(self, folder: Path) -> InMemory:
        """Return the same data with the rows in a run folder, or without rows if the folder has none."""
        path = self._path(folder)
        if not path.exists():
            return self
        try:
            examples = _from_table(read_bounded(io.BytesIO(read_bytes(path)), str(path)))
        except (pa.ArrowException, OSError, InputError, *_NO_DESCRIPTION) as err:
            why = (str(err).splitlines() or [type(err).__name__])[0]
            raise DataError(f"{path}: is not a whole Parquet file ({shortened(why)})") from err
        if _digest(examples) != self.digest:
            raise DataError(f"{path}: must hold the rows with digest {self.digest}, was changed; run the audit again")
        return self.holding(examples)

    def _path(self, folder: Path) -> Path:
        return folder / FOLDER / f"{self.digest}.parquet"

    def __getstate__(self) -> dict[str, str]:
        return {"digest": self.digest, "contents": self.contents}


def rows(
    table: Any, schema: Mapping[str, Any] | None = None, *, drop: Iterable[str] = (), name: str = "rows"
) -> InMemory:
    """Return a data frame as the rows of an audit of a function on rows or a generator: `Audit(data=rows(frame), ...)`.

    Args:
        table: A pandas DataFrame, a pyarrow Table, or any frame with the Arrow interface (polars).
        schema: For each column a range of numbers `(0, 100)` or words `["f", "m"]`; other columns are ignored. None
            infers it from the rows. That is an assumption: a schema is public, part of the claim, and not a function
            of the rows.
        drop: Columns to ignore.
        name: Name of the data, for reports.
    Raises: DataError that names the column if cells do not fit the schema.
    """
    columns, dropped = frame(table), _names("drop", drop)
    columns = columns.drop_columns([column for column in dropped if column in columns.column_names])
    result = rows_of(columns, schema, name=name)
    return InMemory(_digest(result), f"{result.name}, {len(result.schema.columns)} columns").holding(result)


def in_memory(examples: Examples) -> InMemory:
    """Return Examples as the data of an audit."""
    labels = ", ".join(examples.class_names[:5]) + (", ..." if len(examples.class_names) > 5 else "")
    features = examples.features
    columns = features.num_columns if isinstance(features, pa.Table) else " x ".join(map(str, features.shape[1:]))
    contents = f"{len(examples):,} rows, {columns} features, {examples.classes} classes"
    return InMemory(_digest(examples), contents + (f" ({labels})" if labels else "")).holding(examples)


def table(
    rows: Any,
    *,
    label: str | tuple[Any, ...],
    categorical: Iterable[str] = (),
    drop: Iterable[str] = (),
    keep_missing: bool = False,
    name: str = "table",
) -> InMemory:
    """Return a data frame or an Arrow table as the data of an audit: `Audit(data=table(frame, label="clicked"), ...)`.

    Columns are converted as by `csv` and `parquet`. Numbers are numeric; text, booleans and pandas categories are
    categorical. A missing number becomes its column's mean and a missing category 'unknown', unless `keep_missing` is
    True; the report states their number. Labels may be numbers, text or booleans. They become 0 .. K - 1 in sorted
    order, and their names are stored.

    Args:
        rows: A pandas DataFrame, a pyarrow Table, or any frame with the Arrow interface (polars).
        label: Name of the label column; a tuple for a name of several levels in pandas.
        categorical: Numeric columns that hold codes.
        drop: Columns to ignore, such as row numbers.
        keep_missing: True to pass missing values to the audited code as NaN or None.
        name: Name of the data, for reports.
    Raises: DataError that names the row and the column.
    """
    columns = frame(rows)
    target = text_of_name(label) if isinstance(label, tuple) else label  # as `frame` names columns
    categorical, drop = _names("categorical", categorical), _names("drop", drop)
    check_names(columns.column_names, label=target, named={"categorical": categorical, "drop": drop}, place="the table")
    if not len(columns):
        raise DataError("the table has no rows")
    columns = columns.drop_columns(list({*drop} - {target}))
    codes = {*categorical, *(field.name for field in columns.schema if pa.types.is_dictionary(field.type))} - {target}
    words = columns.set_column(columns.column_names.index(target), target, _as_words(plain(columns[target])))
    features = words.drop_columns([target])
    count = sum(int(pc.sum(pc.is_null(column, nan_is_null=True)).as_py() or 0) for column in features.columns)
    name += f" ({count:,} missing values, kept)" if keep_missing and count else _missing_words(count)
    return in_memory(
        examples_of(
            words,
            typed,
            _refuse,
            place="the table",
            label=target,
            categorical=codes,
            name=name,
            keep_missing=keep_missing,
        )
    )


def data_source(value: Any) -> Any:
    """Return the data of an audit: rows as `InMemory`; a name, a mapping or a data set unchanged."""
    # Types of other libraries are recognised by name, so that nothing is imported.
    kinds = {(str(kind.__module__).partition(".")[0], kind.__name__) for kind in type(value).__mro__}
    if isinstance(value, Examples):
        return in_memory(value)
    if ("sklearn", "Bunch") in kinds:
        if not value.keys() >= {"data", "target"}:
            raise SpecError("a scikit-learn Bunch must have `data` and `target`")
        return in_memory(_from_pair(value["data"], value["target"], value.get("target_names")))
    if is_frame(value):
        raise SpecError(
            "a data frame needs its column of classes: write data=dpaudit.table(frame, label=...). For a function on "
            "rows or a generator of tables, write data=dpaudit.rows(frame, schema=...)"
        )
    if isinstance(value, tuple) and len(value) == 2:
        return in_memory(_from_pair(*value))
    if isinstance(value, str | Mapping) or callable(getattr(value, "load", None)):
        return value
    raise SpecError(
        "data must be a name, Examples, (X, y), dpaudit.table(frame, label=...), a scikit-learn Bunch, or an object "
        f"with a method `load(seed=...) -> Examples`; got {type(value).__name__}"
    )


def _digest(examples: Examples | TableRows) -> str:
    if isinstance(examples, TableRows):
        return examples.digest[:32]
    words = json.dumps([examples.digest, examples.classes, examples.categorical, examples.class_names])
    return hashlib.sha256(words.encode()).hexdigest()[:32]


def _to_table(examples: Examples | TableRows) -> pa.Table:
    """Return a table of the rows of a schema, or of labels and features: columns, or one list of numbers for each row.

    Its metadata hold the schema, or what else `Examples` consist of.
    """
    if isinstance(examples, TableRows):
        about = {"name": examples.name, "inferred": examples.inferred, "schema": examples.schema.to_words()}
        return examples.cells.replace_schema_metadata({"rows": json.dumps(about)})
    features = examples.features
    about = {
        "name": examples.name,
        "classes": examples.classes,
        "categorical": examples.categorical,
        "class_names": examples.class_names,
        "shape": None if isinstance(features, pa.Table) else features.shape,
    }
    labels = pa.array(examples.labels)
    if isinstance(features, pa.Table):
        columns, names = [labels, *features.columns], ["label", *features.column_names]
    else:
        flat = pa.array(np.ascontiguousarray(features).reshape(-1))
        width = int(np.prod(features.shape[1:], dtype=np.int64))
        columns, names = [labels, pa.FixedSizeListArray.from_arrays(flat, width)], ["label", "features"]
    return pa.Table.from_arrays(columns, names=names).replace_schema_metadata({"examples": json.dumps(about)})


def _from_table(stored: pa.Table) -> Examples | TableRows:
    metadata = stored.schema.metadata
    if b"rows" in metadata:
        about, cells = json.loads(metadata[b"rows"]), stored.replace_schema_metadata(None).combine_chunks()
        return TableRows(cells, Schema.of(about["schema"]), about["name"], about["inferred"])
    about = json.loads(stored.schema.metadata[b"examples"])
    labels = stored.column(0).to_numpy()
    features: Features
    if about["shape"] is None:
        features = stored.remove_column(0).replace_schema_metadata(None).combine_chunks()
    else:
        flat = stored.column(1).combine_chunks().flatten()
        features = flat.to_numpy(zero_copy_only=False).reshape(about["shape"])
    names = tuple(about["categorical"]), tuple(about["class_names"])
    return Examples(features, labels, about["classes"], about["name"], *names)


def _from_pair(features: Any, labels: Any, class_names: Any = None) -> Examples:
    """Return Examples of (X, y): an array of numbers or a frame, and one label for each row.

    Args:
        class_names: Names of the classes, used if there is one for each.
    """
    require_one_index({"X": features, "y": labels})
    classes = _label_column(labels)
    rows = frame(features) if is_frame(features) else _numbers(features)
    require(len(rows) == len(classes), "X and y must have the same number of rows", X=len(rows), y=len(classes))
    if isinstance(rows, pa.Table):
        name = "label" if "label" not in rows.column_names else "the label of each row"
        examples = cast(Examples, table(rows.append_column(name, classes), label=name).load())
    else:
        array, missing = _filled(rows)
        codes, names = labels_of(_as_words(classes), "y", _refuse)
        examples = Examples(array, codes, len(names), "arrays" + _missing_words(missing), (), names)
    listed = () if class_names is None else column("the names of classes", class_names).to_pylist()
    if len(listed) != examples.classes:
        return examples
    return replace(
        examples, class_names=checked_argument("the names of classes", tuple(map(str, listed)), tuple[str, ...])
    )


def _numbers(features: Any) -> NDArray[np.float32]:
    """Return X as float32 of shape (n, ...), NaN where missing."""
    array = matrix("X", features)
    if array.ndim < 2 or not len(array):
        raise DataError(f"X must have one row of numbers for each example, got an array of shape {array.shape}")
    wrong = np.isinf(array) | (np.abs(array) > MAX_FLOAT32)
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise DataError(f"X must hold finite 32-bit numbers, got {array[place]} at {list(place)}; correct the cell")
    return array.astype(np.float32)


def _filled(array: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Return the array with missing numbers replaced by the mean of their column, and the number of missing ones."""
    missing = np.isnan(array)
    if not missing.any():
        return array, 0
    empty = missing.all(axis=0)
    if empty.any():
        raise DataError(f"X must hold a value in some row of each column, has none in {np.argwhere(empty)[0].tolist()}")
    return np.where(missing, np.nanmean(array, axis=0, dtype=np.float64), array).astype(np.float32), int(missing.sum())


def _label_column(labels: Any) -> pa.ChunkedArray:
    """Return y, of shape (n,) or (n, 1), as one Arrow column."""
    flat = labels[:, 0] if isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.shape[1] == 1 else labels
    label_column = plain(column("y", flat))
    if not (is_text(label_column.type) or is_numeric(label_column.type) or pa.types.is_null(label_column.type)):
        raise DataError(f"y must hold labels of one type, numbers, text or booleans, got {label_column.type}")
    return label_column


def _as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return booleans as the words False and True, NaN as null, other labels unchanged."""
    column = pc.if_else(column, "True", "False") if pa.types.is_boolean(column.type) else column
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _names(name: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Return names of columns from one name or any iterable of names."""
    with refusing(f"{name} must be names of columns"):
        listed = [columns] if isinstance(columns, str) else list(itertools.islice(columns, MAX_NAMES))
    listed = next(([item] for item in listed if not isinstance(item, str)), listed)  # a million errors take seconds
    names: tuple[str, ...] = checked_argument(name, listed, tuple[str, ...])
    return names


def _missing_words(missing: int) -> str:
    if not missing:
        return ""
    return f" ({missing:,} missing values: a number became its column's mean, a category 'unknown')"


def _refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
    place = "the table" if row is None else f"row {row:,} (from 0)"
    return DataError(f"{place}, column {column!r}: {problem}; {do}")
