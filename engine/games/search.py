"""Search for two worlds that tell most: rounds of ever fewer pairs with ever more runs, and the worth of a pair.

All runs of all rounds on a pair count. Two runs may share a seed, one in each world: what then differs is the effect
of the record alone, if the noise comes from the seed. The search costs no confidence, because fresh runs follow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.attacks.stated_law import StatedOdds
from dpaudit.engine.games.neighbours.world_scores import score_trials
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins

PAIRS_PER_ROUND = (16, 6, 3)
"""Number of pairs in the second and each further round."""
ROUND_SHARES = (0.2, 0.2, 0.22, 0.38)
"""Share of each round in the runs that try pairs: rare results of the last pairs show in many runs only."""
MIN_RUNS_PER_PAIR = 4
"""Smallest number of runs on a pair in one round: half in each world, with the same seeds."""
FIRST_RUNS = 8
"""Smallest number of runs on a pair in a round of halving, two with each seed."""
FEWEST_RUNS = 2 * FIRST_RUNS
"""Smallest number of runs of a search by halving, for each pair that is tried."""
MAX_DISTANCE = 50.0
"""Upper limit of a distance, in spreads."""
SEED_NOISE_SHARE = 0.6
"""A number follows the seed if pairs with one seed differ by less than this share of the differences of other pairs."""
SAME_CHANGE = 1e-4
"""Difference of two changes that are called the same, as a share of the noise."""
STEADY_SHARE = 0.9
"""Share of the seeds with which a steady number changes by the same amount."""
EPSILON_LEVELS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Values of epsilon at which evidence is compared with a claim in a search."""
MAX_TAIL_COLUMNS = 64
"""Largest number of columns whose tails are compared."""


