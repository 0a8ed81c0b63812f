"""Measures of attack scores that other tools print: AUC, true-positive rates at small false-positive rates, accuracy.

Each has an interval that holds at the stated confidence for every number of rows and any laws of the scores, if the
rows are independent trials. None of them bounds epsilon. Each interval holds on its own, not simultaneously. Its lower
end is at most what (epsilon, delta)-DP allows at the bound printed with it, so no measure says more than the bound.

* AUC: Hoeffding's inequality for U-statistics in its Chernoff form. The share of ordered pairs is a mean, over ways of
  pairing members with non-members, of means of min(members, non-members) independent terms in [0, 1]. Its exponential
  moments, and therefore its tails, are no larger than those of such a mean: Pr[share >= a] <= exp(-min(members,
  non-members) kl(a, AUC)) for a >= AUC, and likewise below. It is wider than DeLong's interval, and also covers at
  perfect separation, where that interval has no width.
* True-positive rate at a false-positive rate of f: the largest one of all thresholds whose *true* false-positive rate
  is at most f. Order statistics of the non-members give one threshold whose true rate is at most f, and one whose rate
  is above f, each with a quarter of the error. The members' rates at both, with Clopper-Pearson limits and a quarter of
  the error each, enclose it. With few non-members no threshold is known to be below f, and the lower end is 0.
* Accuracy for equally likely members and non-members: half of the rows choose the threshold, and the rates on the other
  half get half the error each (Clopper and Pearson).

Source: Hoeffding (1963), section 5; Clopper and Pearson (1934).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.finding import Series
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import Scores

FALSE_POSITIVE_RATES = (0.01, 0.001)


@dataclass(frozen=True)
class Measure:
    """One measure of an attack, with its interval."""

    name: str  # "AUC", "TPR at 1 % FPR", "accuracy"
    value: float  # measured value, in [0, 1]; an exposure in bits
    lower: float  # lower end of the interval, in the unit of the value
    upper: float  # upper end of the interval
    confidence: float  # confidence of this interval alone, in (0, 1)
    method: str  # method of the interval

    @property
    def interval(self) -> str:
        """Interval, rounded outwards."""
        return f"[{np.floor(self.lower * 1e4) / 1e4:.4f}, {np.ceil(self.upper * 1e4) / 1e4:.4f}]"

    def __str__(self) -> str:
        return f"{self.name:<17} {self.value:.4f}  in {self.interval}  {self.method}"


def measures(
    replays: Sequence[Scores], *, confidence: float, seed: int, epsilon: float = np.inf, delta: float = 0.0
) -> tuple[Measure, ...]:
    """Return AUC, true-positive rates at 1 % and 0.1 % false-positive rate, and accuracy of scores with both worlds.

    Args:
        replays: Scores of each replay.
        confidence: Two-sided confidence of each interval on its own, in (0, 1).
        seed: Seed of the split for the accuracy.
        epsilon: Lower bound on epsilon at `delta` that the measures accompany; lower ends say no more than this.
        delta: Delta of the bound, in [0, 1).
    """
    each = per_replay_confidence(confidence, len(replays))
    by_replay = []
    for scores in replays:
        members, others = scores.score[scores.truth], scores.score[~scores.truth]
        ranked = np.sort(members), np.sort(others)
        rates = [true_positive_rate(*ranked, rate, confidence=each) for rate in FALSE_POSITIVE_RATES]
        by_replay.append([auc(*ranked, confidence=each), *rates, accuracy(members, others, confidence=each, seed=seed)])
    medians = [_median(replicates, confidence) for replicates in zip(*by_replay, strict=True)]
    largest = _largest_measures(epsilon, delta)
    return tuple(
        replace(measure, lower=min(measure.lower, limit)) for measure, limit in zip(medians, largest, strict=True)
    )


def _largest_measures(epsilon: float, delta: float) -> list[float]:
    """Return the largest AUC, true-positive rates and accuracy under (epsilon, delta)-DP.

    The optimal mechanism shows its bit with probability delta, and otherwise a randomised response. For its AUC, one
    pair of a member and a non-member is in the right order if either is shown.
    """
    right, flipped = float(special.expit(epsilon)), float(special.expit(-epsilon))
    rates = [
        min(1.0, delta + np.exp(epsilon) * rate, 1 - np.exp(-epsilon) * (1 - delta - rate))
        for rate in FALSE_POSITIVE_RATES
    ]
    return [1 - (1 - delta) ** 2 * flipped, *rates, right + delta * flipped]


def _median(replicates: Sequence[Measure], confidence: float) -> Measure:
    first = replicates[0]
    if len(replicates) == 1:
        return first
    lower, upper = (np.array([getattr(measure, end) for measure in replicates]) for end in ("lower", "upper"))
    value = float(np.median([measure.value for measure in replicates]))
    ends = float(median_rule(lower)), -float(median_rule(-upper))
    method = f"{first.method}; median of {len(replicates)} replays"
    return Measure(first.name, value, min(ends[0], value), max(ends[1], value), confidence, method)


def roc(scores: Scores) -> Series:
    """Return the rates of thresholds at the scores, as columns of the figure `trade-off`: the ROC curve.

    Of many scores, at most `MAX_DRAWN` thresholds are kept, dense among the highest.
    """
    descending = np.argsort(-scores.score, kind="stable")
    last_of_ties = np.append(np.diff(scores.score[descending]) != 0, True)
    hits, alarms = np.cumsum(scores.truth[descending]), np.cumsum(~scores.truth[descending])
    places = np.flatnonzero(last_of_ties)
    if places.size > MAX_DRAWN:
        places = places[np.unique(np.rint(np.geomspace(1, places.size, MAX_DRAWN)).astype(np.int64)) - 1]
    members, non_members = int(hits[-1]), int(alarms[-1])
    return {
        "true_positive_rate": hits[places] / max(members, 1),
        "false_positive_rate": alarms[places] / max(non_members, 1),
        "members": members,
        "non_members": non_members,
    }


MAX_DRAWN = 500
"""Largest number of thresholds of a ROC curve."""


def pairs_above(members: Floats, others: Floats) -> float:
    """Return the number of pairs in which a member scores above a non-member, ties counting half; both ascending."""
    doubled = 0
    for first in range(0, members.size, PAIRED_AT_ONCE):
        some = members[first : first + PAIRED_AT_ONCE]
        doubled += int(np.searchsorted(others, some, "left").sum() + np.searchsorted(others, some, "right").sum())
    return doubled / 2


PAIRED_AT_ONCE = 1 << 20


def auc(members: Floats, others: Floats, *, confidence: float) -> Measure:
    """Return the probability that a member scores above a non-member, ties counting half; both ascending."""
    share = pairs_above(members, others) / (members.size * others.size)
    terms, log_error = min(members.size, others.size), np.log((1 - confidence) / 2)

    def excess(candidate: float) -> float:
        return float(special.kl_div(share, candidate) + special.kl_div(1 - share, 1 - candidate) + log_error / terms)

    return Measure(
        "AUC",
        share,
        _root(excess, 0.0, share) if share > 0 else 0.0,
        _root(excess, 1.0, share) if share < 1 else 1.0,
        confidence,
        "Hoeffding, finite-sample",
    )


def _root(excess: Callable[[float], float], end: float, share: float) -> float:
    """Return where the divergence from the share, decreasing from `end`, meets the limit; rounded outwards."""
    inwards = 1 if end == 0 else -1
    if excess(end + inwards * NEAREST) <= 0:
        return end
    return end + inwards * last_true(lambda step: excess(end + inwards * step) > 0, NEAREST, abs(share - end))


NEAREST = 1e-15  # distance to an end of the interval, where the divergence is infinite


def true_positive_rate(members: Floats, others: Floats, rate: float, *, confidence: float) -> Measure:
    """Return the largest true-positive rate of thresholds with false-positive rate <= `rate`; both ascending."""
    quarter = (1 - confidence) / 4
    n, descending = others.size, others[::-1]
    # The mass at or above the k-th largest of n non-members follows Beta(k, n - k + 1), ties broken at random; as k
    # grows, so does the probability of a mass above the rate.
    below = _first(lambda k: float(special.betaincc(k, n - k + 1.0, rate)) > quarter, n) - 1
    above = _first(lambda k: float(special.betainc(k, n - k + 1.0, rate)) <= quarter, n)
    lower, upper = 0.0, 1.0
    if below >= 1:
        hits = int(members.size - np.searchsorted(members, descending[below - 1], "right"))
        lower = float(clopper_pearson(hits, members.size, confidence=1 - quarter, side="lower").lower)
    if above <= n:
        hits = int(members.size - np.searchsorted(members, descending[above - 1], "left"))
        upper = float(clopper_pearson(hits, members.size, confidence=1 - quarter, side="upper").upper)
    threshold = descending[int(rate * others.size)]  # at most a share `rate` of the non-members is above it
    value = float((members.size - np.searchsorted(members, threshold, "right")) / members.size)
    ends = min(lower, value), max(upper, value)
    method = "order statistics and Clopper-Pearson, finite-sample"
    return Measure(f"TPR at {100 * rate:g} % FPR", value, *ends, confidence, method)


def _first(holds: Callable[[int], bool], n: int) -> int:
    """Return the first of 1, 2, ..., n at which a monotone condition holds; n + 1 if there is none."""
    return bisect.bisect_left(range(1, n + 1), True, key=holds) + 1


def accuracy(members: Floats, others: Floats, *, confidence: float, seed: int) -> Measure:
    """Return the accuracy of a threshold for equally likely members and others.

    Half of the rows choose the threshold, and the rates are counted on the other half.
    """
    rng = np.random.default_rng(seed)
    members, others = rng.permutation(members), rng.permutation(others)
    half = members.size // 2, others.size // 2
    threshold = _best_threshold(members[: half[0]], others[: half[1]])
    right = (
        (int(np.count_nonzero(members[half[0] :] >= threshold)), members.size - half[0]),
        (int(np.count_nonzero(others[half[1] :] < threshold)), others.size - half[1]),
    )
    limits = [clopper_pearson(hits, trials, confidence=(1 + confidence) / 2) for hits, trials in right]
    lower, upper = (float(np.mean([limit[end] for limit in limits])) for end in (0, 1))
    value = float(np.mean([hits / trials for hits, trials in right]))
    return Measure(
        "accuracy", value, lower, upper, confidence, "threshold from half the rows, Clopper-Pearson, finite-sample"
    )


def _best_threshold(members: Floats, others: Floats) -> float:
    """Return the score with the largest mean of both rates if it and all above are called members; 0 without rows."""
    if not members.size or not others.size:
        return 0.0
    members, others = np.sort(members), np.sort(others)
    best, threshold = -np.inf, 0.0
    for candidates in (members, others):
        for first in range(0, candidates.size, PAIRED_AT_ONCE):
            some = candidates[first : first + PAIRED_AT_ONCE]
            gain = (1 - np.searchsorted(members, some) / members.size) - (
                1 - np.searchsorted(others, some) / others.size
            )
            place = int(np.argmax(gain))
            if gain[place] > best or (gain[place] == best and some[place] < threshold):
                best, threshold = float(gain[place]), float(some[place])
    return threshold
