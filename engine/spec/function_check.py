"""A check of a function on rows: from what a caller says in one line to a request, sized by how long a call takes."""

from __future__ import annotations

import ast
import inspect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.audited.signals import from_outside, time_limit
from dpaudit.claims import Claim, Relation
from dpaudit.claims.words import claim_of
from dpaudit.engine.data.schema_rows import SchemaRows
from dpaudit.engine.games.functions.neighbouring_tables import pairs
from dpaudit.engine.games.protocol import CheckTest
from dpaudit.engine.spec.audit_spec import RunOptions
from dpaudit.engine.spec.plain_yaml import yaml_value
from dpaudit.errors import SpecError, shortened
from dpaudit.mechanisms.adapters.own_function import Form, OwnFunction
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableRows

SECONDS = 30.0
"""Of calls in the first pass of all tests of a check, where they are not cheap."""
LOADED_S = 60.0
"""How long a call may take that is timed, or loads a library first."""
TIMED_S = 2.0
"""After which calls have been timed well enough."""


def function_on_rows(
    function: Any,
    schema: Mapping[str, Any],
    *,
    claim: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    form: Form = "frame",
    settings: Mapping[str, Any] | None = None,
    python: str = "",
    folder: str = "",
    memory_mb: int | None = None,
) -> tuple[OwnFunction, SchemaRows]:
    """The mechanism and its data.

    Args:
        function: `f(rows, rng, **settings)`, or where it is: "module:function".
        schema: Of the rows: `{"age": (0, 100), "sex": ["f", "m"]}`.
        claim: As `claim_of` takes it; left out: what the code states itself, by an attribute `claim`, a setting
            `epsilon` (and `delta`), or the default of a parameter of that name.
        relation: Which tables are neighbours.
        form, settings, python, folder, memory_mb: As in `OwnFunction`.
    Raises: SpecError when nothing states a claim; InputError for what does not fit.
    """
    given = {} if settings is None else dict(settings)
    made = OwnFunction(function, form=form, settings=given, python=python, folder=folder, memory_mb=memory_mb)
    if claim is None:
        claim = stated_claim(made.function if isinstance(function, str) else function, made.settings)
    return replace(made, claimed=claim_of(claim, Relation(relation))), SchemaRows(dict(schema))


def stated_claim(function: Any, settings: Mapping[str, Any]) -> object:
    """What the code says of itself: epsilon, (epsilon, delta), or the claim that is an attribute of it.

    Raises: SpecError where it says nothing.
    """
    own = getattr(function, "claim", None)
    if own is not None:
        return own() if callable(own) and not isinstance(own, Claim) else own
    known = {name: each[0] if isinstance(each, list) and len(each) == 1 else each for name, each in settings.items()}
    if callable(function):
        parameters = inspect.signature(function).parameters.values()
        known = {each.name: each.default for each in parameters if each.default is not each.empty} | known
    if "epsilon" not in known:
        raise SpecError(
            "a function must be checked against a claim: give `claim=1.0`, `claim=(1.0, 1e-5)`, `claim='rho=0.5'` or "
            "`claim='mu=1'`; or let the function have a parameter `epsilon` with a default"
        )
    return (known["epsilon"], known["delta"]) if known.get("delta") else known["epsilon"]


def schema_in_words(text: str) -> Mapping[str, Any]:
    """A schema of a command line: a mapping as YAML has it, or the file it stands in.

    Raises: SpecError for what is none.
    """
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise SpecError(f"--schema must be a mapping such as '{{age: [0, 100]}}' or a YAML file: {err}") from err
    found = yaml_value(text)
    if not isinstance(found, Mapping):
        raise SpecError(f"a schema must be a mapping such as {{age: [0, 100], sex: [f, m]}}, got {shortened(found)}")
    return found


def settings_in_words(text: str) -> dict[str, list[Any]]:
    """Settings of a command line: "bounds_X=(0,1);fit_intercept=true,false", each name with the values to try.

    Raises: SpecError for what is not so.
    """
    found: dict[str, list[Any]] = {}
    for part in filter(str.strip, text.split(";")):
        name, sign, values = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise SpecError(f"settings must be like 'bounds=(0,1);fit_intercept=true,false', got {shortened(part)!r}")
        found[name.strip()] = [_value(each) for each in _parts(values)]
    return found


def _parts(values: str) -> list[str]:
    """Split by the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in values:
        quote = ("" if letter == quote else quote) if quote else (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    text = text.strip()
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def seconds_a_call(mechanism: RowFunction, rows: TableRows, relation: Relation) -> float:
    """By the clock, once everything is loaded, on the slowest of the tables: what leaks is often what takes long."""
    settings, limits = mechanism.alternatives()[0], CallLimits(LOADED_S, 1, time_limit, from_outside)
    tried = pairs(rows.schema, rows.cells, relation, np.random.default_rng(0), beyond=False)
    tables = [rows.cells, *(table for pair in tried for table in (pair.d, pair.d_prime))]

    def timed(table: pa.Table, calls: int) -> float:
        begun = time.monotonic()
        mechanism.outcomes(table, range(calls), settings, limits)
        return (time.monotonic() - begun) / calls

    mechanism.outcomes(rows.cells, [0], settings, limits)
    each: list[tuple[float, int]] = []
    while len(each) < len(tables) and sum(seconds for seconds, _ in each) < TIMED_S:
        each.append((timed(tables[len(each)], 1), len(each)))
    seconds, slowest = max(each)
    return timed(tables[slowest], max(1, min(100, int(TIMED_S / 2 / max(seconds, 1e-4)))))


def where_to_run(mechanism: RowFunction) -> RunOptions:
    """In this process, where nobody waits for a cluster to start; another Python runs once for each core."""
    cores = os.cpu_count() or 1 if getattr(mechanism, "python", "") else 1
    return RunOptions(runner="in-process", cpus_per_worker=cores)


def sized(tests: Sequence[CheckTest], mechanism: RowFunction, rows: TableRows, relation: Relation) -> list[CheckTest]:
    """The tests with as many calls as `SECONDS` are enough for, divided equally; never fewer than a test needs."""
    within = int(SECONDS / seconds_a_call(mechanism, rows, relation) / max(1, len(tests)))
    return [replace(test, trainings=min(test.trainings, max(within, test.least))) for test in tests]
