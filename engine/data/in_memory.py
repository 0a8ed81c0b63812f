"""The caller's own rows: arrays, data frames, Arrow tables, scikit-learn bunches, `Examples`.

They have no file that a spec could name. Their content is hashed instead, and every run folder keeps a copy under that
hash (`data/<digest>.parquet`), so that `dpaudit resume` finds the very rows again.
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
from dpaudit.engine.data.columns import Column, check_names, examples_of, is_number, is_text, labels_of, plain, typed
from dpaudit.engine.data.given_rows import column, frame, is_frame, matrix, refusing, require_one_index
from dpaudit.errors import DataError, InputError, SpecError, require, shortened
from dpaudit.given import argument
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.plain_files import bytes_of, write_whole
from dpaudit.registry import register

FOLDER = "data"
"""Where a run folder keeps them."""
LARGEST = np.finfo(np.float32).max
MAX_NAMES = 1_000_000
"""Columns that a caller may name; what goes on for ever is no list of them."""


@register("data", "in-memory", source="arrays and tables in the caller's memory")
@dataclass(frozen=True)
class InMemory:
    """Rows that were given in Python; a spec knows them by the hash of their content, a run folder keeps a copy.

    Made by `Audit(data=...)` from Examples, (X, y) or a scikit-learn Bunch, and by `dpaudit.table(frame, label=...)`.

    Attributes:
        digest: SHA-256 of features, labels, names of classes and of categorical columns, 32 hexadecimal digits.
        contents: For people: rows, features, classes.
    """

    digest: str
    contents: str = ""

    def __post_init__(self) -> None:
        # It is the name of a file of the run folder, and no way out of it.
        valid = re.fullmatch("[0-9a-f]{32}", self.digest) is not None
        require(valid, "digest must be 32 hexadecimal digits", digest=self.digest)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order they were given; `seed` is not used.

        Raises: DataError when they are neither in this process nor in the run folder.
        """
        examples = self.__dict__.get("_rows")
        if examples is None:
            raise DataError(
                f"these data were in the memory of another program ({self.contents or self.digest}); go on with "
                "`dpaudit resume RUN`, whose folder keeps them, or give them again: Audit(data=...)"
            )
        return cast(Examples, examples)

    def holding(self, examples: Examples) -> InMemory:
        """The same, with its rows at hand. They belong to no field: they would travel with every unit."""
        held = InMemory(self.digest, self.contents)
        held.__dict__["_rows"] = examples
        return held

    def keep(self, folder: Path) -> None:
        """Writes the rows into a run folder, once."""
        path = self._path(folder)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = _to_table(self.load())
        write_whole(path, lambda file: pq.write_table(rows, file, compression="zstd", compression_level=1))

    def found_in(self, folder: Path) -> InMemory:
        """The same with the rows that a run folder keeps, where it keeps them."""
        path = self._path(folder)
        if not path.exists():
            return self
        try:
            examples = _from_table(read_bounded(io.BytesIO(bytes_of(path)), str(path)))
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, InputError) as err:
            why = (str(err).splitlines() or [type(err).__name__])[0]
            raise DataError(f"{path}: is not a whole Parquet file ({shortened(why)})") from err
        if _digest(examples) != self.digest:
            raise DataError(f"{path}: must hold the rows with digest {self.digest}, was changed; run the audit anew")
        return self.holding(examples)

    def _path(self, folder: Path) -> Path:
        return folder / FOLDER / f"{self.digest}.parquet"

    def __getstate__(self) -> dict[str, str]:
        return {"digest": self.digest, "contents": self.contents}


def in_memory(examples: Examples) -> InMemory:
    """Examples as the data of an audit."""
    labels = ", ".join(examples.class_names[:5]) + (", ..." if len(examples.class_names) > 5 else "")
    features = examples.features
    columns = features.num_columns if isinstance(features, pa.Table) else " x ".join(map(str, features.shape[1:]))
    contents = f"{len(examples):,} rows, {columns} features, {examples.classes} classes"
    return InMemory(_digest(examples), contents + (f" ({labels})" if labels else "")).holding(examples)


