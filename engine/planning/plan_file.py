"""`plan.parquet`: the units of a run, and what they were planned from; anybody may have written or damaged one."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.storage.parquet_footer import read_footer
from dpaudit.errors import AuditError, RunError, printable, shortened

PLAN = "plan.parquet"
KINDS = {
    "key": pa.string(),
    "label": pa.string(),
    "task": pa.string(),
    "seed": pa.string(),
    "needs": pa.list_(pa.string()),
    "cpus": pa.int64(),
    "gpus": pa.float64(),
    "pieces": pa.int64(),
}
"""Columns of a plan."""
_LATEST = "pieces"
"""The one that plans of earlier versions lack."""


def read_plan(content: bytes, name: object, columns: Sequence[str]) -> pa.Table:
    """Some columns of a plan; those that an earlier version did not write are left out.

    Args:
        content: Of the file.
        name: What messages call the file.
        columns: Names of the columns.
    Raises: RunError when it is no plan.
    """
    try:
        table = read_bounded(io.BytesIO(content), "it", columns)
        table.validate(full=True)
        if missing := {*columns} - {_LATEST} - {*table.column_names}:
            raise KeyError(*missing)
        fields = [pa.field(each, KINDS[each], nullable=False) for each in table.column_names]
        return table.cast(pa.schema(fields, metadata=table.schema.metadata))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AuditError) as err:
        raise no_plan(name, err) from err


def planned_units(content: bytes, name: object) -> int:
    """How many units a plan has.

    Raises: RunError when it is no plan.
    """
    try:
        return read_footer(io.BytesIO(content)).rows
    except ValueError as err:
        raise no_plan(name, err) from err


def no_plan(name: object, err: Exception) -> RunError:
    """The refusal of a file that is no plan."""
    why = str(err) if isinstance(err, AuditError) else type(err).__name__
    return RunError(
        f"{printable(shortened(name, 300))} is no plan that can be read ({shortened(why, 240)}); move it away, and "
        "`dpaudit resume` writes it anew and uses what is finished"
    )
