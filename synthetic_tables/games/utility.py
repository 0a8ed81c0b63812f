"""Utility of a synthetic table: errors of its one- and two-way marginals, and of a model that is trained on it.

Each value comes with that of real holdout rows in place of the synthetic ones, because finite samples of
one law differ too. Numbers are divided at quantiles of the training rows. Rare words count as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, measuring, unit
from dpaudit.engine.games.protocol import Setting
from dpaudit.errors import DataError, did_you_mean
from dpaudit.estimators.arguments import Ints
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.queries.row_function import CallLimits, TableGenerator, TableRows
from dpaudit.registry import register
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.view import MISSING, MixedTable

BINS = 10
"""Number of bins of a column of numbers, divided at quantiles of the training rows."""
MAX_CELLS = 50
"""Largest number of cells of a column of words: the rarest words share the last one."""
MAX_COLUMNS = 40
"""Largest number of columns whose pairs are compared: evenly spaced ones of wider tables."""
MAX_CLASSES = 10
"""A target of whole numbers with at most so many values in the training rows is a class."""
MOST_WORDS = 50
"""Largest number of words of a target."""
MODEL: Mapping[str, Any] = {"max_iter": 50, "early_stopping": False, "random_state": 0}
"""Settings of the model that predicts the target."""
MAX_MODEL_ROWS = 20_000
"""Largest number of rows on which a model is trained; longer tables are thinned evenly."""


@dataclass(frozen=True)
class UtilityMeasure:
    """One measure of the utility of a synthetic table.

    Attributes:
        name: Name as in a sweep, such as "mean_two_way_distance".
        value: Value of the synthetic table; NaN if it cannot be measured.
        reference: Value of real rows: holdout rows in place of the synthetic ones, or a model trained on real rows.
        meaning: What the value means, in a sentence.
    """

    name: str
    value: float
    reference: float
    meaning: str


def utility(train: Any, holdout: Any, synth: Any, target: str | None = None) -> tuple[UtilityMeasure, ...]:
    """Return measures of the utility of a synthetic table.

    Args:
        train: Rows from which it was made: a DataFrame, or a `MixedTable` with the codes of the other tables.
        holdout: Real rows that were not used, of the same kind; models are tested on them.
        synth: The synthetic rows, of the same kind.
        target: Column that the model predicts. None for the last one: of a `MixedTable` the last column of words, or
            of numbers if there are no words.
    Raises: DataError if the columns differ, or there is no such target.
    """
    if not isinstance(train, MixedTable):
        target = str(train.columns[-1]) if target is None else target
        train, holdout, synth = encoded(train, holdout, synth)
    return (*marginal_errors(train, holdout, synth), *model_utility(train, holdout, synth, target))


def marginal_errors(train: MixedTable, holdout: MixedTable, synth: MixedTable) -> tuple[UtilityMeasure, ...]:
    """Return the mean and the largest total variation distance of one- and two-way marginals from the training rows.

    The distance is half of the sum of the differences of all cells, in [0, 1].
    """
    tables, sizes = _cells(train, (train, synth, holdout))
    paired = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), MAX_COLUMNS)).astype(int)).tolist()
    ways = (
        ("one", "of one column", [(column,) for column in range(len(sizes))]),
        ("two", "of two columns together", list(combinations(paired, 2))),
    )
    measures = []
    for way, of, sets in ways:
        distances = []
        for columns in sets:
            real, *others = (_shares(codes, sizes, columns) for codes in tables)
            distances.append([float(np.abs(real - other).sum() / 2) for other in others])
        for kind, summary in (("mean", np.mean), ("largest", np.max)) if sets else ():
            synthetic, reference = (float(summary(values)) for values in zip(*distances, strict=True))
            meaning = f"{kind} total variation distance from the training rows, {of}; 0 is best"
            measures.append(UtilityMeasure(f"{kind}_{way}_way_distance", synthetic, reference, meaning))
    return tuple(measures)


def _cells(train: MixedTable, tables: Sequence[MixedTable]) -> tuple[list[Ints], list[int]]:
    """Return the cell of each value of each table, shapes (rows, columns), and the number of cells of each column.

    Numbers come first, then words. The last cell of each column is for missing values.
    """
    codes: list[list[Ints]] = [[] for _ in tables]
    sizes = []
    for column, numbers in enumerate(train.numbers.T):
        present = numbers[~np.isnan(numbers)]
        edges = np.unique(np.quantile(present, np.arange(1, BINS) / BINS)) if len(present) else np.empty(0)
        for of_table, table in zip(codes, tables, strict=True):
            values = table.numbers[:, column]
            of_table.append(np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right")))
        sizes.append(len(edges) + 2)
    for column, levels in enumerate(train.levels.tolist()):
        words = train.words[:, column]
        rank = np.empty(levels, np.int64)
        rank[np.argsort(-np.bincount(words[words >= 0], minlength=levels), kind="stable")] = np.arange(levels)
        place = np.append(np.minimum(rank, MAX_CELLS - 1), 0)  # frequent words have a cell each; the others share one
        missing = int(place.max()) + 1
        for of_table, table in zip(codes, tables, strict=True):
            coded = table.words[:, column]
            of_table.append(np.where(coded == MISSING, missing, place[coded]))
        sizes.append(missing + 1)
    return [np.column_stack(of_table).astype(np.int64) for of_table in codes], sizes


def _shares(codes: Ints, sizes: Sequence[int], columns: Sequence[int]) -> NDArray[np.float64]:
    """Return the shares of the rows in the cells of some columns together."""
    place = np.zeros(len(codes), np.int64)
    for column in columns:
        place = place * sizes[column] + codes[:, column]
    counts = np.bincount(place, minlength=math.prod(sizes[column] for column in columns))
    return counts / max(1, len(codes))


def model_utility(
    train: MixedTable, holdout: MixedTable, synth: MixedTable, target: str | None = None
) -> tuple[UtilityMeasure, ...]:
    """Return how well a model trained on synthetic rows predicts the target of holdout rows.

    Returns () without features, and for a target of more than `MOST_WORDS` words, which would take most of the time.

    The model is gradient boosting. For classes the value is its accuracy, for numbers R squared. The reference is the
    same model trained on the training rows. Rows without a target are left out.
    """
    columns = (*train.number_names, *train.word_names)
    name = target or columns[-1]
    if name not in columns:
        raise DataError(
            f"the target must be a column of the tables, got {name!r}{did_you_mean(name, columns)}. "
            f"The columns are {', '.join(columns[:20])}"
        )
    if len(columns) < 2:
        return ()
    real, tested, synthetic_rows = (_Task.of(table, name) for table in (train, holdout, synth))
    classes = real.classes
    if classes is not None:
        if len(classes) > MOST_WORDS:
            return ()
        return _accuracies(real, tested, synthetic_rows, classes)
    if min(map(len, (real.target, tested.target, synthetic_rows.target))) < 2:
        return ()
    synthetic, reference = (rows.r_squared(tested) for rows in (synthetic_rows, real))
    meaning = f"R squared on holdout rows of a model of {name!r} trained on the table; 1 is best"
    return (UtilityMeasure("test_r2", synthetic, reference, meaning),)


@dataclass(frozen=True, eq=False)
class _Task:
    """Features and target of the rows of a table that have a target.

    Attributes:
        features: Numbers, then codes of words, NaN where missing; shape (rows, columns).
        categorical: True for columns of words.
        target: The target, shape (rows,): numbers, or codes of words.
        is_word: True if the target is a column of words.
    """

    features: NDArray[np.float64]
    categorical: NDArray[np.bool_]
    target: NDArray[np.float64]
    is_word: bool

    @classmethod
    def of(cls, table: MixedTable, target: str) -> _Task:
        words = np.where(table.words == MISSING, np.nan, table.words)
        columns = np.column_stack([table.numbers, words])
        names = (*table.number_names, *table.word_names)
        # A column of words beside numbers of the same name holds the odd cells; its numbers are the target.
        place = names.index(target)
        # Boosting reads at most 255 categories; a column with more words is read as numbers.
        categorical = np.array([False] * len(table.number_names) + [levels <= 255 for levels in table.levels], np.bool_)
        features = np.array([name != target for name in names])
        present = ~np.isnan(columns[:, place])
        rows = np.flatnonzero(present)
        if len(rows) > MAX_MODEL_ROWS:
            rows = rows[np.linspace(0, len(rows) - 1, MAX_MODEL_ROWS).astype(np.int64)]
        return cls(
            columns[rows][:, features], categorical[features], columns[rows, place], place >= len(table.number_names)
        )

    @property
    def classes(self) -> NDArray[np.float64] | None:
        """The classes of the target; None for numbers to be predicted."""
        values: NDArray[np.float64] = np.unique(self.target)
        if self.is_word:
            return values
        few_whole = len(values) <= MAX_CLASSES and bool((values == np.floor(values)).all())
        return values if few_whole else None

    def predicted(self, tested: _Task) -> NDArray[np.float64]:
        """Return the classes that a model trained on these rows predicts, shape (tested rows,); NaN without any."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        values, classes = np.unique(self.target, return_inverse=True)
        filled = ~np.isnan(self.features).all(axis=0)  # boosting cannot read an empty column
        if len(values) < 2 or not filled.any():
            return np.full(len(tested.target), values[0] if len(values) else np.nan)
        model = HistGradientBoostingClassifier(categorical_features=self.categorical[filled], **MODEL)
        predicted = model.fit(self.features[:, filled], classes).predict(tested.features[:, filled])
        return np.asarray(values[predicted], np.float64)

    def r_squared(self, tested: _Task) -> float:
        """Return R squared of a model trained on these rows."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        filled = ~np.isnan(self.features).all(axis=0)
        if not filled.any():
            return 0.0
        model = HistGradientBoostingRegressor(categorical_features=self.categorical[filled], **MODEL)
        return float(model.fit(self.features[:, filled], self.target).score(tested.features[:, filled], tested.target))


def _accuracies(
    real: _Task, tested: _Task, synthetic_rows: _Task, classes: NDArray[np.float64]
) -> tuple[UtilityMeasure, ...]:
    if not len(tested.target) or not len(classes):
        return ()
    if not real.is_word:
        nearest = np.abs(synthetic_rows.target[:, None] - classes[None]).argmin(1)
        synthetic_rows = replace(synthetic_rows, target=classes[nearest])
    right = [rows.predicted(tested) == tested.target for rows in (synthetic_rows, real)]
    _, counts = np.unique(tested.target, return_counts=True)
    synthetic, reference = (float(each.mean()) for each in right)
    synthetic_error, error = (float(each.std() / np.sqrt(len(each))) for each in right)
    majority = float(counts.max() / counts.sum())
    return (
        UtilityMeasure(
            "test_accuracy", synthetic, reference, "accuracy on holdout rows of a model trained on the table"
        ),
        UtilityMeasure(
            "test_accuracy_error", synthetic_error, error, "standard error of the accuracy over the holdout rows"
        ),
        UtilityMeasure("majority_accuracy", majority, majority, "accuracy of always answering the most frequent class"),
    )


@dataclass(frozen=True)
class MeasuredUtility:
    """The utility of one table of a generator."""

    measures: int  # number of measures, which are the metrics of the unit


@register("utility", "tables", source="Ours")
def add_utility(setting: Setting, work: Work) -> tuple[Unit, ...]:
    """Return the unit that fits a generator to the target part and measures the utility of its table.

    Returns: () for another mechanism, and for data without a test part, whose rows are the real holdout rows.
    """
    parts = setting.parts
    if not (isinstance(setting.mechanism, TableGenerator) and isinstance(parts.target, TableRows) and len(parts.test)):
        return ()
    measured = work.add(
        measure_utility,
        setting.mechanism,
        setting.required_part("target"),
        setting.required_part("test"),
        seed=setting.seed.child("utility"),
        label="utility of a table fitted to the target part",
        **setting.unit_options,
    )
    return (measured,)


def _measured(target: TableRows) -> list[str]:
    rows = target.cells.to_pandas()
    names = [f"{kind}_{way}_way_distance" for kind in ("mean", "largest") for way in ("one", "two")]
    if len(rows.columns) > 1:
        task = _Task.of(encoded(rows, rows, rows)[0], str(rows.columns[-1]))
        names += ["test_r2"] if task.classes is None else ["test_accuracy", "test_accuracy_error"]
    return [*names, *(f"real_{name}" for name in names), "majority_accuracy"]


@unit
@measuring(_measured)
def measure_utility(
    mechanism: Any, target: TableRows, test: TableRows, compute: Compute, *, seed: Seed
) -> Outcome[MeasuredUtility]:
    """Fit a generator once and return the utility of as many synthetic rows as there are real ones, as metrics.

    A value `x` of real rows in place of the synthetic ones is the metric `real_x`.
    Raises: TrainingError if the fit fails.
    """
    limits = CallLimits(None, compute.threads, time_limit, raised_externally)
    with limited_threads(compute.threads):
        settings, number = mechanism.alternatives()[0], int(seed.rng().integers(2**31))
        release = mechanism.generate(target.cells, len(target), number, settings, limits)
        frames = [cells.to_pandas() for cells in (target.cells, test.cells, release.table)]
        measures = utility(*frames)
    metrics = {each.name: each.value for each in measures}
    metrics |= {f"real_{each.name}": each.reference for each in measures if each.name != "majority_accuracy"}
    return Outcome(MeasuredUtility(len(measures)), metrics=metrics)
