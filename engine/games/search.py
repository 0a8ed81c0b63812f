"""Search for two worlds that tell most: rounds of ever fewer pairs with ever more runs, and the worth of a pair.

All runs of all rounds on a pair count. Two runs may share a seed, one in each world: what then differs is the effect
of the record alone, if the noise comes from the seed. The search costs no confidence, because fresh runs follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.attacks.classifiers import Odds
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.run_scores import ManyCandidates, score_trials
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins

PAIRS_PER_ROUND = (16, 6, 3)
"""Number of pairs in the second and each further round."""
ROUND_SHARES = (0.2, 0.2, 0.22, 0.38)
"""Share of each round in the runs that try pairs: rare results of the last pairs show in many runs only."""
MIN_RUNS_PER_PAIR = 4
"""Smallest number of runs on a pair in one round: half in each world, with the same seeds."""
FEWEST_RUNS = 16
"""Smallest number of runs of a search for each pair that is tried."""
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
MIN_SCORED_RUNS = 200
"""Fewest runs on a pair from which scores of an attack help to choose pairs."""
CLEAR_EXCESS = 1.5
"""Excess of a pair over the claim, in standard deviations, from which it precedes all other criteria."""
BOUND_STEP = 0.25
"""Step to which bounds on search runs are rounded for comparison; few runs tell no smaller differences."""
LOG_DISTANCE_STEP = 0.25
"""Step to which logarithms of distances are rounded for comparison."""
MIN_ANSWERS = 3
"""Smallest number of answers with two values whose pattern is compared."""
LISTED_PAIRS = 12
"""Largest number of pairs that a report lists."""
MAX_TAIL_COLUMNS = 64
"""Largest number of columns whose tails are compared."""


def rounds(runs: int, offered: int, remaining: int, proposed: int = 0) -> list[tuple[int, int, int]]:
    """Return for each round of a search the number of pairs, of runs on each, and of pairs that remain.

    Each round has fewer pairs, and the last pairs get most runs.

    Args:
        runs: Number of runs of all rounds together; it limits the number of pairs that are tried.
        offered: Number of pairs to choose from.
        remaining: Number of pairs to choose.
        proposed: Number of further pairs, all of which are tried.
    """
    first = min(offered, max(0 if proposed else 1, runs // FEWEST_RUNS))
    pairs = [first + proposed, *(size for size in PAIRS_PER_ROUND if remaining < size < (first or proposed))]
    return list(zip(pairs, runs_in_rounds(runs, pairs), (*pairs[1:], remaining), strict=True))


def halving_rounds(runs: int, offered: int, remaining: int) -> list[tuple[int, int, int]]:
    """Return the rounds of a search that halves the pairs, as `rounds`: of many weak pairs, none is dropped early.

    All rounds have about equally many runs, the first one twice as many; the last one is on the remaining pairs.
    """
    pairs = [min(offered, max(1, runs // FEWEST_RUNS))]
    while pairs[-1] > remaining:
        pairs.append(max(remaining, pairs[-1] // 2))
    share = runs // (2 * (len(pairs) + 2))
    counts = [2 * max(FEWEST_RUNS // 4, share * (1 + (turn == 0)) // size) for turn, size in enumerate(pairs)]
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
    by_attack = cross_fitted(curve, attack, outcomes, full_digits=full_digits)[2]
    return max(by_ending, number_excess(curve, outcomes), by_attack)


def paired_coins(count: int) -> NDArray[np.bool_]:
    """Return coins in pairs of one seed: 0 then 1, and 1 then 0 for the next seed.

    No place in the order of runs belongs to one world.
    """
    coins: NDArray[np.bool_] = (np.arange(count) + 1) // 2 % 2 == 1
    return coins


@dataclass(frozen=True, eq=False)
class Tried:
    """A pair with its search runs, in both worlds in turn with one seed."""

    place: int  # among all pairs; the most general ones are offered first
    pair: Any
    outcomes: Outcomes
    proposed: bool = False  # True if runs with one seed proposed the pair


@dataclass(frozen=True)
class Strength:
    """Strength with which the runs of a pair distinguish the worlds.

    Attributes:
        distance: Distance between runs with one seed, by the pattern of answers if there is one.
        accuracy: Largest rank shift of a number, or share of pairs with different endings, in [0, 1].
        tail: Excess of a number's tail over the claim, in standard deviations.
        expected: Excess that is expected from other knowledge about the pair, in standard deviations; 0 without any.
        excess: Excess of cross-fitted scores over the claim, in standard deviations; 0 for few runs.
        bound: Bound on epsilon by these scores, in nats.
        right: Share of correct guesses by these scores.
    """

    distance: float
    accuracy: float
    tail: float
    expected: float = 0.0
    excess: float = 0.0
    bound: float = 0.0
    right: float = 0.5

    @property
    def preference(self) -> tuple[float, ...]:
        """Rank of a pair: clear evidence against the claim, then the bound in steps, then the distance."""
        beyond_chance = max(self.excess - CLEAR_EXCESS, self.expected - CLEAR_EXCESS, 0.0)
        return beyond_chance, round(self.bound / BOUND_STEP), self.distance, self.bound, self.right


def strength(
    curve: PrivacyCurve,
    attack: Any,
    outcomes: Outcomes,
    stated: Odds | None = None,
    *,
    expected: float = 0.0,
    full_digits: bool = False,
) -> Strength:
    """Return how strongly the runs of a pair distinguish the worlds.

    An attack learns from half of many runs and scores the other half. Few runs may mislead it in its choice among
    classifiers, so the first of them scores the runs too, and the better result counts. It is not asked if `attack` is
    None.
    """
    distance, accuracy = separation(outcomes)
    answers = _common_answers(outcomes)
    by_pattern = None if answers is None else pattern_distance(answers[~outcomes.truth], answers[outcomes.truth])
    distance = distance if by_pattern is None else by_pattern
    strength = Strength(distance, accuracy, number_excess(curve, outcomes), expected)
    if attack is None:
        return strength
    attacks = (attack, *(attack.candidates()[:1] if isinstance(attack, ManyCandidates) else ()))
    results = [cross_fitted(curve, each, outcomes, stated, full_digits=full_digits) for each in attacks]
    bound, right, _ = max(results, key=lambda result: result[:2])
    return replace(strength, excess=max(result[2] for result in results), bound=bound, right=right)


def promising(size: int, tried: Sequence[Tried], strengths: Sequence[Strength], *, by_scores: bool) -> list[int]:
    """Return the positions of the pairs of the next round.

    A pair of which other knowledge is expected to exceed the claim stays. Scores choose most of the others. Without
    scores of enough runs, half of the places go to pairs that runs with one seed proposed, and the others to pairs that
    differ in one number, in a tail or in distance. At about the same distance, pairs that are offered first precede.
    """
    positions = range(len(tried))

    def largest(*measures: Callable[[Strength], float]) -> list[int]:
        return sorted(positions, key=lambda p: (*(-measure(strengths[p]) for measure in measures), tried[p].place))

    expected = [p for p in largest(lambda each: each.expected) if strengths[p].expected > 0]
    preferred = sorted(positions, key=lambda p: (*strengths[p].preference, -tried[p].place), reverse=True)
    if by_scores:
        ranked = [*(expected[:1] if size > 1 else ()), preferred[0], *largest(lambda each: each.excess)]
    else:
        few = -(-size // 8)
        ranked = [
            *expected[:1],
            *[p for p in largest(lambda each: each.distance) if tried[p].proposed][: size // 2],
            *largest(lambda each: each.accuracy, lambda each: each.distance)[:few],
            *largest(lambda each: each.tail)[:few],
            *largest(lambda each: round(math.log1p(each.distance) / LOG_DISTANCE_STEP)),
        ]
    return list(dict.fromkeys(ranked))[:size]


def bounds_in_words(tried: Sequence[Tried], strengths: Sequence[Strength]) -> str:
    """Return the bounds on the search runs of some pairs for a report, the largest first."""
    pairs = sorted(zip(tried, strengths, strict=True), key=lambda pair: -pair[1].bound)[:LISTED_PAIRS]
    return "; ".join(f"{each.pair.name} {format_lower(by.bound)} ({by.right:.0%} right)" for each, by in pairs)


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


def _common_answers(outcomes: Outcomes) -> NDArray[np.float64] | None:
    """Return the first numbers of all runs, as many as the shortest run has, and the code of the ending.

    Lists that end early are so compared with those that do not. None if an ending occurs in one world only, or if a
    run has no numbers.
    """
    endings, code = np.unique(outcomes.ending, return_inverse=True)
    width = min(outcomes.width.tolist(), default=0)
    if not width or any(len(np.unique(code[outcomes.truth == world])) < len(endings) for world in (False, True)):
        return None
    starts = np.cumsum(outcomes.width) - outcomes.width
    return np.column_stack([outcomes.vector[starts[:, None] + np.arange(width)].astype(np.float64), code])


def pattern_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Return the distance between the means of answers that have two values each; None if most numbers have more.

    Answers that share a noise, such as a threshold's, are correlated. A row that moves all of them moves them as that
    noise does; one that moves a part of them shows against the others.

    Args:
        first, second: Numbers on D and on D' with the same seeds, shape (n, width).
    """
    both = np.concatenate([first, second])
    varying = np.flatnonzero(np.ptp(both, axis=0) > 0)
    two_valued = [
        place
        for place in varying.tolist()
        if np.isin(both[:, place], (both[:, place].min(), both[:, place].max())).all()
    ]
    if len(two_valued) < MIN_ANSWERS or len(two_valued) < len(varying) - 1:
        return None
    deviation = both[:, two_valued].std(axis=0)
    move = (second - first)[:, two_valued].mean(axis=0) / deviation
    sides = [side[:, two_valued] - side[:, two_valued].mean(axis=0) for side in (first, second)]
    correlation = (np.concatenate(sides).T @ np.concatenate(sides)) / len(both) / np.outer(deviation, deviation)
    count = len(two_valued)
    common = float(np.clip((correlation.sum() - np.trace(correlation)) / (count * (count - 1)), 0.0, 0.95))
    # With equal correlations the inverse has a closed form; few calls cannot tell unequal ones apart.
    square = (move @ move - common * move.sum() ** 2 / (1 - common + count * common)) / (1 - common)
    return float(np.sqrt(max(square, 0.0)))


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