def rounds(runs: int, offered: int, remaining: int) -> list[tuple[int, int, int]]:
    """Return for each round of a search by halving the number of pairs, of runs on each, and of pairs that remain.

    All rounds have about equally many runs, the first one twice as many; the last one is on the remaining pairs.

    Args:
        runs: Number of runs of all rounds together; it limits the number of pairs that are tried.
        offered: Number of pairs to choose from.
        remaining: Number of pairs to choose.
    """
    pairs = [min(offered, max(1, runs // FEWEST_RUNS))]
    while pairs[-1] > remaining:
        pairs.append(max(remaining, pairs[-1] // 2))
    share = runs // (2 * (len(pairs) + 2))
    counts = [2 * max(FIRST_RUNS // 2, share * (1 + (turn == 0)) // size) for turn, size in enumerate(pairs)]
    return list(zip(pairs, counts, (*pairs[1:], remaining), strict=True))


def runs_in_rounds(runs: int, pairs: Sequence[int]) -> list[int]:
    """Return the runs on each pair of each round, an even number; `pairs` are the numbers of pairs.

    Few runs are shared such that the first round gets `MIN_RUNS_PER_PAIR` on each pair.
    """
    first = min(1.0, max(ROUND_SHARES[0], pairs[0] * MIN_RUNS_PER_PAIR / max(1, runs)))
    further = ROUND_SHARES[len(ROUND_SHARES) - len(pairs) + 1 :]
    shares = [first, *((1 - first) * share / sum(further) for share in further)] if further else [1.0]
    return [2 * int(runs * share / size / 2 + 1e-9) for share, size in zip(shares, pairs, strict=True)]


def pair_worth(curve: PrivacyCurve, attack: Any, outcomes: Outcomes, *, full_digits: bool = False) -> float:
    """Return the standard deviations by which runs in both worlds in turn exceed a claim.

    It is the largest of three: by the ending of a run, by its number that separates the worlds best, and by the
    attack's scores of held-out runs.
    """
    by_ending = ending_excess(curve, outcomes)
    if not len(outcomes.vector):
        return by_ending
    by_attack = evidence_and_excess(curve, attack, outcomes, full_digits=full_digits)[1]
    return max(by_ending, number_excess(curve, outcomes), by_attack)


def ending_excess(curve: PrivacyCurve, outcomes: Outcomes) -> float:
    """Return the largest excess of sets of endings over a claim, for runs in turn with one seed in both worlds."""
    codes = np.unique(outcomes.ending, return_inverse=True)[1]
    first, second = codes[~outcomes.truth], codes[outcomes.truth]
    return max(_excess_of_codes(curve, first, second), _excess_of_codes(curve, second, first))


def _excess_of_codes(curve: PrivacyCurve, world_0: NDArray[np.int64], world_1: NDArray[np.int64]) -> float:
    """Return the largest excess over sets of the codes most typical of world 1; runs of one seed share a place."""
    most = int(max(world_0.max(), world_1.max())) + 1
    counts_0, counts_1 = (np.bincount(codes, minlength=most) for codes in (world_0, world_1))
    rank = np.argsort(np.argsort(-(counts_1 + 0.5) / (counts_0 + 0.5), kind="stable"))
    n = len(world_0) + 1.0
    p, q, both = (
        np.asarray((np.cumsum(np.bincount(ranks, minlength=most))[:-1] + 0.5) / n, np.float64)
        for ranks in (rank[world_1], rank[world_0], np.maximum(rank[world_0], rank[world_1]))
    )
    return excess(curve, p, q, n, covariance=np.asarray(both - p * q))


def _held_out_scores(
    attack: Any, trainings: Outcomes, stated: StatedOdds | None = None, *, full_digits: bool = False, half: int = 1
) -> Scores | None:
    """Return scores of every second pair of trainings, learned from the others; None if one half has a single world."""
    held_out = np.arange(len(trainings.truth)) // 2 % 2 == half
    if min(len(np.unique(trainings.truth[part])) for part in (held_out, ~held_out)) < 2:
        return None
    return score_trials(attack, trainings.where(~held_out), trainings.where(held_out), stated, full_digits=full_digits)


def held_out_evidence(attack: Any, trainings: Outcomes, stated: StatedOdds | None = None) -> tuple[float, float]:
    """Return the bound and the share of correct guesses on half of the trainings, learned from the other half."""
    return _evidence(_held_out_scores(attack, trainings, stated))


def _evidence(scores: Scores | None) -> tuple[float, float]:
    """Return the bound and the share of correct guesses."""
    if scores is None:
        return 0.0, 0.5
    estimator = FairCoins()
    return estimator.bound([estimator.tally(scores)]).lower, float(((scores.score > 0) == scores.truth).mean())


def separation(trainings: Outcomes) -> tuple[float, float]:
    """Return the distance between trainings with one seed on D and D', and the best rank shift of a number, in [0, 1].

    The distance is the larger of two: the sum over numbers of shift over spread, or the norm of shifts over spreads
    along principal directions. If noise comes from the seed, the shift contains no noise. A number that does not follow
    the seed, such as low bits, counts with the odds of its rank shift. Pairs with different endings have the largest
    distance.
    """
    differing_share, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return MAX_DISTANCE * differing_share, differing_share
    rank_shift = _rank_shift(first, second) * 2 / len(first)
    shift = np.median(np.abs(second - first), 0)
    follows_seed = shift < SEED_NOISE_SHARE * np.median(np.abs(second - np.roll(first, 1, axis=0)), 0)
    odds = rank_shift / np.maximum(1 - rank_shift, 1 / MAX_DISTANCE)
    distance = np.where(follows_seed, _in_spreads(shift, (_spread(first) + _spread(second)) / 2), odds).sum()
    if first.shape[1] <= len(first):
        noise = np.concatenate([side - np.median(side, 0) for side in (first, second)])
        _, sizes, directions = np.linalg.svd(noise, full_matrices=False)
        sizes = np.where(sizes > 1e-6 * sizes[0], sizes, 0.0) / np.sqrt(len(noise))
        projected_shift = np.abs(np.median((second - first) @ directions.T, 0))
        distance = max(
            distance,
            np.linalg.norm(
                _in_spreads(np.where(projected_shift > 1e-9 * np.abs(first).max(), projected_shift, 0.0), sizes)
            ),
        )
    return float(distance) + MAX_DISTANCE * differing_share, max(differing_share, float(rank_shift.max()))


def coupled_move(trainings: Outcomes) -> NDArray[np.float64]:
    """Return the median change of each number from D to D' by pairs of trainings with one seed, shape (width,).

    Empty if the changes of a number vary nearly as much as its noise, which then does not follow the seed.
    """
    change, noise = _coupled_changes(trainings)
    follows_seed = (noise == 0) | (_spread(change) < SEED_NOISE_SHARE * noise)
    return np.asarray(np.median(change, 0)) if follows_seed.all() else np.empty(0)


def steady_move(trainings: Outcomes) -> NDArray[np.float64]:
    """Return the change of each number that changes by the same amount with nearly every seed, else 0; shape (width,).

    Such numbers are released with noise that does not depend on the data. A release may hold others that are computed
    from them, which tell no more. Without any, numbers that follow the seed have their median change. Empty if no
    number is known to change.
    """
    change, noise = _coupled_changes(trainings)
    if not len(change):
        return np.empty(0)
    median = np.median(change, 0)
    same = np.abs(change - median) <= SAME_CHANGE * (noise + np.abs(median))
    steady = (noise > 0) & (median != 0) & (same.mean(0) >= STEADY_SHARE)
    follows_seed = (noise == 0) | (_spread(change) < SEED_NOISE_SHARE * noise)
    move = np.where(steady if steady.any() else follows_seed, median, 0.0)
    return move if move.any() else np.empty(0)


def _coupled_changes(trainings: Outcomes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the changes of all numbers from D to D' with one seed, shape (pairs, width), and their noise, (width,).

    Both are empty if there are too few pairs.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return np.empty((0, 0)), np.empty(0)
    return second - first, np.where(_spread(first) > 0, _spread(second - np.roll(first, 1, axis=0)), 0.0)


def number_excess(curve: PrivacyCurve, trainings: Outcomes) -> float:
    """Return the standard deviations by which the tail of one number exceeds a claim; -inf without numbers.

    Only numbers that separate D and D' best count. A rare tail shifts no ranks, but may reveal D or D' if it occurs.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return -math.inf
    best_columns = np.argsort(-np.nan_to_num(_rank_shift(first, second), nan=np.inf), kind="stable")[:MAX_TAIL_COLUMNS]
    return _tail_excess(curve, first[:, best_columns], second[:, best_columns])


def _numbers_of_pairs(trainings: Outcomes) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of pairs with different endings, and the numbers on D and D' of all usual pairs."""
    worlds = [trainings.where(trainings.truth == world) for world in (False, True)]
    endings = np.stack([world.ending for world in worlds])
    both = (endings == trainings.usual_ending).all(0)
    first, second = (np.asarray(world.where(both).summaries(), np.float64) for world in worlds)
    return float((endings[0] != endings[1]).mean()), first, second


def _rank_shift(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each number's mean rank on D' from the middle rank."""
    ranks = stats.rankdata(np.concatenate([first, second]), axis=0)[len(first) :]
    return np.asarray(np.abs(ranks.mean(0) - (len(first) + 0.5)))


def evidence_and_excess(
    curve: PrivacyCurve, attack: Any, trainings: Outcomes, *, full_digits: bool = False
) -> tuple[tuple[float, float], float]:
    """Return the evidence of an attack, and the standard deviations by which its scores exceed a claim.

    Each half of the trainings is scored by an attack that learns from the other half. The halves are not independent,
    so the evidence serves for a choice only.
    """
    halves = [_held_out_scores(attack, trainings, full_digits=full_digits, half=half) for half in (0, 1)]
    both = [scores for scores in halves if scores is not None]
    if not both:
        return _evidence(None), 0.0
    scores = Scores(np.concatenate([part.score for part in both]), np.concatenate([part.truth for part in both]))
    return _evidence(scores), score_excess(curve, scores)


def score_excess(curve: PrivacyCurve, scores: Scores | None) -> float:
    """Return the standard deviations by which scores exceed a claim; 0 unless the worlds have equally many."""
    if scores is None:
        return 0.0
    first, second = (scores.score[scores.truth == world][:, None] for world in (False, True))
    return _tail_excess(curve, first, second) if len(first) == len(second) else 0.0


def _tail_excess(curve: PrivacyCurve, first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    count, values = len(first), np.concatenate([first, second])
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, 0)
    last = ranked[1:] > ranked[:-1]  # last of equal values
    below = [np.cumsum(part, axis=0)[:-1][last] for part in (order < count, order >= count)]
    worlds = [((tail + 0.5) / (count + 1), (count - tail + 0.5) / (count + 1)) for tail in below]
    ends = list(zip(*worlds, strict=True))
    return max(excess(curve, *pair, count) for p, q in ends for pair in ((p, q), (q, p)))


def excess(
    curve: PrivacyCurve,
    share_one: NDArray[np.float64],
    share_zero: NDArray[np.float64],
    runs: float,
    *,
    covariance: NDArray[np.float64] | float = 0.0,
) -> float:
    """Return the standard deviations by which event frequencies exceed a claim, at the worst event and epsilon.

    Args:
        share_one, share_zero: Frequencies of events in the two worlds; the result is -inf if there are none.
        runs: Number of runs in each world.
        covariance: Of an event in both worlds, if runs of the two worlds share seeds.
    """
    if not share_one.size:
        return -math.inf
    excesses = []
    for level, delta in zip(EPSILON_LEVELS, _deltas(curve), strict=True):
        variance = share_one * (1 - share_one) + math.exp(2 * level) * share_zero * (1 - share_zero)
        shared = 2 * math.exp(level) * covariance
        deviation = np.sqrt(np.maximum(variance - shared, 0.25 / runs) / runs)
        excesses.append((share_one - math.exp(level) * share_zero - delta) / deviation)
    return float(np.max(excesses))


def _deltas(curve: PrivacyCurve) -> tuple[float, ...]:
    """Return delta at all epsilon levels, cached because composed curves are slow."""
    try:
        return _cached_deltas(cast(Hashable, curve))
    except TypeError:  # a user's curve may not be hashable
        return tuple(curve.delta(level) for level in EPSILON_LEVELS)


@lru_cache(maxsize=4)
def _cached_deltas(curve: Any) -> tuple[float, ...]:
    return tuple(curve.delta(level) for level in EPSILON_LEVELS)


def _in_spreads(shift: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shifts in units of the spread, at most `MAX_DISTANCE`."""
    units = np.divide(shift, spread, out=np.full_like(shift, MAX_DISTANCE), where=spread > 0)
    return np.where(shift > 0, np.minimum(units, MAX_DISTANCE), 0.0)


def clips_records(near: Outcomes, far: Outcomes) -> bool:
    """True if code runs on records outside the box, and farther records give the same outputs up to noise.

    Code that trusts its caller to respect the range makes no promise outside it. Code that limits its input makes a
    promise about every record.
    """
    if (near.ending != far.ending).any() or (near.ending[near.truth] != near.ending[~near.truth]).any():
        return False
    if near.usual_ending not in {f"{width} numbers" for width in near.width}:
        return False
    for world in (False, True):
        of_world = (near.ending == near.usual_ending) & (near.truth == world)
        near_summaries, far_summaries = (
            np.asarray(side.where(of_world).summaries(), np.float64) for side in (near, far)
        )
        if not np.allclose(near_summaries, far_summaries, rtol=1e-3, atol=1e-9):
            shift, spread = np.abs(np.median(far_summaries, 0) - np.median(near_summaries, 0)), _spread(near_summaries)
            if (shift > 2 * spread).any() or (_spread(far_summaries) > 4 * spread).any():
                return False
    return True


def _spread(summaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median absolute deviation of each number."""
    return np.asarray(np.median(np.abs(summaries - np.median(summaries, 0)), 0))
