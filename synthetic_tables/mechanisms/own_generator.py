"""A generator of synthetic tables, by the user or a library, called unchanged in this or another Python."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.consent import require_code
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.adapters.code_on_rows import CodeOnRows, identity_elsewhere
from dpaudit.mechanisms.adapters.other_python.generator_calls import (
    MAX_CELLS,
    MISSING,
    OUTSIDE,
    RANDOMNESS,
    TABLE,
    is_generator,
)
from dpaudit.mechanisms.adapters.other_python.worker import GENERATOR
from dpaudit.mechanisms.adapters.user_code import code_of, imported
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome, GeneratedTable
from dpaudit.mechanisms.queries.schema import Category, Schema
from dpaudit.registry import register
from dpaudit.synthetic_tables.mechanisms.table_summary import TableBatch, TableSummary


@register("mechanism", "generator", source="your own code, or a library's")
@dataclass(frozen=True)
class OwnGenerator(CodeOnRows):
    """A generator of synthetic tables: a class or an object with `fit(rows)` and `sample(count)`.

    Each call makes the generator, fits it and draws `count` rows, a number that does not depend on the rows. Instead of
    both methods it may have `fit_sample(rows, count)`. What `measurements` holds or returns, such as noisy marginals,
    is part of the release. Parameters `rng`, `seed` and `random_state` of the constructor and the methods get a
    generator of random numbers or a seed; the global generators of Python, NumPy and torch are seeded as well.

    Attributes:
        generator: The class, a `functools.partial` of it with keywords, or the import path "module:name" of a class or
            an object. Of an object each call gets a copy.
        schema: Columns of the rows: for each a range of numbers `[0, 100]` or words `[f, m]`.
        claimed: The claim about neighbouring tables.
        count: Number of synthetic rows of a call, >= 1.
        settings: Keyword arguments of the class, each a value or a list of values to try.
    """

    generator: Any
    schema: Mapping[str, Any]
    claimed: Claim | None = None
    count: int = 100

    made_by = "dpaudit.check(generator, schema=...)"
    role = "generator"

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = len(Schema.of(self.schema).columns)
        most = MAX_CELLS // columns
        require(1 <= self.count <= most, f"count must be in 1 .. {most:,} for {columns} columns", count=self.count)
        if self.python and not self.code.endswith(GENERATOR):
            raise InputError(f"{_METHODS}: {self.generator} in {self.python} has not")

    @staticmethod
    def takes(code: Any, python: str = "", folder: str = "") -> bool:
        """True if a class or an object, or the code that an import path names, generates tables.

        Raises: InputError for a class with one of the two methods `fit` and `sample` alone.
        """
        if python:
            require_code(f"{code} in {python}")
            return isinstance(code, str) and identity_elsewhere(python, code, folder or os.getcwd()).endswith(GENERATOR)
        code = imported(code, field="generator")
        code = code.func if isinstance(code, partial) else code
        if is_generator(code):
            return True
        halves = [name for name in ("fit", "sample") if callable(getattr(code, name, None))]
        if isinstance(code, type) and halves and not _binds(code, "rows", "rng"):
            require_methods(code)
        return False

    def _checked(self, source: Any) -> Any:
        require_methods(source)
        if isinstance(source, type):
            code = code_of(source, field="generator")
            _require_settings(code, self.settings)
            return code
        if not isinstance(self.generator, str):
            raise InputError(
                f"generator must be a class, or the import path `module:name` of an object, got an object of "
                f"{type(source).__name__}; pass its class, and its arguments as settings"
            )
        require(not self.settings, "settings must be empty for an object, which is made already", do="pass its class")
        return self.generator

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        outcomes = []
        for outcome in self._calls(rows, seeds, settings, limits, self.count):
            numbers = outcome.numbers
            if outcome.ending.startswith(TABLE):  # the summary of the table takes the place of its cells
                batch, others = self._table_and_others(outcome)
                numbers = np.concatenate([self._summary.numbers(batch)[0], others])
            outcomes.append(replace(outcome, numbers=numbers))
        return outcomes

    def generate(
        self, rows: pa.Table, count: int, seed: int, settings: Mapping[str, Any], limits: CallLimits
    ) -> GeneratedTable:
        (outcome,) = self._calls(rows, [seed], settings, limits, count)
        if not outcome.ending.startswith(TABLE):
            raise TrainingError(outcome.fault or outcome.ending)
        batch, others = self._table_and_others(outcome)
        measured = others[: len(others) - outcome.low_bits]
        return GeneratedTable(batch.table(0, self._summary.schema), measured)

    @cached_property
    def _summary(self) -> TableSummary:
        return TableSummary(Schema.of(self.schema))

    def _calls(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits, count: int
    ) -> Sequence[CallOutcome]:
        columns = [
            [name, list(column.values) if isinstance(column, Category) else None]
            for name, column in self._summary.schema.columns.items()
        ]
        return self.calls(rows, seeds, settings, limits, {"columns": columns, "count": count})

    def _table_and_others(self, outcome: CallOutcome) -> tuple[TableBatch, Any]:
        """Return the table of a call, and the numbers after its cells."""
        columns, rows = self._summary.schema.columns, int(outcome.numbers[0])
        end = 1 + rows * len(columns)
        values, words = {}, {}
        for cells, (name, column) in zip(
            outcome.numbers[1:end].reshape(len(columns), rows), columns.items(), strict=True
        ):
            missing = cells == MISSING
            if isinstance(column, Category):
                values[name] = np.where(missing, -1, cells).astype(np.int64)[None]
                words[name] = (*column.values, "a word outside the schema")
            else:
                values[name] = np.where(missing, np.nan, np.where(cells == OUTSIDE, np.inf, cells))[None]
        return TableBatch(values, words), outcome.numbers[end:]


_METHODS = "a generator must have the methods fit(rows) and sample(count), or fit_sample(rows, count)"


def require_methods(code: Any) -> None:
    """Raise InputError for code without the methods of a generator."""
    if is_generator(code):
        return
    lacking = [
        f"{name}({argument})" for name, argument in (("fit", "rows"), ("sample", "count")) if not hasattr(code, name)
    ]
    name = getattr(code, "__name__", type(code).__name__)
    raise InputError(f"{_METHODS}: {name} has no {' and no '.join(lacking)}")


def _require_settings(code: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(code)
    except (TypeError, ValueError):  # some built-in classes have no signature
        return
    keywords = [*settings, *(name for name in RANDOMNESS if name in signature.parameters and name not in settings)]
    try:
        signature.bind(**dict.fromkeys(keywords))
    except TypeError as err:
        name = getattr(code, "__name__", str(code))
        raise InputError(f"settings must be the arguments of {name}: {err}; pass them as `settings`") from err


def _binds(code: Callable[..., Any], *arguments: str) -> bool:
    try:
        inspect.signature(code).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True
