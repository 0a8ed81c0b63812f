"""Measures that are commonly reported for synthetic tables, with what each means and what it does not.

They read which row is from which file, bound no epsilon and are no part of a verdict. Intervals hold for independent
rows. They are too narrow if persons have several rows. Those of distances ignore that synthetic rows share their
neighbours: of 200 tables of 600 fresh rows, 9 had a closer share significantly above 50 %, where 5 are expected.

Source: Yale et al. (2020) and Platzer and Reutterer (2021) for distances to the closest record; Giomi et al. (2023) for
singling out, arXiv:2211.10459.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpaudit.errors import require
from dpaudit.estimators.measures import auc, true_positive_rate
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.synthetic_tables.games.distances import Scaled, nearest, scaled
from dpaudit.synthetic_tables.games.view import MixedTable, TableView, exact_cells

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PREDICATES = 1_000
"""Number of guesses of a singling-out attack."""
CONDITIONS = 4
"""Columns of a predicate of the multivariate singling-out attack."""
LOW = 0.05
"""Quantile at which distances are compared."""


@dataclass(frozen=True)
class UsualMeasure:
    """A measure that people report for synthetic tables.

    Attributes:
        name: Name of the measure.
        value: Its value.
        lower, upper: Ends of its interval.
        confidence: Confidence of this interval alone.
        means: What it says.
        does_not_mean: What it must not be taken for.
        passes: Result of the usual rule, None if there is no rule.
        rule: The usual rule in words, "" for none.
    """

    name: str
    value: float
    lower: float
    upper: float
    confidence: float
    means: str
    does_not_mean: str
    passes: bool | None = None
    rule: str = ""

    def __str__(self) -> str:
        verdict = "" if self.passes is None else f"; {'passes' if self.passes else 'fails'}: {self.rule}"
        return f"{self.name}: {self.value:.4g} in [{self.lower:.4g}, {self.upper:.4g}]{verdict}"


def usual_measures(
    view: TableView, trained: Bools, scores: Mapping[str, Floats], *, confidence: float = 0.95, seed: int = 0
) -> tuple[UsualMeasure, ...]:
    """Return the measures of attacks, of distances, of exact copies and of singling out, in this order.

    The files are compared with equal numbers of rows: the larger one is cut down at random.

    Args:
        view: The tables; the pairs are not used.
        trained: True for the real rows of the training file, shape (real rows,).
        scores: Score of each real row by each attack, larger = more likely trained on.
        confidence: Confidence of each interval alone, in (0, 1).
        seed: Seed of the predicates and of the cut.
    Raises: InputError if a file has no rows, or if the confidence is out of range.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    rows = int(trained.sum()), int((~trained).sum())
    require(min(rows) > 0, "both files must have rows", training=rows[0], holdout=rows[1])
    rng = np.random.default_rng(seed)
    training, holdout = (
        np.sort(rng.choice(np.flatnonzero(file), min(rows), replace=False)) for file in (trained, ~trained)
    )
    measured: list[UsualMeasure] = []
    for name, score in scores.items():
        members, others = np.sort(score[trained]), np.sort(score[~trained])
        named = (
            (f"AUC of {name}", auc(members, others, confidence=confidence), AREA),
            (f"TPR at 1 % FPR of {name}", true_positive_rate(members, others, 0.01, confidence=confidence), RATE),
        )
        measured += [
            UsualMeasure(label, each.value, each.lower, each.upper, each.confidence, *words)
            for label, each, words in named
        ]
    synthetic, real = scaled(view)
    files = training, holdout
    near = [nearest(synthetic, Scaled(real.numbers[rows], real.words[rows]), 2).distances for rows in files]
    ratios = [distances[:, 0] / np.maximum(distances[:, 1], np.finfo(np.float64).tiny) for distances in near]
    closest = [distances[:, 0] for distances in near]
    return (
        *measured,
        _closer_share(closest, confidence),
        _compared_quantiles(closest, LOW, confidence, *LOW_DISTANCE),
        _compared_quantiles(closest, 0.5, confidence, *MEDIAN_DISTANCE),
        _compared_quantiles(ratios, LOW, confidence, *DISTANCE_RATIO),
        _exact_matches(view, training, holdout, confidence),
        *_singling_out(view, training, holdout, confidence, rng),
    )


