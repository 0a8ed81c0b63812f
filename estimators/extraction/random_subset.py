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

At delta > 0 the inequality gains a term: with f for Fisher's law, a(x) = x (r - k + x) and b(x) = (k - x) (m - x),

    a(x + 1) Pr[X = x + 1] <= e^epsilon b(x) Pr[X = x] + e(x).

Fix the output. Each swap adds at most the positive part of a density minus e^epsilon times the other, which integrates
to at most delta, and every subset has m r swaps. So the sum of all e(x) is at most m r delta. For adding or removing a
text, go through the subsets of size m - 1: then e(x) = (r - k + x + 1) e1(x) + e^epsilon (k - x) e2(x), where e1 and e2
each sum to at most m delta, and the odds ratio is e^(2 epsilon). The ratio Pr[X = x] / f(x) is therefore a
non-increasing function plus steps up of e(x) / (a(x + 1) f(x + 1)) at x + 1. The tail at c of the non-increasing part
is at most its mass times f's tail (Chebyshev's association inequality). So a step at x + 1 adds at most its height
times f[X >= c] f[X <= x] to the tail if x + 1 <= c, else its height times f[X >= x + 1] f[X < c]. Delta costs the
largest such gain, summed over e1 and e2. Here k must not depend on the scores; it is a share of m.

Source: Ours; Fisher (1935) for the law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, require_levels, require_one_of
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.extraction.exposure import STEPS, SecretRelation
from dpaudit.estimators.extraction.rare_canaries import HighestScores, HighestTally
from dpaudit.estimators.scores import Scores
from dpaudit.registry import register

LARGEST_EPSILON = 60.0
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Numbers of guesses, as shares of the members; each has an equal share of the error."""
FIRST_STEP = 0.01  # of the search from the bound at delta = 0, in nats
SEARCH_TOLERANCE = 1e-6  # width, relative to 1 + epsilon, at which the search for a root stops
ROUNDING, ROUNDING_OF_FACTORIALS = 1e-9, 1e-14
"""Relative amount by which a tail is rounded up; the second is multiplied by the logarithm of the largest factorial."""


def random_subset_p_value(
    hits: int,
    guesses: int,
    *,
    members: int,
    others: int,
    epsilon: float,
    delta: float = 0.0,
    relation: SecretRelation = "add-remove",
) -> float:
    """Return a p-value of (epsilon, delta)-DP against so many members among the highest scores; rounded up.

    At epsilon = delta = 0 it is that of Fisher's exact test.

    Args:
        hits: Members among the guesses, 0 <= hits <= min(guesses, members).
        guesses: Number of guesses k, 0 <= guesses <= members + others; at delta > 0 fixed beforehand.
        members: Number of members m, >= 1.
        others: Number of the other canaries r, >= 1.
        epsilon: The hypothesis, in nats, >= 0.
        delta: Delta of the hypothesis, in [0, 1).
        relation: Neighbouring step of the hypothesis.
    Raises: InputError for counts out of range.
    """
    require(members >= 1 and others >= 1, "there must be members and others", members=members, others=others)
    require(0 <= guesses <= members + others, "guesses must be at most all canaries", guesses=guesses)
    require(0 <= hits <= min(guesses, members), "hits must be <= guesses and <= members", hits=hits, guesses=guesses)
    lowest = max(0, guesses - others)
    if hits <= lowest:
        return 1.0
    logs = _log_ways(guesses, members, others)
    logs = logs + STEPS[relation] * epsilon * np.arange(logs.size)
    law = np.exp(logs - logs.max())
    law /= law.sum()
    tail = float(law[hits - lowest :].sum())
    if delta > 0:
        swaps_back = others - guesses + np.arange(lowest + 1.0, lowest + law.size)
        removing, adding, replacing = _gains(logs, hits - lowest, lowest, guesses, swaps_back)
        if relation == "replace":
            tail += members * others * delta * replacing
        else:
            tail += members * delta * (removing + math.exp(epsilon) * adding)
    return min(1.0, tail * (1 + ROUNDING + ROUNDING_OF_FACTORIALS * float(gammaln(members + others + 2))))


def _gains(logs: Floats, place: int, lowest: int, guesses: int, swaps_back: Floats) -> tuple[float, float, float]:
    """Return the largest gains of the tail from a step up of Pr[X = x] / f(x), for the three kinds of steps.

    Args:
        logs: Logarithm of Fisher's law f, up to a constant, from `lowest` on.
        place: Index of the tail's first number of hits.
        lowest: Smallest possible number of hits.
        guesses: Number of guesses.
        swaps_back: r - k + x + 1 for each step from x to x + 1.
    Returns: For e1, e2 and e of the module's docstring, each for a sum of 1.
    """
    law = np.exp(logs - logs.max())
    law /= law.sum()
    tail, below = float(law[place:].sum()), float(law[:place].sum())
    # Tails of f divided by f(x + 1), in logarithms because f may be too small for a float.
    below_in_steps = np.logaddexp.accumulate(logs)[:-1] - logs[1:]
    above_in_steps = np.logaddexp.accumulate(logs[::-1])[::-1][1:] - logs[1:]
    index = np.arange(law.size - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        gain = np.where(index + 1 <= place, tail * np.exp(below_in_steps), below * np.exp(above_in_steps))
    gain = np.where(np.isfinite(gain), gain, np.inf)  # only far from the bound, where the tail is too small for a float
    x = lowest + index
    removing, adding = np.max(gain / (x + 1)), np.max(gain * (guesses - x) / ((x + 1) * swaps_back))
    return float(removing), float(adding), float(np.max(gain / ((x + 1) * swaps_back)))


@lru_cache(maxsize=256)
def _log_ways(guesses: int, members: int, others: int) -> Floats:
    """Return the logarithms of C(m, x) C(r, k - x), up to a constant, for all possible x."""
    x = np.arange(max(0, guesses - others), min(guesses, members) + 1)
    ways: Floats = -(
        gammaln(x + 1) + gammaln(members - x + 1) + gammaln(guesses - x + 1) + gammaln(others - guesses + x + 1)
    )
    return np.asarray(ways - ways.max(), np.float64)


def random_subset_epsilon(
    hits: int,
    guesses: int,
    *,
    members: int,
    others: int,
    confidence: float,
    delta: float = 0.0,
    relation: SecretRelation = "add-remove",
) -> float:
    """Return a lower bound on epsilon from the members among the highest scores.

    A rejected epsilon rejects all smaller ones, because (epsilon, delta)-DP implies it for larger epsilons.

    Args:
        hits, guesses, members, others, delta, relation: As for `random_subset_p_value`.
        confidence: Smallest probability with which the bound is below the truth, in (0, 1).
    Returns: Epsilon in nats, in [0, 60], rounded down.
    Raises: InputError for counts out of range.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)

    def rejected(epsilon: float, at_delta: float = delta) -> bool:
        p_value = random_subset_p_value(
            hits, guesses, members=members, others=others, epsilon=epsilon, delta=at_delta, relation=relation
        )
        return p_value <= 1 - confidence

    tolerance = {"absolute": SEARCH_TOLERANCE, "relative": SEARCH_TOLERANCE}
    pure = last_true_from(lambda epsilon: rejected(epsilon, 0.0), largest=LARGEST_EPSILON, **tolerance)
    pure = min(pure, LARGEST_EPSILON)
    if delta == 0 or pure == 0 or rejected(pure):
        return pure
    # From above, because the cost of delta need not increase with epsilon.
    high, step = pure, FIRST_STEP
    while not rejected(low := max(pure - step, 0.0)):
        if low == 0:
            return 0.0
        high, step = low, 2 * step
    return last_true(rejected, low, high, **tolerance)


