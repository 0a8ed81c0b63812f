"""A learned output set: a classifier of trainings orders their summaries by how much they speak for world 1.

By Neyman and Pearson the best sets are those of the largest likelihood ratio. Each classifier learns on two thirds of
the search samples and is judged on the last third by its likelihood; the best learns again on all. A summary
longer than there are samples is narrowed first, on samples that the classifier does not learn from.

What occurs in one world only is deterministic: exact values, multiples of 1/n, low bits of floating-point noise,
numbers beyond all that the other world shows. A classifier that adds up what all numbers say dilutes it, so it is
looked for by itself and ranked before everything else. A rule is found on two thirds of the search samples and counts
if the last third never contradicts it, as often as chance would not allow, and more often than the classifier is right
there before it first errs: noise that is merely small makes rules too, and errs in a few of many fresh runs.
Source: Lu et al. (2022), section 4.2, after Bichsel et al. (2021).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.engine.games.neighbours.stated_law import STATED_LAW
from dpaudit.errors import InputError, require
from dpaudit.registry import register

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Probability = Callable[[Floats], Floats]
"""Probability of world 1 of summaries, shape (n, d) to (n,)."""
FitClassifier = Callable[[Floats, Flags], Probability]
"""From summaries and the world of each."""

MIN_PROBABILITY = 1e-12
"""Probabilities nearer to 0 or 1 are taken for this: a logarithm must stay a number."""
HELD_OUT_EVERY = 3
"""One in so many search samples is judged on."""
MAX_UNSELECTED_WIDTH = 200
"""Summaries of so many numbers are not narrowed, however few samples there are."""
MIN_ATOM_COUNT = 3
"""Times that a value must have been seen to be an atom."""
BLOCK_COLUMNS = 4_096
"""Numbers of long summaries that are looked at together."""
MAX_SELECTED = 64
"""Numbers of a summary that is narrowed, at most; at least `MIN_KEPT`, else one for 16 samples."""
MIN_SELECTED = 8
SHRINKAGE = 1.5
"""Standard errors that the medians of a number are drawn together by, before what is left of them is believed."""
CONFIRM_EVERY = 3
"""One in so many search samples confirms or contradicts."""
RULE_LOG_ODDS = 60.0
"""Log-odds in nats, beyond all that a classifier says, from which on rules are ranked."""
MAX_RULE_CHANCE = 0.01
"""Probability that chance confirms a rule, of all numbers of a summary together, where both worlds are the same."""
MIN_VALUE_COUNT = 2
"""Times that a value must have been seen, in one world alone."""
MAX_COLUMNS = 500
"""Longer summaries are not looked at."""
FLOAT32_ERROR = 2.0**-24
"""Relative error of a number of 32 bits."""
MAX_FRACTION_STEPS = 24
"""Of the continued fraction that finds the denominator of a number."""
MAX_FRACTION_CHANCE = 0.25
"""Probability below which a number that is no fraction may pass for one."""

Rule = Callable[[Floats], Floats]
"""Of which world a column's numbers are: 1, or -1 for world 0; 0 where the rule says nothing."""


@dataclass(frozen=True, eq=False)
class SummaryView:
    """Runs whose world is known, to learn from, and fresh ones, whose world is not."""

    search: NDArray[Any]  # summaries of the known ones, shape (m, width); long ones of 32 bits
    search_truth: NDArray[np.bool_]  # their worlds, shape (m,)
    fresh: NDArray[Any]  # summaries of the others, shape (n, width)
    # Log-odds of world 1 by what the mechanism says of its noise, shape (n, width) to (n,); None where it says nothing
    stated: Callable[[Floats], Floats] | None = None
    shows: ClassVar[str] = "summaries of independent runs on neighbouring data sets"


