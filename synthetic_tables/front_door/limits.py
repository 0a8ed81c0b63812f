"""Random samples of tables with too many rows to search all pairs of them, and columns of tables with too many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpaudit.synthetic_tables.games.pairs import Canaries, row_codes, stacked
from dpaudit.synthetic_tables.games.view import MixedTable

MOST_COLUMNS = 150
"""Largest number of compared columns: the attacks compare pairs of them."""
FEWEST_COLUMNS = 8
"""Number of columns below which a comparison of two rows takes no less time."""
MOST_COMPARED = 5e9
"""Largest product of columns, rows and rows again: each row is compared with each other one, for about a minute."""


def surplus(names: Sequence[str], keep: str | None) -> list[str]:
    """Return the names beyond `MOST_COLUMNS` evenly spaced ones; the first, the last one and `keep` are never in it."""
    places = np.linspace(0, len(names) - 1, min(len(names), MOST_COLUMNS)).astype(int).tolist()
    return sorted(set(names) - {names[place] for place in places} - {keep})


def sampled(
    tables: Sequence[MixedTable], canaries: tuple[Canaries, Canaries] | None, seed: int
) -> tuple[tuple[MixedTable, ...], tuple[Canaries, Canaries] | None]:
    """Return random canaries of both files and random synthetic rows, as many as can be compared.

    Canaries are drawn without looking at the rows. Synthetic rows that equal one of the real rows are kept, so that
    copies are still seen.

    Args:
        tables: The training, the holdout and the synthetic table.
        canaries: Persons and strata; None if each row is a canary. A person is drawn in both files or in none.
    """
    first, second, synthetic = tables
    rng = np.random.default_rng([seed, len(first)])
    limit = int(math.sqrt(MOST_COMPARED / max(FEWEST_COLUMNS, first.numbers.shape[1] + first.words.shape[1])))
    files = canaries or (Canaries.of_rows(len(first), 0), Canaries.of_rows(len(second), len(first)))
    rank = rng.permutation(1 + max(int(file.person.max()) for file in files))
    cuts = [np.sort(rank[file.person])[limit] if file.person.size > limit else rank.size for file in files]
    masks = [
        rank[file.person] < (cut if canaries is None else min(cuts)) for file, cut in zip(files, cuts, strict=True)
    ]
    first, second = first.take(masks[0]), second.take(masks[1])
    if len(synthetic) > limit:
        codes = row_codes(stacked(stacked(first, second), synthetic))
        equal = np.isin(codes[-len(synthetic) :], codes[: -len(synthetic)])
        chance = rng.random(len(synthetic)) + (~equal if equal.sum() < limit else 0)
        synthetic = synthetic.take(np.sort(np.argsort(chance)[:limit]))
    drawn_files = [
        replace(file, person=file.person[mask], stratum=file.stratum[mask])
        for file, mask in zip(files, masks, strict=True)
    ]
    return (first, second, synthetic), None if canaries is None else (drawn_files[0], drawn_files[1])


def sample_notes(columns: int, dropped: int, rows: Mapping[str, int], tables: Sequence[MixedTable]) -> list[str]:
    """Return sentences on the columns and the rows that are audited, if these are not all.

    Args:
        columns: Number of columns.
        dropped: Number of columns that are not compared.
        rows: Numbers of rows by name of the table.
    """
    notes = []
    if dropped:
        notes.append(
            f"{columns - dropped} of {columns:,} columns are compared, evenly spaced; `columns` chooses others"
        )
    of_all = list(zip(map(len, tables), rows.values(), rows, strict=True))
    if any(size < all_rows for size, all_rows, _ in of_all):
        counts = ", ".join(f"{size:,} of {all_rows:,} {name}" for size, all_rows, name in of_all)
        notes.append(f"a random sample is audited: {counts} rows")
    return notes
