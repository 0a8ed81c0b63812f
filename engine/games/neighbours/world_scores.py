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

MAX_DISTANCE = 50.0
"""Spreads between two trainings that are no longer counted."""
SEED_NOISE_SHARE = 0.6
"""A number follows the seed where trainings of one seed differ by less than this share of what others differ by."""
EPSILON_LEVELS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Of epsilon, at which what was seen is held against a claim while worlds are tried."""
MAX_TAIL_COLUMNS = 64
"""Numbers whose tails are looked at, of those that runs give."""
MIN_PARALLEL_SAMPLES = 10_000
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
        self, setting: Setting, work: Work, worlds: Unit, search_trials: int, suffix: str = ""
    ) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
        """The units of the fresh trials, and those of their scores by what `left` search samples teach."""
        search_setting = replace(setting, seed=setting.search_seed) if self.learns_once else setting
        search = self.sampled_in_parts(
            search_setting, work, type(self).samples, worlds, f"search{suffix}", search_trials
        )
        worths = self._candidate_worths(setting, work, worlds, search, search_trials)
        fresh = self.sampled_in_parts(setting, work, type(self).samples, worlds, f"fresh{suffix}", self.trials)
        in_order = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_summaries,
                setting.attack,
                setting.mechanism,
                worlds,
                search,
                trials,
                worths,
                full_digits=self.reads_full_digits,
                label=f"scores of {trials[0].label if in_order else f'{self.trials} fresh{suffix} samples'}",
                resources=setting.resources.without_gpu,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return fresh, scores

    def without_noise(self, setting: Setting, work: Work, worlds: Unit, search_trials: int) -> tuple[Unit, ...]:
        """The units of the scores where the mechanism's noise is taken away; none where it does not say how."""
        if setting.noiseless is None:
            return ()
        small_game = replace(self, trials=min(self.trials, NOISELESS_TRIALS))
        return small_game.fresh_and_scores(
            setting.noiseless, work, worlds, min(search_trials, NOISELESS_TRIALS), " without noise"
        )[1]

    def sampled_in_parts(
        self,
        setting: Setting,
        work: Work,
        function: Callable[..., Any],
        worlds: Any,
        part: str,
        trials: int,
        **arguments: Any,
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
            **arguments,
            **setting.unit_options,
        )

    def _candidate_worths(
        self, setting: Setting, work: Work, worlds: Unit, search: tuple[Unit, ...], samples: int
    ) -> tuple[Unit, ...]:
        """The units that judge the candidates of an attack, each its own; none where one unit is as quick."""
        if not isinstance(setting.attack, ManyCandidates) or samples < MIN_PARALLEL_SAMPLES:
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
    samples = usable_samples(in_scope(Samples.joined(search), full_digits=full_digits))
    if samples is None:
        return Worth(-math.inf)
    summaries, truth = rounding_of(samples, full_digits=full_digits).rounded(samples.summaries()), samples.truth
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
    worths: tuple[Worth, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Outcome[Iterator[Scores]]:
    """The attack learns on the search samples and scores the fresh ones: one replay."""
    searched, trials = Samples.joined(search), Samples.joined(fresh)
    chosen = attack.best([candidate_worth.worth for candidate_worth in worths]) if worths else attack
    with limited_threads(compute.threads):
        scores = told(chosen, searched, trials, stated_odds(mechanism, worlds, compute), full_digits=full_digits)
    usual = searched.usual_ending
    mismatches = (
        f"{name}: it ended in {ending}, most in {usual}"
        for name, ending, width in zip(trials.name.tolist(), trials.ending.tolist(), trials.width.tolist(), strict=True)
        if ending != usual and ending == f"{width} numbers"
    )
    return Outcome(iter((scores,)), failures=tuple(mismatches))


def in_scope(samples: Samples, *, full_digits: bool) -> Samples:
    """Return the samples with the numbers that a test reads: without those about low bits, unless at full digits."""
    return samples if full_digits else samples.without_low_bits()


def rounding_of(samples: Samples, *, full_digits: bool) -> Rounding:
    """Return the grid that known samples of one ending lead to; none at full digits."""
    return Rounding(np.zeros(0), ()) if full_digits else Rounding.learned(samples.summaries())


def told(
    attack: Any, known: Samples, asked: Samples, stated: StatedOdds | None = None, *, full_digits: bool = False
) -> Scores:
    """Scores of trainings that ended as most did by the attack, of all others by how they ended."""
    known, asked = (in_scope(samples, full_digits=full_digits) for samples in (known, asked))
    numbers = usable_samples(known)
    odds = log_odds_of_endings(asked.ending, known.ending, known.truth)
    alike = np.zeros(len(asked.truth), np.bool_) if numbers is None else asked.ending == known.usual_ending
    view = None
    if numbers is not None:
        rounding = rounding_of(numbers, full_digits=full_digits)
        searched, fresh = (rounding.rounded(samples.summaries()) for samples in (numbers, asked.where(alike)))
        view = SummaryView(searched, numbers.truth, fresh, stated)
    return scored_trials(attack, view, number=asked.number, truth=asked.truth, failed=~alike, failed_score=odds)


def usable_samples(samples: Samples) -> Samples | None:
    """The trainings that ended as most did; None where that tells their world, or they left no numbers."""
    usual = samples.where(samples.ending == samples.usual_ending)
    return usual if len(usual.numbers) and len(np.unique(usual.truth)) == 2 else None


def _held_out_scores(
    attack: Any, trainings: Samples, stated: StatedOdds | None = None, *, full_digits: bool = False
) -> Scores | None:
    """Of every second pair of trainings, learned from the others; None where these are of one world."""
    held_out = np.arange(len(trainings.truth)) // 2 % 2 == 1
    if min(len(np.unique(trainings.truth[part])) for part in (held_out, ~held_out)) < 2:
        return None
    return told(attack, trainings.where(~held_out), trainings.where(held_out), stated, full_digits=full_digits)


def held_out_evidence(attack: Any, trainings: Samples, stated: StatedOdds | None = None) -> tuple[float, float]:
    """The bound of every second pair of trainings, learned from the others, and their share of right guesses."""
    return _evidence(_held_out_scores(attack, trainings, stated))


def _evidence(scores: Scores | None) -> tuple[float, float]:
    """The bound of scores, and their share of right guesses."""
    if scores is None:
        return 0.0, 0.5
    estimator = FairCoins()
    return estimator.bound([estimator.tally(scores)]).lower, float(((scores.score > 0) == scores.truth).mean())


def separation(trainings: Samples) -> tuple[float, float]:
    """How far apart trainings of one seed on D and D' are, and how well one number tells D from D', in [0, 1].

    The distance is that of each number over its spread, summed up, or that along the directions in which they vary
    together, whichever is larger; code that draws its noise from the seed shows it without that noise. A number
    that does not follow the seed, as low bits, is as far apart as its odds of telling D from D'. Pairs that end
    differently are as far apart as can be.
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


def number_excess(curve: PrivacyCurve, trainings: Samples) -> float:
    """By how many deviations the tail of one number exceeds a claim, of those that tell D from D' best.

    A tail that is rare tells little of a table, and may give it away where it comes. -inf where there is nothing.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return -math.inf
    best_columns = np.argsort(-np.nan_to_num(_rank_shift(first, second), nan=np.inf), kind="stable")[:MAX_TAIL_COLUMNS]
    return _tail_excess(curve, first[:, best_columns], second[:, best_columns])


def _numbers_of_pairs(trainings: Samples) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """The share of pairs that end differently; the numbers on D and on D' of those that both end as usual."""
    zero, one = trainings.where(~trainings.truth), trainings.where(trainings.truth)
    usual = trainings.usual_ending
    both = (zero.ending == usual) & (one.ending == usual)
    first, second = (np.asarray(side.where(both).summaries(), np.float64) for side in (zero, one))
    return float((zero.ending != one.ending).mean()), first, second


def _rank_shift(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many ranks each number's mean rank on D' is off the middle."""
    ranks = stats.rankdata(np.concatenate([first, second]), axis=0)[len(first) :]
    return np.asarray(np.abs(ranks.mean(0) - (len(first) + 0.5)))


def evidence_and_excess(
    curve: PrivacyCurve, attack: Any, trainings: Samples, *, full_digits: bool = False
) -> tuple[tuple[float, float], float]:
    """`what_it_shows` of an attack, and by how many deviations its scores exceed a claim."""
    scores = _held_out_scores(attack, trainings, full_digits=full_digits)
    return _evidence(scores), score_excess(curve, scores)


def score_excess(curve: PrivacyCurve, scores: Scores | None) -> float:
    """The same of what an attack scores, of as many runs in either world; 0 where there are none."""
    if scores is None:
        return 0.0
    first, second = (scores.score[scores.truth == world][:, None] for world in (False, True))
    return _tail_excess(curve, first, second) if len(first) == len(second) else 0.0


def _tail_excess(curve: PrivacyCurve, first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    count, values = len(first), np.concatenate([first, second])
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, 0)
    last = ranked[1:] > ranked[:-1]  # of equal ones
    below = [np.cumsum(part, axis=0)[:-1][last] for part in (order < count, order >= count)]
    worlds = [((tail + 0.5) / (count + 1), (count - tail + 0.5) / (count + 1)) for tail in below]
    ends = list(zip(*worlds, strict=True))
    return max(excess(curve, *pair, count) for p, q in ends for pair in ((p, q), (q, p)))


def excess(curve: PrivacyCurve, share_one: NDArray[np.float64], share_zero: NDArray[np.float64], runs: int) -> float:
    """By how many deviations an event that comes so often of so many runs on either table exceeds a claim.

    At the event and the level of epsilon where it does most; -inf where there is no event.
    """
    if not share_one.size:
        return -math.inf
    excesses = []
    for level, delta in zip(EPSILON_LEVELS, _deltas(curve), strict=True):
        deviation = np.sqrt((share_one * (1 - share_one) + math.exp(2 * level) * share_zero * (1 - share_zero)) / runs)
        excesses.append((share_one - math.exp(level) * share_zero - delta) / deviation)
    return float(np.max(excesses))


def _deltas(curve: PrivacyCurve) -> tuple[float, ...]:
    """At all levels, asked once: those of a composed curve take a second."""
    try:
        return _cached_deltas(cast(Hashable, curve))
    except TypeError:  # a curve of somebody's own that cannot be hashed
        return tuple(curve.delta(level) for level in EPSILON_LEVELS)


@lru_cache(maxsize=4)
def _cached_deltas(curve: Any) -> tuple[float, ...]:
    return tuple(curve.delta(level) for level in EPSILON_LEVELS)


def _in_spreads(shift: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """A distance in units of the spread, up to `FARTHEST`; 0 where nothing has moved."""
    units = np.divide(shift, spread, out=np.full_like(shift, MAX_DISTANCE), where=spread > 0)
    return np.where(shift > 0, np.minimum(units, MAX_DISTANCE), 0.0)


def clips_records(near: Samples, far: Samples) -> bool:
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
        near_summaries, far_summaries = (
            np.asarray(side.where(of_world).summaries(), np.float64) for side in (near, far)
        )
        if not np.allclose(near_summaries, far_summaries, rtol=1e-3, atol=1e-9):
            shift, spread = np.abs(np.median(far_summaries, 0) - np.median(near_summaries, 0)), _spread(near_summaries)
            if (shift > 2 * spread).any() or (_spread(far_summaries) > 4 * spread).any():
                return False
    return True


def _spread(summaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median distance from the median, of each number."""
    return np.asarray(np.median(np.abs(summaries - np.median(summaries, 0)), 0))


def log_odds_of_endings(
    ending: NDArray[np.str_], search_ending: NDArray[np.str_], truth: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Log-odds of world 1, shape (n,), of how trials ended, from m others whose worlds `truth` are known.

    Half a trial of either world is added to each ending; one that was never seen says nothing.
    """
    odds = {}
    for name in np.unique(search_ending):
        ones = np.count_nonzero(truth[search_ending == name])
        odds[name] = np.log((ones + 0.5) / (np.count_nonzero(search_ending == name) - ones + 0.5))
    return np.array([odds.get(name, 0.0) for name in ending], np.float64)
