"""Games whose trials are summary vectors: the attack learns from search samples of known worlds and scores fresh ones.

The module also measures the separation of two worlds, by which games choose data sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.attacks.stated_law import StatedOdds, stated_odds
from dpaudit.engine.games.neighbours.residues import separating_residues
from dpaudit.engine.games.neighbours.rounding import Rounding
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, Reading, Setting, require_units
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading, scored_trials
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.threads import limited_threads

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
    search: tuple[Outcomes, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Worth:
    """Return the worth of one candidate of a `ManyCandidates` on search samples; -inf if nothing can be learned."""
    samples = _usable_samples(in_scope(Outcomes.joined(search), full_digits=full_digits))
    if samples is None:
        return Worth(-math.inf)
    worlds = worlds[0] if isinstance(worlds, list) else worlds
    summaries, truth = _rounding_of(samples, full_digits=full_digits).rounded(samples.summaries()), samples.truth
    stated = stated_odds(mechanism, worlds, compute)
    with limited_threads(compute.threads):
        return Worth(candidate.worth(SummaryView(summaries, truth, summaries[:0], stated, known_move(worlds))))


@unit
def score_summaries(
    attack: Any,
    mechanism: Any,
    worlds: Any,
    search: tuple[Outcomes, ...],
    fresh: tuple[Outcomes, ...],
    worths: tuple[Worth, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Outcome[Iterator[Scores]]:
    """Return the scores of fresh samples as one replay; the attack learns from search samples."""
    searched, trials = Outcomes.joined(search), Outcomes.joined(fresh)
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


def in_scope(samples: Outcomes, *, full_digits: bool) -> Outcomes:
    """Return the samples, without the numbers that hold low bits unless all digits are read."""
    return samples if full_digits else samples.without_low_bits()


def _rounding_of(samples: Outcomes, *, full_digits: bool) -> Rounding:
    """Return the grid learned from search samples with one ending; no rounding if all digits are read."""
    return Rounding(np.zeros(0), ()) if full_digits else Rounding.learned(samples.summaries())


def score_trials(
    attack: Any,
    search: Outcomes,
    trials: Outcomes,
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


def _usable_samples(samples: Outcomes) -> Outcomes | None:
    """Return samples with the usual ending; None if they are all of one world or have no numbers."""
    usual = samples.where(samples.ending == samples.usual_ending)
    return usual if len(usual.vector) and len(np.unique(usual.truth)) == 2 else None


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
