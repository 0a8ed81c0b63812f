"""An anytime-valid lower bound on epsilon by betting: the test may be evaluated after every trial and stopped at any
time.

Let z1 be a score of a trial in world 1 and z0 one in world 0, independent. Under (epsilon, delta)-DP, for any sets S
and S' and stakes 0 <= a, b <= e^-epsilon fixed before the two are drawn,

    (1 + a [z1 in S]) (1 - b e^epsilon [z1 in S'])  *  (1 + b [z0 in S']) (1 - a e^epsilon [z0 in S])
        / (1 + (a + b) delta / 2)^2

is never negative and has mean at most 1. Proof: write p, q for the probabilities of S, S'. Multiplied out, the first
product has mean at most 1 + a p1 - b e^epsilon q1, the second at most 1 + b q0 - a e^epsilon p0. The product of two
numbers >= 0 is at most the square of their mean, which is 1 + a (p1 - e^epsilon p0) / 2 + b (q0 - e^epsilon q1) / 2,
and both brackets are at most delta. No coin decides which trial is in which world: any design with fixed bits is valid.

A bettor who plays pair after pair, and chooses S, S', a and b from past pairs alone, has a wealth that is a
supermartingale, and so is an average of such wealths. By Ville's inequality it ever reaches 1 / error with probability
at most `error`, for any number of pairs and any stopping rule (Ville 1939; Waudby-Smith and Ramdas 2024; Shafer 2021).

There is one wealth for each epsilon of a fixed grid. An epsilon is rejected if its wealth reaches 1 / error and all
smaller ones of the grid are rejected; the bound is the largest rejected one. A bound above the true epsilon means that
the smallest grid value at or above the truth was rejected. The mechanism satisfies that value too, so testing many
epsilons costs nothing.

The bets: S is "score at or above t" and S' is "score at or below t'". Several rules choose each threshold; the stakes
are a fixed grid. The average runs over all pairs of a rule and stake for S with a rule and stake for S', which is the
product of two averages. There are two kinds of rules, with half of the capital each, so that neither loses more than
log 2 by the other. Eight rules choose the threshold that would have gained most on past pairs, behind a margin, as
suits worlds that are far apart. Four choose the one that gains most if scores follow kernel densities of the past,
with a bandwidth from past scores, as suits worlds that are close (after González et al., 2025, arXiv:2509.07055).

Assumptions: trials are independent, with one law within each world, and their order does not depend on their scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels
from dpaudit.estimators.estimator import Estimator, Replays, in_order
from dpaudit.estimators.finding import Series
from dpaudit.estimators.replays import per_replay_confidence
from dpaudit.estimators.scores import Scores
from dpaudit.registry import register

EPSILONS: Floats = np.arange(25 * 512 + 1) / 512
"""Grid of epsilons: bounds are rounded down to a multiple of 1/512 nat. A bound above 24 needs 10^10 pairs."""

# Epsilons and margins of the rules that choose a threshold. Like the stakes, they affect only the power.
_DESIGNS = np.array([*2 * [0.5, 1.5, 3.0, 5.0], 0.1, 0.5, 1.0, 2.0])
_MARGINS = np.repeat([0.25, 0.75], 4)  # of the rules that count past scores; the last four designs smooth them
_STAKES = np.array([1.0, 0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03, 0.01])
_CAPITAL = np.array([0.2, 0.2, 0.18, 0.14, 0.1, 0.08, 0.05, 0.03, 0.02])


def _none() -> Floats:
    return np.empty(0)


def _counts() -> Ints:
    return np.zeros((2, _DESIGNS.size), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BettingState:
    """State of a betting test between two trials, made of numbers and arrays; `BettingState()` is the initial state."""

    members: Floats = field(default_factory=_none)  # scores of world 1 in trial order
    non_members: Floats = field(default_factory=_none)  # scores of world 0 in trial order; the i-th of each make pair i
    # number of grid epsilons rejected after each pair, shape (pairs,)
    rejected: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # thresholds of the next pair, NaN for no bet; shape (2, ways): high side and mirrored low side
    thresholds: Floats = field(default_factory=lambda: np.full((2, _DESIGNS.size), np.nan))
    hits: Ints = field(default_factory=_counts)  # bets won, by the world in which the set is expected; shape (2, ways)
    alarms: Ints = field(default_factory=_counts)  # bets lost, by the other world; shape (2, ways)
    bets: Ints = field(default_factory=_counts)  # pairs bet on, shape (2, ways)
    chooses_at: int = 1  # number of the pair before which thresholds are chosen again

    @property
    def trials(self) -> int:
        return self.members.size + self.non_members.size

    @property
    def lower(self) -> float:
        """Lower bound on epsilon so far, in nats, >= 0; it never decreases."""
        return float(_epsilon(self.rejected[-1:]).sum())


@register("estimator", "betting", source="Ville (1939); Waudby-Smith and Ramdas (2024)")
@dataclass(frozen=True)
class Betting(Estimator[Scores, Scores]):
    """Two-sample scores in trial order: an anytime-valid test by betting, which holds whenever the audit stops.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
    """

    independent_trials: ClassVar[bool] = True
    anytime_valid: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = Scores
    selection = "bets chosen on earlier trials"

    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)

    def start(self) -> BettingState:
        return BettingState()

    def update(self, state: BettingState, scores: Scores) -> BettingState:
        """Return the state after more trials, in the order of their canary numbers.

        A trial waits until the other world has one to pair it with. The final state does not depend on how trials are
        divided into calls.

        Slow twin: `wealth`, `threshold` and `smoothed_threshold` of tests/twins/betting_twin.py.
        """
        from dpaudit.estimators.two_world._betting_kernels import play_pairs

        rows = self.tally(scores)
        members = np.concatenate([state.members, rows.score[rows.truth]])
        non_members = np.concatenate([state.non_members, rows.score[~rows.truth]])
        pairs, first = min(members.size, non_members.size), state.rejected.size
        thresholds, hits = state.thresholds.copy(), state.hits.copy()
        alarms, bets = state.alarms.copy(), state.bets.copy()
        path = np.empty(pairs - first, dtype=np.int64)
        chooses_at = play_pairs(
            members[:pairs],
            non_members[:pairs],
            first,
            thresholds,
            hits,
            alarms,
            bets,
            state.chooses_at,
            int(state.rejected[-1]) if first else 0,
            EPSILONS,
            self.delta,
            -math.log1p(-self.confidence),
            _DESIGNS,
            _MARGINS,
            _STAKES,
            _CAPITAL,
            path,
        )
        rejected = np.concatenate([state.rejected, path])
        return BettingState(members, non_members, rejected, thresholds, hits, alarms, bets, chooses_at)

    def log_wealth(self, state: BettingState, epsilon: float) -> float:
        """Return the log wealth against (epsilon, delta)-DP from a capital of 1; 0 if nothing was learned."""
        from dpaudit.estimators.two_world._betting_kernels import log_wealth

        require(epsilon >= 0, "epsilon must be >= 0", epsilon=epsilon)
        return float(
            log_wealth(epsilon, self.delta, state.hits, state.alarms, state.bets, _STAKES, _CAPITAL, _MARGINS.size)
        )

    def tally(self, scores: Scores) -> Scores:
        """Return the trials in the order of their canary numbers, because a bet depends on all earlier trials."""
        order = np.argsort(scores.canary, kind="stable")
        return Scores(scores.score[order], scores.truth[order], scores.replay, scores.canary[order])

    def replays(self, tallies: Sequence[Scores], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Replays[Any]:
        """Return the final states of the replays and their bounds; tallies of one replay form one stream.

        Raises: InputError if one of the worlds has no trial.
        """
        ordered = sorted(in_order(tallies), key=lambda tally: (tally.replay, int(tally.canary.min())))
        streams = {number: list(group) for number, group in groupby(ordered, key=lambda tally: tally.replay)}
        confidence = per_replay_confidence(self.confidence, len(streams) + failed_replays)
        states = [replace(self, confidence=confidence)._stream(stream) for stream in streams.values()]
        best = alone = np.array([state.lower for state in states])  # of a single replay, the reported bound
        if best.size + failed_replays > 1:
            alone = np.array([self._stream(stream).lower for stream in streams.values()])
        numbers = np.array(list(streams), np.int64)
        replays = Replays(states, numbers, best, np.zeros_like(numbers), alone, failed_replays, published=False)
        middle, _ = replays.middle
        require(
            middle.rejected.size > 0,
            "scores must hold trials with and without the member",
            do="check the truth column",
            members=middle.members.size,
            non_members=middle.non_members.size,
        )
        return replays

    def _stream(self, tallies: Sequence[Scores]) -> BettingState:
        joined = Scores(
            np.concatenate([tally.score for tally in tallies]), np.concatenate([tally.truth for tally in tallies])
        )
        return self.update(BettingState(), joined)

    def details(self, replays: Replays[Any]) -> dict[str, Any]:
        state, _ = replays.middle
        counts = {
            "trials": state.trials,
            "members": state.members.size,
            "non_members": state.non_members.size,
            "pairs": state.rejected.size,
        }
        return {
            "counts": replays.counted(counts),
            "notes": ("anytime-valid: holds for any stopping time of the trials",),
        }

    def figures(self, replays: Replays[Any]) -> dict[str, Series]:
        """Return the first replay's bound over the trials, and the bounds of single replays."""
        path = replays.tallies[0].rejected
        drawn_pairs = np.unique(np.linspace(0, path.size - 1, 1_000).astype(np.int64)) if path.size else path
        return {
            "trials": {"trials": 2 * (drawn_pairs + 1), "epsilon": _epsilon(path[drawn_pairs])},
            **super().figures(replays),
        }


def _epsilon(rejected: Ints) -> Floats:
    """Return the largest rejected epsilon of the grid, 0 if there is none; same shape."""
    return EPSILONS[np.maximum(rejected - 1, 0)]
