"""Risks of a synthetic table as people speak of them: records that are singled out, linked, or inferred.

Each is a score of a real row, and the share of rows for which the attempt succeeds. The scores read the synthetic table
and the real rows of both files unordered, so the holdout row of a pair is the control: it has the same law, and it was
not trained on. Given the unordered pairs, which row was trained on is a fair coin. A guess that the row with the larger
score was trained on is therefore right with probability e^epsilon / (1 + e^epsilon) at most, and the guess band holds
for all three as it does for any attack.

Inference asks for a true value against one that is *drawn*: the value of a random other real row in the same column.
It is drawn by position, before any score, and positions are independent of the files. So nothing about the law of the
column is assumed. A value that the other columns explain is preferred in rows of both files alike, and shows nothing.

Source: the three questions of the Article 29 Working Party (WP 216); Giomi et al. (2023), "Anonymeter", measure them as
rates of successful attempts, with holdout rows as the control.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpaudit.synthetic_tables.games.distances import Scaled, nearest, scaled
from dpaudit.synthetic_tables.games.pairs import PairedTables
from dpaudit.synthetic_tables.games.view import TableView, binned_cells

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 20
"""Bins of a column of numbers, in which two numbers count as one value."""
SCALE = 0.99
"""Quantile of evidence that counts 1."""
NEARER = 0.64
"""Evidence from which a view singles a record out: a synthetic row is three times nearer to it than to others."""
MOST_SETS = 100
"""Largest number of pairs of columns whose values are looked up."""
NEAR = 5
"""Number of nearest synthetic rows that are looked at."""
MOST_SECRETS = 5
"""Largest number of columns that are inferred, evenly spaced ones of more."""
MOST_PAIRS = 2_000
"""Largest number of pairs that are linked and inferred."""
LEAST, CLOSE = 0.05, 0.01
"""Added to the weight of the nearest rows that hold a value, and to distances of numbers, so that ratios are finite."""


@dataclass(frozen=True, eq=False)
class Attempts:
    """Attempts on the records of pairs.

    Attributes:
        name: Plain name of the risk.
        meaning: What succeeds, in a sentence.
        score: Score of each real row, shape (rows,), larger if the attempt succeeds better; 0 for rows outside.
        success: Share of the attempts on each real row that succeed, shape (rows,), in [0, 1].
        attempted: True for the real rows that were attempted, shape (rows,); both rows of a pair are, or neither is.
    """

    name: str
    meaning: str
    score: Floats
    success: Floats
    attempted: NDArray[np.bool_]


def attempts(pairs: PairedTables, views: Sequence[Floats], seed: int) -> Iterator[Attempts]:
    """Yield the attempts of each kind that the columns allow.

    Args:
        views: Scores of the real rows by the attacks on further views, shapes (rows,): evidence that a synthetic row is
            near to this row and far from all others.
        seed: Seed of the drawn values.
    """
    view = pairs.view
    attempted = (view.pair >= 0) & (view.pair < MOST_PAIRS)
    columns = view.real.numbers.shape[1] + view.real.words.shape[1]
    yield _singled_out(view, columns, views)
    if columns > 1:
        yield _linked(view, columns, attempted)
        yield _inferred(view, columns, attempted, np.random.default_rng([seed, 2]))


def _singled_out(view: TableView, columns: int, views: Sequence[Floats]) -> Attempts:
    cells = binned_cells(view, BINS)
    sets = list(combinations(range(columns), min(2, columns)))
    chosen = [sets[place] for place in np.linspace(0, len(sets) - 1, min(len(sets), MOST_SETS)).astype(int)]
    number = np.zeros(len(view.real))
    for places in chosen:
        synthetic, others = cells.counts(places)
        number += (synthetic > 0) & (others == 0)
    evidence = [number, *views]
    units = [max(float(np.quantile(each, SCALE)), 1e-9) for each in evidence]
    near = np.any([each > NEARER for each in views], axis=0) if views else np.zeros(len(number), bool)
    return Attempts(
        "singled out",
        "two values of a synthetic row, or a further view of it, fit this record and no other real one",
        np.sum([each / unit for each, unit in zip(evidence, units, strict=True)], axis=0),
        ((number > 0) | near).astype(np.float64),
        view.pair >= 0,
    )


def _linked(view: TableView, columns: int, attempted: NDArray[np.bool_]) -> Attempts:
    """Return the attempts to find a record by either half of its columns in one synthetic row.

    The halves are the columns at even and at odd places.
    """
    halves = [_nearest_by(view, np.arange(columns) % 2 == half, attempted) for half in (0, 1)]
    same = halves[0][0][:, :, None] == halves[1][0][:, None, :]
    rank = np.maximum(np.arange(NEAR)[:, None], np.arange(NEAR))[: same.shape[1], : same.shape[2]]
    best = np.where(same, rank, NEAR).reshape(len(same), -1).min(axis=1)
    away = (
        np.where(same, halves[0][1][:, :, None] + halves[1][1][:, None, :], np.inf).reshape(len(same), -1).min(axis=1)
    )
    score, success = np.zeros((2, len(view.real)))
    score[attempted] = NEAR - best + np.where(best < NEAR, 1 / (1 + away), 0.0)
    success[attempted] = best < NEAR
    meaning = f"one synthetic row is among the {NEAR} nearest of either half of the record's columns"
    return Attempts("linked", meaning, score, success, attempted)


def _nearest_by(view: TableView, chosen: NDArray[np.bool_], attempted: NDArray[np.bool_]) -> tuple[Ints, Floats]:
    """Return the nearest synthetic rows of the attempted real rows in some columns, and their distances."""
    count = view.real.numbers.shape[1]

    def part(rows: Scaled) -> Scaled:
        return Scaled(np.ascontiguousarray(rows.numbers[:, chosen[:count]]), rows.words[:, chosen[count:]])

    synthetic, real = (part(rows) for rows in scaled(view))
    query = Scaled(real.numbers[attempted], real.words[attempted])
    near = nearest(query, synthetic, min(NEAR, len(synthetic)))
    return near.rows, near.distances


def _inferred(view: TableView, columns: int, attempted: NDArray[np.bool_], rng: np.random.Generator) -> Attempts:
    """Return the attempts to tell a value from a drawn one by the synthetic rows nearest in all other columns."""
    count = view.real.numbers.shape[1]
    secrets = np.unique(np.linspace(0, columns - 1, min(columns, MOST_SECRETS)).astype(int))
    other_rows = rng.permutation(len(view.real))[: attempted.sum()]
    score, success = np.zeros((2, len(view.real)))
    for column in secrets:
        near, _ = _nearest_by(view, np.arange(columns) != column, attempted)
        if column < count:
            evidence = _evidence_of_numbers(view, column, near, np.flatnonzero(attempted), other_rows)
        else:
            words = view.real.words[:, column - count]
            near_values = view.synthetic.words[near, column - count]
            weight = 1 / np.arange(1, near.shape[1] + 1)  # the nearest one counts most
            true, other = (
                (near_values == words[rows][:, None]) @ weight for rows in (np.flatnonzero(attempted), other_rows)
            )
            evidence = np.log((true + LEAST) / (other + LEAST))
        score[attempted] += evidence
        success[attempted] += np.where(evidence == 0, 0.5, evidence > 0) / secrets.size
    meaning = "the nearest synthetic rows in all other columns prefer the record's value to a drawn one"
    return Attempts("inferred", meaning, score, success, attempted)


def _evidence_of_numbers(view: TableView, column: int, near: Ints, rows: Ints, other_rows: Ints) -> Floats:
    """Return how much nearer the numbers of the nearest synthetic rows are to the true number than to the drawn one."""
    numbers = view.real.numbers[:, column]
    ordered = np.sort(numbers[~np.isnan(numbers)])
    if not ordered.size:
        return np.zeros(rows.size)

    def place(values: Floats) -> Floats:
        middle = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")) / 2
        return np.where(np.isnan(values), -0.5, middle / ordered.size)

    near_values = place(view.synthetic.numbers[near, column])
    rank = np.arange(1, near.shape[1] + 1)
    true, other = ((rank * np.abs(near_values - place(numbers[of])[:, None])).min(axis=1) for of in (rows, other_rows))
    evidence: Floats = np.log((other + CLOSE) / (true + CLOSE))
    return evidence
