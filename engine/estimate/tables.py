"""Tables of scores or counts from files (`table_files.py`), standard input, or Python values."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.actors.values import numpy_array
from dpaudit.engine.data.cells import group_codes
from dpaudit.engine.data.columns import (
    NamedTable,
    Used,
    every,
    is_numeric,
    is_text,
    line_of_error,
    require_distinct,
    require_width,
)
from dpaudit.engine.data.frames import column, frame, refusing, require_one_index
from dpaudit.errors import DataError, shortened

T = TypeVar("T", np.float64, np.int64)


@dataclass(frozen=True, eq=False)
class SourceTable(NamedTable):
    """Table of scores or counts with the name of its source: distinct columns, at least one row."""

    def __post_init__(self) -> None:
        with refusing(f"{self.name} must name its columns in UTF-8"):
            names = list(self.columns.column_names)
        require_width(self.name, len(names))
        require_distinct(self.name, names)
        if not self.columns.num_rows:
            raise DataError(f"{self.name} must hold at least one row below its header, got none")

    @classmethod
    def of_file(cls, path: Path, used: Used = every) -> SourceTable:
        """Return the table in a file; "-" reads standard input.

        Args:
            path: The file, or a folder of Parquet.
            used: Function from the names of a file's columns to those that will be read.
        """
        from dpaudit.engine.data.table_files import read_table  # arrays need no reader of files

        table = read_table(path, used)
        if not table.two_samples:
            return cls(table.name, table.columns, table.unread, table.line)
        samples = {name: table.columns[name].drop_null() for name in table.columns.column_names}
        return replace(cls.of_two_samples(**samples), name=table.name)

    @classmethod
    def of(cls, value: object) -> SourceTable:
        """Return the table in a mapping of columns, a pandas DataFrame, an Arrow table or an Arrow-compatible frame."""
        series = "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].Series)
        if series or isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray):
            raise DataError(
                "a table must be a mapping of columns, a pandas DataFrame or an Arrow table, got "
                f"{type(value).__name__}; for scores in an array give `members` as well"
            )
        return cls("the table", frame(value))

    @classmethod
    def of_arrays(cls, **columns: object) -> SourceTable:
        """Return the table of arrays, lists, pandas Series or Arrow arrays of one length; None is left out."""
        present = {name: values for name, values in columns.items() if values is not None}
        require_one_index(present)
        arrays = {name: column(name, values) for name, values in present.items()}
        lengths = {name: len(values) for name, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise DataError(f"the arrays must have one value a row each, got {listed}")
        return cls("the scores", pa.table(arrays))

    @classmethod
    def of_two_samples(cls, in_scores: object, out_scores: object, **more: object) -> SourceTable:
        """Return scores of members and of non-members as columns `score` and `member`, the members first."""
        samples = {"in_scores": in_scores, "out_scores": out_scores}
        inside, outside = (cls.of_arrays(**{name: values}).numbers(name) for name, values in samples.items())
        member = np.repeat([True, False], [len(inside), len(outside)])
        return replace(cls.of_arrays(score=np.concatenate([inside, outside]), member=member, **more), two_samples=True)

    def slices(self, names: Sequence[str]) -> dict[str, SourceTable]:
        """Return the rows of each combination of values in these columns, by "region=north, sex=f", in ascending order.

        Raises: DataError for a missing column.
        """
        missing = [name for name in names if name not in self.names]
        if missing or not names:
            raise DataError(f"{self.name} must have the column {missing[0] if missing else '?'}, got {self.listed}")
        encoded = next((name for name in names if pa.types.is_binary(self.columns.column(name).type)), None)
        if encoded is not None:
            raise DataError(f"{self.name}: column {encoded} must be text in UTF-8; save the file as UTF-8")
        columns = [self.columns.column(name).to_pylist() for name in names]
        rows_by_slice: dict[tuple[object, ...], list[int]] = {}
        for row, values in enumerate(zip(*columns, strict=True)):
            rows_by_slice.setdefault(values, []).append(row)
        slices: dict[str, SourceTable] = {}
        for values in sorted(rows_by_slice, key=lambda values: [_by_size(value) for value in values]):
            key = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            rows = self.columns.take(rows_by_slice[values])
            slices[key] = SourceTable(f"{self.name}, {key}", rows, two_samples=self.two_samples)
        return slices

    @property
    def names(self) -> list[str]:
        """Names of the columns, unread columns last."""
        return [*self.columns.column_names, *self.unread]

    @property
    def listed(self) -> str:
        """Names of the columns for a message."""
        return shortened(",".join(self.names), 400)

    def values(self, name: str) -> NDArray[Any]:
        """Return a column unchanged, shape (rows,)."""
        return numpy_array(self.columns.column(name).combine_chunks())

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, shape (rows,).

        Raises: DataError for values that are not numbers, NaN included.
        """
        column = self.columns.column(name)
        must = f"{self.name}: column {name} must hold numbers, got"
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (is_numeric(kind) or is_text(kind) or pa.types.is_null(kind)):
            raise DataError(f"{must} {shortened(column.type, 60)}; write one number in each row")
        try:
            numbers = _joined([_floats(chunk) for chunk in column.chunks], np.float64)
        except pa.ArrowException as err:
            do = "write numbers such as 1234.5"
            if pa.types.is_integer(kind):
                do = "subtract the least score from all, since floats cannot tell such large numbers apart"
            raise DataError(f"{must} {shortened(column.type, 60)}: {line_of_error(err)}; {do}") from err
        missing = np.flatnonzero(np.isnan(numbers))
        if missing.size:
            raise DataError(
                f"{must} NaN or nothing in {missing.size} of {len(numbers)} rows (first: {self.row(missing[0])}). "
                "Score a failed trial as the attack's worst guess, do not drop it"
            )
        return numbers

    def bits(self, name: str) -> NDArray[np.bool_]:
        """Return a column of 0 and 1 that holds both, shape (rows,)."""
        column = self.columns.column(name)
        if pa.types.is_boolean(column.type) and not column.null_count:
            bits: NDArray[np.bool_] = numpy_array(column.combine_chunks())
        else:
            if column.null_count:
                raise DataError(
                    f"{self.name}: column {name} must be 0 or 1 (1: a member), got nothing in {column.null_count} of "
                    f"{len(column)} rows; state for each row whether it was a member"
                )
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column = self._bits_in_words(name)
            numbers = numpy_array(column.combine_chunks()) if column.type == pa.float64() else self.numbers(name)
            bad = np.flatnonzero((numbers != 0) & (numbers != 1))
            if bad.size:
                raise DataError(
                    f"{self.name}: column {name} must be 0 or 1 (1: a member), got {numbers[bad[0]]:g} in "
                    f"{self.row(bad[0])}; write 1 for members and 0 for the others"
                )
            bits = numbers == 1
        if bits.all() or not bits.any():
            raise DataError(
                f"{self.name}: column {name} must hold both members and non-members, got only {int(bits[0])}"
            )
        return bits

    def _bits_in_words(self, name: str) -> pa.ChunkedArray:
        """Return a column of the words 0, 1, true and false as numbers 0.0 and 1.0."""
        column = self.columns.column(name)
        different = column.unique()
        values = [_BITS_IN_WORDS.get(word.strip().lower()) for word in different.to_pylist()]
        if None in values:
            with contextlib.suppress(pa.ArrowException):
                return pa.chunked_array([_floats(chunk) for chunk in column.chunks], pa.float64())
            words = ", ".join(repr(shortened(word)) for word in different[:3].to_pylist())
            raise DataError(
                f"{self.name}: column {name} must be 0 or 1 (1: a member), got the texts {words}; write 1 for members "
                "and 0 for the others"
            )
        return pc.take(pa.array(values, pa.float64()), pc.index_in(column, different))

    def integers(self, name: str) -> NDArray[np.int64]:
        """Return a column of integers >= 0, shape (rows,)."""
        column = self.columns.column(name)
        if pa.types.is_signed_integer(column.type) and not column.null_count:
            whole = _joined(column.chunks, np.int64)
            if not whole.size or whole.min() >= 0:
                return whole
        numbers = self.numbers(name)
        bad = np.flatnonzero((numbers != np.rint(numbers)) | (numbers < 0) | (numbers > 2**53))
        if bad.size:
            raise DataError(
                f"{self.name}: column {name} must hold counts (whole, >= 0), got {numbers[bad[0]]:g} in "
                f"{self.row(bad[0])}"
            )
        return numbers.astype(np.int64)

    def identities(self, name: str) -> NDArray[np.int64]:
        """Return an integer for each distinct value of a column of any plain type, shape (rows,)."""
        column = self.columns.column(name)
        if pa.types.is_nested(column.type):
            raise DataError(f"{self.name}: column {name} must hold one value a row, got {shortened(column.type, 60)}")
        codes = group_codes(column.to_pylist())
        if (codes < 0).any():
            raise DataError(f"{self.name}: column {name} must name a group in each row, got nothing in some")
        return codes


