"""Tests of the split into training and holdout, without the synthetic table: a negative control.

If the rows were split uniformly at random, the two files have one law, and no test finds a difference but by chance. A
difference means that a row's file can be guessed without any leak, so that right guesses prove nothing.

Each test has a p-value that is valid for a uniformly random split. A test can only find differences that it looks for:
a split that passes may still not be random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.synthetic_tables.games.distances import nearest, scaled
from dpaudit.synthetic_tables.games.equal_values import (
    across,
    in_one_file,
    in_training,
    tests_of_equal_values,
    two_sided,
)
from dpaudit.synthetic_tables.games.pairs import PairedTables, row_codes
from dpaudit.synthetic_tables.games.view import MISSING, SECRET, MixedTable, TableView

NOT_RANDOM = 1e-3
"""P-value, over all tests together, below which the split counts as not random."""
MAX_SHARED_PERSONS = 0.01
"""Share of persons with rows in both files above which persons were not split."""
LEAST_EXPECTED = 5.0
"""Smallest expected count of a word in a file; rarer words are counted together."""
MOST_CATEGORIES = 200
"""Number of words of a column up to which the classifier reads them as categories, else as their frequencies."""
SMALLEST_PRINTED = 1e-12
"""P-values below this are printed as "below 1e-12"."""
FEWEST_ROWS = 40
"""Number of rows from which a classifier is fitted."""


@dataclass(frozen=True)
class SplitTest:
    """One comparison of the two files.

    Attributes:
        name: What was compared, in words: "column age", "a classifier of training against holdout rows".
        p_value: P-value if the split was uniformly random, in (0, 1].
    """

    name: str
    p_value: float


@dataclass(frozen=True)
class SplitControl:
    """Result of all tests of the split.

    Attributes:
        tests: The tests, in order.
        rows: Number of compared rows; one row of each person.
        persons_in_both: Number of persons with rows in both files.
        persons: Number of persons; rows if no persons were named.
    """

    tests: tuple[SplitTest, ...]
    rows: int
    persons_in_both: int
    persons: int

    @property
    def strongest(self) -> SplitTest:
        """The test with the smallest p-value; of those below what is printed the first one, which names a column."""
        return min(self.tests, key=lambda test: max(test.p_value, SMALLEST_PRINTED / len(self.tests)))

    @property
    def p_value(self) -> float:
        """P-value of all tests together (Bonferroni, which is the first step of Holm's procedure)."""
        return min(1.0, len(self.tests) * min(test.p_value for test in self.tests))

    @property
    def doubt(self) -> str:
        """Reason why the split was not random, in a sentence; "" if nothing speaks against it."""
        if self.persons_in_both > MAX_SHARED_PERSONS * self.persons:
            return (
                f"the split is not random over persons: {self.persons_in_both:,} of {self.persons:,} persons have rows "
                "in both files"
            )
        if self.p_value < NOT_RANDOM:
            return (
                f"the split is not random: {self.strongest.name} tells training from holdout rows without the "
                f"synthetic table (p {_p_in_words(self.p_value)} over {len(self.tests)} tests)"
            )
        return ""

    @property
    def line(self) -> str:
        """The result in a sentence."""
        return self.doubt or (
            f"no sign that the split is not random: {len(self.tests)} tests of {self.rows:,} rows without the "
            f"synthetic table, smallest p-value {_p_in_words(self.p_value)} after correction"
        )


def split_control(paired: PairedTables, *, seed: int) -> SplitControl:
    """Return tests of the split on all rows of both files; of each canary one random row.

    Args:
        paired: The paired tables; the synthetic table is not read.
        seed: Seed of the rows of persons, of the folds of the classifier.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(paired.canary.size)
    rows = shuffled[np.unique(paired.canary[shuffled], return_index=True)[1]]
    rows = np.sort(rows)  # the order of the view is random already
    table, trained = paired.view.real.take(rows), paired.trained[rows]
    tests = [*_columns(table, trained)]
    tests += [SplitTest(name, p_value) for name, p_value in tests_of_equal_values(table, trained)]
    tests += _equal_rows(table, trained)
    if min(trained.sum(), (~trained).sum()) >= FEWEST_ROWS:
        tests += [_near_rows(table, trained), _classifier(table, trained, rng)]
    persons = paired.training_canaries + paired.holdout_canaries + paired.persons_in_both
    return SplitControl(tuple(tests), rows.size, paired.persons_in_both, persons)


def _columns(table: MixedTable, trained: NDArray[np.bool_]) -> Iterator[SplitTest]:
    """Yield a two-sample test of each column, and of what is missing in it."""
    for place, name in enumerate(table.number_names):
        values = table.numbers[:, place]
        present = ~np.isnan(values)
        inside, outside = values[present & trained], values[present & ~trained]
        p_values = [_of_words(present.astype(np.int64), trained)] if not present.all() else []
        if inside.size and outside.size:
            p_values.append(float(stats.ks_2samp(inside, outside, method="asymp").pvalue))
        yield SplitTest(f"column {name}", min(1.0, len(p_values) * min(p_values)))
    for place, name in enumerate(table.word_names):
        yield SplitTest(f"column {name}", _of_words(table.words[:, place] - MISSING, trained))


def _of_words(codes: Ints, trained: NDArray[np.bool_]) -> float:
    """Return the p-value of a chi-squared test of homogeneity; rare words are counted together."""
    counts = np.stack([np.bincount(codes[part], minlength=int(codes.max()) + 1) for part in (trained, ~trained)])
    share = min(trained.mean(), 1 - trained.mean())
    rare = counts.sum(axis=0) * share < LEAST_EXPECTED
    counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(axis=1, keepdims=True)], axis=1)
    counts = counts[:, counts.sum(axis=0) > 0]
    return 1.0 if counts.shape[1] < 2 else float(stats.chi2_contingency(counts, correction=False).pvalue)


def _equal_rows(table: MixedTable, trained: NDArray[np.bool_]) -> list[SplitTest]:
    """Return tests of the numbers of equal rows across the files, and within the training file.

    A holdout from which copies of training rows were removed has too few of the first kind, and one in which training
    rows stand again has too many.
    """
    codes = row_codes(table)
    return [
        SplitTest("the number of equal rows across the files", two_sided(codes, trained, across)),
        SplitTest("the number of equal rows within the training file", two_sided(codes, trained, in_training)),
    ]


def _near_rows(table: MixedTable, trained: NDArray[np.bool_]) -> SplitTest:
    """Return a test of how many rows that are linked by nearest rows stand in one file.

    Source: Schilling (1986), "Multivariate two-sample tests based on nearest neighbors".
    """
    each = np.arange(len(table))
    _, real = scaled(TableView(table.take(each[:0]), table, each, np.full(each.size, SECRET, np.int8)))
    near = nearest(real, real, 1, groups=(each, each)).rows[:, 0]
    linked = csr_array((np.ones(each.size), (each, near)), shape=(each.size, each.size))
    clusters = connected_components(linked, directed=False)[1].astype(np.int64)
    return SplitTest("the number of nearest rows in one file", two_sided(clusters, trained, in_one_file))


def _classifier(table: MixedTable, trained: NDArray[np.bool_], rng: np.random.Generator) -> SplitTest:
    """Return a test of a boosted classifier on the half of the rows that it was not fitted on, for both halves.

    Given the rows and the fitted classifier, the files of the other half are a uniformly random subset if the split is
    random, so the rank sum test is valid in each half. Both share the error.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    features, categorical = _classifier_features(table)
    in_first = rng.permutation(len(table)) < len(table) // 2
    p_values = []
    for fitted_on in (in_first, ~in_first):
        labels = trained[fitted_on]
        filled = ~np.isnan(features[fitted_on]).all(axis=0)  # the classifier cannot read an empty column
        if labels.all() or not labels.any() or not filled.any():
            continue
        model = HistGradientBoostingClassifier(
            max_iter=50,
            max_leaf_nodes=8,
            min_samples_leaf=10,
            early_stopping=False,
            categorical_features=categorical[filled],
            random_state=0,
        ).fit(features[fitted_on][:, filled], labels)
        scores, files = model.decision_function(features[~fitted_on][:, filled]), trained[~fitted_on]
        if files.any() and not files.all():
            rank_sum = stats.mannwhitneyu(scores[files], scores[~files], alternative="greater", method="asymptotic")
            p_values.append(float(rank_sum.pvalue))
    return SplitTest("a classifier", min([1.0, *(2 * p_value for p_value in p_values)]))


def _classifier_features(table: MixedTable) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the columns as numbers, shape (rows, columns), and which of them hold categories."""
    columns = [np.clip(table.numbers, -1e30, 1e30)]
    categorical = [False] * table.numbers.shape[1]
    for place in range(table.words.shape[1]):
        codes, counts = np.unique(table.words[:, place], return_inverse=True, return_counts=True)[1:]
        few = counts.size <= MOST_CATEGORIES
        columns.append((codes if few else counts[codes])[:, None].astype(np.float64))
        categorical.append(few)
    return np.concatenate(columns, axis=1), np.array(categorical, bool)


def _p_in_words(p_value: float) -> str:
    return f"below {SMALLEST_PRINTED:g}" if p_value <= SMALLEST_PRINTED else f"{p_value:.2g}"
