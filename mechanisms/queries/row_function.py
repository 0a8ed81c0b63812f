"""The interface of functions on a table of rows, and the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from dpaudit.claims import Claim
from dpaudit.mechanisms.queries.outcome import CallOutcome

if TYPE_CHECKING:
    from dpaudit.mechanisms.queries.schema import Schema


@dataclass(frozen=True)
class CallLimits:
    """Limits on the duration and the number of simultaneous calls."""

    limit_s: float | None = None  # of one call; None: no limit
    processes: int = 1  # simultaneous processes of another Python
    time_limit: Callable[[float | None], AbstractContextManager[Any]] = nullcontext  # ends a block by an exception
    # True for an exception that the function did not raise: a signal, or that of `time_limit`
    from_outside: Callable[[BaseException], bool] = lambda err: False


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a schema."""

    cells: pa.Table  # the schema's columns
    schema: Schema
    name: str = "rows"
    inferred: bool = False  # True if the schema was inferred from the rows

    def __len__(self) -> int:
        return int(self.cells.num_rows)

    def take(self, rows: ArrayLike) -> TableRows:
        """Return the rows at `rows` (int positions or boolean mask), in that order."""
        where = np.asarray(rows)
        where = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return replace(self, cells=self.cells.take(pa.array(where, pa.int64())))

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of cells and schema, which is part of every unit's key."""
        hasher = hashlib.sha256(repr(self.schema).encode())
        for batch in _without_nulls(self.cells).combine_chunks().to_batches():
            hasher.update(batch.serialize())
        return hasher.hexdigest()


def _without_nulls(cells: pa.Table) -> pa.Table:
    """Return the cells with a mask of the nulls of each column that has any: the memory behind a null is arbitrary."""
    for place, name in enumerate(cells.column_names):
        column = cells.column(place)
        if column.null_count:
            zero = pa.scalar("" if pa.types.is_string(column.type) else 0, column.type)
            cells = cells.set_column(place, name, pc.fill_null(column, zero))
            cells = cells.append_column(f"{name} is missing", pc.is_null(column))
    return cells


@runtime_checkable
class RowFunction(Protocol):
    """A function whose return value is the only view of its rows (see `OwnFunction`)."""

    def claim(self) -> Claim:
        """Return the claim about neighbouring tables."""

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        """Return the keyword arguments of each alternative call, at least one."""

    def outcomes(
        self,
        rows: pa.Table,
        seeds: Sequence[int],
        settings: Mapping[str, Any],
        limits: CallLimits,
    ) -> Sequence[CallOutcome]:
        """Call the function once for each seed, each on a copy of the rows.

        A call that raises or ends its process is an outcome too.
        """
