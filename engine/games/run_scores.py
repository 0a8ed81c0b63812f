"""Scores of runs by an attack that learns from runs of known worlds, and the worth of its candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.work import unit
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.attacks.stated_law import StatedOdds, stated_odds
from dpaudit.engine.games.digits import Rounding, separating_residues
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.errors import RunError
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute, limited_threads


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
    pairs: Sequence[Any],
    search: tuple[Outcomes, ...],
    compute: Compute,
    *,
    full_digits: bool = False,
) -> Worth:
    """Return the worth of one candidate of a `ManyCandidates` on search samples; -inf if nothing can be learned.

    If there are several pairs, the law that the mechanism states is that of the first.
    """
    samples = _usable_samples(in_scope(Outcomes.joined(search), full_digits=full_digits))
    if samples is None:
        return Worth(-math.inf)
    summaries, truth = _rounding_of(samples, full_digits=full_digits).rounded(samples.summaries()), samples.truth
    stated, move = stated_odds(mechanism, pairs[0], compute), known_move(pairs[0])
    with limited_threads(compute.threads):
        return Worth(candidate.worth(SummaryView(summaries, truth, summaries[:0], stated, move)))


def in_scope(samples: Outcomes, *, full_digits: bool) -> Outcomes:
    """Return the samples, without the numbers that hold low bits unless all digits are read."""
    return samples if full_digits else samples.without_low_bits()


def _rounding_of(samples: Outcomes, *, full_digits: bool) -> Rounding:
    """Return the grid learned from search samples with one ending; no rounding if all digits are read."""
    return Rounding(np.zeros(0), ()) if full_digits else Rounding.learned(samples.summaries())


def scored_trials(
    attack: Any,
    view: Any,
    *,
    number: NDArray[np.int64],
    truth: NDArray[np.bool_],
    failed: NDArray[np.bool_],
    failed_score: NDArray[np.float64] | float = np.inf,
) -> Scores:
    """Return the attack's scores of T trials as one replay, whose canaries are the numbers of the trials.

    Args:
        failed_score: Score of a failed training, for each trial, shape (T,), or for all. A failure is an outcome,
            because a record may cause it. By default it counts for world 1, which contains the canary.
    """
    scores = np.where(failed, failed_score, 0.0)
    if not failed.all():
        scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} returned NaN scores. Scores must be numbers")
    return scored(0, truth, scores, number)


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