def table(
    rows: Any,
    *,
    label: str,
    categorical: Iterable[str] = (),
    drop: Iterable[str] = (),
    keep_missing: bool = False,
    name: str = "table",
) -> InMemory:
    """A data frame or an Arrow table as the data of an audit: `Audit(data=table(frame, label="clicked"), ...)`.

    Columns are read as `csv` and `parquet` read theirs: numbers are numeric; text, booleans and pandas' own categories
    are categorical; a missing number becomes its column's mean, a missing category 'unknown', unless they are kept, and
    the report says how many. Labels may be numbers, text or booleans; they become 0 .. K - 1 in their order, and their
    names are kept.

    Args:
        rows: A pandas DataFrame, a pyarrow Table, or any frame that speaks Arrow (polars).
        label: The column of classes.
        categorical: Columns of numbers that are codes.
        drop: Columns to leave out, such as row numbers.
        keep_missing: Whether the audited code is given NaN or None where a value is missing, to fill it itself.
        name: What the data are, for reports.
    Raises: DataError naming the row and the column.
    """
    columns, label, name = frame(rows), argument("label", label, str), argument("name", name, str)
    categorical, drop = _names("categorical", categorical), _names("drop", drop)
    check_names(columns.column_names, label=label, named={"categorical": categorical, "drop": drop}, path="the table")
    for field in columns.schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if field.name not in drop and not (is_text(kind) or is_number(kind)):
            raise _refuse(None, field.name, f"must be numbers or text, got {kind}", "name the column in `drop`")
    columns = columns.drop_columns(list(set(drop)))
    if not len(columns):
        raise DataError("the table has no rows")

    def read(column: pa.ChunkedArray, column_name: str) -> Column:
        return typed(plain(column), column_name, _codes(columns.schema, categorical), _refuse)

    words = columns.set_column(columns.column_names.index(label), label, _as_words(plain(columns[label])))
    features = words.drop_columns([label])
    count = sum(column.null_count + _nan_count(column) for column in features.columns)
    missing = f" ({count:,} missing values, kept)" if keep_missing and count else _missing_words(count)
    named = name + missing
    return in_memory(examples_of(words, read, _refuse, label=label, drop=(), name=named, keep_missing=keep_missing))


def data_source(value: Any) -> Any:
    """What an audit's `data` may be: a name, a mapping, a data set, or rows in memory."""
    # Other people's types are known by their names, so that nothing is imported to look at them.
    kinds = {(str(kind.__module__).partition(".")[0], kind.__name__) for kind in type(value).__mro__}
    if isinstance(value, Examples):
        return in_memory(value)
    if ("sklearn", "Bunch") in kinds:
        if not value.keys() >= {"data", "target"}:
            raise SpecError("a scikit-learn Bunch must have `data` and `target`")
        return in_memory(_from_pair(value["data"], value["target"], value.get("target_names")))
    if is_frame(value):
        raise SpecError("a data frame needs its column of classes: write data=dpaudit.table(frame, label=...)")
    if isinstance(value, tuple) and len(value) == 2:
        return in_memory(_from_pair(*value))
    if isinstance(value, str | Mapping) or callable(getattr(value, "load", None)):
        return value
    raise SpecError(
        "data must be a name, Examples, (X, y), dpaudit.table(frame, label=...), a scikit-learn Bunch, or an object "
        f"with a method `load(seed=...) -> Examples`; got {type(value).__name__}"
    )


def _digest(examples: Examples) -> str:
    words = json.dumps([examples.digest, examples.classes, examples.categorical, examples.class_names])
    return hashlib.sha256(words.encode()).hexdigest()[:32]


def _to_table(examples: Examples) -> pa.Table:
    """The labels, then the features: columns of a table, or one list of numbers a row."""
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


