"""Tallies as Arrow: a dataclass of numbers and arrays is a row."""

from __future__ import annotations

import dataclasses
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
            found += [
                self.tally_type(**{key: _array(value) for key, value in row.items()}) for row in table.to_pylist()
            ]
        return found

    @property
    def _fields(self) -> tuple[str, ...]:
        fields: Any = self.tally_type
        return tuple(field.name for field in dataclasses.fields(fields))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value