def cross_fitted(
    curve: PrivacyCurve, attack: Any, trainings: Outcomes, stated: Odds | None = None, *, full_digits: bool = False
) -> tuple[float, float, float]:
    """Return the bound by an attack, its share of right guesses, and the deviations by which scores exceed a claim.

    Each half of the trainings, every second pair, is scored by an attack that learns from the other half. The halves
    are not independent, so the evidence serves for a choice only. It is 0, 0.5 and 0 if both halves lack a world.
    """
    odd, halves = np.arange(len(trainings.truth)) // 2 % 2 == 1, list[Scores]()
    for held_out in (~odd, odd):
        learned, fresh = trainings.where(~held_out), trainings.where(held_out)
        if min(len(np.unique(part.truth)) for part in (learned, fresh)) == 2:
            halves.append(score_trials(attack, learned, fresh, stated, full_digits=full_digits))
    if not halves:
        return 0.0, 0.5, 0.0
    scores = Scores(np.concatenate([part.score for part in halves]), np.concatenate([part.truth for part in halves]))
    estimator = FairCoins()
    right = float(((scores.score > 0) == scores.truth).mean())
    return estimator.bound([estimator.tally(scores)]).lower, right, score_excess(curve, scores)


def score_excess(curve: PrivacyCurve, scores: Scores) -> float:
    """Return the standard deviations by which scores exceed a claim; 0 unless the worlds have equally many."""
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
