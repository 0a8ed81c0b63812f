"""Tables of guesses in one run: how surprising they are under a stated epsilon, and one bound from several replays.

Two more rules hold under any dependence of the replays, besides the median: twice the mean p-value (Vovk and Wang,
2020, Biometrika 107, 791), and the mean of e-values (Vovk and Wang, 2021, Annals of Statistics 49, 1736).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, common_shape, require_one_of, successes_of_trials
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import GUESSES, Column, CountEstimator, Table, TextTable, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.f_dp import f_dp_p_value
from dpaudit.estimators.one_run.guesses import Method, one_run_epsilon, one_run_p_value
from dpaudit.estimators.replays import median_rule, per_replay_confidence, replay_note
from dpaudit.registry import register

Rule = Literal["median", "twice-mean-p", "mean-e-value"]
SEARCH_TOLERANCE = 1e-9  # width, relative to 1 + epsilon, at which a search stops; the lower end is reported
LARGEST_EPSILON = 1e4  # combined bounds end here: no count an array can hold proves more


@register("estimator", "one-run-p-value", source="Kalemaj et al., Theorems 16 and 17 and Algorithm 3")
@dataclass(frozen=True)
class OneRunPValue(CountEstimator):
    """Counts of one training run: p-values of the hypothesis that the mechanism is (epsilon, delta)-private.

    Attributes:
        epsilon: The hypothesis, in nats, finite and >= 0; with a family its parameter.
        delta: In [0, 1).
        method: "auto", "binomial", "theorem-16" or "f-dp".
        likelihood_ratio: Pointwise ratio >= 1 of the two laws of a canary; "binomial" only, at delta = 0.
        family: "gaussian" or "laplace" for the hypothesis that the mechanism lies in that family; None for neither.
        tau: Total variation of the shift (Theorem 10), for a family only; in [0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = GUESSES

    epsilon: float
    delta: float = 0.0
    method: Method = "auto"
    likelihood_ratio: float = 1.0
    family: Literal["gaussian", "laplace"] | None = None
    tau: float = 0.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.epsilon) and self.epsilon >= 0, "epsilon must be >= 0", epsilon=self.epsilon)
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require_one_of("method", self.method, get_args(Method))
        require(self.likelihood_ratio >= 1, "likelihood_ratio must be >= 1", likelihood_ratio=self.likelihood_ratio)
        require(0 <= self.tau < 1, "tau must be in [0, 1)", tau=self.tau)
        require(not self.tau or self.family is not None, "tau needs a family", do="name one", tau=self.tau)

    def read(self, table: Table) -> Sequence[TextTable]:
        guesses, correct, canaries = count_columns(table, GUESSES).values()
        values: object
        if self.family is None:
            named = f"epsilon {self.epsilon:g} at delta={self.delta:g} ({self.method})"
            values = one_run_p_value(
                guesses,
                correct,
                epsilon=self.epsilon,
                canaries=canaries,
                delta=self.delta,
                method=self.method,
                likelihood_ratio=self.likelihood_ratio,
            )
        else:
            named = f"{self.family} parameter {self.epsilon:g}"
            values = f_dp_p_value(
                guesses, correct, canaries=canaries, parameter=self.epsilon, family=self.family, tau=self.tau
            )
        shown = [tuple(str(count) for count in column) for column in (guesses, correct, canaries)]
        columns = [Column(name, column) for name, column in zip(GUESSES, shown, strict=True)]
        p_values = Column("p-value", tuple(np.asarray(values).tolist()))
        return [TextTable(f"p-values of {named}, each row by itself", (*columns, p_values))]


@register("estimator", "one-run-replays", source="Rueger (1978); Vovk and Wang (2020, 2021)")
@dataclass(frozen=True)
class OneRunReplays(CountEstimator):
    """Counts of one training run, one replay of the game a row, combined into one bound under any dependence.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1); 0 for the rule mean-e-value.
        confidence: Of the combined bound, in (0, 1).
        rule: "median", "twice-mean-p" or "mean-e-value".
        alternative: For mean-e-value: accuracies in (1/2, 1) expected before the replays were seen, mixed equally.
    """

    columns: ClassVar[tuple[str, ...]] = GUESSES

    delta: float = 0.0
    confidence: float = 0.95
    rule: Rule = "median"
    alternative: tuple[float, ...] = (0.6, 0.75, 0.9, 0.99)

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        require_one_of("rule", self.rule, get_args(Rule))
        require(
            self.rule != "mean-e-value" or self.delta == 0,
            "the mean of e-values holds at delta = 0 only",
            do="use the median",
            delta=self.delta,
        )
        inside = len(self.alternative) > 0 and all(0.5 < q < 1 for q in self.alternative)
        require(inside, "alternative must be accuracies in (1/2, 1)", alternative=self.alternative)

    def read(self, table: Table) -> Sequence[Bound]:
        guesses, correct, canaries = count_columns(table, GUESSES).values()
        alone = one_run_epsilon(guesses, correct, canaries=canaries, delta=self.delta, confidence=self.confidence)
        return [
            Bound(
                lower=self._combined(guesses, correct, canaries),
                delta=self.delta,
                confidence=self.confidence,
                method=f"one-run-replays ({self.rule})",
                validity=Validity.FINITE_SAMPLE,
                counts=(("replays", guesses.size),),
                notes=replay_note(np.asarray(alone), self.confidence, published=True),
            )
        ]

    def _combined(self, guesses: Ints, correct: Ints, canaries: Ints) -> float:
        if self.rule == "mean-e-value":
            return mean_e_value(guesses, correct, confidence=self.confidence, alternative=self.alternative)
        if self.rule == "twice-mean-p":
            return twice_mean_p(
                lambda epsilon: one_run_p_value(guesses, correct, epsilon=epsilon, canaries=canaries, delta=self.delta),
                confidence=self.confidence,
            )
        each = one_run_epsilon(
            guesses, correct, canaries=canaries, delta=self.delta, confidence=per_replay_confidence(self.confidence)
        )
        return float(median_rule(np.asarray(each)))


