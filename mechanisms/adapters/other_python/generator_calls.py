"""Calls of a generator of synthetic tables as a function on rows; runs in any Python from 3.8 on.

A call makes the generator, fits it to the rows, and draws a fixed number of synthetic rows. Its numbers are the number
of rows that came back, their cells column by column, and the generator's measurements; dpaudit summarises the cells.

Like `worker`, which loads this file, it imports only the standard library.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MISSING = -sys.float_info.max  # cell of a missing value
OUTSIDE = sys.float_info.max  # cell of a value that is no finite number, in a column of numbers
TABLE = "synthetic table"  # first words of the ending of a call that returned a table
RANDOMNESS = ("rng", "seed", "random_state")  # parameters that get a generator of random numbers, or a seed
NAMED_WORDS = 8  # words outside the schema that an ending names, for each column
MAX_CELLS = 60_000  # of a synthetic table


class GeneratorError(TypeError):
    """A generator lacks a method, or returned no table of its schema; the text is a sentence for the user."""


class Release(NamedTuple):
    """The table and the measurements that a call returned."""

    ending: str
    numbers: list[float]  # number of rows, then cells
    measurements: Any  # None for none

    def outcome(self, outcome_of: Callable[[Any], Any]) -> tuple[str, list[float], str, int, list[list[str]]]:
        """Return the parts of `worker.Summarised`; the measurements are read by `outcome_of`."""
        if self.measurements is None:
            return self.ending, self.numbers, "", 0, []
        ending, numbers, fault, low_bits, unread = outcome_of(self.measurements)
        return f"{self.ending}; measurements: {ending}", self.numbers + numbers, fault, low_bits, unread


def is_generator(code: Any) -> bool:
    """True for a class or an object with the methods `fit` and `sample`, or with `fit_sample`."""
    if inspect.isroutine(code):
        return False
    return _has(code, "fit_sample") or (_has(code, "fit") and _has(code, "sample"))


def _has(code: Any, name: str) -> bool:
    return callable(getattr(code, name, None))


class GeneratorCalls:
    """A generator as a function on rows.

    Each call makes a new object of a class, with the settings as keywords; of an object, each call gets a copy.
    """

    def __init__(self, code: Any, columns: Sequence[Sequence[Any]], count: int) -> None:
        """`columns` are pairs of a name and its words, None for numbers; `count` is the number of synthetic rows."""
        self._code, self._count = code, count
        self._columns = {str(name): None if words is None else list(map(str, words)) for name, words in columns}

    def __call__(self, rows: Any, rng: Any, **settings: Any) -> Release:
        if isinstance(self._code, type):
            generator = self._code(**_randomness(self._code, rng, settings), **settings)
        else:
            generator = copy.deepcopy(self._code)
        if _has(generator, "fit_sample") and not _has(generator, "fit"):
            table = generator.fit_sample(rows, self._count, **_randomness(generator.fit_sample, rng))
        else:
            generator.fit(rows, **_randomness(generator.fit, rng))
            table = generator.sample(self._count, **_randomness(generator.sample, rng))
        measurements = getattr(generator, "measurements", None)
        measurements = measurements() if callable(measurements) else measurements
        return self._release(table, measurements)

    def _release(self, table: Any, measurements: Any) -> Release:
        columns, kinds = _columns(table, list(self._columns))
        missing = [name for name in self._columns if name not in columns]
        if missing:
            raise GeneratorError(
                f"sample({self._count}) must return all columns of the schema, got none named {', '.join(missing)}"
            )
        lengths = {len(columns[name]) for name in self._columns}
        if len(lengths) > 1:
            raise GeneratorError(f"columns of a synthetic table must be equally long, got {sorted(lengths)}")
        rows = min(*lengths, MAX_CELLS // len(self._columns))
        words = [f"{name}: {kinds[name]}" for name in self._columns if kinds.get(name)]
        ending = f"{TABLE} {{{', '.join(words)}}}"
        numbers = [float(rows)]
        for name, allowed in self._columns.items():
            cells, outside = _cells(columns[name][:rows], allowed)
            numbers += cells
            if outside:
                ending += f"; words of {name} outside the schema: {', '.join(outside[:NAMED_WORDS])}"
                if len(outside) > NAMED_WORDS:
                    ending += f" and {len(outside) - NAMED_WORDS} more"
        further = sorted(str(name) for name in columns.keys() - self._columns.keys())
        if further:
            ending += f"; further columns: {', '.join(further[:NAMED_WORDS])}"
        return Release(ending, numbers, measurements)


def _randomness(code: Any, rng: Any, settings: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the keywords of `RANDOMNESS` that code takes and the settings do not state."""
    try:
        parameters = inspect.signature(code).parameters
    except (TypeError, ValueError):  # some compiled code has no signature
        return {}
    names = [name for name in RANDOMNESS if name in parameters and name not in settings]
    draw = rng.integers if hasattr(rng, "integers") else rng.randrange
    return {name: rng if name == "rng" else int(draw(2**31)) for name in names}