def _by_size(value: object) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then all other values as text."""
    is_number = isinstance(value, int | float) and value == value
    return (False, float(value), "") if is_number else (True, 0.0, str(value))  # type: ignore[arg-type]


_BITS_IN_WORDS = {
    **dict.fromkeys(("0", "0.0", "false", "np.false_"), 0.0),
    **dict.fromkeys(("1", "1.0", "true", "np.true_"), 1.0),
}
_FLOAT = r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)"
_TYPE = r"(?:(?:np|numpy|jnp|torch|tf)\.)?(?:b?float\d*|double|longdouble|u?int\d*|[Tt]ensor|[Aa]rray)"
_WRAPPED_FLOATS = (rf"^\s*\[*\s*{_FLOAT}\s*\]*\s*$", rf"^\s*{_TYPE}\(\s*\[*\s*{_FLOAT}\s*\]*\s*(?:,\s*\w+=.*)?\)\s*$")
"""A number in brackets, and one as other libraries print it: `np.float64(0.5)`, `tensor([0.5], device='cpu')`."""


def _floats(chunk: pa.Array) -> pa.Array:
    """Return numbers, or texts that each hold one number, as floats. Raises: pa.ArrowException for other values."""
    try:
        return pc.cast(chunk, pa.float64())
    except pa.ArrowException:
        kind = chunk.type.value_type if pa.types.is_dictionary(chunk.type) else chunk.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise
        texts = pc.cast(chunk, pa.string())
        for pattern in _WRAPPED_FLOATS:
            numbers = pc.struct_field(pc.extract_regex(texts, pattern), "number")
            texts = pc.if_else(pc.is_valid(numbers), numbers, texts)
        return pc.cast(texts, pa.float64())


def _joined(chunks: Sequence[pa.Array], kind: type[T]) -> NDArray[T]:
    """Return the values of all chunks as one array that may be changed."""
    return np.concatenate([np.empty(0, kind), *map(numpy_array, chunks)], dtype=kind)
