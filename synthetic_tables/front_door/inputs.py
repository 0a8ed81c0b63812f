"""Tables of a synthetic audit from files or memory, as data frames, and random samples of tables that are too large."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpaudit.consent import expand_path
from dpaudit.engine.data.delimited import Text
from dpaudit.engine.data.frames import is_frame
from dpaudit.engine.data.table_files import FORMATS, read_table
from dpaudit.errors import DataError
from dpaudit.synthetic_tables.games.pairs import Canaries, row_codes, stacked
from dpaudit.synthetic_tables.games.view import MixedTable


def data_frame(source: object, role: str) -> pd.DataFrame:
    """Return a table as a data frame with a fresh index and texts as column names.

    Args:
        source: Path of a file, a pandas DataFrame, an Arrow table, a frame with the Arrow interface, or a mapping of
            columns.
        role: Name of the table in messages: "training".
    Raises: DataError, in one sentence, for anything else and for unreadable files.
    """
    if isinstance(source, pd.DataFrame):
        names: list[Any] = source.columns.tolist()  # tuples of levels too
        renamed = source.reset_index(drop=True)
        renamed.columns = pd.Index(
            ["-".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in names]
        )
        return renamed
    if isinstance(source, str | Path):
        source = expand_path(str(source))
        if source.is_dir():
            raise DataError(f"{source} must be a file ({FORMATS}), got a folder; name one file")
    elif not (is_frame(source) or isinstance(source, Mapping)):
        raise DataError(
            f"the {role} table must be a path ({FORMATS}), a data frame, an Arrow table or a mapping of columns, got "
            f"{type(source).__name__}"
        )
    frame: pd.DataFrame = read_table(source, text=Text()).columns.to_pandas()
    return frame


def synthetic_frames(source: object) -> list[pd.DataFrame]:
    """Return one or several synthetic tables of the same fit."""
    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not several:
        raise DataError("at least one synthetic table must be given, got none")
    return [data_frame(table, "synthetic") for table in several]


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
