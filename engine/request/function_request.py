"""Build the mechanism and the data for checking a function of rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpaudit.claims import Claim, Relation, parse_claim
from dpaudit.engine.data.files import PACKED
from dpaudit.engine.data.table_files import ENDINGS
from dpaudit.engine.data.table_rows import MAX_ROWS, RowsFile, SchemaRows
from dpaudit.errors import SpecError
from dpaudit.field_checks import checked_argument
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.registry import load

SUFFIXES = (*ENDINGS, *PACKED)
"""Ends of the names of files of rows."""


def function_on_rows(
    function: Any,
    schema: Mapping[str, Any],
    *,
    claim: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    group: int | None = None,
    **options: Any,
) -> tuple[Any, SchemaRows]:
    """Return the mechanism of a function or a generator of tables, and generated rows for its check.

    Args:
        function: `f(rows, rng, **settings)`, or its location "module:function"; or a generator as in `OwnGenerator`.
        schema: Schema of the rows: `{"age": (0, 100), "sex": ["f", "m"]}`.
        claim: Any claim that `parse_claim` accepts; None takes the claim that the code states (`stated_claim`).
        relation: The relation under which two tables are neighbours.
        group: Number of rows in which two tables may differ; there are at least twice as many.
        options: form, settings, python, folder, memory_mb and time, as in `CodeOnRows`.
    Raises: SpecError if there is no claim; InputError for an invalid argument.
    """
    rows = SchemaRows(schema, min(MAX_ROWS, max(SchemaRows.rows, 2 * (group or 1))))
    generator = load("mechanism", "generator")  # of the wing for synthetic tables
    is_generator = generator.takes(function, options.get("python", ""), options.get("folder", ""))
    mechanism = generator(function, schema, **options) if is_generator else OwnFunction(function, **options)
    neighbours: Relation = checked_argument("relation", relation, Relation)
    if claim is None:
        claim = stated_claim(mechanism.source if isinstance(function, str) else function, mechanism.settings)
    return replace(mechanism, claimed=parse_claim(claim, neighbours)), rows


def rows_with_schema(data: Any, schema: Mapping[str, Any]) -> Any:
    """Return a data frame, or the path of a file of a table, as rows of a schema; other data unchanged."""
    if isinstance(data, Path) or (isinstance(data, str) and Path(data).suffix.lower() in SUFFIXES):
        return RowsFile(str(data), schema)
    if isinstance(data, str | Mapping) or hasattr(type(data), "registered_name"):
        return data
    from dpaudit.engine.data.frames import is_frame  # few checks have data in memory
    from dpaudit.engine.data.in_memory import rows

    return rows(data, schema) if is_frame(data) else data


def stated_claim(function: Any, settings: Mapping[str, Any]) -> object:
    """Return the claim that a function states.

    It is its attribute `claim`, else epsilon or (epsilon, delta) from settings or defaults of parameters.

    Raises: SpecError if the function states no claim.
    """
    claim = getattr(function, "claim", None)
    is_method = isinstance(function, type) and inspect.isfunction(claim)  # of an object that is not made yet
    if claim is not None and not is_method:
        return claim() if callable(claim) and not isinstance(claim, Claim) else claim
    values = {name: each[0] if isinstance(each, list) and len(each) == 1 else each for name, each in settings.items()}
    if callable(function):
        with suppress(ValueError, TypeError):  # of some compiled functions Python knows no parameters
            parameters = inspect.signature(function).parameters.values()
            values = {each.name: each.default for each in parameters if each.default is not each.empty} | values
    if "epsilon" not in values:
        raise SpecError(
            "a function must have a claim: pass `claim=1.0`, `claim=(1.0, 1e-5)`, `claim='rho=0.5'` or `claim='mu=1'`, "
            "or add a parameter `epsilon` with a default to the function"
        )
    return values["epsilon"] if values.get("delta") is None else (values["epsilon"], values["delta"])
