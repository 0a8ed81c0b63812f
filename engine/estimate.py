"""Bring your own scores: a file of scores or counts in, bounds out."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpaudit.engine.spec.build import build
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import (
    BAGS,
    CONFUSION,
    GUARANTEE,
    GUESSES,
    K_CUT,
    MULTINOMIAL,
    PROPORTION,
    RATIO,
    TWO_CUT,
    VOTES,
    CountEstimator,
    Reading,
    matches,
    reads,
)
from dpaudit.estimators.scores import Scores
from dpaudit.registry import load

INDEPENDENT = "each row is taken for an independent trial; many canaries of one training need --method one-run"
REVERSED = "members score lower than non-members: larger must mean more likely a member (negate losses)"
DEFAULT_METHOD, WITH_SELECTION = "band", "clopper-pearson"
"""What reads scores when no method is named: all thresholds at once, or the one that the selection chooses."""
COUNTS = {
    CONFUSION: "clopper-pearson",
    GUESSES: "one-run",
    RATIO: "ratio",
    TWO_CUT: "two-cut",
    K_CUT: "k-cut",
    VOTES: "gnmax",
    BAGS: "label-advantage",
    GUARANTEE: "rdp-to-epsilon",
    PROPORTION: "proportion",
    MULTINOMIAL: "multinomial",
}
"""Columns of counts, and the method that reads them when none is named; the first that fits."""


def estimate_file(
    path: Path,
    *,
    method: str | None = None,
    delta: float | None = None,
    confidence: float | None = None,
    selection: str | None = None,
    options: Sequence[str] = (),
    score_column: str = "score",
    member_column: str = "member",
) -> Sequence[Reading]:
    """What a CSV or Parquet file shows.

    Args:
        path: Scores with the truth beside them, one row each; or counts.
        method: A registered estimator. Left out: "band" for scores ("clopper-pearson" with another selection), the
            natural one for counts.
        delta: In [0, 1); the estimator's own default when left out, which is 0.
        confidence: In (0, 1); the estimator's own default when left out, which is 0.95.
        selection: How the threshold or guess fraction is chosen; the estimator's own default when left out.
        options: Further fields of the estimator, each as "name=value"; several values are split by commas.
        score_column: Name of the score's column.
        member_column: Name of the truth's column, values 0 and 1 or false and true.
    Returns: One bound for scores (rows that carry a `replay` column are combined over replays); for counts what the
        estimator reads, mostly one a row.
    Raises: DataError for a file that does not fit, SpecError for a method or option that does not, InputError for an
        argument out of range.
    """
    table = _read(path)
    if not table.num_rows:
        raise DataError(f"{path} must hold at least one row below its header, got none")
    name = method or _natural(table.column_names, selection)
    stated = {"delta": delta, "confidence": confidence, "selection": selection}
    at = f"--method {name}"
    given = {field: value for field, value in stated.items() if value is not None}
    further = _options(name, options, at)
    twice = sorted(given.keys() & further.keys())
    if twice:
        raise SpecError(f"{twice[0]} must be given once, got --{twice[0]} and --option {twice[0]}")
    fields = given | further
    estimator = build("estimator", {"name": name, **fields}, at=at)
    if _reads_counts(estimator, table.column_names):
        if selection:
            raise SpecError(f"--selection must be left out for counts, which were chosen already, got {selection!r}")
        try:
            return cast(CountEstimator, estimator).read(_columns(path, table, estimator))
        except InputError as err:
            raise DataError(f"{path}: {err}") from err
    missing = [column for column in (score_column, member_column) if column not in table.column_names]
    if missing or not hasattr(estimator, "tally"):
        raise DataError(
            _unfit(path, table.column_names, None if method is None else estimator, score_column, member_column)
        )
    replays = _replays(path, table, score_column, member_column)
    bound: Bound = estimator.bound([estimator.tally(scores) for scores in replays])
    notes = [INDEPENDENT] if getattr(estimator, "independent_trials", False) else []
    if not bound.lower and _reversed(replays[0]):
        notes.append(REVERSED)
    return [replace(bound, notes=(*bound.notes, *notes))]


def _reversed(scores: Scores) -> bool:
    """Whether members score lower than non-members: more than five standard errors of the rank sum below chance."""
    members, others = int(scores.truth.sum()), int((~scores.truth).sum())
    ranks = rankdata(scores.score)[scores.truth].sum() - members * (members + 1) / 2
    middle, deviation = members * others / 2, math.sqrt(members * others * (members + others + 1) / 12)
    return bool(ranks < middle - 5 * deviation)


def _natural(names: Sequence[str], selection: str | None) -> str:
    fitting = [method for needed, method in COUNTS.items() if reads(needed, names)]
    if fitting:
        return fitting[0]
    return WITH_SELECTION if selection and not selection.startswith("band") else DEFAULT_METHOD


def _options(method: str, options: Sequence[str], at: str) -> dict[str, object]:
    """The fields that "name=value" words give; a field that holds several values takes them split by commas."""
    if not options:
        return {}
    hints = typing.get_type_hints(load("estimator", method))
    fields: dict[str, object] = {}
    for option in options:
        field, equals, value = option.partition("=")
        if not equals or not field:
            raise SpecError(f"--option must be NAME=VALUE, got {option!r}")
        several = typing.get_origin(hints.get(field)) is tuple
        fields[field] = tuple(value.split(",")) if several else value
    return fields


def _reads_counts(estimator: object, names: Sequence[str]) -> bool:
    return hasattr(estimator, "read") and reads(cast(CountEstimator, estimator).columns, names)


def _columns(path: Path, table: pa.Table, estimator: Any) -> dict[str, NDArray[Any]]:
    """The columns that an estimator of counts reads; names of queries may be words, all others are numbers."""
    wanted = (*estimator.columns, *estimator.optional_columns)
    return {
        name: table.column(name).to_numpy() if name == "query" else _numbers(path, table, name)
        for name in table.column_names
        if any(matches(pattern, name) for pattern in wanted)
    }


def _unfit(path: Path, names: Sequence[str], estimator: Any, score: str, member: str) -> str:
    """What the table should have had, for one estimator or (None) for any."""
    got = f"got {','.join(names)}"
    counts = list(COUNTS) if estimator is None else [estimator.columns] if hasattr(estimator, "columns") else []
    listed = ", or ".join(",".join(columns) for columns in counts)
    if estimator is not None and not hasattr(estimator, "tally"):
        return f"{path} must have the columns {listed} for {estimator.registered_name}, {got}"
    needed = f"{score},{member}" + (f" (or counts: {listed})" if listed else "")
    return f"{path} must have the columns {needed}, {got}; name yours with --score-column and --member-column"


def _replays(path: Path, table: pa.Table, score_column: str, member_column: str) -> list[Scores]:
    score, truth = _numbers(path, table, score_column), _bits(path, table, member_column)
    canary = _integers(path, table, "canary") if "canary" in table.column_names else np.arange(len(score))
    if "replay" not in table.column_names:
        return [Scores(score, truth, canary=canary)]
    replay = _integers(path, table, "replay")
    return [
        Scores(score[replay == one], truth[replay == one], int(one), canary[replay == one]) for one in np.unique(replay)
    ]


def _read(path: Path) -> pa.Table:
    if not path.exists():
        raise DataError(f"{path} must be a CSV or Parquet file (or a folder of Parquet files), there is none")
    try:
        if path.is_dir() or path.suffix in (".parquet", ".pq"):
            return pq.read_table(path)
        return pacsv.read_csv(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path} must be a CSV or Parquet file with a header: {str(err).splitlines()[0]}") from err


def _numbers(path: Path, table: pa.Table, name: str) -> NDArray[np.float64]:
    column = table.column(name)
    try:
        numbers: NDArray[np.float64] = pc.cast(column, pa.float64()).to_numpy().astype(np.float64)
    except pa.ArrowInvalid as err:
        raise DataError(f"{path}: column {name} must hold numbers, got {column.type}: {err}") from err
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:
        raise DataError(
            f"{path}: column {name} must hold numbers, got NaN or nothing in {bad.size} of {len(numbers)} rows "
            f"(first: line {bad[0] + 2}); a failed trial counts as the attack's worst guess, do not just drop it"
        )
    return numbers


def _bits(path: Path, table: pa.Table, name: str) -> NDArray[np.bool_]:
    numbers = _numbers(path, table, name)
    bad = np.flatnonzero((numbers != 0) & (numbers != 1))
    if bad.size:
        raise DataError(f"{path}: column {name} must be 0 or 1, got {numbers[bad[0]]:g} in line {bad[0] + 2}")
    bits: NDArray[np.bool_] = numbers == 1
    if bits.all() or not bits.any():
        raise DataError(f"{path}: column {name} must hold both members and non-members, got only {int(bits[0])}")
    return bits


def _integers(path: Path, table: pa.Table, name: str) -> NDArray[np.int64]:
    numbers = _numbers(path, table, name)
    bad = np.flatnonzero((numbers != np.rint(numbers)) | (numbers < 0))
    if bad.size:
        raise DataError(
            f"{path}: column {name} must hold counts (whole, >= 0), got {numbers[bad[0]]:g} in line {bad[0] + 2}"
        )
    return numbers.astype(np.int64)
