"""Evidence against one claim that multiplies over nights: bets on each night's own trials.

Let z1 be a score of a trial in world 1 and z0 one in world 0, independent, and S, S' two sets that were fixed before
the two were drawn. Under (epsilon, delta)-DP the four factors of a bet on "high scores come from world 1" (S) and "low
ones from world 0" (S'), divided by the price of delta, have a product that is never negative and has mean at most 1:
the proof is at the head of `betting`. Here the sets are the highest and the lowest scores, in several shares of all.
The first tenth of a night's trials says where these shares end, the rest is bet on.

Nights are independent, so wealth goes on from one to the next. It depends on how often a set was hit alone: what is
kept of a night is counts, those of several nights add up, and the wealth of one set and stake is its product over all
nights. The evidence is an average of such products, over sets and stakes. It has mean at most 1 where the claim holds,
after each night, and by Ville's inequality ever reaches 1 / error with probability at most `error`, over all nights.

A claim that is a curve is bet against at several deltas, each with a share of the capital.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.scores import Scores

_DELTAS = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.05, 0.2)
"""Where a curve is bet against, as far as it promises a finite epsilon there."""
_SHARES = np.array([0.5, 0.3, 0.15, 0.05, 0.015, 0.004])
"""Of all scores, the highest or the lowest that are bet on."""
_STAKES = np.array([0.9, 0.6, 0.35, 0.2, 0.1, 0.05, 0.025])
"""Of the largest that is allowed."""
_LOOKED_AT = 0.1
"""Of a night, the share of the pairs that says where the sets begin."""


@dataclass(frozen=True)
class Point:
    """What a claim promises at one delta."""

    epsilon: float  # in nats, >= 0
    delta: float  # in [0, 1)


def points_of(claim: Claim) -> tuple[Point, ...]:
    """Where a claim is bet against: at its one point, or along its curve.

    Raises: InputError for a claim that promises nothing.
    """
    if claim.is_point:
        found = [Point(claim.epsilon, claim.delta)]
    else:
        found = [Point(max(0.0, claim.curve.epsilon(delta)), delta) for delta in _DELTAS]
    kept = tuple(point for point in found if np.isfinite(point.epsilon))
    require(bool(kept), "a claim must promise a finite epsilon to be bet against", claim=str(claim))
    return kept


@dataclass(frozen=True, eq=False)
class Won:
    """How bets went. Whole numbers, of shape (2, 6): the high scores and the low ones, by their share of all."""

    hits: Ints  # by the world the set is expected in
    alarms: Ints  # by the other one
    pairs: int  # that were bet on

    def __add__(self, other: Won) -> Won:
        return Won(self.hits + other.hits, self.alarms + other.alarms, self.pairs + other.pairs)

    @classmethod
    def nothing(cls) -> Won:
        """Before the first bet."""
        none = np.zeros((2, _SHARES.size), np.int64)
        return cls(none, none, 0)

    @classmethod
    def on(cls, scores: Scores) -> Won:
        """Bets on one night's trials, none of which an attack was chosen by or learned from.

        Args:
            scores: Independent trials, within each world of one law. They are taken in the order of their canaries'
                numbers, and paired: the i-th of world 1 with the i-th of world 0.
        """
        order = np.argsort(scores.canary, kind="stable")
        score, truth = scores.score[order], scores.truth[order]
        pairs = int(min(np.count_nonzero(truth), np.count_nonzero(~truth)))
        looked = -(-pairs // round(1 / _LOOKED_AT))
        if looked == pairs:
            return cls.nothing()
        ones, zeros = score[truth][:pairs], score[~truth][:pairs]
        before = np.sort(np.concatenate([ones[:looked], zeros[:looked]]))
        place = np.ceil(_SHARES * before.size).astype(np.int64) - 1
        low, high = before[place], before[::-1][place]
        ones, zeros = ones[looked:, None], zeros[looked:, None]
        hits = np.stack([(ones >= high).sum(0), (zeros <= low).sum(0)])
        alarms = np.stack([(zeros >= high).sum(0), (ones <= low).sum(0)])
        return cls(hits, alarms, pairs - looked)

    def log_wealth(self, point: Point) -> float:
        """Log of what a capital of 1 has become, -inf where all is lost; 0 where no bet was made."""
        gains, losses = np.log1p(_STAKES * np.exp(-point.epsilon)), np.log1p(-_STAKES)
        costs = 2 * np.log1p(0.5 * point.delta * np.exp(-point.epsilon) * _STAKES)
        sides = self.hits[..., None] * gains + self.alarms[..., None] * losses - self.pairs * costs
        # A leak may show in one world's answers alone: a third of the capital each, on either side and on both.
        return float(_log_mean(np.stack([sides[0], sides[1], sides.sum(0)]).ravel()))


def log_evidence(streams: Sequence[tuple[Won, Sequence[Point]]]) -> float:
    """Log of the evidence of streams of trials against what the claim promises of each, with like shares of capital."""
    shares = [_log_mean(np.array([won.log_wealth(point) for point in points])) for won, points in streams]
    return _log_mean(np.array(shares))


def _log_mean(logs: Floats) -> float:
    largest = float(np.max(logs))
    return largest + float(np.log(np.mean(np.exp(logs - largest)))) if np.isfinite(largest) else largest