def _from_table(stored: pa.Table) -> Examples:
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
    """Examples of (X, y): an array of numbers or a frame, and one label a row."""
    require_one_index({"X": features, "y": labels})
    classes = _label_column(labels)
    if is_frame(features):
        columns = frame(features)
        require(
            len(columns) == len(classes), "X and y must have the same number of rows", X=len(columns), y=len(classes)
        )
        name = "label" if "label" not in columns.column_names else "the label of each row"
        examples = table(columns.append_column(name, classes), label=name).load()
        return _named(examples, class_names)
    array = _numbers(features)
    require(len(array) == len(classes), "X and y must have the same number of rows", X=len(array), y=len(classes))
    array, missing = _filled(array)
    codes, names = labels_of(_as_words(classes), "y", _refuse)
    return _named(Examples(array, codes, len(names), "arrays" + _missing_words(missing), (), names), class_names)


def _named(examples: Examples, class_names: Any) -> Examples:
    """The examples with a bunch's names for its classes, where it has one for each."""
    if class_names is None:
        return examples
    names = tuple(column("the names of classes", class_names).to_pylist())
    if len(names) != examples.classes:
        return examples
    names = argument("the names of classes", tuple(map(str, names)), tuple[str, ...])
    return replace(examples, class_names=names)


def _numbers(features: Any) -> NDArray[np.float32]:
    """X as float32 of shape (n, ...), NaN where missing."""
    array = matrix("X", features)
    if array.ndim < 2 or not len(array):
        raise DataError(f"X must have one row of numbers for each example, got an array of shape {array.shape}")
    wrong = np.isinf(array) | (np.abs(array) > LARGEST)
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise DataError(f"X must hold finite 32-bit numbers, got {array[place]} at {list(place)}; correct the cell")
    return array.astype(np.float32)


def _filled(array: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Missing numbers become their column's mean, as in a table; and how many there were."""
    missing = np.isnan(array)
    if not missing.any():
        return array, 0
    empty = missing.all(axis=0)
    if empty.any():
        raise DataError(f"X must hold a value in some row of each column, has none in {np.argwhere(empty)[0].tolist()}")
    return np.where(missing, np.nanmean(array, axis=0, dtype=np.float64), array).astype(np.float32), int(missing.sum())


def _label_column(labels: Any) -> pa.ChunkedArray:
    """y as one Arrow column; a column of shape (n, 1) is one."""
    flat = labels[:, 0] if isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.shape[1] == 1 else labels
    made = plain(column("y", flat))
    if not (is_text(made.type) or is_number(made.type) or pa.types.is_null(made.type)):
        raise DataError(f"y must hold labels of one type, numbers, text or booleans, got {made.type}")
    return made


def _as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Booleans as the words False and True; other labels as they are, missing numbers as missing."""
    column = pc.if_else(column, "True", "False") if pa.types.is_boolean(column.type) else column
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _codes(schema: pa.Schema, categorical: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that hold categories whatever their type: those that are named, and pandas' own categories."""
    return (*categorical, *(field.name for field in schema if pa.types.is_dictionary(field.type)))


def _names(name: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Names of columns; one alone is one. Arrays and sets of names are taken as well."""
    with refusing(f"{name} must be names of columns"):
        listed = [columns] if isinstance(columns, str) else list(itertools.islice(columns, MAX_NAMES))
    given: tuple[str, ...] = argument(name, listed, tuple[str, ...])
    return given


def _nan_count(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.is_nan(column)).as_py() or 0) if pa.types.is_floating(column.type) else 0


def _missing_words(missing: int) -> str:
    if not missing:
        return ""
    return f" ({missing:,} missing values: a number became its column's mean, a category 'unknown')"


def _refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
    place = "the table" if row is None else f"row {row:,} (from 0)"
    return DataError(f"{place}, column {column!r}: {problem}; {do}")
