"""Rows in Parquet shards, which each process reads when it uses them: a plan only states where they are."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from dpaudit.actors.storage.bounded_parquet import read_footer, read_groups
from dpaudit.consent import PATH
from dpaudit.engine.data.columns import UNKNOWN, as_texts, check_names, fault, labels_of, line_of_error, plain, typed
from dpaudit.engine.data.files import existing, files_in_order
from dpaudit.engine.data.partition import RowRange
from dpaudit.errors import DataError, SpecError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.gpu_memory import in_unit
from dpaudit.registry import register

MAX_ROWS_OUTSIDE_UNITS = 2_000_000
"""Largest number of rows that may be read at once where an audit is planned."""
_READ = ("labels", "features", "digest")  # of examples in shards: computed when they are used
Positions = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Shard:
    """A Parquet file as it was when the audit was planned."""

    path: str
    size: int  # bytes
    footer: str  # SHA-256 of its footer
    rows: tuple[int, ...]  # number of rows of each row group

    def groups(self, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield row groups. Raises: DataError if the file has changed since the audit was planned, or is damaged."""
        with _opened(self.path) as file:
            if (os.fstat(file.fileno()).st_size, _digest_of_footer(file)) != (self.size, self.footer):
                raise fault(self.path, "has changed since the audit was planned", do="run the audit again")
            yield from read_groups(file, self.path, groups, columns)


