"""Tests of the split into training and holdout, without the synthetic table: a negative control.

If the rows were split uniformly at random, the two files have one law, and no test finds a difference but by chance. A
difference means that a row's file can be guessed without any leak, so that right guesses prove nothing.

Each test has a p-value that is valid for a uniformly random split. A test can only find differences that it looks for:
a split that passes may still not be random.

Equal values may stand in one file too often: sites, households, uploads, numbers of digits. Of the k rows of a value, t
stand in the training file. A statistic sums a function of k and t over the values. Its p-value is a Chernoff bound. It
holds for any number of rows and far into the tail, where a normal or a gamma approximation fails and permutations would
have to be many.

Why it holds: independent coins that send each row to the training file give a uniformly random split, given that their
sum is the number of training rows. So a mean over random splits is at most the mean over coins, divided by the
probability of that sum. Rows that the statistic does not read lower the bound by the largest probability of any number
of training rows among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.synthetic_tables.games.distances import nearest, scaled
from dpaudit.synthetic_tables.games.pairs import PairedTables, row_codes, stacked
from dpaudit.synthetic_tables.games.view import MISSING, SECRET, MixedTable, TableView

MANY = 4
"""A column has many different values if they are more than the rows divided by this."""
NEAR = 8
"""Number of rows of a block of near values in the order of a column of many different values."""
MOST_PAIRED = 24
"""Largest number of columns whose pairs are compared: evenly spaced ones of wider tables."""
NOTABLE = 2.0
"""Standard deviations from the mean from which a p-value is computed; it counts as 1 below."""
DECIMALS = range(-6, 16)
"""Numbers of decimals that are told apart; negative ones count zeros at the end of a whole number."""

Statistic = Callable[[Ints, Ints, float], Floats]
"""Function of the numbers of rows of values, of those in the training file, and of the share of training rows."""


def in_one_file(rows: Ints, training: Ints, share: float) -> Floats:
    """Return how far the training rows of a value are from their expected number, in units of one variance.

    For files of equal size it is a constant plus the number of pairs of rows in one file, divided by `rows` - 1.
    """
    return np.asarray((training - share * rows) ** 2 / (rows - 1))


def across(rows: Ints, training: Ints, share: float) -> Floats:
    """Return the number of pairs of rows of a value with one row in each file."""
    return np.asarray(training * (rows - training), np.float64)


def in_training(rows: Ints, training: Ints, share: float) -> Floats:
    """Return the number of pairs of rows of a value in the training file."""
    return np.asarray(training * (training - 1) / 2, np.float64)


def p_of_too_many(codes: Ints, trained: NDArray[np.bool_], statistic: Statistic = in_one_file) -> float:
    """Return an upper bound on the p-value of a large statistic, valid for a uniformly random split.

    Args:
        codes: Code of the value of each row, shape (rows,). Rows of negative codes do not count.
        trained: True for training rows, shape (rows,).
    """
    share, counted = float(trained.mean()), codes >= 0
    rows = np.bincount(codes[counted])
    training = np.bincount(codes[counted & trained], minlength=rows.size)
    repeated = rows > 1
    if not repeated.any() or share in (0.0, 1.0):
        return 1.0
    actual = float(statistic(rows[repeated], training[repeated], share).sum())
    sizes, values = np.unique(rows[repeated], return_counts=True)
    starts = np.cumsum([0, *(sizes[:-1] + 1)])
    size = np.repeat(sizes, sizes + 1)
    inside = np.arange(size.size) - np.repeat(starts, sizes + 1)
    log_chance, score = stats.binom.logpmf(inside, size, share), statistic(size, inside, share)
    mean = np.add.reduceat(np.exp(log_chance) * score, starts)
    deviation = float(np.sqrt(values @ (np.add.reduceat(np.exp(log_chance) * score**2, starts) - mean**2)))
    if actual <= values @ mean + NOTABLE * deviation:
        return 1.0

    def log_bound(log_tilt: float) -> float:
        tilt = np.exp(log_tilt) / deviation
        terms = log_chance + tilt * score
        largest = np.maximum.reduceat(terms, starts)
        sums = np.add.reduceat(np.exp(terms - np.repeat(largest, sizes + 1)), starts)
        return float(values @ (largest + np.log(sums)) - tilt * actual)

    smallest = float(minimize_scalar(log_bound, bounds=(-5, 12), method="bounded").fun)
    unread = trained.size - int(rows[repeated].sum())
    most_probable = stats.binom.logpmf(np.floor((unread + 1) * share), unread, share)
    return float(min(1.0, np.exp(smallest + most_probable - stats.binom.logpmf(trained.sum(), trained.size, share))))


def two_sided(codes: Ints, trained: NDArray[np.bool_], statistic: Statistic) -> float:
    """Return an upper bound on the p-value of a large or a small statistic."""

    def negative(rows: Ints, training: Ints, share: float) -> Floats:
        return -statistic(rows, training, share)

    return min(1.0, 2 * min(p_of_too_many(codes, trained, each) for each in (statistic, negative)))


def tests_of_equal_values(table: MixedTable, trained: NDArray[np.bool_]) -> Iterator[SplitTest]:
    """Yield a test of each column, of all columns together, and of pairs of columns."""
    columns = [*table.numbers.T, *table.words.T]
    codes = [np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns]
    repeated = np.full(trained.size, -1, np.int64)  # the first value of each row that stands out by its repetition
    for place, name in enumerate((*table.number_names, *table.word_names)):
        kinds, stands_out = {"equal values": codes[place]}, np.zeros(trained.size, np.bool_)
        if codes[place].max() > trained.size / MANY:
            kinds["near values"] = _blocks(codes[place], trained.size // NEAR)
            stands_out = np.bincount(codes[place])[codes[place]] >= MANY
        if place < len(table.number_names):
            kinds["equal numbers of digits"] = digits = _digits(columns[place])
            stands_out |= digits > np.bincount(digits).argmax()
        repeated = np.where(stands_out & (repeated < 0), place * trained.size + codes[place], repeated)
        p_values = {kind: p_of_too_many(values, trained) for kind, values in kinds.items()}
        strongest = min(p_values, key=p_values.__getitem__)
        p_value = min(1.0, len(kinds) * p_values[strongest])
        yield SplitTest(f"the number of {strongest} of column {name} in one file", p_value)
    seldom = np.where(repeated < 0, -1, np.unique(repeated, return_inverse=True)[1])
    yield SplitTest("the number of equal unusual values in one file", p_of_too_many(seldom, trained))
    chosen = np.unique(np.linspace(0, len(codes) - 1, min(len(codes), MOST_PAIRED)).astype(int))
    bins = max(2, int(np.sqrt(trained.size / MANY)))
    pairs = list(combinations([codes[place] for place in chosen], 2))
    pairs += [(_blocks(first, bins), _blocks(second, bins)) for first, second in pairs]
    if pairs:
        cells = (np.unique(first * (second.max() + 1) + second, return_inverse=True)[1] for first, second in pairs)
        smallest = min(p_of_too_many(cell, trained) for cell in cells)
        p_value = min(1.0, len(pairs) * smallest)
        yield SplitTest("the number of equal or near values of two columns in one file", p_value)


def _blocks(codes: Ints, blocks: int) -> Ints:
    """Return the block of each code in their order, in blocks of about as many rows; equal codes share a block."""
    return np.searchsorted(np.sort(codes), codes) * blocks // codes.size


def _digits(numbers: Floats) -> Ints:
    """Return a code for the number of decimals of each number, larger for more of them, shape (rows,); 0 for NaN."""
    codes = np.where(np.isnan(numbers), 0, len(DECIMALS) + 1)
    for code, decimals in reversed(list(enumerate(DECIMALS, 1))):
        codes[np.round(numbers, decimals) == numbers] = code
    return codes


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


def split_control(paired: PairedTables, *, seed: int, views: Sequence[TableView] = ()) -> SplitControl:
    """Return tests of the split on all rows of both files; of each canary one random row.

    Args:
        paired: The paired tables; the synthetic table is not read.
        seed: Seed of the rows of persons, of the folds of the classifier.
        views: Further views of the same real rows, chosen without their files: what attacks see in them without a leak
            must be found here.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(paired.canary.size)
    rows = shuffled[np.unique(paired.canary[shuffled], return_index=True)[1]]
    rows = np.sort(rows)  # the order of the view is random already
    table, trained = paired.view.real.take(rows), paired.trained[rows]
    tests, codes = [*_columns(table, trained), *tests_of_equal_values(table, trained)], row_codes(table)
    # Removed copies of training rows make the first number too small, and copies in the holdout make it too large.
    tests.append(SplitTest("the number of equal rows across the files", two_sided(codes, trained, across)))
    tests.append(SplitTest("the number of equal rows within the training file", two_sided(codes, trained, in_training)))
    if min(trained.sum(), (~trained).sum()) >= FEWEST_ROWS:
        tests += [_near_rows(table, trained), _classifier(table, trained, rng)]
    for view in views:
        part = view.real.take(rows)
        if not set(part.number_names) <= set(table.number_names):
            tests += [*_columns(part, trained), *tests_of_equal_values(part, trained)]
        tests.append(_near_rows(part, trained))
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

    columns, categorical = [np.clip(table.numbers, -1e30, 1e30)], [False] * table.numbers.shape[1]
    for words in table.words.T:
        codes, counts = np.unique(words, return_inverse=True, return_counts=True)[1:]
        few = counts.size <= MOST_CATEGORIES
        columns.append((codes if few else counts[codes])[:, None].astype(np.float64))
        categorical.append(few)
    features = np.concatenate(columns, axis=1)
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
            categorical_features=np.array(categorical, bool)[filled],
            random_state=0,
        ).fit(features[fitted_on][:, filled], labels)
        scores, files = model.decision_function(features[~fitted_on][:, filled]), trained[~fitted_on]
        if files.any() and not files.all():
            rank_sum = stats.mannwhitneyu(scores[files], scores[~files], alternative="greater", method="asymptotic")
            p_values.append(float(rank_sum.pvalue))
    return SplitTest("a classifier", min([1.0, *(2 * p_value for p_value in p_values)]))


