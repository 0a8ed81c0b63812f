"""The units of the game `neighbours`: the two data sets, trainings on them summed up, scores of the fresh ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.numbers import Scale, as_numbers
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, Worlds
from dpaudit.engine.games.neighbours.summaries import Samples, Trainings, joined, samples_of, train_and_summarise
from dpaudit.engine.games.trials import scored_trials
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples


@unit
def choose_worlds(
    poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> Worlds:
    """Makes the two data sets.

    Args:
        poisoning: How.
        copies: Records in which they differ.
        scale: The range of their numbers.
        target: What they are made of.
        compute: Where it runs.
        seed: What the poisoning draws from.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    data: Examples = as_numbers(target, scale)
    require(copies < len(data), "copies must be fewer than the rows", copies=copies, rows=len(data))
    with threadpool_limits(compute.threads):
        return poisoning.worlds(data, copies, seed.rng())


@unit
def sample_summaries(
    mechanism: Any, worlds: Worlds, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Samples]:
    """Trainings `first` to `last` - 1, each on D or D' by its own coin, summed up.

    Args:
        mechanism: What is audited.
        worlds: The data sets.
        limit_s: Seconds a single training may run; None = as long as the unit.
        compute: Where it runs.
        first: First trial.
        last: One past the last trial.
        seed: The coins of a batch are drawn from `seed.child(first)`, its trainings from children of that.
    Raises: TrainingError when every training failed.
    """
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    asked = Trainings(worlds, truth, first, own.child("trainings"), compute, limit_s)
    samples, errors = samples_of(train_and_summarise(mechanism, asked), asked)
    if (samples.width < 0).all():
        raise TrainingError(f"all {last - first} trainings of this batch failed; the first: {errors[0]}")
    return Outcome(samples, failures=tuple(error for error in errors if error))


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
    """What a candidate is worth.

    Attributes:
        worth: As the attack measures it.
    """

    worth: float


@unit
def judge_candidate(candidate: Any, search: tuple[Samples, ...]) -> Worth:
    """What one candidate of a `ManyCandidates` is worth on the search samples."""
    known, truth = _learned_from(joined(search))
    return Worth(candidate.worth(SummaryView(known, truth, known[:0])))


@unit
def score_summaries(
    attack: Any, search: tuple[Samples, ...], fresh: tuple[Samples, ...], judged: tuple[Worth, ...]
) -> Outcome[Iterator[Scores]]:
    """The attack learns on the search samples and scores the fresh ones: one replay.

    Args:
        attack: The adversary.
        search: Samples whose world it is told.
        fresh: Samples that it scores.
        judged: What its candidates are worth, in their order; none where it judges them itself.
    Returns: The scores; samples of another length than most search samples are failures.
    """
    searched, trials = joined(search), joined(fresh)
    usual = searched.usual_width
    view = SummaryView(*_learned_from(searched), trials.of_width(usual))
    chosen = attack.best([each.worth for each in judged]) if judged else attack
    scores = scored_trials(chosen, view, number=trials.number, truth=trials.truth, failed=trials.width != usual)
    odd = (
        f"{name}: it gave {width} numbers, most gave {usual}"
        for name, width in zip(trials.name.tolist(), trials.width.tolist(), strict=True)
        if width not in (usual, -1)
    )
    return Outcome(iter((scores,)), failures=tuple(odd))


def _learned_from(search: Samples) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Search samples of the usual length, shape (m, width), and their worlds, shape (m,)."""
    usual = search.usual_width
    return search.of_width(usual), search.truth[search.width == usual]
