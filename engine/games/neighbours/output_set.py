"""Attack "output-set": a classifier orders summaries of trainings by their log-odds of world 1.

By the Neyman-Pearson lemma, the best output sets have the largest likelihood ratios. Each classifier learns on two
thirds of the search samples and is evaluated by its likelihood on the last third. The best one learns again on all
samples. If a summary has more numbers than there are samples, a few numbers are selected on separate samples first.

Some values occur in one world only: exact values, multiples of 1/n, low bits of floating-point noise, numbers outside
the range of the other world. A classifier that sums evidence over all numbers dilutes them, so separate rules detect
them and come first in the order. A rule is found on two thirds of the search samples. It counts if the last third never
contradicts it, if chance would not confirm it as often, and if the classifier makes its first error earlier. The last
condition excludes rules that hold because the noise is small: they would fail in a few of many fresh runs.
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
"""Function from summaries, shape (n, d), to probabilities of world 1, shape (n,)."""
FitClassifier = Callable[[Floats, Flags], Probability]
"""Function that fits a classifier to summaries and their worlds."""

MIN_PROBABILITY = 1e-12
"""Distance of probabilities from 0 and 1, which keeps logarithms finite."""
HELD_OUT_EVERY = 3
"""One in this many search samples is held out."""
MAX_UNSELECTED_WIDTH = 200
"""Largest width of summaries that are used without a selection of numbers, with any number of samples."""
MIN_ATOM_COUNT = 3
"""Occurrences that make a value an atom."""
BLOCK_COLUMNS = 4_096
"""Number of columns of long summaries that are processed together."""
MAX_SELECTED = 64
"""Largest number of selected columns; one for 16 samples, but at least `MIN_SELECTED`."""
MIN_SELECTED = 8
SHRINKAGE = 1.5
"""Standard errors by which the medians of the two worlds are moved towards each other."""
CONFIRM_EVERY = 3
"""One in this many search samples confirms or contradicts rules."""
RULE_LOG_ODDS = 60.0
"""Smallest log-odds of a rule in nats, larger than those of any classifier."""
MAX_RULE_CHANCE = 0.01
"""Probability that chance confirms any rule for a summary if both worlds have the same law."""
MOST_MOVED_SHARE = 0.25
"""Change of the numbers that change most, in units of their noise, as a share of the largest change."""
MIN_VALUE_COUNT = 2
"""Occurrences in one world only that make a value part of a rule."""
NARROW = 1e-4
"""Range of a column below which its values are spread out before they are binned: narrow bins would be dropped."""
MAX_COLUMNS = 500
"""Largest width of summaries for which rules are tried."""
FLOAT32_ERROR = 2.0**-24
"""Relative rounding error of a 32-bit number."""
MAX_FRACTION_STEPS = 24
"""Largest number of steps of the continued fraction that finds the denominator of a number."""
MAX_FRACTION_CHANCE = 0.25
"""Largest probability that a random number passes for a fraction."""

MovedLaw = Callable[[Floats, Flags, Floats], Callable[[Floats], Floats]]
"""Function that makes log-odds from summaries, their worlds and the change between the worlds."""
Rule = Callable[[Floats], Floats]
"""Function from numbers of a column to 1 for world 1, -1 for world 0, and 0 if the rule does not apply."""


@dataclass(frozen=True, eq=False)
class SummaryView:
    """Search samples of known worlds, and fresh samples of unknown worlds."""

    search: NDArray[Any]  # summaries of search samples, shape (m, width); float32 if they are long
    search_truth: NDArray[np.bool_]  # their worlds, shape (m,)
    fresh: NDArray[Any]  # summaries of fresh samples, shape (n, width)
    # log-odds of world 1 by the law that the mechanism states, shape (n, width) to (n,); None if it states none
    stated: Callable[[Floats], Floats] | None = None
    # change of the summary from world 0 to world 1 by trainings with one seed, shape (width,); None if unknown
    move: Floats | None = None
    shows: ClassVar[str] = "summaries of independent runs on neighbouring data sets"


@register("attack", "output-set", source="Lu et al. (2022), Algorithm 1")
@dataclass(frozen=True)
class OutputSet:
    """Attack that scores summaries by the log-odds of a classifier, which learns on search samples.

    Rules about values that occur in one world only (`separating`) come first, if they are better than the classifier.

    Attributes:
        classifiers: Names of the classifiers to try:

            - "linear": logistic regression on whitened numbers
            - "laplace": likelihood ratio of independent Laplace noise
            - "limits": numbers outside the range of one world
            - "atoms": values that recur exactly
            - "additive": logistic regression on binned numbers, suited to independent noise
            - "trees": gradient boosting
            - "shrunken": as "laplace", with medians shrunk by their errors, for many numbers of which few matter
            - "moved-normal", "moved-laplace", "moved-spherical": likelihood ratios of normal, of independent Laplace,
              and of spherical noise (density exp(-length)), with the change between the worlds that a search measured
              by trainings with one seed; skipped without it
            - "most-moved-normal": as "moved-normal", of the numbers that change most
            - "stated": law that the mechanism states by its method `log_density`; skipped without that method
            - "forest": random forest
            - "mlp": multilayer perceptron
        seed: Random seed of randomised classifiers.
    """

    classifiers: tuple[str, ...] = (
        "linear",
        "laplace",
        "limits",
        "atoms",
        "additive",
        "trees",
        "shrunken",
        "moved-normal",
        "moved-laplace",
        "moved-spherical",
        "most-moved-normal",
        "stated",
    )
    seed: int = 0
    view: ClassVar[type[SummaryView]] = SummaryView

    def __post_init__(self) -> None:
        object.__setattr__(self, "classifiers", tuple(self.classifiers))
        require(len(self.classifiers) > 0, "classifiers must have at least one name")
        names = (*CLASSIFIERS, *MOVED_LAWS, STATED_LAW)
        unknown = [name for name in self.classifiers if name not in names]
        require(not unknown, f"classifiers must be among {', '.join(names)}", unknown=unknown)

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """Return log-odds of world 1, in nats.

        Raises: InputError if all search samples are of one world, or if the only classifiers need a law or a change
            that is unknown.
        """
        if len(np.unique(view.search_truth)) < 2:
            raise InputError("search samples must come from both worlds. Increase `search`")
        if not any(candidate._is_usable(view) for candidate in self.candidates()):
            raise InputError(
                f"{', '.join(self.classifiers)} need a mechanism that states its law, or a search by trainings with "
                "one seed. Add other `classifiers`"
            )
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
        """Return the mean log-likelihood of held-out search samples' worlds, in nats.

        It is -inf if one world is missing there, or if the classifier needs a law or a change that is unknown.
        """
        return self._worth(_LearningSet(view, ~_held_out_rows(view)))

    def _is_usable(self, view: SummaryView) -> bool:
        """True if the classifier's law is known, or learned from samples."""
        (name,) = self.classifiers
        if name in MOVED_LAWS:
            return view.move is not None and len(view.move) == view.search.shape[1]
        return name != STATED_LAW or view.stated is not None

    def _worth(self, learning: _LearningSet) -> float:
        truth = learning.view.search_truth
        if not self._is_usable(learning.view):
            return -math.inf
        if any(len(np.unique(truth[part])) < 2 for part in (learning.rows, ~learning.rows)):
            return -math.inf
        return -float(np.logaddexp(0, -self._held_out_odds(learning)).mean())

    def _held_out_odds(self, learning: _LearningSet) -> Floats:
        """Return the log-odds of the true world of held-out search samples."""
        view, held_out = learning.view, ~learning.rows
        odds = _log_odds(self._fit(learning)(view.search[held_out]))
        return np.where(view.search_truth[held_out], odds, -odds)

    def _correct_before_first_error(self, learning: _LearningSet) -> int:
        """Return the number of held-out samples that are classified correctly with more confidence than any error."""
        odds = self._held_out_odds(learning)
        return int(np.count_nonzero(odds > max(0.0, -odds.min())))

    def _fit(self, learning: _LearningSet) -> Probability:
        from sklearn.exceptions import ConvergenceWarning

        (name,) = self.classifiers
        view = learning.view
        if name == STATED_LAW:
            assert view.stated is not None
            return _calibrated(view.stated, view.search[learning.rows], view.search_truth[learning.rows])
        if name in MOVED_LAWS:
            assert view.move is not None
            summaries, truth = learning.training_data
            law = MOVED_LAWS[name](summaries, truth, learning.narrow(view.move[None])[0])
            moved = _calibrated(law, summaries, truth)
            return lambda long: moved(learning.narrow(long))
        fit = CLASSIFIERS[name](self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # only the order matters
            warnings.simplefilter("ignore", UserWarning)  # columns with fewer distinct values than bins
            warnings.simplefilter("ignore", RuntimeWarning)  # shares of variance if the variance is 0
            probability = fit(*learning.training_data)
        return lambda long: probability(learning.narrow(long))


def _held_out_rows(view: SummaryView) -> Flags:
    held_out: Flags = np.arange(len(view.search)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return held_out


@dataclass(frozen=True, eq=False)
class _LearningSet:
    """Search samples from which classifiers learn; long summaries are narrowed once for all of them."""

    view: SummaryView
    rows: Flags  # mask of the search samples to learn from, shape (m,)

    @cached_property
    def _selection_rows(self) -> Flags:
        """Mask of samples that select columns of long summaries: every second one of each world; none if not needed."""
        truth, rows = self.view.search_truth, np.flatnonzero(self.rows)
        selecting = np.zeros(len(truth), np.bool_)
        of_world = [rows[truth[rows] == world] for world in (False, True)]
        if min(map(len, of_world)) > 1 and self.view.search.shape[1] > max(MAX_UNSELECTED_WIDTH, len(rows) // 2):
            for world_rows in of_world:
                selecting[world_rows[::2]] = True
        return selecting

    @cached_property
    def narrow(self) -> Callable[[NDArray[Any]], Floats]:
        """Function that narrows long summaries to a few columns.

        They are the columns with the largest difference of means over standard deviation, and the sum of all columns
        weighted by difference over variance (the Fisher direction of independent numbers).
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
        # Constant numbers that differ between the worlds reveal the world.
        variance = np.maximum(variance, MIN_PROBABILITY * np.maximum(difference**2, np.finfo(np.float64).tiny))
        weights = difference / variance
        count = min(MAX_SELECTED, max(MIN_SELECTED, int(self.rows.sum()) // 16))
        selected = np.argsort(-(difference**2) / variance, kind="stable")[:count]
        return lambda long: np.column_stack(
            [long[:, selected], sum(long[:, block] @ weights[block] for block in blocks)]
        )

    @cached_property
    def training_data(self) -> tuple[Floats, Flags]:
        """Narrowed summaries and worlds of samples that were not used for the selection."""
        rows = self.rows & ~self._selection_rows
        return self.narrow(self.view.search)[rows], self.view.search_truth[rows]


def _log_odds(probability: Floats) -> Floats:
    probability = np.clip(probability, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(probability) - np.log1p(-probability))


def _classifier(classifier: Any) -> FitClassifier:
    """Return the fit of a classifier with `fit` and `predict_proba`."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        fitted = classifier.fit(summaries, truth)
        return lambda others: np.asarray(fitted.predict_proba(others)[:, 1])

    return fit


def _laplace_law(summaries: Floats, truth: Flags) -> tuple[Floats, Floats, Floats]:
    """Return the medians of both worlds and the scale of independent Laplace noise, each of shape (d,)."""
    median_zero, median_one = (np.median(summaries[truth == world], 0) for world in (False, True))
    scale = np.abs(summaries - np.where(truth[:, None], median_one, median_zero)).mean(0)
    smallest = MIN_PROBABILITY * np.maximum(np.abs(median_one - median_zero), np.finfo(np.float64).tiny)
    return median_zero, median_one, np.maximum(scale, smallest)


def _laplace(seed: int) -> FitClassifier:
    """Fit independent Laplace noise around the medians of each world."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        median_zero, median_one, scale = _laplace_law(summaries, truth)

        def probability(others: Floats) -> Floats:
            odds = ((np.abs(others - median_zero) - np.abs(others - median_one)) / scale).sum(1)
            # Without rounding, rounding errors would order equal odds by the low bits of floating-point noise.
            return np.asarray(special.expit(np.round(odds, 6)))

        return probability

    return fit


def _calibrated(odds: Callable[[Floats], Floats], summaries: Floats, truth: Flags) -> Probability:
    """Return odds times the best-fitting factor: noise that is too small by a factor c multiplies them by about c."""
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
    """Fit independent Laplace noise around medians that are shrunk by their standard errors."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        median_zero, median_one, scale = _laplace_law(summaries, truth)
        # The standard error of the median of n Laplace variables is scale / sqrt(n).
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


MIN_DIRECTION = 1e-9
"""Smallest variance of a direction of noise, as a share of the largest; smaller ones are rounding errors."""


def _whitened(residuals: Floats) -> Floats:
    """Return the matrix, shape (d, k), that maps noise to k uncorrelated numbers of variance 1.

    Numbers are scaled first. Directions without noise are omitted.
    """
    spread = residuals.std(0)
    scale = np.where(spread > 0, spread, np.inf)
    scaled = residuals / scale
    variances, directions = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    has_noise = variances > MIN_DIRECTION * max(float(variances[-1]), np.finfo(np.float64).tiny)
    return np.asarray(directions[:, has_noise] / np.sqrt(variances[has_noise]) / scale[:, None])


def _moved_normal(summaries: Floats, truth: Flags, move: Floats) -> Callable[[Floats], Floats]:
    """Return the log-odds by normal noise with the covariance of the samples."""
    unmoved = summaries - truth[:, None] * move
    middle = unmoved.mean(0)
    whitening = _whitened(unmoved - middle)
    weights = whitening @ (move @ whitening)
    return lambda others: np.asarray(np.round((others - middle - move / 2) @ weights, 6))


def _moved_spherical(summaries: Floats, truth: Flags, move: Floats) -> Callable[[Floats], Floats]:
    """Return the log-odds by noise of density exp(-length) in whitened numbers, as of output perturbation."""
    unmoved = summaries - truth[:, None] * move
    middle = unmoved.mean(0)
    whitening = _whitened(unmoved - middle)
    step = move @ whitening

    def odds(others: Floats) -> Floats:
        noise = (others - middle) @ whitening
        return np.asarray(np.round(np.linalg.norm(noise, axis=1) - np.linalg.norm(noise - step, axis=1), 6))

    return odds


def _moved_laplace(summaries: Floats, truth: Flags, move: Floats) -> Callable[[Floats], Floats]:
    """Return the log-odds by independent Laplace noise."""
    unmoved = summaries - truth[:, None] * move
    median = np.median(unmoved, 0)
    smallest = MIN_PROBABILITY * np.maximum(np.abs(move), np.finfo(np.float64).tiny)
    scale = np.maximum(np.abs(unmoved - median).mean(0), smallest)

    def odds(others: Floats) -> Floats:
        moved = others - median
        return np.asarray(np.round(((np.abs(moved) - np.abs(moved - move)) / scale).sum(1), 6))

    return odds


def _limits(seed: int) -> FitClassifier:
    """Score numbers outside the range of a world, for bounded noise."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        ranges = [(side.min(0), side.max(0)) for side in (summaries[~truth], summaries[truth])]

        def probability(others: Floats) -> Floats:
            beyond = [((others < low) | (others > high)).sum(1) for low, high in ranges]
            return np.asarray(special.expit(beyond[0] - beyond[1]))

        return probability

    return fit


def _atoms(seed: int) -> FitClassifier:
    """Score values that recur exactly (numbers without noise, limits, counts); log-odds of columns are added."""

    def fit(summaries: Floats, truth: Flags) -> Probability:
        tables = [_table_of_atoms(column, truth) for column in summaries.T]

        def probability(others: Floats) -> Floats:
            odds = [_look_up(table, column) for table, column in zip(tables, others.T, strict=True)]
            return np.asarray(special.expit(np.sum(odds, 0)))

        return probability

    return fit


def _table_of_atoms(column: Floats, truth: Flags) -> tuple[Floats, Floats]:
    """Return recurring values, ascending, shape (k,), and their log-odds, shape (k + 1,), the last for all others."""
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
    """Fit logistic regression on principal components scaled to variance 1.

    Noisy numbers may have a sum with little noise, such as counts that sum to the size of the data. Components without
    variance are omitted, because scaling would amplify their rounding errors.
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

    bins = KBinsDiscretizer(16, encode="onehot", strategy="quantile", subsample=None)
    usual = _classifier(make_pipeline(bins, LogisticRegression(C=0.02, max_iter=200)))

    def fit(summaries: Floats, truth: Flags) -> Probability:
        low, spread = summaries.min(axis=0), np.ptp(summaries, axis=0)
        narrow = (spread > 0) & (spread < NARROW)

        def widened(others: Floats) -> Floats:
            return np.where(narrow, (others - low) / np.where(narrow, spread, 1.0), others)

        probability = usual(widened(summaries), truth)
        return lambda others: probability(widened(others))

    return fit


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


def _most_moved_normal(summaries: Floats, truth: Flags, move: Floats) -> Callable[[Floats], Floats]:
    """Return the log-odds by normal noise of the numbers that change most, in units of their noise.

    The covariance of many numbers is not known well, and small changes only add noise.
    """
    unmoved = summaries - truth[:, None] * move
    noise = np.abs(unmoved - np.median(unmoved, 0)).mean(0)
    change = np.abs(move) / np.maximum(noise, MIN_PROBABILITY * np.maximum(np.abs(move), np.finfo(np.float64).tiny))
    most = change >= MOST_MOVED_SHARE * change.max()
    odds = _moved_normal(summaries[:, most], truth, move[most])
    return lambda others: odds(others[:, most])


MOVED_LAWS: Mapping[str, MovedLaw] = {
    "moved-normal": _moved_normal,
    "moved-laplace": _moved_laplace,
    "moved-spherical": _moved_spherical,
    "most-moved-normal": _most_moved_normal,
}
"""Functions that make log-odds from summaries, their worlds and the change between the worlds."""


@dataclass(frozen=True, eq=False)
class _Column:
    """Column of summaries, or the denominators of its numbers."""

    place: int  # position of the column
    denominator: bool  # True for denominators

    def numbers(self, summaries: Floats) -> Floats:
        return denominators(summaries[:, self.place]) if self.denominator else summaries[:, self.place]


def separating(summaries: Floats, truth: Flags) -> Callable[[Floats], Floats]:
    """Return a function from summaries, shape (n, d), to log-odds by rules, shape (n,); 0 if no rule applies.

    Their absolute value is at least `RULE_LOG_ODDS`. If several rules apply, the one confirmed most often decides.

    Args:
        summaries: Search samples, shape (m, d), rounded to 32 bits.
        truth: Worlds of the search samples, shape (m,).
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
    """Return the rule about values that occur in one world only, at least twice."""
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
    """Return the rule about numbers outside the range of exactly one world."""
    ranges = [(numbers[truth == world].min(), numbers[truth == world].max()) for world in (False, True)]

    def rule(others: Floats) -> Floats:
        beyond_zero, beyond_one = (((others < low) | (others > high)).astype(np.float64) for low, high in ranges)
        return np.asarray(beyond_zero - beyond_one)

    return rule


def denominators(numbers: Floats) -> Floats:
    """Return the smallest n for which a number is a multiple of 1/n, up to rounding; 0 if chance explains n.

    The convergents of the continued fraction are the best rational approximations. Shape (n,) to (n,).
    """
    denominator = np.zeros(len(numbers))
    error = FLOAT32_ERROR * np.maximum(np.abs(numbers), np.finfo(np.float64).tiny)
    fraction, previous, current = np.abs(numbers), np.zeros(len(numbers)), np.ones(len(numbers))
    fraction = fraction - np.floor(fraction)  # a number and its fractional part have the same denominator
    original = fraction.copy()
    unresolved = np.isfinite(numbers)
    for _ in range(MAX_FRACTION_STEPS):
        distance = np.abs(original * current - np.round(original * current)) / current
        # Expected number of fractions with denominators up to n this close by chance: 2 n^2 error.
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
