"""Exposure of planted secrets, and epsilon from the same ranks.

Each secret has its own slate of candidates: texts drawn from one law, independent of each other. A uniform draw chooses
one of them, which is planted in the training data. The others are never trained on. After training, all candidates are
scored, and the planted one has a rank among them.

* **Rank.** 1 + the number of other candidates that score at least as high, so ties count against the secret. Without
  any leak, Pr[rank <= k] <= k / N in a slate of N candidates, hence rank / N is an exact p-value. Ranks of different
  slates are then independent.
* **Exposure.** log2(N) - log2(rank) bits (Carlini et al. 2019). The other candidates are a sample of the law, however
  the training went. So the number that score at least as high is binomial given the model, and a Clopper-Pearson limit
  of its share limits the exposure among *all* texts of the law.
* **Epsilon.** Planting another candidate of the slate replaces one record. Under pure epsilon-DP for that replacement,
  the posterior odds of any two candidates, given the model and all other slates, are at most e^epsilon. So the k
  candidates that score highest contain the planted one with probability at most

      k e^epsilon / (k e^epsilon + N - k),

  that is, the log-odds exceed the prior ones, log(k / (N - k)), by at most epsilon. The other slates are arbitrary in
  this statement. So the numbers of right guesses, in any order of the secrets that is a function of the scores, are
  jointly dominated by a Bernoulli walk, as in `one_run.guess_band`. With N = 2 and k = 1 it is the fair coin between
  two candidates.
* **Adding or removing** a secret is half a replacement, so the log-odds exceed the prior ones by at most 2 epsilon for
  a claim of that kind. (`rare_canaries` has no such factor.)
* **Delta.** Let S be the event that a slate's turn comes with a posterior Q of the guess above p, the bound above, and
  lambda = p / (1 - p). Fix the other slates, and write P_j for the law of the output if candidate j is planted, S_j for
  S with j among the k guessed ones, S^i for S with i not among them. Then

      sum P_j(S_j) = N E[Q 1_S],    sum P_i(S^i) = N E[(1 - Q) 1_S].

  Add/remove: with P_0 for the law if none is planted, P_j(S_j) <= e^epsilon P_0(S_j) + delta, P_0(S^i) <= e^epsilon
  P_i(S^i) + delta, and these events sum to k P_0(S) and (N - k) P_0(S). Hence, with c = k / (N - k),
  E[Q 1_S] <= lambda E[(1 - Q) 1_S] + delta (1 + c e^epsilon).
  Replace: the sum of dP_j over guessed j, minus lambda times that over the others, is the sum of (dP_j - e^epsilon
  dP_i) / (N - k) over pairs. Each positive part integrates to at most delta, so the last term is delta (N - 1) / (N -
  k). Either way E[(Q - p) 1_S] <= that term / (1 + lambda). So right guesses exceed the walk's by a count whose mean is
  at most this, summed over secrets; Markov's inequality bounds it (`by_markov`).

Source: Carlini et al. (2019), "The Secret Sharer", arXiv:1802.08232, for exposure; the bounds are ours, after Steinke
    et al. (2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr

from dpaudit.errors import require
from dpaudit.estimators.arguments import (
    Floats,
    Interval,
    Ints,
    as_confidence,
    as_reals,
    require_levels,
    require_one_of,
    successes_of_trials,
    unboxed,
)
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import RANKS, CountEstimator, Table, count_columns, number_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.measures import Measure
from dpaudit.estimators.one_run.delta_allowances import by_markov
from dpaudit.estimators.one_run.guess_band import FEW_LOOKS, guess_band_epsilon, guess_band_p_value, guess_looks
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.registry import register

MISSED_ALONE = 0.05
"""Error of each secret's own limit, from which the limits of the median exposure are made."""
SecretRelation: TypeAlias = Literal["add-remove", "replace"]
STEPS: Mapping[SecretRelation, int] = {"add-remove": 2, "replace": 1}
"""Neighbouring steps between a training with one candidate of a slate and one with another."""
SMALLEST_P_VALUE = 1e-12
"""P-value below which the recursion's rounding is larger than the probability."""


