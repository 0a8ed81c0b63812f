"""From runs in either world to scores: what an attack learns of search samples, and how far apart two worlds are.

Games whose trials are vectors share this: search samples, whose world is known, teach the attack; it scores fresh ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import PrivacyCurve
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.rounding import Rounding
from dpaudit.engine.games.neighbours.stated_law import StatedOdds, stated_odds
from dpaudit.engine.games.neighbours.summaries import Samples
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, Reading, Setting, require_units
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading, scored_trials
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.threads import limited_threads

FARTHEST = 50.0
"""Spreads between two trainings that are no longer counted."""
FOLLOWS = 0.6
"""A number follows the seed where trainings of one seed differ by less than this share of what others differ by."""
LEVELS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Of epsilon, at which what was seen is held against a claim while worlds are tried."""
BEST_NUMBERS = 64
"""Numbers whose tails are looked at, of those that runs give."""
JUDGED_APART = 10_000
"""Search samples from which on the candidates of an attack are judged by units of their own: 0.3 s and more."""


@dataclass(frozen=True)
class SummaryGame(TrialGame):
    """Fresh trials, and search samples that the attack learns from.

    Attributes:
        search: Runs to choose the two worlds by and for the attack to learn from, in 4 .. 10,000,000.
    """

    search: int = 20_000
    samples: ClassVar[Callable[..., Any]]
    """The unit that makes samples `first` to `last` - 1 of (mechanism, worlds, limit_s)."""
    learns_once: ClassVar[bool] = False
    """Whether a confirmatory run has the worlds and the search samples of the first pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(4 <= self.search <= MAX_TRIALS, f"search must be in 4 .. {MAX_TRIALS:,}", search=self.search)
        limit = self.limit_s
        require(limit is None or limit > 0, "seconds of a limit must be > 0", limit=limit)

    @property
    def limit_s(self) -> float | None:
        """Seconds after which one run is ended and has failed; None for no limit but the unit's."""
        raise NotImplementedError

    @property
    def reads_full_digits(self) -> bool:
        """True if numbers are read at full digits, low bits too; else each is rounded to a grid (`Rounding`)."""
        return False

    def fresh_and_scores(
        self, setting: Setting, work: Work, worlds: Unit, left: int, how: str = ""
    ) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
        """The units of the fresh trials, and those of their scores by what `left` search samples teach."""
        learning = replace(setting, seed=setting.search_seed) if self.learns_once else setting
        search = self.sampled_in_parts(learning, work, type(self).samples, worlds, f"search{how}", left)
        judged = self._judged(setting, work, worlds, search, left)
        fresh = self.sampled_in_parts(setting, work, type(self).samples, worlds, f"fresh{how}", self.trials)
        alone = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_summaries,
                setting.attack,
                setting.mechanism,
                worlds,
                search,
                trials,
                judged,
                full_digits=self.reads_full_digits,
                label=f"scores of {trials[0].label if alone else f'{self.trials} fresh{how} samples'}",
                resources=setting.resources.without_gpu,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return fresh, scores

    def without_noise(self, setting: Setting, work: Work, worlds: Unit, left: int) -> tuple[Unit, ...]:
        """The units of the scores where the mechanism's noise is taken away; none where it does not say how."""
        if setting.noiseless is None:
            return ()
        few = replace(self, trials=min(self.trials, NOISELESS_TRIALS))
        return few.fresh_and_scores(setting.noiseless, work, worlds, min(left, NOISELESS_TRIALS), " without noise")[1]

    def sampled_in_parts(
        self,
        setting: Setting,
        work: Work,
        function: Callable[..., Any],
        worlds: Any,
        part: str,
        trials: int,
        **more: Any,
    ) -> tuple[Unit, ...]:
        require_units(-(-trials // self.stack))
        return work.split(
            function,
            trials,
            self.stack,
            setting.mechanism,
            worlds,
            self.limit_s,
            seed=setting.seed.child(part),
            label=f"{part} samples",
            **more,
            **setting.unit_options,
        )

    def _judged(
        self, setting: Setting, work: Work, worlds: Unit, search: tuple[Unit, ...], samples: int
    ) -> tuple[Unit, ...]:
        """The units that judge the candidates of an attack, each its own; none where one unit is as quick."""
        if not isinstance(setting.attack, ManyCandidates) or samples < JUDGED_APART:
            return ()
        candidates = setting.attack.candidates()
        if len(candidates) == 1:
            return ()
        return tuple(
            work.add(
                judge_candidate,
                candidate,
                setting.mechanism,
                worlds,
                search,
                full_digits=self.reads_full_digits,
                label=f"worth of candidate {number + 1}/{len(candidates)}",
                resources=setting.resources.without_gpu,
            )
            for number, candidate in enumerate(candidates)
        )


@runtime_checkable
class ManyCandidates(Protocol):
    """An attack that is one of several, each judged by the search samples alone."""

    def candidates(self) -> Sequence[Any]:
        """Each by itself."""
        ...

    def best(self, worth: Sequence[float]) -> Any:
        """The candidate that is worth most."""
        ...


@dataclass(frozen=True)
class Worth:
    """What a candidate is worth, as the attack measures it."""

    worth: float


@unit
def judge_candidate(
    candidate: Any,
    mechanism: Any,
    worlds: Any,
    search: tuple[Samples, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Worth:
    """What one candidate of a `ManyCandidates` is worth on the search samples."""
    known = numbers_to_learn_from(in_scope(Samples.joined(search), full_digits=full_digits))
    if known is None:
        return Worth(-math.inf)
    summaries, truth = rounding_of(known, full_digits=full_digits).rounded(known.summaries()), known.truth
    stated = stated_odds(mechanism, worlds, compute)
    with limited_threads(compute.threads):
        return Worth(candidate.worth(SummaryView(summaries, truth, summaries[:0], stated)))


@unit
def score_summaries(
    attack: Any,
    mechanism: Any,
    worlds: Any,
    search: tuple[Samples, ...],
    fresh: tuple[Samples, ...],
    judged: tuple[Worth, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Outcome[Iterator[Scores]]:
    """The attack learns on the search samples and scores the fresh ones: one replay."""
    searched, trials = Samples.joined(search), Samples.joined(fresh)
    chosen = attack.best([each.worth for each in judged]) if judged else attack
    with limited_threads(compute.threads):
        scores = told(chosen, searched, trials, stated_odds(mechanism, worlds, compute), full_digits=full_digits)
    usual = searched.usual_ending
    odd = (
        f"{name}: it ended in {ending}, most in {usual}"
        for name, ending, width in zip(trials.name.tolist(), trials.ending.tolist(), trials.width.tolist(), strict=True)
        if ending != usual and ending == f"{width} numbers"
    )
    return Outcome(iter((scores,)), failures=tuple(odd))


def in_scope(samples: Samples, *, full_digits: bool) -> Samples:
    """Return the samples with the numbers that a test reads: without those about low bits, unless at full digits."""
    return samples if full_digits else samples.without_low_bits()


def rounding_of(known: Samples, *, full_digits: bool) -> Rounding:
    """Return the grid that known samples of one ending lead to; none at full digits."""
    return Rounding(np.zeros(0), ()) if full_digits else Rounding.learned(known.summaries())


def told(
    attack: Any, known: Samples, asked: Samples, stated: StatedOdds | None = None, *, full_digits: bool = False
) -> Scores:
    """Scores of trainings that ended as most did by the attack, of all others by how they ended."""
    known, asked = (in_scope(samples, full_digits=full_digits) for samples in (known, asked))
    numbers = numbers_to_learn_from(known)
    odds = log_odds_of_endings(asked.ending, known.ending, known.truth)
    alike = np.zeros(len(asked.truth), np.bool_) if numbers is None else asked.ending == known.usual_ending
    view = None
    if numbers is not None:
        rounding = rounding_of(numbers, full_digits=full_digits)
        searched, fresh = (rounding.rounded(each.summaries()) for each in (numbers, asked.where(alike)))
        view = SummaryView(searched, numbers.truth, fresh, stated)
    return scored_trials(attack, view, number=asked.number, truth=asked.truth, failed=~alike, failed_score=odds)


def numbers_to_learn_from(known: Samples) -> Samples | None:
    """The trainings that ended as most did; None where that tells their world, or they left no numbers."""
    usual = known.where(known.ending == known.usual_ending)
    return usual if len(usual.numbers) and len(np.unique(usual.truth)) == 2 else None


def _judged_scores(
    attack: Any, trainings: Samples, stated: StatedOdds | None = None, *, full_digits: bool = False
) -> Scores | None:
    """Of every second pair of trainings, learned from the others; None where these are of one world."""
    judged = np.arange(len(trainings.truth)) // 2 % 2 == 1
    if min(len(np.unique(trainings.truth[part])) for part in (judged, ~judged)) < 2:
        return None
    return told(attack, trainings.where(~judged), trainings.where(judged), stated, full_digits=full_digits)


def what_it_shows(attack: Any, trainings: Samples, stated: StatedOdds | None = None) -> tuple[float, float]:
    """The bound of every second pair of trainings, learned from the others, and their share of right guesses."""
    return _shown_by(_judged_scores(attack, trainings, stated))


def _shown_by(scores: Scores | None) -> tuple[float, float]:
    """The bound of scores, and their share of right guesses."""
    if scores is None:
        return 0.0, 0.5
    estimator = FairCoins()
    return estimator.bound([estimator.tally(scores)]).lower, float(((scores.score > 0) == scores.truth).mean())


def how_far_apart(trainings: Samples) -> tuple[float, float]:
    """How far apart trainings of one seed on D and D' are, and how well one number tells D from D', in [0, 1].

    The distance is that of each number over its spread, summed up, or that along the directions in which they vary
    together, whichever is larger; code that draws its noise from the seed shows it without that noise. A number
    that does not follow the seed, as low bits, is as far apart as its odds of telling D from D'. Pairs that end
    differently are as far apart as can be.
    """
    unlike, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return FARTHEST * unlike, unlike
    tells = _shifted(first, second) * 2 / len(first)
    moved = np.median(np.abs(second - first), 0)
    follows = moved < FOLLOWS * np.median(np.abs(second - np.roll(first, 1, axis=0)), 0)
    odds = tells / np.maximum(1 - tells, 1 / FARTHEST)
    apart = np.where(follows, _over(moved, (_spread(first) + _spread(second)) / 2), odds).sum()
    if first.shape[1] <= len(first):
        noise = np.concatenate([side - np.median(side, 0) for side in (first, second)])
        _, sizes, directions = np.linalg.svd(noise, full_matrices=False)
        sizes = np.where(sizes > 1e-6 * sizes[0], sizes, 0.0) / np.sqrt(len(noise))
        along = np.abs(np.median((second - first) @ directions.T, 0))
        apart = max(apart, np.linalg.norm(_over(np.where(along > 1e-9 * np.abs(first).max(), along, 0.0), sizes)))
    return float(apart) + FARTHEST * unlike, max(unlike, float(tells.max()))


def number_beyond(curve: PrivacyCurve, trainings: Samples) -> float:
    """By how many deviations the tail of one number exceeds a claim, of those that tell D from D' best.

    A tail that is rare tells little of a table, and may give it away where it comes. -inf where there is nothing.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return -math.inf
    told = np.argsort(-np.nan_to_num(_shifted(first, second), nan=np.inf), kind="stable")[:BEST_NUMBERS]
    return _tails_beyond(curve, first[:, told], second[:, told])


def _numbers_of_pairs(trainings: Samples) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """The share of pairs that end differently; the numbers on D and on D' of those that both end as usual."""
    zero, one = trainings.where(~trainings.truth), trainings.where(trainings.truth)
    usual = trainings.usual_ending
    both = (zero.ending == usual) & (one.ending == usual)
    first, second = (np.asarray(side.where(both).summaries(), np.float64) for side in (zero, one))
    return float((zero.ending != one.ending).mean()), first, second


def _shifted(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many ranks each number's mean rank on D' is off the middle."""
    ranks = stats.rankdata(np.concatenate([first, second]), axis=0)[len(first) :]
    return np.asarray(np.abs(ranks.mean(0) - (len(first) + 0.5)))


def shown_and_beyond(
    curve: PrivacyCurve, attack: Any, trainings: Samples, *, full_digits: bool = False
) -> tuple[tuple[float, float], float]:
    """`what_it_shows` of an attack, and by how many deviations its scores exceed a claim."""
    scores = _judged_scores(attack, trainings, full_digits=full_digits)
    return _shown_by(scores), score_beyond(curve, scores)


def score_beyond(curve: PrivacyCurve, scores: Scores | None) -> float:
    """The same of what an attack scores, of as many runs in either world; 0 where there are none."""
    if scores is None:
        return 0.0
    first, second = (scores.score[scores.truth == world][:, None] for world in (False, True))
    return _tails_beyond(curve, first, second) if len(first) == len(second) else 0.0


def _tails_beyond(curve: PrivacyCurve, first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    count, values = len(first), np.concatenate([first, second])
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, 0)
    last = ranked[1:] > ranked[:-1]  # of equal ones
    below = [np.cumsum(part, axis=0)[:-1][last] for part in (order < count, order >= count)]
    worlds = [((tail + 0.5) / (count + 1), (count - tail + 0.5) / (count + 1)) for tail in below]
    ends = list(zip(*worlds, strict=True))
    return max(excess(curve, *pair, count) for p, q in ends for pair in ((p, q), (q, p)))


def excess(curve: PrivacyCurve, one: NDArray[np.float64], zero: NDArray[np.float64], runs: int) -> float:
    """By how many deviations an event that comes so often of so many runs on either table exceeds a claim.

    At the event and the level of epsilon where it does most; -inf where there is no event.
    """
    if not one.size:
        return -math.inf
    found = []
    for level, delta in zip(LEVELS, _deltas(curve), strict=True):
        deviation = np.sqrt((one * (1 - one) + math.exp(2 * level) * zero * (1 - zero)) / runs)
        found.append((one - math.exp(level) * zero - delta) / deviation)
    return float(np.max(found))


def _deltas(curve: PrivacyCurve) -> tuple[float, ...]:
    """At all levels, asked once: those of a composed curve take a second."""
    try:
        return _kept_deltas(cast(Hashable, curve))
    except TypeError:  # a curve of somebody's own that cannot be hashed
        return tuple(curve.delta(level) for level in LEVELS)


@lru_cache(maxsize=4)
def _kept_deltas(curve: Any) -> tuple[float, ...]:
    return tuple(curve.delta(level) for level in LEVELS)


def _over(moved: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """A distance in units of the spread, up to `FARTHEST`; 0 where nothing has moved."""
    units = np.divide(moved, spread, out=np.full_like(moved, FARTHEST), where=spread > 0)
    return np.where(moved > 0, np.minimum(units, FARTHEST), 0.0)


def limited(near: Samples, far: Samples) -> bool:
    """Whether code runs on records beyond the box, and shows the same of farther ones, up to its noise.

    Code that trusts its caller to keep to the range may break any promise outside it; code that limits what it is given
    has promised something of every record.
    """
    if (near.ending != far.ending).any() or (near.ending[near.truth] != near.ending[~near.truth]).any():
        return False
    if near.usual_ending not in {f"{width} numbers" for width in near.width}:
        return False
    for world in (False, True):
        of_world = (near.ending == near.usual_ending) & (near.truth == world)
        one, other = (np.asarray(side.where(of_world).summaries(), np.float64) for side in (near, far))
        if not np.allclose(one, other, rtol=1e-3, atol=1e-9):
            moved, spread = np.abs(np.median(other, 0) - np.median(one, 0)), _spread(one)
            if (moved > 2 * spread).any() or (_spread(other) > 4 * spread).any():
                return False
    return True


def _spread(summaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median distance from the median, of each number."""
    return np.asarray(np.median(np.abs(summaries - np.median(summaries, 0)), 0))


def log_odds_of_endings(
    ending: NDArray[np.str_], known: NDArray[np.str_], truth: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Log-odds of world 1, shape (n,), of how trials ended, from m others whose worlds `truth` are known.

    Half a trial of either world is added to each ending; one that was never seen says nothing.
    """
    odds = {}
    for each in np.unique(known):
        ones = np.count_nonzero(truth[known == each])
        odds[each] = np.log((ones + 0.5) / (np.count_nonzero(known == each) - ones + 0.5))
    return np.array([odds.get(each, 0.0) for each in ending], np.float64)
