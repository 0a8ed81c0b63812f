"""Bring your own scores: a file of scores or counts in, bounds out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpaudit.engine.build import build
from dpaudit.errors import DataError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import CONFUSION, GUESSES, RATIO, from_counts
from dpaudit.estimators.scores import Scores

DEFAULT_METHOD, WITH_SELECTION = "band", "clopper-pearson"
"""What reads scores when no method is named: all thresholds at once, or the one that the selection chooses."""
COUNTS = {CONFUSION: "clopper-pearson", GUESSES: "one-run", RATIO: "ratio"}
"""Columns of counts, and the method that reads them when none is named."""


def estimate_file(
    path: Path,
    *,
    method: str | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    selection: str | None = None,
    score_column: str = "score",
    member_column: str = "member",
) -> list[Bound]:
    """The bounds a CSV or Parquet file shows.

    Args:
        path: Scores with the truth beside them, one row each; or counts, one bound a row.
        method: A registered estimator. Left out: "band" for scores ("clopper-pearson" with another selection), the
            natural one for counts.
        delta: In [0, 1).
        confidence: In (0, 1).
        selection: How the threshold or guess fraction is chosen; the estimator's own default when left out.
        score_column: Name of the score's column.
        member_column: Name of the truth's column, values 0 and 1 or false and true.
    Returns: One bound for scores (rows that carry a `replay` column are combined over replays), one a row for counts.
    Raises: DataError for a file that does not fit, InputError for an argument out of range.
    """
    table = _read(path)
    if not table.num_rows:
        raise DataError(f"{path} must hold at least one row below its header, got none")
    for needed, natural in COUNTS.items():
        if set(needed) <= set(table.column_names):
            columns = {name: _integers(path, table, name) for name in needed}
            return from_counts(method or natural, columns, delta=delta, confidence=confidence)
    missing = [name for name in (score_column, member_column) if name not in table.column_names]
    if missing:
        counts = ", or ".join(",".join(columns) for columns in COUNTS)
        raise DataError(
            f"{path} must have the columns {score_column},{member_column} (or counts: {counts}), "
            f"got {','.join(table.column_names)}; name yours with --score-column and --member-column"
        )
    natural = WITH_SELECTION if selection and not selection.startswith("band") else DEFAULT_METHOD
    fields = {"name": method or natural} | ({"selection": selection} if selection else {})
    estimator = build("estimator", fields, at="--method", defaults={"delta": delta, "confidence": confidence})
    tallies = [estimator.tally(scores) for scores in _replays(path, table, score_column, member_column)]
    return [estimator.bound(tallies)]


def _replays(path: Path, table: pa.Table, score_column: str, member_column: str) -> list[Scores]:
    score, truth = _numbers(path, table, score_column), _bits(path, table, member_column)
    if "replay" not in table.column_names:
        return [Scores(score, truth)]
    replay = _integers(path, table, "replay")
    canary = _integers(path, table, "canary") if "canary" in table.column_names else np.arange(len(score))
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