def exposure_bits(rank: ArrayLike, candidates: ArrayLike) -> float | Floats:
    """Return the exposure log2(candidates) - log2(rank) in bits, >= 0.

    Args:
        rank: Rank of the planted candidate, 1 = highest score; `candidates` if it scores lowest.
        candidates: Number of candidates, the planted one included, >= 2.
    """
    ranks, counts = _checked_ranks(rank, candidates)
    return unboxed(np.log2(counts) - np.log2(ranks))


def exposure_interval(rank: ArrayLike, candidates: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Return an interval in bits for the exposure among all texts of the candidates' law; exact, given the model.

    That exposure is -log2 of the probability that a fresh text scores at least as high as the secret. Its upper end is
    infinite at rank 1, because no candidate scored as high.

    Args:
        rank, candidates: As for `exposure_bits`.
        confidence: Two-sided confidence for each secret on its own, in (0, 1).
    """
    ranks, counts = _checked_ranks(rank, candidates)
    share = clopper_pearson(ranks - 1, counts - 1, confidence=as_confidence(confidence))
    with np.errstate(divide="ignore"):
        lower, upper = -np.log2(share.upper), -np.log2(share.lower)
    return Interval(unboxed(np.maximum(lower, 0.0)), unboxed(np.maximum(upper, 0.0)))


def median_exposure_interval(rank: Ints, candidates: Ints, *, confidence: float) -> tuple[float, float]:
    """Return an interval in bits for the median, over these secrets, of the exposure among all texts of the law.

    Each secret's limit misses with probability `MISSED_ALONE`. Given the model, slates are independent, so at most b of
    the limits miss, up to the tail of a binomial law. Then the median is at most b places off in their order.
    """
    error = (1 - confidence) / 2
    misses = np.arange(rank.size + 1)
    allowed = int(misses[bdtr(misses, rank.size, MISSED_ALONE) >= 1 - error][0])
    alone = exposure_interval(rank, candidates, confidence=1 - 2 * MISSED_ALONE)
    lower, upper = np.sort(np.atleast_1d(alone.lower)), np.sort(np.atleast_1d(alone.upper))
    low, high = (rank.size - 1) // 2 - allowed, rank.size // 2 + allowed
    return float(lower[low]) if low >= 0 else 0.0, float(upper[high]) if high < rank.size else math.inf


@dataclass(frozen=True, eq=False)
class SecretRanks:
    """Ranks of planted secrets, each in a slate of its own.

    Attributes:
        rank: Rank of each planted candidate, 1 = highest score, shape (secrets,). Equal scores count against it.
        candidates: Number of candidates in each slate, the planted one included, >= 2, shape (secrets,).
        margin: Confidence of each guess, larger first, shape (secrets,): a function of the slate's scores alone, never
            of which candidate is planted. Empty if unknown; then all secrets are guessed at once.
    """

    rank: Ints
    candidates: Ints
    margin: Floats

    def __post_init__(self) -> None:
        _checked_ranks(self.rank, self.candidates)
        require(
            self.margin.size == 0 or self.margin.shape == self.rank.shape,
            "margin must have one number a secret, or none",
            margin=self.margin.shape,
            secrets=self.rank.shape,
        )

    def right_guesses(self, top: int) -> tuple[Ints, Ints]:
        """Return right guesses and numbers of guesses at each look, both of shape (looks,).

        A guess is right if the rank is at most `top`. Among equal margins wrong guesses come first, so that the order
        of the rows tells nothing.
        """
        right = self.rank <= top
        if self.margin.size == 0:
            return np.array([np.count_nonzero(right)]), np.array([right.size])
        guess_counts = guess_looks(right.size)
        order = np.lexsort((right, -self.margin))
        return np.cumsum(right[order], dtype=np.int64)[guess_counts - 1], guess_counts


def rank_slates(scores: ArrayLike, planted: ArrayLike) -> SecretRanks:
    """Return the ranks of the planted candidates and the leads of the highest scores.

    Args:
        scores: Score of each candidate of each slate, shape (secrets, candidates); larger = more likely planted. Not
            NaN. Subtract the base model's losses first, so that leads are comparable between slates.
        planted: Index of the planted candidate in each slate, integers in [0, candidates), shape (secrets,).
    """
    values, index = as_reals("scores", scores), np.asarray(planted)
    require(
        values.ndim == 2 and values.shape[1] >= 2,
        "scores must have one row a secret and one column a candidate, at least two",
        shape=values.shape,
    )
    require(not np.isnan(values).any(), "scores must not be NaN", do="score a failed candidate as -inf")
    require(
        index.shape == values.shape[:1]
        and index.dtype.kind in "iu"
        and bool(np.all((index >= 0) & (index < values.shape[1]))),
        "planted must be the index of one candidate in each row",
        planted=index,
    )
    planted_score = np.take_along_axis(values, index[:, None], axis=1)
    rank = np.count_nonzero(values >= planted_score, axis=1).astype(np.int64)  # counts itself, and ties against it
    highest = np.partition(values, -2, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        margin = np.where(highest[:, 1] == highest[:, 0], 0.0, highest[:, 1] - highest[:, 0])
    return SecretRanks(rank, np.full(rank.size, values.shape[1], np.int64), margin)


def prior_log_odds(candidates: Ints, top: int) -> float:
    """Return log(k / (N - k)) for the smallest slate; larger ones have smaller odds, which is safe."""
    smallest = int(candidates.min())
    require(1 <= top < smallest, "top must be in [1, candidates)", top=top, candidates=smallest)
    return math.log(top / (smallest - top))


@dataclass(frozen=True)
class SlateAllowance:
    """Right guesses that delta may add, as a function of the walk's log-odds above the prior ones."""

    secrets: int
    candidates: int  # of the smallest slate
    top: int
    delta: float
    steps: int  # neighbouring steps of a replacement: 2 for adding or removing, 1 for replacing

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        """Return the allowance of `by_markov` if the walk's log-odds exceed the prior ones by `epsilon`."""
        return by_markov(self.expected(epsilon), significance)

    def expected(self, log_odds: float) -> float:
        """Return a bound on the expected right guesses that delta adds at `log_odds` above the prior ones."""
        prior_odds = self.top / (self.candidates - self.top)
        by_replacing = (self.candidates - 1) / (self.candidates - self.top)
        term = by_replacing if self.steps == 1 else 1 + prior_odds * math.exp(log_odds / 2)
        return self.secrets * self.delta * term / (1 + prior_odds * math.exp(log_odds))


def rank_epsilon(
    ranks: SecretRanks, *, delta: float, confidence: float, top: int = 1, relation: SecretRelation = "add-remove"
) -> float:
    """Return a lower bound on epsilon from the ranks of one training.

    Args:
        ranks: Ranks of the planted secrets.
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Smallest probability with which the bound is below the truth, in (0, 1).
        top: Number k of candidates in each guess, fixed beforehand.
        relation: Neighbouring step of the bound: a secret is added or removed, or replaced.
    Returns: Epsilon in nats, >= 0, rounded down.
    """
    prior = prior_log_odds(ranks.candidates, top)
    right, guess_counts = ranks.right_guesses(top)
    steps = STEPS[relation]
    log_odds = guess_band_epsilon(
        right,
        guess_counts,
        significance=1 - confidence,
        delta_allowance=SlateAllowance(ranks.rank.size, int(ranks.candidates.min()), top, delta, steps),
        in_numpy=guess_counts.size <= FEW_LOOKS,
        prior_log_odds=prior,
    )
    return log_odds / steps


def nothing_learned_p_value(ranks: SecretRanks, *, top: int = 1) -> float:
    """Return the p-value, over all secrets at once, of a training that learned nothing about any of them."""
    return guess_band_p_value(prior_log_odds(ranks.candidates, top), *ranks.right_guesses(top))


@dataclass(frozen=True)
class ExposureBound(Bound):
    """Bound on epsilon from ranks, with the exposure of the same secrets.

    Attributes:
        measures: Median exposure with its interval.
        maximum: Bound if every secret had the highest score.
    """

    measures: tuple[Measure, ...] = ()
    maximum: Bound | None = None


@register("estimator", "exposure", source="Carlini et al. (2019), arXiv:1802.08232; the bound on epsilon is ours")
@dataclass(frozen=True)
class Exposure(CountEstimator):
    """Ranks of planted secrets among candidates that were never planted: exposure, and epsilon from the same ranks.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of each interval, in (0, 1).
        top: Number of candidates in each guess: a guess is right if the rank is at most `top`. Fix it beforehand.
        relation: Neighbouring step of the bound: a secret is added or removed, or replaced.
    """

    columns: ClassVar[tuple[str, ...]] = RANKS
    optional_columns: ClassVar[tuple[str, ...]] = ("margin",)

    delta: float = 0.0
    confidence: float = 0.95
    top: int = 1
    relation: SecretRelation = "add-remove"

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        require(self.top >= 1, "top must be >= 1", top=self.top)
        require_one_of("relation", self.relation, STEPS)

    def read(self, table: Table) -> Sequence[ExposureBound]:
        """Return one bound for all rows; each row is a secret of one training."""
        counts = count_columns(table, RANKS)
        margin = number_columns(table, ("margin",))["margin"] if "margin" in table else np.empty(0)
        return [self.bound(SecretRanks(counts["rank"], counts["candidates"], margin))]

    def bound(self, ranks: SecretRanks) -> ExposureBound:
        """Return the bound with exposures and the bound for perfect ranks."""
        perfect = SecretRanks(np.ones_like(ranks.rank), ranks.candidates, ranks.margin)
        median = float(np.median(exposure_bits(ranks.rank, ranks.candidates)))
        lower, upper = median_exposure_interval(ranks.rank, ranks.candidates, confidence=self.confidence)
        most = math.log2(float(ranks.candidates.max()))
        method = f"bits, at most {most:.2f} measurable; these secrets among all texts of the law"
        ends = min(lower, median), max(upper, median)
        measure = Measure("median exposure", median, *ends, self.confidence, method)
        return ExposureBound(**self._fields(ranks), measures=(measure,), maximum=Bound(**self._fields(perfect)))

    def _fields(self, ranks: SecretRanks) -> dict[str, Any]:
        secrets, smallest = ranks.rank.size, int(ranks.candidates.min())
        counts = (
            ("secrets", secrets),
            ("candidates", smallest),
            (f"secrets of rank at most {self.top}", int(np.count_nonzero(ranks.rank <= self.top))),
        )
        return {
            "lower": rank_epsilon(
                ranks, delta=self.delta, confidence=self.confidence, top=self.top, relation=self.relation
            ),
            "delta": self.delta,
            "confidence": self.confidence,
            "method": "exposure",
            "selection": "all secrets at once" if ranks.margin.size == 0 else "all numbers of guesses at once",
            "validity": Validity.FINITE_SAMPLE,
            "counts": counts,
            "notes": self._notes(ranks),
        }

    def _notes(self, ranks: SecretRanks) -> tuple[str, ...]:
        p_value = nothing_learned_p_value(ranks, top=self.top)
        printed = f"p = {p_value:.2g}" if p_value > SMALLEST_P_VALUE else f"p < {SMALLEST_P_VALUE:g}"
        sizes = (
            ()
            if ranks.candidates.min() == ranks.candidates.max()
            else ("slates differ in size: the bound on epsilon counts each as if it had the fewest candidates",)
        )
        return (
            f"{printed} for a training that learned nothing about the secrets",
            "assumes that each secret was drawn uniformly from candidates of its own, which no other secret shares",
            *sizes,
        )


def _checked_ranks(rank: ArrayLike, candidates: ArrayLike) -> tuple[Ints, Ints]:
    """Return ranks and numbers of candidates with 1 <= rank <= candidates and candidates >= 2."""
    ranks, counts = successes_of_trials(rank, candidates, names=("rank", "candidates"), fewest=2)
    require(bool(np.all(ranks >= 1)), "rank must be >= 1, 1 for the highest score", rank=ranks)
    return ranks, counts
