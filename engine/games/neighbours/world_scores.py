"""Games whose trials are summary vectors: the attack learns from search samples of known worlds and scores fresh ones.

The module also measures the separation of two worlds, by which games choose data sets.
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
from dpaudit.engine.games.neighbours.residues import separating_residues
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
MIN_PARALLEL_SAMPLES = 10_000
"""Number of search samples from which separate units evaluate the candidates of an attack."""


@dataclass(frozen=True)
class SummaryGame(TrialGame):
    """Base of games with fresh trials, and search samples from which the attack learns.

    Attributes:
        search: Number of search runs, in 4 .. 10,000,000, for the choice of the two worlds and for learning.
    """

    search: int = 20_000
    samples: ClassVar[Callable[..., Any]]
    """Unit function that makes samples `first` to `last` - 1 of (mechanism, worlds, limit_s)."""
    learns_once: ClassVar[bool] = False
    """True if a confirmatory run reuses the worlds and search samples of the first pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(4 <= self.search <= MAX_TRIALS, f"search must be in 4 .. {MAX_TRIALS:,}", search=self.search)
        limit = self.limit_s
        require(limit is None or limit > 0, "a time limit must be > 0 s", limit=limit)

    @property
    def limit_s(self) -> float | None:
        """Time limit of one run in seconds, after which it fails; None for no limit except that of the unit."""
        raise NotImplementedError

    @property
    def reads_full_digits(self) -> bool:
        """True if the attack sees all digits, including low bits; else numbers are rounded to a grid (`Rounding`)."""
        return False

    def fresh_and_scores(
        self,
        setting: Setting,
        work: Work,
        worlds: Unit,
        search_trials: int,
        suffix: str = "",
        *,
        earlier: tuple[Unit, ...] = (),
        **arguments: Any,
    ) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
        """Add search samples, fresh trials and scores; return the units of the last two.

        The attack learns from the samples of the units `earlier` too. `arguments` go to the function `samples`.
        """
        search_setting = replace(setting, seed=setting.search_seed) if self.learns_once else setting
        search = self.sampled_in_parts(
            search_setting, work, type(self).samples, worlds, f"search{suffix}", search_trials, **arguments
        )
        search = (*earlier, *search)
        worths = self._candidate_worths(setting, work, worlds, search, search_trials)
        fresh = self.sampled_in_parts(
            setting, work, type(self).samples, worlds, f"fresh{suffix}", self.trials, **arguments
        )
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
        """Return the units of scores without the mechanism's noise; () if the noise cannot be removed."""
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
        require_units(-(-trials // self.runs_per_unit(setting.mechanism)))
        return work.split(
            function,
            trials,
            self.runs_per_unit(setting.mechanism),
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
        """Return one unit for each candidate of the attack, which evaluates it; () if one unit is as fast."""
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
    """An attack that chooses among candidates by search samples only."""

    def candidates(self) -> Sequence[Any]:
        """Return all candidates."""
        ...

    def best(self, worth: Sequence[float]) -> Any:
        """Return the candidate with the largest worth."""
        ...


@dataclass(frozen=True)
class Worth:
    """Worth of a candidate, on the scale of the attack."""

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
    """Return the worth of one candidate of a `ManyCandidates` on search samples; -inf if nothing can be learned."""
    samples = _usable_samples(in_scope(Samples.joined(search), full_digits=full_digits))
    if samples is None:
        return Worth(-math.inf)
    summaries, truth = _rounding_of(samples, full_digits=full_digits).rounded(samples.summaries()), samples.truth
    stated = stated_odds(mechanism, worlds, compute)
    with limited_threads(compute.threads):
        return Worth(candidate.worth(SummaryView(summaries, truth, summaries[:0], stated, known_move(worlds))))


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
    """Return the scores of fresh samples as one replay; the attack learns from search samples."""
    searched, trials = Samples.joined(search), Samples.joined(fresh)
    chosen = attack.best([candidate_worth.worth for candidate_worth in worths]) if worths else attack
    with limited_threads(compute.threads):
        scores = score_trials(
            chosen,
            searched,
            trials,
            stated_odds(mechanism, worlds, compute),
            known_move(worlds),
            full_digits=full_digits,
        )
    usual = searched.usual_ending
    mismatches = (
        f"{name}: it returned {ending}, most trials {usual}"
        for name, ending, width in zip(trials.name.tolist(), trials.ending.tolist(), trials.width.tolist(), strict=True)
        if ending != usual and ending == f"{width} numbers"
    )
    return Outcome(iter((scores,)), failures=tuple(mismatches))


def in_scope(samples: Samples, *, full_digits: bool) -> Samples:
    """Return the samples, without the numbers that hold low bits unless all digits are read."""
    return samples if full_digits else samples.without_low_bits()


def _rounding_of(samples: Samples, *, full_digits: bool) -> Rounding:
    """Return the grid learned from search samples with one ending; no rounding if all digits are read."""
    return Rounding(np.zeros(0), ()) if full_digits else Rounding.learned(samples.summaries())


def score_trials(
    attack: Any,
    search: Samples,
    trials: Samples,
    stated: StatedOdds | None = None,
    move: NDArray[np.float64] | None = None,
    *,
    full_digits: bool = False,
) -> Scores:
    """Return scores: by the attack for trials with the usual ending, by their ending for all others."""
    search, trials = (in_scope(samples, full_digits=full_digits) for samples in (search, trials))
    usable = _usable_samples(search)
    odds = log_odds_of_endings(trials.ending, search.ending, search.truth)
    usual, view = np.zeros(len(trials.truth), np.bool_), None
    if usable is not None:
        usual = trials.ending == search.usual_ending
        rounding = _rounding_of(usable, full_digits=full_digits)
        searched, fresh = (rounding.rounded(samples.summaries()) for samples in (usable, trials.where(usual)))
        view = SummaryView(searched, usable.truth, fresh, stated, move)
    scores = scored_trials(attack, view, number=trials.number, truth=trials.truth, failed=~usual, failed_score=odds)
    if usable is None or full_digits or (rule := separating_residues(usable.exact(), usable.truth)) is None:
        return scores
    by_residue = np.zeros(len(usual))
    by_residue[usual] = rule(trials.where(usual).exact())
    return replace(scores, score=np.where(by_residue == 0, scores.score, by_residue))


def known_move(worlds: Any) -> NDArray[np.float64] | None:
    """Return the change of the summary from D to D' that a search measured by coupled seeds; None if unknown."""
    move = np.asarray(getattr(worlds, "move", ()), np.float64)
    return move if len(move) else None


def _usable_samples(samples: Samples) -> Samples | None:
    """Return samples with the usual ending; None if they are all of one world or have no numbers."""
    usual = samples.where(samples.ending == samples.usual_ending)
    return usual if len(usual.numbers) and len(np.unique(usual.truth)) == 2 else None


def _held_out_scores(
    attack: Any, trainings: Samples, stated: StatedOdds | None = None, *, full_digits: bool = False, half: int = 1
) -> Scores | None:
    """Return scores of every second pair of trainings, learned from the others; None if one half has a single world."""
    held_out = np.arange(len(trainings.truth)) // 2 % 2 == half
    if min(len(np.unique(trainings.truth[part])) for part in (held_out, ~held_out)) < 2:
        return None
    return score_trials(attack, trainings.where(~held_out), trainings.where(held_out), stated, full_digits=full_digits)


def held_out_evidence(attack: Any, trainings: Samples, stated: StatedOdds | None = None) -> tuple[float, float]:
    """Return the bound and the share of correct guesses on half of the trainings, learned from the other half."""
    return _evidence(_held_out_scores(attack, trainings, stated))


def _evidence(scores: Scores | None) -> tuple[float, float]:
    """Return the bound and the share of correct guesses."""
    if scores is None:
        return 0.0, 0.5
    estimator = FairCoins()
    return estimator.bound([estimator.tally(scores)]).lower, float(((scores.score > 0) == scores.truth).mean())


def separation(trainings: Samples) -> tuple[float, float]:
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


def coupled_move(trainings: Samples) -> NDArray[np.float64]:
    """Return the median change of each number from D to D' by pairs of trainings with one seed, shape (width,).

    Empty if the changes of a number vary nearly as much as its noise, which then does not follow the seed.
    """
    change, noise = _coupled_changes(trainings)
    follows_seed = (noise == 0) | (_spread(change) < SEED_NOISE_SHARE * noise)
    return np.asarray(np.median(change, 0)) if follows_seed.all() else np.empty(0)


def steady_move(trainings: Samples) -> NDArray[np.float64]:
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


def _coupled_changes(trainings: Samples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the changes of all numbers from D to D' with one seed, shape (pairs, width), and their noise, (width,).

    Both are empty if there are too few pairs.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return np.empty((0, 0)), np.empty(0)
    return second - first, np.where(_spread(first) > 0, _spread(second - np.roll(first, 1, axis=0)), 0.0)


def number_excess(curve: PrivacyCurve, trainings: Samples) -> float:
    """Return the standard deviations by which the tail of one number exceeds a claim; -inf without numbers.

    Only numbers that separate D and D' best count. A rare tail shifts no ranks, but may reveal D or D' if it occurs.
    """
    _, first, second = _numbers_of_pairs(trainings)
    if len(first) < 2 or not first.shape[1]:
        return -math.inf
    best_columns = np.argsort(-np.nan_to_num(_rank_shift(first, second), nan=np.inf), kind="stable")[:MAX_TAIL_COLUMNS]
    return _tail_excess(curve, first[:, best_columns], second[:, best_columns])


def _numbers_of_pairs(trainings: Samples) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
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
    curve: PrivacyCurve, attack: Any, trainings: Samples, *, full_digits: bool = False
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


def clips_records(near: Samples, far: Samples) -> bool:
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


def log_odds_of_endings(
    ending: NDArray[np.str_], search_ending: NDArray[np.str_], truth: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return log-odds of world 1 for the endings of n trials, from m endings of known worlds `truth`; shape (n,).

    Half a trial of each world is added to each ending. A new ending has log-odds 0.
    """
    odds = {}
    for name in np.unique(search_ending):
        ones = np.count_nonzero(truth[search_ending == name])
        odds[name] = np.log((ones + 0.5) / (np.count_nonzero(search_ending == name) - ones + 0.5))
    return np.array([odds.get(name, 0.0) for name in ending], np.float64)
