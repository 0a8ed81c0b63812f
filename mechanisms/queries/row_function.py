"""Functions that are called on a table of rows, and the rows: what a game asks of them, whoever wrote the function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from dpaudit.claims import Claim
from dpaudit.mechanisms.queries.outcome import CallOutcome

if TYPE_CHECKING:
    from dpaudit.mechanisms.queries.schema import Schema


@dataclass(frozen=True)
class CallLimits:
    """What ends a call, and how many may run at a time."""

    limit_s: float | None = None  # how long it may take
    processes: int = 1  # of another Python, at the same time
    time_limit: Callable[[float | None], AbstractContextManager[Any]] = nullcontext  # ends a block by an exception
    # whether an exception is not the function's own: a signal, which passes, or what `time_limit` raised
    from_outside: Callable[[BaseException], bool] = lambda err: False


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a schema, and the schema."""

    cells: pa.Table  # one column for each of the schema's
    schema: Schema
    name: str = "rows"

    def __len__(self) -> int:
        return int(self.cells.num_rows)

    def take(self, rows: ArrayLike) -> TableRows:
        """The rows at `rows` (int positions or boolean mask), in that order."""
        where = np.asarray(rows)
        where = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return replace(self, cells=self.cells.take(pa.array(where, pa.int64())))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of cells and schema: part of every unit's key."""
        hasher = hashlib.sha256(repr(self.schema).encode())
        for batch in self.cells.combine_chunks().to_batches():
            hasher.update(batch.serialize())
        return hasher.hexdigest()


@runtime_checkable
class RowFunction(Protocol):
    """A function on rows (see `OwnFunction`): what it gives out is all that anybody sees of the rows."""

    def claim(self) -> Claim:
        """What it promises of neighbouring tables."""

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        """The settings it may be called with, each a mapping of keyword arguments; at least one."""

    def outcomes(
        self,
        rows: pa.Table,
        seeds: Sequence[int],
        settings: Mapping[str, Any],
        limits: CallLimits,
    ) -> Sequence[CallOutcome]:
        """One call for each seed, each on rows of its own; a call that raises or ends its process is an outcome too."""
