"""Criteo's click logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import UNKNOWN, fault, numbers
from dpaudit.engine.data.delimited import Layout, line_of, tables
from dpaudit.engine.data.files import existing, files_in_order
from dpaudit.engine.data.generated import require_size
from dpaudit.errors import DataError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

NUMERIC = tuple(f"I{column}" for column in range(1, 14))
CATEGORICAL = tuple(f"C{column}" for column in range(1, 27))
CLASS_NAMES = ("no click", "click")
LAYOUT = Layout(("label", *NUMERIC, *CATEGORICAL), delimiter="\t", quoted=False)


@register("data", "criteo", source="Criteo 1TB and Kaggle click logs; preparation of Wu et al. (2023)")
@dataclass(frozen=True)
class Criteo:
    """Click logs as tab-separated text: label, 13 numbers, 26 hashed categories; plain, .gz or .xz, file or folder.

    A missing number becomes the mean over the rows with the same C7, or the column's mean if all of these are missing.
    A missing category becomes 'unknown'. This imputation uses the features of all sampled rows. The features are an
    Arrow table of float32 columns I1 .. I13 and string columns C1 .. C26.

    Attributes:
        path: The file, or a folder whose files are read in order (day_2 before day_10).
        rows: Largest number of rows, from the start; None for all.
        keep: Sampling probability of each row, in (0, 1]; the paper samples 1M rows of a day with 0.05.
    """

    path: str = field(metadata=PATH)
    rows: int | None = None
    keep: float = 1.0

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(0 < self.keep <= 1, "keep must be in (0, 1]", keep=self.keep)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the log; `seed` determines the sample if `keep` < 1.

        Raises: DataError that names the file, line and column.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        parts: list[pa.Table] = []
        rows_left = self.rows
        for part in self._sampled(rng):
            parts.append(part.slice(0, rows_left))
            rows_left = None if rows_left is None else rows_left - len(parts[-1])
            if rows_left == 0:
                break
        if not sum(map(len, parts)):
            raise fault(existing(self.path), "has no rows", do="check `path` and `keep`")
        table = pa.concat_tables(parts).combine_chunks()
        labels = table["label"].to_numpy().astype(np.int64)
        return Examples(imputed(table), labels, 2, "criteo", CATEGORICAL, CLASS_NAMES)

    def _sampled(self, rng: np.random.Generator) -> Iterator[pa.Table]:
        for file in files_in_order(existing(self.path)):
            start = 0
            for cells in tables(file, LAYOUT):
                rows = start + np.flatnonzero(rng.random(len(cells)) < self.keep)
                sampled = cells.take(pa.array(rows - start)) if self.keep < 1 else cells
                yield _typed(sampled, file, rows)
                start += len(cells)


def imputed(table: pa.Table) -> pa.Table:
    """Return imputed features: numbers by the mean of their C7 group or else column, categories by 'unknown'."""
    categories = {name: pc.fill_null(table[name], UNKNOWN) for name in CATEGORICAL}
    groups = categories["C7"].combine_chunks().dictionary_encode().indices.to_numpy()
    filled = {name: _filled(np.asarray(table[name], np.float64), groups) for name in NUMERIC}
    return pa.table({**filled, **categories})


def _filled(values: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float32]:
    is_present = ~np.isnan(values)
    totals = np.bincount(groups[is_present], weights=values[is_present], minlength=int(groups.max()) + 1)
    counts = np.bincount(groups[is_present], minlength=len(totals))
    overall = values[is_present].mean() if is_present.any() else 0.0
    means = np.divide(totals, counts, out=np.full(len(totals), overall), where=counts > 0)
    return np.where(is_present, values, means[groups]).astype(np.float32)


def _typed(cells: pa.Table, path: Path, rows: NDArray[np.int64]) -> pa.Table:
    """Return the cells with numeric labels and numbers; `rows` are their positions in the file."""

    def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
        line = None if row is None else line_of(path, LAYOUT, int(rows[row]))
        return fault(path, problem, line=line, column=column, do=do)

    odd = pc.index(pc.is_in(cells["label"], value_set=pa.array(["0", "1"])), False).as_py()
    if odd >= 0:
        raise refuse(odd, "label", f"must be 0 or 1, got {cells['label'][odd].as_py() or ''!r}", "correct the cell")
    typed: Mapping[str, object] = {
        "label": cells["label"].cast(pa.int8()),
        **{name: numbers(cells[name], name, refuse) for name in NUMERIC},
        **{name: cells[name] for name in CATEGORICAL},
    }
    return pa.table(typed)


Floats = NDArray[np.float64]


class Number(NamedTuple):
    """Column floor(exp(location + scale z)) - 1, z standard normal, at least `least`."""

    location: float
    scale: float
    gap: int  # index in `GAPS` of the columns that are missing together
    effect: float  # on the log-odds of a click, for each unit of z
    least: int = 0


class Category(NamedTuple):
    """Column whose r-th most frequent category has a share proportional to r^-skew."""

    size: int
    skew: float
    gap: int
    effect: float  # standard deviation, over categories, of the effect on the log-odds of a click
    driver: int  # index of the latent factor it correlates with: site, ad, user
    follows: float  # correlation with that factor, on the normal scale


# Missing rates in the Kaggle log of groups of columns that are missing together; group 0 is never missing.
GAPS = (0.0, 0.452, 0.203, 0.049, 0.25, 0.05, 0.777, 0.20, 0.033, 0.131, 0.453, 0.817)

# Location and scale of the Kaggle log; the effects have the signs and the order of its correlations with the label, and
# such a size that a model of 4,000 rows predicts as well as on the real rows (see `CriteoSynthetic`).
NUMBERS = (
    Number(0.79, 0.97, 1, 0.34),
    Number(2.1, 2.1, 0, 0.09, -1),
    Number(2.24, 1.28, 7, -0.17),
    Number(1.73, 0.96, 2, -0.09),
    Number(7.28, 2.5, 3, -0.43),
    Number(3.6, 1.8, 4, -0.52),
    Number(1.53, 1.35, 5, 0.43),
    Number(2.05, 1.18, 0, -0.17),
    Number(3.62, 1.69, 5, -0.09),
    Number(0.6, 0.4, 1, 0.34),
    Number(0.95, 0.74, 5, 0.43),
    Number(0.29, 0.6, 6, 0.17),
    Number(1.89, 1.06, 2, -0.34),
)

# Sizes and skews are such that 8,000 rows have as many distinct categories, and as frequent a most frequent one, as the
# first 8,000 rows of the Kaggle log. C10 and C19 have one frequent category and a long tail there, which no power law
# has: they are a compromise.
CATEGORIES = (
    Category(4_724, 2, 0, 0.34, 0, 0.5),
    Category(370, 1.02, 0, 0.34, 1, 0.5),
    Category(2_000_000, 1.01, 8, 0.17, 1, 0.9),
    Category(345_000, 1.06, 8, 0.17, 1, 0.9),
    Category(181, 2.59, 0, 0.34, 0, 0.3),
    Category(7, 1.8, 9, 0.34, 0, 0.3),
    Category(3_700, 0.57, 0, 0.29, 2, 0.6),
    Category(320, 2.3, 0, 0.26, 0, 0.3),
    Category(3, 3.97, 0, 0.34, 0, 0.3),
    Category(93_145, 1.25, 0, 0.23, 2, 0.6),
    Category(2_180, 0.65, 0, 0.29, 2, 0.9),
    Category(509_000, 0.99, 8, 0.17, 1, 0.9),
    Category(1_820, 0.66, 0, 0.23, 2, 0.9),
    Category(22, 1.47, 0, 0.43, 0, 0.5),
    Category(2_100, 0.65, 0, 0.23, 2, 0.6),
    Category(78_100, 0.96, 8, 0.17, 1, 0.9),
    Category(9, 1.5, 0, 0.43, 0, 0.5),
    Category(1_055, 0.81, 0, 0.23, 1, 0.5),
    Category(2_173, 1.8, 10, 0.34, 1, 0.5),
    Category(3, 0.14, 10, 0.34, 0, 0.3),
    Category(187_000, 0.98, 8, 0.17, 1, 0.9),
    Category(7, 1.79, 11, 0.26, 0, 0.3),
    Category(12, 1.65, 0, 0.34, 0, 0.3),
    Category(6_400, 1.01, 8, 0.17, 1, 0.8),
    Category(37, 1.44, 10, 0.34, 2, 0.3),
    Category(16_600, 1.04, 10, 0.17, 1, 0.5),
)


PERSISTENT_CATEGORIES = 1_000  # categories of a large column that stay in use from day to day
LARGE_COLUMN = 50_000


@register("data", "criteo-synthetic", source="generated after Criteo's Kaggle log: columns, gaps, sizes, skews, clicks")
@dataclass(frozen=True)
class CriteoSynthetic:
    """Generated click log with Criteo's 39 columns, gaps, category sizes and skews, and about 22 % clicks.

    It resembles the first 8,000 rows of the Kaggle log, of which 21.6 % are clicks because non-clicks were subsampled.
    (Criteo's 1TB log has about 3 %.) Features say as much about a click: CatBoost of depth 4 on 4,000 rows has log-loss
    0.482 on held-out rows of the Kaggle log, where a constant has 0.531, and 0.486 here, where it has 0.533 (AUC 0.71
    on both). Memorised labels are worth as much: 100 trees of depth 8 have log-loss 0.223 on their own 3,200 rows and
    0.597 on others there, 0.227 and 0.615 here. Trees of depth 8 that 160 rows cut rank worse here (AUC 0.64 to 0.67,
    there 0.68 to 0.69), so trainings differ more.

    Three latent factors of an impression (site, ad, user) make columns dependent. The log-odds of a click are a sum of
    effects of the columns that are not missing. Effects are the same for all seeds, so that models generalise. Gaps are
    then imputed as for `criteo`.

    The factors' means and the log-odds vary over the week, by up to 0.15 and 0.1. Columns of more than 50,000
    categories have new ones every day, except for their 1,000 most frequent.

    It supports no statement about Criteo's actual data.

    Attributes:
        rows: Number of rows, >= 1.
        day: Day of the log, >= 0; days with the same seed are independent.
        intercept: Log-odds of a click before the effects of the columns. -2.2 gives 22 % clicks on day 0, -4.9 gives 3
            %, as in the 1TB log.
    """

    rows: int = 100_000
    day: int = 0
    intercept: float = -2.2

    def __post_init__(self) -> None:
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, len(NUMERIC) + len(CATEGORICAL))
        require(self.day >= 0, "day must be >= 0", day=self.day)
        require(math.isfinite(self.intercept), "intercept must be finite", intercept=self.intercept)

    def load(self, *, seed: int = 0) -> Examples:
        """Return rows that `seed` and `day` determine; features as for `criteo`."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(self.day,)))
        week = math.sin(2 * math.pi * self.day / 7)
        factors = [rng.standard_normal(self.rows) + shift * week for shift in (0.15, -0.15, 0.15)]
        missing = [rng.random(self.rows) < share for share in GAPS]
        log_odds = np.full(self.rows, self.intercept + 0.1 * week)
        columns: dict[str, Floats | pa.Array] = {}
        for name, number in zip(NUMERIC, NUMBERS, strict=True):
            z = _correlated(factors[2], 0.3, rng)
            values = np.maximum(np.floor(np.exp(number.location + number.scale * z)) - 1, number.least)
            columns[name] = np.where(missing[number.gap], np.nan, values)
            log_odds += np.where(missing[number.gap], 0, number.effect * z)
        for position, (name, category) in enumerate(zip(CATEGORICAL, CATEGORIES, strict=True)):
            z = _correlated(factors[category.driver], category.follows, rng)
            ranks = _ranks(z, category)
            if category.size > LARGE_COLUMN:
                new = ranks + np.uint64(self.day * category.size)
                ranks = np.where(ranks <= PERSISTENT_CATEGORIES, ranks, new)
            hashes = _hashes(position, ranks)
            columns[name] = _hex(hashes >> np.uint64(32), missing[category.gap])
            # The low 32 bits are uniform numbers, here with mean 0 and standard deviation 1.
            effects = ((hashes & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32 - 0.5) * math.sqrt(12)
            log_odds += np.where(missing[category.gap], 0, category.effect * effects)
        labels = (rng.random(self.rows) < expit(log_odds)).astype(np.int64)
        return Examples(imputed(pa.table(columns)), labels, 2, "criteo-synthetic", CATEGORICAL, CLASS_NAMES)


def _correlated(factor: Floats, follows: float, rng: np.random.Generator) -> Floats:
    """Draw standard normals with correlation `follows` to the factor."""
    return follows * factor + math.sqrt(1 - follows**2) * rng.standard_normal(len(factor))


def _ranks(z: Floats, category: Category) -> NDArray[np.uint64]:
    """Return ranks 1 .. size: the floor of a power law on [1, size + 1), at the quantile of z."""
    power = 1 - category.skew
    span = (category.size + 1.0) ** power - 1
    ranks: Floats = np.floor((1 + span * ndtr(z)) ** (1 / power))
    return np.clip(ranks, 1, category.size).astype(np.uint64)


def _hashes(column: int, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each value of a column (the finaliser of SplitMix64; Steele, Lea, Flood, 2014)."""
    mixed = values + np.uint64((column + 1) * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _hex(values: NDArray[np.uint64], missing: NDArray[np.bool_]) -> pa.Array:
    """Return 32-bit values as 8 hexadecimal digits, null where missing."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(28, -4, -4, dtype=np.uint32)
    text = digits[(values.astype(np.uint32)[:, None] >> shifts) & np.uint32(15)]
    ends = np.arange(len(values) + 1, dtype=np.int32) * 8
    validity = np.packbits(~missing, bitorder="little")
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(text), pa.py_buffer(validity))
