"""Counts in, bounds out: for tables that other software made, one bound for each row.

Nothing was chosen here: each row's threshold or number of guesses must have been fixed beforehand. The best of several
rows is a choice, and needs a correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, require
from dpaudit.estimators.bound import Bound, Validity
from dpaudit.estimators.confusion import epsilon_interval
from dpaudit.estimators.f_dp import f_dp_epsilon
from dpaudit.estimators.one_run import one_run_epsilon
from dpaudit.estimators.ratio import ratio_epsilon

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONFUSION = ("tp", "fp", "tn", "fn")
GUESSES = ("guesses", "correct", "canaries")
RATIO = ("n1", "n0", "trials1", "trials0")


@dataclass(frozen=True)
class _Face:
    """What a method reads, and in what sense its bound holds."""

    columns: tuple[str, ...]
    validity: Validity


FACES: Mapping[str, _Face] = {
    "clopper-pearson": _Face(CONFUSION, Validity.FINITE_SAMPLE),
    "jeffreys": _Face(CONFUSION, Validity.ASYMPTOTIC),
    "bayesian": _Face(CONFUSION, Validity.CREDIBLE),
    "one-run": _Face(GUESSES, Validity.FINITE_SAMPLE),
    "one-run-theorem-16": _Face(GUESSES, Validity.FINITE_SAMPLE),
    "one-run-f-dp": _Face(GUESSES, Validity.CONDITIONAL_ON_FAMILY),
    "ratio": _Face(RATIO, Validity.FINITE_SAMPLE),
    "katz-log": _Face(RATIO, Validity.ASYMPTOTIC),
}
"""The methods that read counts, by name."""


def from_counts(
    method: str, columns: Mapping[str, NDArray[Any] | Sequence[int]], *, delta: float, confidence: float
) -> list[Bound]:
    """One bound for each row of a table of counts.

    Args:
        method: A key of `FACES`.
        columns: Integer columns of one length, at least one row; more columns than the method reads are ignored:
            "tp", "fp", "tn", "fn" for the confusion methods (both ends of a two-sided interval are returned),
            "guesses", "correct", "canaries" for the one-run methods, and "n1", "n0", "trials1", "trials0" (hits of an
            event, and runs, in each of two worlds) for the ratio methods.
        delta: In [0, 1).
        confidence: In (0, 1), of each row by itself.
    Raises: InputError for an unknown method, missing or unequal columns, or counts out of range.
    """
    require(method in FACES, f"a method for counts must be one of {', '.join(FACES)}", method=method)
    face = FACES[method]
    table = _table(method, face.columns, columns)
    lower, upper = _limits(method, table, delta, confidence)
    return [
        Bound(
            lower=float(lower[row]),
            upper=None if upper is None else float(upper[row]),
            delta=delta,
            confidence=confidence,
            method=f"{method} (gaussian)" if method == "one-run-f-dp" else method,
            validity=face.validity,
            counts=tuple((name, int(table[name][row])) for name in face.columns),
        )
        for row in range(lower.size)
    ]


def _table(method: str, names: Sequence[str], columns: Mapping[str, NDArray[Any] | Sequence[int]]) -> dict[str, Ints]:
    missing = [name for name in names if name not in columns]
    require(not missing, f"method {method} needs the columns {', '.join(names)}", columns=", ".join(columns))
    table = {name: np.asarray(columns[name]) for name in names}
    shapes = {column.shape for column in table.values()}
    require(
        len(shapes) == 1 and len(next(iter(shapes))) == 1 and next(iter(shapes))[0] > 0,
        "columns of counts must have one length, of at least one row",
        shapes=sorted(shapes),
    )
    return {name: _whole(name, column) for name, column in table.items()}


def _whole(name: str, column: NDArray[Any]) -> Ints:
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError) as err:
        raise InputError(f"column {name} must hold whole numbers, got {column.dtype}") from err
    bad = ~(np.isfinite(numbers) & (numbers == np.rint(numbers)) & (numbers >= 0))
    require(not bool(bad.any()), f"column {name} must hold whole numbers >= 0", first=_first(numbers, bad))
    return numbers.astype(np.int64)


def _first(numbers: Floats, bad: NDArray[np.bool_]) -> float | None:
    return float(numbers[bad][0]) if bool(bad.any()) else None


def _limits(method: str, table: dict[str, Ints], delta: float, confidence: float) -> tuple[Floats, Floats | None]:
    if method in ("ratio", "katz-log"):
        exact = "clopper-pearson" if method == "ratio" else method
        hits = (table[name] for name in RATIO)
        return np.asarray(ratio_epsilon(*hits, delta=delta, confidence=confidence, method=exact)), None
    if FACES[method].columns == CONFUSION:
        cells = (table[name] for name in CONFUSION)
        interval = epsilon_interval(*cells, delta=delta, confidence=confidence, method=method)
        return np.asarray(interval.lower), np.asarray(interval.upper)
    guesses, correct, canaries = (table[name] for name in GUESSES)
    if method == "one-run-f-dp":
        require(
            delta > 0, "the Gaussian family has no finite epsilon at delta = 0", do="state a delta > 0", delta=delta
        )
        epsilons = f_dp_epsilon(guesses, correct, canaries=canaries, delta=delta, confidence=confidence)
        return np.asarray(epsilons), None
    bounds = one_run_epsilon(
        guesses,
        correct,
        canaries=canaries,
        delta=delta,
        confidence=confidence,
        method="theorem-16" if method == "one-run-theorem-16" else "auto",
    )
    return np.asarray(bounds), None