def twice_mean_p(p_values: Callable[[float], ArrayLike], *, confidence: float) -> float:
    """The largest epsilon at which twice the mean p-value is below 1 - confidence.

    Args:
        p_values: epsilon >= 0 -> the p-value of each replay, shape (replays,), none falling as epsilon grows:
            `lambda epsilon: one_run_p_value(guesses, correct, epsilon=epsilon, ...)`.
        confidence: Of the combined bound, in (0, 1).
    Returns: Epsilon in nats, >= 0, within 1e-9 (1 + epsilon) and never above; 0 where the replays show nothing.
    Raises: InputError for p-values outside [0, 1], none, or a confidence out of range.
    Source: Vovk and Wang (2020): twice the mean of p-values is a p-value.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)

    def rejected(epsilon: float) -> bool:
        replays = np.asarray(p_values(epsilon), dtype=np.float64)
        require(replays.size > 0, "there must be at least one replay", shape=replays.shape)
        require(
            bool(np.all((replays >= 0) & (replays <= 1))),
            "p-values must be in [0, 1]",
            smallest=replays.min(),
            largest=replays.max(),
        )
        return bool(2 * replays.mean() < 1 - confidence)

    return last_true_from(rejected, largest=LARGEST_EPSILON, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE)


def mean_e_value(
    guesses: ArrayLike, correct: ArrayLike, *, confidence: float, alternative: float | Sequence[float] | Floats
) -> float:
    """The largest epsilon up to which the mean e-value of the replays is at least 1 / (1 - confidence); delta = 0 only.

    A replay's e-value is the likelihood ratio of an alternative accuracy q against beta = e^epsilon / (1 + e^epsilon),
    the accuracy that epsilon-DP allows at worst; 1 where q <= beta.

    Args:
        guesses: Number of bits guessed in each replay, >= 0, broadcast against `correct`.
        correct: Number of right guesses in each replay, 0 .. guesses.
        confidence: Of the combined bound, in (0, 1).
        alternative: The accuracy q expected, in (1/2, 1), or several: their equal mixture. Fixed beforehand.
    Returns: Epsilon in nats, >= 0, within 1e-9 (1 + epsilon) and never above; below the log-odds of the largest q.
    Raises: InputError for arguments out of range.
    Source: Vovk and Wang (2021): the mean of e-values is an e-value. Correct guesses are dominated by
        Binomial(guesses, beta), and the ratio grows with them, so its mean is at most 1.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    k, n = successes_of_trials(correct, guesses, names=("correct", "guesses"), fewest=0)
    shape = common_shape(k, n)
    k, n = (np.broadcast_to(count, shape).reshape(-1, 1) for count in (k, n))
    q = np.sort(np.atleast_1d(np.asarray(alternative, dtype=np.float64)))
    require(bool(np.all((q > 0.5) & (q < 1))), "alternative must be accuracies in (1/2, 1)", alternative=alternative)
    odds = special.logit(q)

    def log_mean(epsilon: float) -> float:
        """Log of the mean over replays of the mixture of likelihood ratios."""
        # log (q / beta)^k ((1 - q) / (1 - beta))^(n - k), without losing the digits of 1 - beta
        ratio = k * (odds - epsilon) + n * (np.logaddexp(0.0, epsilon) - np.logaddexp(0.0, odds))
        open_ = q > special.expit(epsilon)
        mixture = special.logsumexp(np.where(open_, ratio, 0.0), b=np.full(ratio.shape, 1 / q.size))
        return float(mixture - np.log(len(n)))

    return _first_crossing(log_mean, odds.tolist(), -np.log1p(-confidence))


def _first_crossing(log_mean: Callable[[float], float], odds: list[float], log_limit: float) -> float:
    """Where the mean e-value first falls below its limit; a replay with few right guesses may pull it up again."""

    def rejected(epsilon: float) -> bool:
        return log_mean(epsilon) >= log_limit

    if not rejected(0.0):
        return 0.0
    from scipy import optimize  # slow to import

    low = 0.0
    for high in odds:  # between neighbouring alternatives the mean is convex: its one minimum shows whether it crosses
        lowest = optimize.minimize_scalar(log_mean, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
        for end in (float(lowest.x), high):
            if not rejected(end):
                return last_true(rejected, low, end, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE)
        low = high
    return low