@register("estimator", "random-subset", source="Ours: Fisher's noncentral hypergeometric law dominates")
@dataclass(frozen=True)
class RandomSubset(HighestScores):
    """Scores of one training whose members are a random subset of fixed size: limits of an odds ratio.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound, in (0, 1).
        relation: Neighbouring step of the bound: a canary is added or removed, or replaced.
    """

    selection = "several numbers of guesses, which share the error"

    delta: float = 0.0
    confidence: float = 0.95
    relation: SecretRelation = "add-remove"

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        require_one_of("relation", self.relation, STEPS)

    def tally(self, scores: Scores) -> HighestTally:
        """Count the members among the highest scores.

        Raises: InputError for scores of members or of non-members alone.
        """
        members, others = int(scores.truth.sum()), int((~scores.truth).sum())
        require(members >= 1 and others >= 1, "there must be members and others", members=members, others=others)
        guess_counts = np.unique(np.maximum(1, np.rint(members * np.array(FRACTIONS)).astype(np.int64)))
        return HighestTally.of(scores, guess_counts)

    def candidates_sharing(self, tally: HighestTally) -> int:
        return tally.guess_counts.size

    def lower(self, tally: HighestTally, error: float) -> Floats:
        """Return the limit of the odds ratio at each number of guesses."""
        counts = zip(tally.right.tolist(), tally.guess_counts.tolist(), strict=True)
        about = {"members": tally.members, "others": tally.others}
        return np.array(
            [
                random_subset_epsilon(
                    hits, guesses, **about, confidence=1 - error, delta=self.delta, relation=self.relation
                )
                for hits, guesses in counts
            ]
        )

    @property
    def assumption(self) -> str:
        return "assumes that the members are a uniformly drawn subset of the canaries, of a fixed size"