class ShardedExamples(Examples):
    """Examples in shards. Labels and features are read when they are used, and are not sent to other processes."""

    shards: tuple[Shard, ...]  # in the order of their rows
    table_digest: str  # SHA-256 of the content of the files and the roles of their columns
    label: str  # name of the label column
    columns: tuple[str, ...]  # names of the features
    words: pa.Array  # different cells of the label column
    codes: NDArray[np.int64]  # label of each of them
    rows: RowRange | Positions  # positions in the shards
    first_labels: NDArray[np.int64] = np.empty(0, np.int64)  # labels that replace those of the first rows

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name not in _READ:
            raise AttributeError(name)
        value = self.__dict__[name] = self._labels() if name == "labels" else self._features()
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _READ}

    def __repr__(self) -> str:
        return f"{len(self):,} rows of {self.name}"

    def __len__(self) -> int:
        return self.rows.last - self.rows.first if isinstance(self.rows, RowRange) else len(self.rows)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the content of the shards, the positions of the rows, and labels that replace theirs."""
        rows = repr(self.rows) if isinstance(self.rows, RowRange) else self.rows.astype(np.int64).tobytes()
        return hashlib.sha256(repr((self.table_digest, rows, self.first_labels.tobytes())).encode()).hexdigest()

    def take_range(self, rows: RowRange) -> Examples:
        """Return rows of the shards."""
        return self._with(rows=rows)

    def take(self, rows: ArrayLike) -> Examples:
        """Return the rows selected by integer positions or by a boolean mask: in shards until features are read."""
        positions = np.asarray(rows)
        if positions.dtype == np.bool_:
            positions = np.flatnonzero(positions)
        first, last = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        is_range = first >= 0 and last <= len(self) and bool((np.diff(positions) == 1).all())
        if "features" in vars(self):
            return super().take(positions)
        if is_range and isinstance(self.rows, RowRange):
            some = replace(self.rows, first=self.rows.first + first, last=self.rows.first + last)
            return self._with(rows=some, first_labels=self.first_labels[first:last])
        return super().take(positions) if len(self.first_labels) else self._with(rows=self._positions()[positions])

    def with_(self, *, features: Features | None = None, labels: NDArray[np.int64] | None = None) -> Examples:
        """Return examples in memory."""
        features = self.features if features is None else features
        labels = self.labels if labels is None else labels
        return Examples(features, labels, self.classes, self.name, self.categorical, self.class_names)

    def with_first_labels(self, labels: NDArray[np.int64]) -> Examples:
        """Return the examples, in shards, with other labels of the first rows, shape (m,)."""
        return self._with(first_labels=labels)

    def writable(self) -> Examples:
        """Return examples in memory with writable arrays."""
        return self.with_(features=self._features(), labels=self._labels())

    def _with(self, **changed: Any) -> Examples:
        return type(self)(**self.__getstate__() | changed)

    def _labels(self) -> NDArray[np.int64]:
        labels = np.empty(len(self), np.int64)
        for places, cells in self._cells([self.label]):
            labels[places] = self.codes[np.asarray(pc.index_in(plain(cells[self.label]), value_set=self.words))]
        labels[: len(self.first_labels)] = self.first_labels
        return labels

    def _features(self) -> Features:
        """Return features as the data set `parquet` does. Raises: DataError for a missing number."""
        if not self.categorical:
            array = np.empty((len(self), len(self.columns)), np.float32)
            for places, cells in self._cells(self.columns):
                for number, name in enumerate(self.columns):
                    array[places, number] = self._column(cells, name)
            return array
        types = [(name, pa.string() if name in self.categorical else pa.float32()) for name in self.columns]
        parts, order = [pa.schema(types).empty_table()], [np.empty(0, np.intp)]
        for places, cells in self._cells(self.columns):
            parts.append(pa.table({name: self._column(cells, name) for name in self.columns}))
            order.append(places)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order)))).combine_chunks()

    def _cells(self, columns: Sequence[str]) -> Iterator[tuple[NDArray[np.intp], pa.Table]]:
        """Yield cells of these rows and the places of the rows, for one row group after another."""
        rows = self._positions()
        order = np.argsort(rows, kind="stable")
        rows, first = rows[order], 0
        for shard in self.shards:
            ends = first + np.cumsum((0, *shard.rows))
            cuts, first = np.searchsorted(rows, ends), int(ends[-1])
            groups = [group for group in range(len(shard.rows)) if cuts[group] < cuts[group + 1]]
            for group, cells in zip(groups, shard.groups(groups, columns) if groups else (), strict=True):
                within = slice(cuts[group], cuts[group + 1])
                yield order[within], cells.take(pa.array(rows[within] - ends[group]))

    def _column(self, cells: pa.Table, name: str) -> NDArray[np.float32] | pa.Array:
        refuse = functools.partial(_refuse, os.path.dirname(self.shards[0].path))
        if name in self.categorical:
            return pc.fill_null(as_texts(plain(cells[name])).combine_chunks(), UNKNOWN)
        values = np.asarray(typed(plain(cells[name]), name, refuse))
        if np.isnan(values).any():
            must = "must not hold missing numbers, because their mean needs all rows"
            raise refuse(None, name, must, "fill them before you write the shards")
        return values.astype(np.float32)

    def _positions(self) -> Positions:
        if len(self) > MAX_ROWS_OUTSIDE_UNITS and not in_unit():
            raise SpecError(
                f"units read rows in shards, but this audit would read {len(self):,} of them where it is planned, more "
                f"than {MAX_ROWS_OUTSIDE_UNITS:,}. Use the game label-inference or label-canaries with fewer "
                "`canaries`, or the data set `parquet`"
            )
        return self.rows.positions() if isinstance(self.rows, RowRange) else self.rows


@register("data", "parquet-shards", source="Apache Parquet")
@dataclass(frozen=True)
class ParquetShards:
    """A folder of Parquet files, its shards, whose rows need not fit into the memory of the driver.

    Rows, columns and classes are as for `parquet` of one file with all rows. Files are in natural order (day_2 before
    day_10) and have the same columns. Planning reads each file once, for a hash of its content, and keeps no rows. Each
    unit reads the row groups and columns that it uses, at the same path on every machine. Numbers must not be missing;
    a missing category becomes 'unknown'. At most 2,000,000 rows may be read where an audit is planned, which are the
    `canaries` for `label-inference` and none for `label-canaries`.

    Attributes:
        path: The folder, or one file. Files with other endings than .parquet and .pq are ignored.
        label: Name of the label column.
        categorical: Numeric columns that hold codes.
        drop: Columns to ignore, such as row numbers.
    """

    path: str = field(metadata=PATH)
    label: str
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def load(self, *, seed: int = 0) -> ShardedExamples:
        """Return the rows, without reading them; `seed` is not used.

        Raises: DataError that names the file and the column.
        """
        folder = existing(self.path).absolute()
        paths = [path for path in files_in_order(folder) if path.suffix in (".parquet", ".pq")]
        if not paths:
            raise fault(folder, "must hold Parquet files, holds none", do="set `path` to their folder")
        with ThreadPoolExecutor() as threads:
            shards, schemas, words, contents = zip(*threads.map(self._scanned, paths), strict=True)
        schema, refuse = schemas[0], functools.partial(_refuse, str(folder))
        for path, other in zip(paths, schemas, strict=True):
            if not other.equals(schema):
                raise fault(path, f"must have the columns and types of {paths[0].name}", do="write it again")
        if not (count := sum(sum(shard.rows) for shard in shards)):
            raise fault(folder, "has no rows")
        cells, empty = pa.chunked_array(words).unique(), schema.empty_table()
        codes, class_names = labels_of(pa.chunked_array([cells]), self.label, refuse)
        columns = tuple(name for name in schema.names if name not in (self.label, *self.drop))
        kinds = {name: typed(plain(empty[name]), name, refuse) for name in columns if name not in self.categorical}
        categorical = tuple(name for name in columns if not isinstance(kinds.get(name), np.ndarray))
        return ShardedExamples(
            shards=shards,
            table_digest=hashlib.sha256(repr((contents, self.label, columns, categorical)).encode()).hexdigest(),
            label=self.label,
            columns=columns,
            categorical=categorical,
            words=cells,
            codes=codes,
            rows=RowRange(count, "", 0, count),
            classes=len(class_names),
            name=folder.name,
            class_names=class_names,
        )

    def _scanned(self, path: Path) -> tuple[Shard, pa.Schema, pa.Array, str]:
        """Return a shard, its columns, the different cells of its label column, and the SHA-256 of its content."""
        with _opened(str(path)) as file:
            content, footer = hashlib.file_digest(file, "sha256").hexdigest(), _digest_of_footer(file)
            read_footer(file)  # refuses damage that crashes pyarrow
            parquet = pq.ParquetFile(file)
            rows = tuple(parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups))
            schema, named = parquet.schema_arrow.remove_metadata(), {"categorical": self.categorical, "drop": self.drop}
            check_names(schema.names, label=self.label, named=named, place=path)
            groups = read_groups(file, str(path), range(len(rows)), [self.label])
            parts = [plain(cells[self.label]).unique() for cells in groups]
            words = pa.chunked_array(parts, plain(schema.empty_table()[self.label]).type).unique()
            return Shard(str(path), path.stat().st_size, footer, rows), schema, words, content


def _digest_of_footer(file: BufferedReader) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - 8 - length))
    return hashlib.sha256(file.read()).hexdigest()


@contextmanager
def _opened(path: str) -> Iterator[BufferedReader]:
    try:
        with open(path, "rb") as file:
            yield file
    except (pa.ArrowException, ValueError) as err:
        raise fault(path, f"is not a whole Parquet file ({line_of_error(err)})") from err


def _refuse(table: str, row: int | None, column: str, problem: str, do: str) -> DataError:
    return fault(table, problem, column=column, do=do)
