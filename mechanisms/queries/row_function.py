"""The interface of functions on a table of rows and of generators of synthetic tables: rows, calls and outcomes."""

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
from numpy.typing import ArrayLike, NDArray

from dpaudit.claims import Claim

if TYPE_CHECKING:
    from dpaudit.mechanisms.queries.schema import Schema


UNREADABLE = "unreadable: "
"""Prefix of the ending of a call that returned an unreadable object; the worker writes it."""

ALIKE = "all results are equal: "
"""Prefix of the note of a unit whose calls all had the same result."""

UNKNOWN = "?"
"""Checksum of what cannot be read; the worker writes it."""


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """The discrete and the numeric part of what a call returned or raised.

    Attributes:
        ending: The discrete part: type, keys, columns, shape, dtype, words, an exception's class and text, warnings.
        numbers: The numeric part, shape (n,), all finite; all outcomes with one ending have the same n.
        fault: Description of a failure; "" if there is none.
        low_bits: How many of the last numbers are low bits of the numbers before them, >= 0.
        unread: What of the result, the printed text and the files was not read: pairs of a description and a checksum,
            `UNKNOWN` if it cannot be read at all.
    """

    ending: str
    numbers: NDArray[np.float64]
    fault: str = ""
    low_bits: int = 0
    unread: tuple[tuple[str, str], ...] = ()


def is_unreadable(ending: str) -> bool:
    """True if a call returned an unreadable object, alone or in a container."""
    return ending.startswith(UNREADABLE) or f"; measurements: {UNREADABLE}" in ending


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
        cells = self.cells
        for place, name in enumerate(cells.column_names):
            column = cells.column(place)
            if column.null_count:  # the memory behind a null is arbitrary, so a mask says where they are
                zero = pa.scalar("" if pa.types.is_string(column.type) else 0, column.type)
                cells = cells.set_column(place, name, pc.fill_null(column, zero))
                cells = cells.append_column(f"{name} is missing", pc.is_null(column))
        for batch in cells.combine_chunks().to_batches():
            hasher.update(batch.serialize())
        return hasher.hexdigest()


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


@dataclass(frozen=True, eq=False)
class GeneratedTable:
    """A release of a generator.

    Attributes:
        table: The synthetic rows.
        measurements: Noisy measurements that it releases too, shape (n,), the same n in each release; empty for none.
    """

    table: pa.Table
    measurements: NDArray[np.float64]


@runtime_checkable
class TableGenerator(RowFunction, Protocol):
    """A generator of synthetic tables. As a function on rows, its outcomes are summaries of the released tables."""

    def generate(
        self, rows: pa.Table, count: int, seed: int, settings: Mapping[str, Any], limits: CallLimits
    ) -> GeneratedTable:
        """Return a release of `count` rows by a generator fitted on `rows`.

        Raises: TrainingError if the fit fails.
        """
        ...