@register("attack", "output-set", source="Lu et al. (2022), Algorithm 1")
@dataclass(frozen=True)
class OutputSet:
    """The log-odds of a classifier that learned on the search samples which world a summary is from.

    What occurs in one world only (`separating`) comes first, where the classifier is not as good.

    Attributes:
        classifiers: Which are tried: "linear" (a logistic regression on whitened numbers), "laplace" (the likelihood
            ratio of independent Laplace noise), "limits" (numbers beyond all that one world showed), "atoms" (values
            that recur exactly), "additive" (a regression on each number's own steps: right where noise is independent),
            "trees" (gradient boosting), "shrunken" (as "laplace", of medians that are apart by more than their errors:
            for many numbers, of which few tell anything), "stated" (what the mechanism says of its own noise, by its
            method `log_density`; left out where it has none), "forest", "mlp".
        seed: Of the classifiers that draw.
    """

    classifiers: tuple[str, ...] = (
        "linear",
        "laplace",
        "limits",
        "atoms",
        "additive",
        "trees",
        "shrunken",
        "stated",
    )
    seed: int = 0
    view: ClassVar[type[SummaryView]] = SummaryView

    def __post_init__(self) -> None:
        object.__setattr__(self, "classifiers", tuple(self.classifiers))
        require(len(self.classifiers) > 0, "classifiers must have at least one name")
        unknown = [name for name in self.classifiers if name not in (*CLASSIFIERS, STATED_LAW)]
        require(not unknown, f"classifiers must be among {', '.join((*CLASSIFIERS, STATED_LAW))}", unknown=unknown)

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """Log-odds of world 1, in nats.

        Raises: InputError when the search samples are of one world only, or nothing but the law of a mechanism is asked
            for that states none.
        """
        if len(np.unique(view.search_truth)) < 2:
            raise InputError("search samples must come from both worlds; ask for more of them (`search`)")
        if view.stated is None and self.classifiers == (STATED_LAW,):
            raise InputError(f"the mechanism does not say how its noise is distributed; leave {STATED_LAW} out")
        learning = _LearningSet(view, ~_held_out_rows(view))
        worth = [candidate._worth(learning) for candidate in self.candidates()] if len(self.classifiers) > 1 else [0.0]
        best = self.best(worth)
        odds = _log_odds(best._fit(_LearningSet(view, np.ones(len(view.search), np.bool_)))(view.fresh))
        rule_scores = separating(view.search, view.search_truth)(view.fresh)
        if rule_scores.any():
            rule_scores[
                np.abs(rule_scores) <= RULE_LOG_ODDS + math.log(max(1, best._correct_before_first_error(learning)))
            ] = 0
        return np.where(rule_scores == 0, odds, rule_scores)

    def candidates(self) -> tuple[OutputSet, ...]:
        return tuple(replace(self, classifiers=(name,)) for name in self.classifiers)

    def best(self, worth: Sequence[float]) -> OutputSet:
        return self.candidates()[int(np.argmax(worth))]

    def worth(self, view: SummaryView) -> float:
        """The mean log-likelihood of held-out search samples' worlds, in nats: of a weak leak and of a rare one alike.

        The lowest there is where one world is missing there, or the mechanism does not state what is asked for.
        """
        return self._worth(_LearningSet(view, ~_held_out_rows(view)))

    def _worth(self, learning: _LearningSet) -> float:
        truth = learning.view.search_truth
        if learning.view.stated is None and self.classifiers == (STATED_LAW,):
            return -math.inf
        if any(len(np.unique(truth[part])) < 2 for part in (learning.rows, ~learning.rows)):
            return -math.inf
        return -float(np.logaddexp(0, -self._held_out_odds(learning)).mean())

    def _held_out_odds(self, learning: _LearningSet) -> Floats:
        """Log-odds of the right world of search samples that the classifier did not learn from."""
        view, held_out = learning.view, ~learning.rows
        odds = _log_odds(self._fit(learning)(view.search[held_out]))
        return np.where(view.search_truth[held_out], odds, -odds)

    def _correct_before_first_error(self, learning: _LearningSet) -> int:
        """Held-out search samples of which the classifier is right, the surest first, before one of which it is not."""
        odds = self._held_out_odds(learning)
        return int(np.count_nonzero(odds > max(0.0, -odds.min())))

    def _fit(self, learning: _LearningSet) -> Probability:
        from sklearn.exceptions import ConvergenceWarning

        (name,) = self.classifiers
        view = learning.view
        if name == STATED_LAW:
            assert view.stated is not None
            return _calibrated(view.stated, view.search[learning.rows], view.search_truth[learning.rows])
        fit = CLASSIFIERS[name](self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # an order is all that is wanted
            warnings.simplefilter("ignore", UserWarning)  # columns with fewer different values than steps
            warnings.simplefilter("ignore", RuntimeWarning)  # shares of the variance, where nothing varies
            probability = fit(*learning.training_data)
        return lambda long: probability(learning.narrow(long))


def _held_out_rows(view: SummaryView) -> Flags:
    held_out: Flags = np.arange(len(view.search)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return held_out


@dataclass(frozen=True, eq=False)
class _LearningSet:
    """Search samples that classifiers learn from; long summaries are narrowed once for all of them."""

    view: SummaryView
    rows: Flags  # of the search samples, shape (m,)

    @cached_property
    def _selection_rows(self) -> Flags:
        """Samples that choose what long summaries are narrowed to, every second one of either world; else none."""
        truth, rows = self.view.search_truth, np.flatnonzero(self.rows)
        selecting = np.zeros(len(truth), np.bool_)
        of_world = [rows[truth[rows] == world] for world in (False, True)]
        if min(map(len, of_world)) > 1 and self.view.search.shape[1] > max(MAX_UNSELECTED_WIDTH, len(rows) // 2):
            for world_rows in of_world:
                selecting[world_rows[::2]] = True
        return selecting

    @cached_property
    def narrow(self) -> Callable[[NDArray[Any]], Floats]:
        """Long summaries to a few numbers, others to themselves.

        They are those with the largest difference of the worlds' means over their deviation, and the sum of all
        numbers weighted by difference over variance (the Fisher direction, were they independent).
        """
        if not self._selection_rows.any():
            return lambda short: np.asarray(short, np.float64)
        truth, summaries = self.view.search_truth, self.view.search
        rows_one, rows_zero = (np.flatnonzero(self._selection_rows & (truth == world)) for world in (True, False))
        difference, variance = np.empty((2, summaries.shape[1]))
        blocks = [slice(first, first + BLOCK_COLUMNS) for first in range(0, summaries.shape[1], BLOCK_COLUMNS)]
        for block in blocks:
            block_one, block_zero = (summaries[rows, block].astype(np.float64) for rows in (rows_one, rows_zero))
            difference[block] = block_one.mean(0) - block_zero.mean(0)
            variance[block] = (block_one.var(0) * len(rows_one) + block_zero.var(0) * len(rows_zero)) / (
                len(rows_one) + len(rows_zero)
            )
        # Numbers that never vary and yet differ tell the worlds apart by themselves.
        variance = np.maximum(variance, MIN_PROBABILITY * np.maximum(difference**2, np.finfo(np.float64).tiny))
        weights = difference / variance
        count = min(MAX_SELECTED, max(MIN_SELECTED, int(self.rows.sum()) // 16))
        selected = np.argsort(-(difference**2) / variance, kind="stable")[:count]
        return lambda long: np.column_stack(
            [long[:, selected], sum(long[:, block] @ weights[block] for block in blocks)]
        )

    @cached_property
    def training_data(self) -> tuple[Floats, Flags]:
        """Samples that chose nothing, narrowed, and their worlds."""
        rows = self.rows & ~self._selection_rows
        return self.narrow(self.view.search)[rows], self.view.search_truth[rows]


def _log_odds(probability: Floats) -> Floats:
    probability = np.clip(probability, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(probability) - np.log1p(-probability))


def _classifier(classifier: Any) -> FitClassifier:
    """By a classifier with `fit` and `predict_proba`."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        fitted = classifier.fit(summaries, truth)
        return lambda others: np.asarray(fitted.predict_proba(others)[:, 1])

    return fit


def _laplace(seed: int) -> FitClassifier:
    """Independent Laplace noise about a median of each world: the most usual noise, whose tails say no more."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        median_zero, median_one = (np.median(summaries[truth == world], 0) for world in (False, True))
        scale = np.abs(summaries - np.where(truth[:, None], median_one, median_zero)).mean(0)
        scale = np.maximum(
            scale, MIN_PROBABILITY * np.maximum(np.abs(median_one - median_zero), np.finfo(np.float64).tiny)
        )

        def probability(others: Floats) -> Floats:
            odds = ((np.abs(others - median_zero) - np.abs(others - median_one)) / scale).sum(1)
            # All far out are equal: rounding errors would order them by the low bits of floating-point noise.
            return np.asarray(special.expit(np.round(odds, 6)))

        return probability

    return fit


def _calibrated(odds: Callable[[Floats], Floats], summaries: Floats, truth: Flags) -> Probability:
    """Odds times the factor that fits best: noise that is c times too small makes them about c times as large."""
    from sklearn.linear_model import LogisticRegression

    raw_odds = odds(summaries)
    spread = float(np.sqrt(np.mean(raw_odds**2)))
    if spread == 0:
        return lambda others: np.full(len(others), 0.5)
    # No constant term: both worlds have the same prior, which `odds` knows.
    fit = _classifier(LogisticRegression(C=100.0, fit_intercept=False))
    probability = fit(raw_odds[:, None] / spread, truth)
    return lambda others: probability(odds(others)[:, None] / spread)


def _shrunken(seed: int) -> FitClassifier:
    """Independent Laplace noise as `_laplace`, about medians drawn together by what chance may have moved them."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        median_zero, median_one = (np.median(summaries[truth == world], 0) for world in (False, True))
        scale = np.abs(summaries - np.where(truth[:, None], median_one, median_zero)).mean(0)
        scale = np.maximum(
            scale, MIN_PROBABILITY * np.maximum(np.abs(median_one - median_zero), np.finfo(np.float64).tiny)
        )
        # The median of Laplace noise has a standard error of its scale over the root of the number.
        standard_error = SHRINKAGE * math.sqrt(1 / truth.sum() + 1 / (~truth).sum())
        half = (
            np.sign(median_one - median_zero)
            * np.maximum(np.abs(median_one - median_zero) / scale - standard_error, 0)
            * scale
            / 2
        )
        middle = (median_zero + median_one) / 2

        def odds(others: Floats) -> Floats:
            moved = others - middle
            return np.asarray(np.round(((np.abs(moved + half) - np.abs(moved - half)) / scale).sum(1), 6))

        return _calibrated(odds, summaries, truth)

    return fit


def _limits(seed: int) -> FitClassifier:
    """Numbers beyond all that were seen of a world: the noise ends somewhere."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        ranges = [(side.min(0), side.max(0)) for side in (summaries[~truth], summaries[truth])]

        def probability(others: Floats) -> Floats:
            beyond = [((others < low) | (others > high)).sum(1) for low, high in ranges]
            return np.asarray(special.expit(beyond[0] - beyond[1]))

        return probability

    return fit


def _atoms(seed: int) -> FitClassifier:
    """Values that recur exactly: numbers without noise, limits, counts; each column's log-odds are added up."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        tables = [_table_of_atoms(column, truth) for column in summaries.T]

        def probability(others: Floats) -> Floats:
            odds = [_look_up(table, column) for table, column in zip(tables, others.T, strict=True)]
            return np.asarray(special.expit(np.sum(odds, 0)))

        return probability

    return fit


def _table_of_atoms(column: Floats, truth: Flags) -> tuple[Floats, Floats]:
    """Values that recur, ascending, shape (k,), and the log-odds of each, shape (k + 1,): the last of all others."""
    values, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    recurs = counts >= MIN_ATOM_COUNT
    atom_of_row = np.where(recurs, np.cumsum(recurs) - 1, recurs.sum())[place]
    count_one, count_zero = (
        np.bincount(atom_of_row[truth == world], minlength=recurs.sum() + 1) + 0.5 for world in (True, False)
    )
    return values[recurs], np.log(count_one / count_zero) - np.log(count_one.sum() / count_zero.sum())


def _look_up(table: tuple[Floats, Floats], column: Floats) -> Floats:
    values, odds = table
    place = np.minimum(np.searchsorted(values, column), max(len(values) - 1, 0))
    is_atom = values[place] == column if len(values) else np.zeros(len(column), np.bool_)
    return np.asarray(np.where(is_atom, odds[place], odds[-1]))


def _linear(seed: int) -> FitClassifier:
    """Logistic regression on principal components of variance 1.

    Numbers that vary a lot may have a sum that does not, as noisy counts that sum to the size of the data. Components
    that do not vary at all are left out, as the sum of the 0 and 1 for the classes of an answer: scaled to variance 1,
    their rounding errors would drown the others.
    """
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    def fit(summaries: Floats, truth: Flags) -> Probability:
        pca = PCA(svd_solver="full").fit(summaries)
        sizes = pca.singular_values_
        varies = sizes > sizes[0] * max(summaries.shape) * np.finfo(np.float64).eps
        if not varies.any():
            return lambda others: np.full(len(others), truth.mean())
        deviations = sizes[varies] / math.sqrt(len(summaries))
        probability = _classifier(LogisticRegression(max_iter=300))(
            pca.transform(summaries)[:, varies] / deviations, truth
        )
        return lambda others: probability(pca.transform(others)[:, varies] / deviations)

    return fit


def _additive(seed: int) -> FitClassifier:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    steps = KBinsDiscretizer(16, encode="onehot", strategy="quantile", subsample=None)
    return _classifier(make_pipeline(steps, LogisticRegression(C=0.02, max_iter=200)))


def _trees(seed: int) -> FitClassifier:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _classifier(
        HistGradientBoostingClassifier(max_iter=60, learning_rate=0.15, min_samples_leaf=40, random_state=seed)
    )


def _forest(seed: int) -> FitClassifier:
    from sklearn.ensemble import RandomForestClassifier

    return _classifier(RandomForestClassifier(200, min_samples_leaf=20, random_state=seed))


def _mlp(seed: int) -> FitClassifier:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    perceptron = MLPClassifier((64,), max_iter=60, early_stopping=True, random_state=seed)
    return _classifier(make_pipeline(StandardScaler(), perceptron))


CLASSIFIERS: Mapping[str, Callable[[int], FitClassifier]] = {
    "linear": _linear,
    "laplace": _laplace,
    "limits": _limits,
    "atoms": _atoms,
    "additive": _additive,
    "trees": _trees,
    "shrunken": _shrunken,
    "forest": _forest,
    "mlp": _mlp,
}


@dataclass(frozen=True, eq=False)
class _Column:
    """One number of each summary: itself, or its denominator."""

    place: int
    denominator: bool

    def numbers(self, summaries: Floats) -> Floats:
        return denominators(summaries[:, self.place]) if self.denominator else summaries[:, self.place]


def separating(summaries: Floats, truth: Flags) -> Callable[[Floats], Floats]:
    """Ranks summaries, shape (n, d) to (n,): `FIRST` and more, or as much below 0, where a rule tells; else 0.

    Of several rules that which was confirmed most often decides.

    Args:
        summaries: Search samples, shape (m, d), rounded to 32 bits.
        truth: Their worlds, shape (m,).
    """
    confirming = np.arange(len(truth)) % CONFIRM_EVERY == CONFIRM_EVERY - 1
    if any(len(np.unique(truth[part])) < 2 for part in (confirming, ~confirming)):
        return lambda others: np.zeros(len(others))
    columns = [(column, column.numbers(summaries)) for column in _columns(summaries)]
    needed = math.ceil(math.log2(max(1, 2 * len(columns)) / MAX_RULE_CHANCE))
    rules: list[tuple[int, _Column, Rule]] = []
    for column, numbers in columns:
        for find_rule in (_values, _limits_of_worlds):
            predictions = find_rule(numbers[~confirming], truth[~confirming])(numbers[confirming])
            decided = predictions != 0
            confirmed = int(np.count_nonzero(decided))
            if confirmed >= needed and ((predictions > 0) == truth[confirming])[decided].all():
                rules.append((confirmed, column, find_rule(numbers, truth)))
    rules.sort(key=lambda ranked: -ranked[0])

    def rank(others: Floats) -> Floats:
        ranks = np.zeros(len(others))
        for confirmed, column, rule in rules:
            ranks = np.where(ranks == 0, rule(column.numbers(others)) * (RULE_LOG_ODDS + math.log(confirmed)), ranks)
        return ranks

    return rank


def _columns(summaries: Floats) -> Iterator[_Column]:
    if summaries.shape[1] <= MAX_COLUMNS:
        for place in range(summaries.shape[1]):
            yield _Column(place, False)
            if (summaries[:, place] % 1 != 0).any():
                yield _Column(place, True)


def _values(numbers: Floats, truth: Flags) -> Rule:
    """Values that were seen in one world only, twice or more."""
    values, place = np.unique(numbers, return_inverse=True)
    count_zero, count_one = (np.bincount(place[truth == world], minlength=len(values)) for world in (False, True))
    exclusive = ((count_zero == 0) | (count_one == 0)) & (count_zero + count_one >= MIN_VALUE_COUNT)
    values, of_world = values[exclusive], np.where(count_one > count_zero, 1.0, -1.0)[exclusive]

    def rule(others: Floats) -> Floats:
        if not len(values):
            return np.zeros(len(others))
        nearest = np.minimum(np.searchsorted(values, others), len(values) - 1)
        return np.where(values[nearest] == others, of_world[nearest], 0.0)

    return rule


def _limits_of_worlds(numbers: Floats, truth: Flags) -> Rule:
    """Numbers beyond all that were seen of one world, and not of the other."""
    ranges = [(numbers[truth == world].min(), numbers[truth == world].max()) for world in (False, True)]

    def rule(others: Floats) -> Floats:
        beyond_zero, beyond_one = (((others < low) | (others > high)).astype(np.float64) for low, high in ranges)
        return np.asarray(beyond_zero - beyond_one)

    return rule


def denominators(numbers: Floats) -> Floats:
    """The smallest n of which a number is a multiple of 1/n, up to its rounding; 0 where n were one by chance.

    The convergents of its continued fraction are the best approximations there are, shape (n,) to (n,).
    """
    denominator = np.zeros(len(numbers))
    error = FLOAT32_ERROR * np.maximum(np.abs(numbers), np.finfo(np.float64).tiny)
    fraction, previous, current = np.abs(numbers), np.zeros(len(numbers)), np.ones(len(numbers))
    fraction = fraction - np.floor(fraction)  # the denominators of a number and of its fraction are the same
    original = fraction.copy()
    unresolved = np.isfinite(numbers)
    for _ in range(MAX_FRACTION_STEPS):
        distance = np.abs(original * current - np.round(original * current)) / current
        # So many fractions with a denominator up to n lie that near by chance.
        fits = unresolved & (distance <= error)
        denominator[fits] = current[fits]
        unresolved &= ~fits & (current**2 * 2 * error <= MAX_FRACTION_CHANCE) & (fraction > 0)
        if not unresolved.any():
            break
        inverse = 1 / np.where(fraction > 0, fraction, 1.0)
        quotient = np.floor(inverse)
        fraction = inverse - quotient
        previous, current = current, quotient * current + previous
    return np.where(denominator**2 * 2 * error <= MAX_FRACTION_CHANCE, denominator, 0.0)
