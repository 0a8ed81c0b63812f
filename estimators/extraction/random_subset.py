"""Epsilon from one training whose members are a random subset of fixed size, all scored against the same references.

The usual way to measure exposure plants m texts and keeps r more of one law as references that all m share. Given
which m + r texts there are, the planted ones are a uniform subset T of size m. Ranks of different secrets among shared
references are dependent, so they cannot be combined as if they were independent trials. Their number among the highest
scores can:

Replacing a planted text by a reference is one neighbouring step, or two if a step adds or removes one text; then the
bound is halved. Under pure epsilon-DP for a replacement, the posterior of T given the model changes by a factor of at
most e^epsilon between subsets that differ in one swap. Let X be the number of planted texts among the k that score
highest. Every T with X = x + 1 has (x + 1) (r - k + x + 1) swaps to subsets with X = x, and every one of those has
(k - x) (m - x) swaps back. Summing the inequality over all such pairs,

    Pr[X = x + 1] / Pr[X = x] <= e^epsilon (k - x) (m - x) / ((x + 1) (r - k + x + 1)),

the ratio of Fisher's noncentral hypergeometric law with odds ratio e^epsilon. So that law dominates X for every model,
and it is attained, by a posterior proportional to e^(epsilon X). Its upper tail is an exact p-value: at epsilon = 0 it
is Fisher's exact test, and the bound is the lower confidence limit of the logarithm of an odds ratio. k may depend on
the scores, since the statement holds given the model. Several k share the error.

At delta > 0 nothing is proved here; draw members by coins (`rare-canaries`) or from slates of their own (`exposure`).

Source: Ours; Fisher (1935) for the law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, require_one_of
from dpaudit.estimators.bisection import last_true_from
from dpaudit.estimators.extraction.exposure import STEPS, SecretRelation
from dpaudit.estimators.extraction.highest_scores import HighestScores, HighestTally
from dpaudit.estimators.scores import Scores
from dpaudit.registry import register

LARGEST_EPSILON = 60.0
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Numbers of guesses, as shares of the members; each has an equal share of the error."""
SEARCH_TOLERANCE = 1e-6  # width, relative to 1 + epsilon, at which the search for a root stops
ROUNDING = 1e-9
"""Relative amount by which a tail is rounded up: its terms are sums of logarithms of factorials."""


def noncentral_tail(hits: int, guesses: int, members: int, others: int, *, epsilon: float) -> float:
    """Return Pr[X >= hits] for Fisher's noncentral hypergeometric law with odds ratio e^epsilon, rounded up.

    Args:
        hits: Members among the guesses.
        guesses: Number of guesses k, 0 <= k <= members + others.
        members: Number of members m.
        others: Number of the other canaries r.
        epsilon: Logarithm of the odds ratio, >= 0.
    """
    lowest, highest = max(0, guesses - others), min(guesses, members)
    if hits <= lowest:
        return 1.0
    if hits > highest:
        return 0.0
    logs = _log_ways(guesses, members, others) + epsilon * np.arange(lowest, highest + 1)
    weights = np.exp(logs - logs.max())
    tail = float(weights[hits - lowest :].sum() / weights.sum())
    return min(1.0, tail * (1 + ROUNDING))


@lru_cache(maxsize=256)
def _log_ways(guesses: int, members: int, others: int) -> Floats:
    """Return the logarithms of C(m, x) C(r, k - x), up to a constant, for all possible x."""
    x = np.arange(max(0, guesses - others), min(guesses, members) + 1)
    ways: Floats = -(
        gammaln(x + 1) + gammaln(members - x + 1) + gammaln(guesses - x + 1) + gammaln(others - guesses + x + 1)
    )
    return np.asarray(ways - ways.max(), np.float64)


def random_subset_epsilon(hits: int, guesses: int, *, members: int, others: int, confidence: float) -> float:
    """Return a lower bound on epsilon for replacing a member, from the members among the highest scores.

    Args:
        hits, guesses, members, others: As for `noncentral_tail`.
        confidence: Smallest probability with which the bound is below the truth, in (0, 1).
    Returns: Epsilon in nats, in [0, 60], rounded down.
    Raises: InputError for counts out of range.
    """
    require(members >= 1 and others >= 1, "there must be members and others", members=members, others=others)
    require(0 <= guesses <= members + others, "guesses must be at most all canaries", guesses=guesses)
    require(0 <= hits <= min(guesses, members), "hits must be <= guesses and <= members", hits=hits, guesses=guesses)
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)

    def rejected(epsilon: float) -> bool:
        return noncentral_tail(hits, guesses, members, others, epsilon=epsilon) <= 1 - confidence

    reached = last_true_from(rejected, largest=LARGEST_EPSILON, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE)
    return min(reached, LARGEST_EPSILON)


@register("estimator", "random-subset", source="Ours: Fisher's noncentral hypergeometric law dominates")
@dataclass(frozen=True)
class RandomSubset(HighestScores):
    """Scores of one training whose members are a random subset of fixed size: Fisher's exact odds ratio; delta = 0.

    Attributes:
        delta: 0; nothing is proved above.
        confidence: Stated confidence of the bound, in (0, 1).
        relation: Neighbouring step of the bound: a canary is added or removed, or replaced.
    """

    delta: float = 0.0
    confidence: float = 0.95
    relation: SecretRelation = "add-remove"

    def __post_init__(self) -> None:
        require(
            self.delta == 0,
            "delta must be 0 for members of a fixed number",
            do="draw members by coins and use rare-canaries, or each from candidates of its own and use exposure",
            delta=self.delta,
        )
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        require_one_of("relation", self.relation, STEPS)

    def tally(self, scores: Scores) -> HighestTally:
        """Count the members among the highest scores.

        Raises: InputError for scores of members or of non-members alone.
        """
        members, others = int(scores.truth.sum()), int((~scores.truth).sum())
        require(members >= 1 and others >= 1, "there must be members and others", members=members, others=others)
        guess_counts = np.unique(np.maximum(1, np.rint(members * np.array(FRACTIONS)).astype(np.int64)))
        return HighestTally.of(scores, guess_counts)

    def epsilon(self, tally: HighestTally, *, confidence: float, few: bool) -> float:
        share = (1 - confidence) / tally.guess_counts.size
        replacing = max(
            random_subset_epsilon(hits, guesses, members=tally.members, others=tally.others, confidence=1 - share)
            for hits, guesses in zip(tally.right.tolist(), tally.guess_counts.tolist(), strict=True)
        )
        return replacing / STEPS[self.relation]

    def selection(self) -> str:
        return "several numbers of guesses, which share the error"

    def assumption(self) -> str:
        return "assumes that the members are a uniformly drawn subset of the canaries, of a fixed size"
