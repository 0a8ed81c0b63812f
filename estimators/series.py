"""What findings offer to draw: small values, one type for each kind of figure.

How each is drawn is one file in `engine/report/figures`; nothing here knows of plotting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Series:
    """Something to draw: a frozen value of a few columns. The subclass decides how it is drawn."""


@dataclass(frozen=True, eq=False)
class GuessSweep(Series):
    """One training run: the bound of each guess fraction on its own, not corrected for having looked at all.

    Attributes:
        fraction: Shares of the canaries that are guessed, in (0, 1], shape (n,).
        epsilon: Median of the replays' bounds, shape (n,).
        low: Their 10 % quantile, shape (n,).
        high: Their 90 % quantile, shape (n,).
    """

    fraction: Floats
    epsilon: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class ReplayBounds(Series):
    """What each replay of a game shows, and all of them together.

    Attributes:
        replay: Numbers of the replays that were played, shape (played,).
        epsilon: Each replay's bound as it enters the combination; lost replays come last with 0, shape (replays,).
        alone: What each played replay would report if it were the only one, shape (played,).
        combined: The combined bound of the replays so far, shape (replays,).
    """

    replay: Ints
    epsilon: Floats
    alone: Floats
    combined: Floats


@dataclass(frozen=True, eq=False)
class Roc(Series):
    """An attack's errors at the thresholds that were looked at.

    Attributes:
        threshold: Member at or above it, shape (looks,).
        true_positive_rate: Shape (looks,).
        false_positive_rate: Shape (looks,).
        epsilon: Each look's bound at the error it has, shape (looks,).
        members: Trials of world 1.
        non_members: Trials of world 0.
    """

    threshold: Floats
    true_positive_rate: Floats
    false_positive_rate: Floats
    epsilon: Floats
    members: int
    non_members: int


@dataclass(frozen=True)
class ConfusionCounts(Series):
    """Right and wrong answers at the reported threshold.

    Attributes:
        tp: Members called members.
        fp: Non-members called members.
        tn: Non-members called non-members.
        fn: Members called non-members.
        delta: Where epsilon is stated, in [0, 1).
        confidence: Of an interval that is made of them, in (0, 1).
    """

    tp: int
    fp: int
    tn: int
    fn: int
    delta: float
    confidence: float


@dataclass(frozen=True, eq=False)
class EpsilonProfile(Series):
    """Epsilon against delta, at every delta at once.

    Attributes:
        delta: Ascending, shape (n,).
        epsilon: In nats, shape (n,).
    """

    delta: Floats
    epsilon: Floats


@dataclass(frozen=True, eq=False)
class TrialPath(Series):
    """An anytime-valid bound while trials came in.

    Attributes:
        trials: How many had been seen, ascending, shape (n,).
        epsilon: The bound then, shape (n,).
    """

    trials: Ints
    epsilon: Floats


@dataclass(frozen=True, eq=False)
class RenyiCurve(Series):
    """Lower bounds on the Renyi divergence at every order.

    Attributes:
        order: Ascending, > 1, shape (n,).
        forward: D(world 1 || world 0) in nats is at least this, shape (n,).
        backward: D(world 0 || world 1) is at least this, shape (n,).
    """

    order: Floats
    forward: Floats
    backward: Floats


@dataclass(frozen=True, eq=False)
class AdvantageQuantiles(Series):
    """How the examples' advantages are spread.

    Attributes:
        share: Shares of the examples, ascending in [0, 1], shape (n,).
        advantage: What that share stays within, shape (n,); may end in inf.
        kind: "additive", "multiplicative" or "tail", as in `AdvantageDistribution`.
        quantity: What an advantage is, with its unit.
        mean: Over the examples; may be inf.
        largest: Over the examples; may be inf.
    """

    share: Floats
    advantage: Floats
    kind: str
    quantity: str
    mean: float
    largest: float


@dataclass(frozen=True, eq=False)
class PriorPosterior(Series):
    """What was believed of single labels before a release and after it.

    Attributes:
        prior: P[label = 1] before, in [0, 1], shape (n,).
        posterior: P[label = 1] after, shape (n,).
    """

    prior: Floats
    posterior: Floats


@dataclass(frozen=True, eq=False)
class Reliability(Series):
    """Whether probabilities mean what they say: examples in groups of equal size, by what was believed of them.

    Attributes:
        believed: Mean probability of each group, ascending, shape (groups,).
        observed: Share of its examples whose label is 1, shape (groups,).
        examples: In each group, shape (groups,).
    """

    believed: Floats
    observed: Floats
    examples: Ints


@dataclass(frozen=True, eq=False)
class AnswerCurves(Series):
    """What one answer tells at every order, the larger direction of each; NaN where a quantity is not known.

    Attributes:
        query: Which query it is about.
        order: Ascending, > 1, shape (m,).
        two_cut: Lower bounds in nats, shape (m,).
        k_cut: Lower bounds that look at every answer by itself, shape (m,).
        exact: The divergence of the two laws of answers.
        dependent: What data-dependent accounting charges.
    """

    query: int
    order: Floats
    two_cut: Floats
    k_cut: Floats
    exact: Floats
    dependent: Floats


@dataclass(frozen=True, eq=False)
class TotalLeaks(Series):
    """What many answers tell in all at every order; by totals of single answers.

    Attributes:
        order: Ascending, > 1, shape (m,).
        answers: How many answers the totals are of.
        delta: Where curves are converted to epsilon, in (0, 1).
        names: Of each total: "worst query", "average query", "all queries", shape (rows,).
        bound: Lower bounds in nats, shape (rows, m).
        exact: Shape (rows, m); NaN where it is not known.
        dependent: What data-dependent accounting charges, shape (rows, m); NaN where there is none.
    """

    order: Floats
    answers: int
    delta: float
    names: tuple[str, ...]
    bound: Floats
    exact: Floats
    dependent: Floats


@dataclass(frozen=True, eq=False)
class LeakGrowth(Series):
    """What was told after each answer, at one order.

    Attributes:
        order: > 1.
        answers: Answers so far, ascending, shape (n,).
        bound: Lower bounds in nats, shape (n,).
        exact: NaN where it is not known, shape (n,).
        dependent: NaN where there is none, shape (n,).
    """

    order: float
    answers: Ints
    bound: Floats
    exact: Floats
    dependent: Floats


@dataclass(frozen=True, eq=False)
class QueryLeaks(Series):
    """What an answer to each query tells, at every order, as found from below.

    Attributes:
        order: Ascending, > 1, shape (m,).
        query: Numbers of the queries, shape (n,).
        bound: Lower bounds in nats, shape (n, m).
        exact: Shape (n, m); NaN where it is not known.
    """

    order: Floats
    query: Ints
    bound: Floats
    exact: Floats


def quantiles_of(advantages: Floats, kind: str, quantity: str) -> AdvantageQuantiles:
    """The spread of |advantage| over the examples, at most a thousand points; advantages of shape (n,)."""
    require(advantages.size > 0, "there must be at least one advantage", shape=advantages.shape)
    ranked = np.sort(np.abs(advantages))
    shown = np.unique(np.linspace(0, ranked.size - 1, min(ranked.size, 1_000)).astype(np.int64))
    share = (shown + 1) / ranked.size
    return AdvantageQuantiles(share, ranked[shown], kind, quantity, float(ranked.mean()), float(ranked[-1]))
