"""Tallies as Arrow: a dataclass of numbers and arrays is a row."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from dpaudit.errors import RunError

T = TypeVar("T")


@dataclass(frozen=True)
class TallyTable(Generic[T]):
    """One row a tally, fields as columns, arrays as lists.

    Attributes:
        tally_type: What the rows are: the estimator's `tally_type`. A stored file does not say; the spec does.
    """

    tally_type: type[T]

    def encode(self, tallies: Iterable[T]) -> pa.Table:
        """The table of tallies, at least one."""
        rows = list(tallies)
        return pa.table({name: pa.array([_plain(getattr(row, name)) for row in rows]) for name in self._fields})

    def decode(self, tables: Iterable[pa.Table]) -> list[T]:
        """The tallies of all tables, in order.

        Raises: RunError when a table holds tallies of another estimator.
        """
        found: list[T] = []
        for table in tables:
            if tuple(table.column_names) != self._fields:
                raise RunError(
                    f"a stored tally must have the columns {', '.join(self._fields)}, got "
                    f"{', '.join(table.column_names)}; remove its file from units/ and run again"
                )
            columns = [_values(table.column(name).combine_chunks()) for name in self._fields]
            found += [self.tally_type(*row) for row in zip(*columns, strict=True)]
        return found

    @property
    def _fields(self) -> tuple[str, ...]:
        fields: Any = self.tally_type
        return tuple(field.name for field in dataclasses.fields(fields))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _values(column: pa.Array) -> Iterable[Any]:
    """The values of a column, lists as arrays."""
    if not pa.types.is_list(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    values, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
    return (values[first:last].copy() for first, last in itertools.pairwise(ends))