AREA = (
    "the probability that a training row scores above a holdout row; 0.5 is guessing",
    "an average over all rows: a few rows that are given away entirely hardly move it",
)
RATE = (
    "the share of training rows that are recognised when one holdout row in a hundred is accused; 0.01 is guessing",
    "privacy if it is near 0.01: it measures one attack on one table",
)
LOW_DISTANCE = (
    "5th percentile of the distance to the closest record, training to holdout",
    "how near the nearest synthetic rows come to training rows, as a multiple of how near they come to holdout rows; 1 "
    "is expected of fresh rows",
    "the 5th percentile of the distance to training rows is not significantly below that to holdout rows",
)
MEDIAN_DISTANCE = (
    "median distance to the closest record, training to holdout",
    "the median distance of a synthetic row to the closest training row, as a multiple of that to the closest holdout "
    "row; 1 is expected of fresh rows",
    "the median distance to training rows is not significantly below that to holdout rows",
)
DISTANCE_RATIO = (
    "5th percentile of the nearest-neighbour distance ratio, training to holdout",
    "how much nearer a synthetic row is to its closest training row than to the second closest, as a multiple of that "
    "among holdout rows; 1 is expected of fresh rows",
    "the 5th percentile of the ratio is not significantly below that among holdout rows",
)


NO_PRIVACY = (
    "that no row is given away: copies of one row in a hundred, copies with noise, and exact marginals all pass"
)


def _closer_share(closest: Sequence[Floats], confidence: float) -> UsualMeasure:
    difference = closest[1] - closest[0]
    decided = difference[difference != 0]
    closer = int(np.count_nonzero(decided > 0))
    limits = _limits(closer, decided.size, confidence)
    return UsualMeasure(
        "share of synthetic rows closer to training",
        closer / decided.size if decided.size else 0.5,
        *limits,
        confidence,
        "the share of synthetic rows whose closest record is a training row rather than a holdout row, without ties; "
        "0.5 is expected of fresh rows",
        NO_PRIVACY,
        limits[0] <= 0.5,
        "the share is not significantly above 50 %",
    )


def _compared_quantiles(
    samples: Sequence[Floats], quantile: float, confidence: float, name: str, means: str, rule: str
) -> UsualMeasure:
    """Return the ratio of a quantile of the distances to both files, with an interval.

    The limits of each quantile are missed with a quarter of the error (binomial order statistics).
    """
    limits = []
    for ordered in map(np.sort, samples):
        count, quarter = ordered.size, (1 - confidence) / 4
        first, last = (int(stats.binom.ppf(tail, count, quantile)) for tail in (quarter, 1 - quarter))
        low = float(ordered[first - 1]) if first >= 1 else 0.0
        high = float(ordered[last]) if last < count else np.inf
        limits.append((float(np.quantile(ordered, quantile)), low, high))
    training, holdout = limits

    def ratio(above: float, below: float) -> float:  # 1 where both are 0 or infinite
        return 1.0 if above == below else above / below if below else np.inf

    value, lower, upper = ratio(training[0], holdout[0]), ratio(training[1], holdout[2]), ratio(training[2], holdout[1])
    return UsualMeasure(
        name, value, min(lower, value), max(upper, value), confidence, means, NO_PRIVACY, upper >= 1, rule
    )


def _exact_matches(
    view: TableView, training: NDArray[np.int64], holdout: NDArray[np.int64], confidence: float
) -> UsualMeasure:
    cells = exact_cells(view)
    synthetic, real, _ = cells.combined(range(cells.columns))
    in_training, in_holdout = (np.isin(synthetic, real[rows]) for rows in (training, holdout))
    only = int(np.count_nonzero(in_training & ~in_holdout)), int(np.count_nonzero(in_holdout & ~in_training))
    limits = _limits(int(in_training.sum()), synthetic.size, confidence)
    return UsualMeasure(
        "share of synthetic rows equal to a training row",
        float(in_training.mean()),
        *limits,
        confidence,
        f"the share of exact copies; {100 * in_holdout.mean():.3g} % of the synthetic rows are equal to a holdout row",
        "privacy if it is 0: a copy with one changed cell does not count",
        _limits(only[0], sum(only), confidence)[0] <= 0.5,
        "training rows are not matched significantly more often than holdout rows",
    )


def _limits(count: int, trials: int, confidence: float) -> tuple[float, float]:
    if not trials:
        return 0.0, 1.0
    interval = clopper_pearson(count, trials, confidence=confidence)
    return float(interval.lower), float(interval.upper)