def _columns(table: Any, names: Sequence[str]) -> tuple[dict[Any, list[Any]], dict[Any, str]]:
    """Return the values of each column of a table, and the types of its columns if it has any.

    Raises: GeneratorError if it is no table.
    """
    if _is(table, "pandas", "DataFrame"):
        unique = table.loc[:, ~table.columns.duplicated()]
        return (
            {name: unique[name].tolist() for name in unique.columns},
            {name: str(unique[name].dtype) for name in unique.columns},
        )
    if _is(table, "pyarrow", "Table") or _is(table, "pyarrow", "RecordBatch"):
        return table.to_pydict(), {field.name: str(field.type) for field in table.schema}
    if _is(table, "polars", "DataFrame"):
        return table.to_dict(as_series=False), {name: str(kind) for name, kind in table.schema.items()}
    if _is(table, "numpy", "ndarray"):
        if table.dtype.names:
            fields = table.dtype.names
            return {name: table[name].tolist() for name in fields}, {name: str(table[name].dtype) for name in fields}
        if table.ndim == 2 and table.shape[1] == len(names):
            return {name: table[:, place].tolist() for place, name in enumerate(names)}, {}
    if isinstance(table, Mapping) and all(_is_sequence(column) for column in table.values()):
        return {name: list(column) for name, column in table.items()}, {}
    if _is_sequence(table):
        rows = list(table)
        if all(isinstance(row, Mapping) for row in rows):
            return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else names)}, {}
        if all(_is_sequence(row) and len(row) == len(names) for row in rows):
            return {name: [row[place] for row in rows] for place, name in enumerate(names)}, {}
    raise GeneratorError(
        "sample must return a table: a data frame, an Arrow table, an array of rows, a list of rows or a dict of "
        f"columns, got an object of {type(table).__name__}"
    )


def _is(value: Any, library: str, name: str) -> bool:
    """True if `value` is of a class of a library that is imported."""
    kind = getattr(sys.modules.get(library), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Iterable) and hasattr(value, "__len__") and not isinstance(value, (str, bytes, Mapping))


def _is_missing(cell: Any) -> bool:
    """True for None, NaN and the missing values of other libraries, which do not equal themselves."""
    if cell is None:
        return True
    try:
        return bool(cell != cell)
    except Exception:  # pandas.NA has no truth value
        return True


def _cells(cells: Sequence[Any], allowed: Sequence[str] | None) -> tuple[list[float], list[str]]:
    """Return the cells of a column as floats, and its words outside the schema, sorted.

    With `allowed`, the words of the schema, a cell is the position of its word; words outside it have the next one.
    """
    places = {word: float(place) for place, word in enumerate(allowed or ())}
    numbers, outside = [], set()
    for cell in cells:
        if _is_missing(cell):
            number = MISSING
        elif allowed is not None:
            number = places.get(str(cell), float(len(allowed)))
            if str(cell) not in places:
                outside.add(str(cell))
        else:
            try:
                number = float(cell)
            except (TypeError, ValueError, OverflowError):
                outside.add(str(cell))
                number = OUTSIDE
            number = MISSING if number != number else max(-OUTSIDE / 2, min(number, OUTSIDE))
        numbers.append(number)
    return numbers, sorted(outside)