def _p_in_words(p_value: float) -> str:
    return f"below {SMALLEST_PRINTED:g}" if p_value <= SMALLEST_PRINTED else f"{p_value:.2g}"


BY_CHANCE = 1e-5
"""P-value, for files in their places, below which they count as exchanged."""
MOST = 0.9
"""Share of the holdout rows in the synthetic table above which it seems to be that file."""


def exchanged(pairs: PairedTables, own_scores: Mapping[str, Floats]) -> str:
    """Return a sentence on files that seem to be exchanged; "" without such a sign.

    Args:
        own_scores: Score of each real row by each attack, larger if more likely trained on, shapes (rows,).
    """
    codes = row_codes(stacked(pairs.view.real, pairs.view.synthetic))
    rows = np.unique(pairs.canary, return_index=True)[1]  # one of each canary, because its rows share their file
    real, trained, released = codes[rows], pairs.trained[rows], codes[pairs.trained.size :]
    copied = np.isin(real, released)
    again = np.isin(real[trained], real[~trained])
    held_out, of = int(copied[~trained].sum()), int((~trained).sum())
    more_copied = stats.hypergeom.sf(held_out - 1, trained.size, copied.sum(), of) < BY_CHANCE
    if more_copied and held_out > MOST * of:
        return f"the holdout file seems to be the synthetic table: {held_out:,} of {of:,} holdout rows are in both"
    if p_of_too_many(real, trained, across) < BY_CHANCE:
        return f"the holdout file seems to hold training rows, or copies: {again.sum():,} of {again.size:,} are in it"
    for name, score in own_scores.items():
        ahead = pairs.ahead(score)
        right, wrong = int((ahead > 0).sum()), int((ahead < 0).sum())
        if more_copied or len(own_scores) * stats.binom.cdf(right, right + wrong, 0.5) < BY_CHANCE:
            return (
                "the training and the holdout file seem to be exchanged, or synthetic rows near training rows were "
                f"removed: the attack {name} is right in {right:,} of {right + wrong:,} pairs"
            )
    return ""