def _singling_out(
    view: TableView,
    training: NDArray[np.int64],
    holdout: NDArray[np.int64],
    confidence: float,
    rng: np.random.Generator,
) -> Iterator[UsualMeasure]:
    """Yield the excess success on training rows as a share of what the success on holdout rows leaves over."""
    files = view.real.take(training), view.real.take(holdout)
    kinds = {
        "univariate": _one_column_predicates(view.synthetic, rng),
        "multivariate": _row_predicates(view.synthetic, rng),
    }
    for name, predicates in kinds.items():
        if not predicates:
            continue
        hits = [sum(predicate.singles_out(file) for predicate in predicates) for file in files]
        rates = [hit / len(predicates) for hit in hits]
        limits = [_limits(hit, len(predicates), (1 + confidence) / 2) for hit in hits]
        value, lower, upper = (
            (hit - base) / (1 - base) if base < 1 else 0.0
            for hit, base in (rates, (limits[0][0], limits[1][1]), (limits[0][1], limits[1][0]))
        )
        yield UsualMeasure(
            f"singling-out risk, {name}",
            value,
            min(lower, value),
            max(upper, value),
            confidence,
            f"of {len(predicates):,} predicates from synthetic rows, {100 * rates[0]:.3g} % fit exactly one training "
            f"row, {100 * rates[1]:.3g} % one holdout row; the value is the excess as a share of the failures on the "
            "holdout",
            "privacy if it is near 0: it measures one kind of guess, and rows that others single out count as baseline",
            lower <= 0,
            "training rows are not singled out significantly more often than holdout rows",
        )


@dataclass(frozen=True)
class _Predicate:
    """A conjunction of conditions on columns: equal to a word; at most, at least or equal to a number.

    Attributes:
        words: (column, code) of each condition on words.
        numbers: (column, sign, number): sign 1 for at least, -1 for at most, 0 for equal.
    """

    words: tuple[tuple[int, int], ...] = ()
    numbers: tuple[tuple[int, int, float], ...] = ()

    def singles_out(self, rows: MixedTable) -> bool:
        """True if exactly one row fits."""
        fits = np.ones(len(rows), bool)
        for column, code in self.words:
            fits &= rows.words[:, column] == code
        for column, sign, number in self.numbers:
            values = rows.numbers[:, column]
            fits &= values == number if sign == 0 else sign * values >= sign * number
        return int(fits.sum()) == 1


def _one_column_predicates(synthetic: MixedTable, rng: np.random.Generator) -> list[_Predicate]:
    """Return predicates on values that occur once in the synthetic table, and on its smallest and largest numbers."""
    predicates = []
    for column, values in enumerate(synthetic.numbers.T):
        distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        predicates += [_Predicate(numbers=((column, 0, float(value)),)) for value in distinct[counts == 1]]
        if distinct.size:
            predicates += [
                _Predicate(numbers=((column, sign, float(end)),))
                for sign, end in ((-1, distinct[0]), (1, distinct[-1]))
            ]
    for column, codes in enumerate(synthetic.words.T):
        distinct, counts = np.unique(codes, return_counts=True)
        predicates += [_Predicate(words=((column, int(code)),)) for code in distinct[counts == 1]]
    chosen = rng.permutation(len(predicates))[:PREDICATES]
    return [predicates[place] for place in np.sort(chosen)]


def _row_predicates(synthetic: MixedTable, rng: np.random.Generator) -> list[_Predicate]:
    """Return predicates on random columns of random synthetic rows; a number is a bound away from the median."""
    numbers, words = synthetic.numbers.shape[1], synthetic.words.shape[1]
    columns = numbers + words
    present = [values[~np.isnan(values)] for values in synthetic.numbers.T]
    medians = [float(np.median(values)) if values.size else 0.0 for values in present]
    predicates = []
    for row in rng.integers(0, len(synthetic), PREDICATES if columns > 1 else 0):
        bounds, equal = [], []
        for column in rng.choice(columns, min(CONDITIONS, columns), replace=False).tolist():
            if column >= numbers:
                equal.append((column - numbers, int(synthetic.words[row, column - numbers])))
            elif not np.isnan(value := float(synthetic.numbers[row, column])):
                bounds.append((column, 1 if value >= medians[column] else -1, value))
        if bounds or equal:
            predicates.append(_Predicate(tuple(equal), tuple(bounds)))
    return predicates
