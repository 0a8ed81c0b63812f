"""The search of the game `neighbours` over poisonings: each is tried on trainings of its own, the best one is taken.

What is tried learns on one half of its trainings and is judged on the other by the bound it would give; where no bound
shows anything, by how many guesses are right. Search and fresh trainings come afterwards, with other seeds, so the
verdict pays nothing for the choice.

Source: Lu et al. (2022), section 4.1, the maximisation over data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.numbers import Scale
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, Worlds
from dpaudit.engine.games.neighbours.summaries import Samples, joined
from dpaudit.engine.games.neighbours.work import choose_worlds, sample_summaries
from dpaudit.errors import InputError, RunError, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples


@dataclass(frozen=True, eq=False)
class Offer:
    """Two data sets that may be taken.

    Attributes:
        worlds: The data sets; None where the poisoning does not fit.
        refused: Why there are none.
    """

    worlds: Worlds | None
    refused: str = ""


@dataclass(frozen=True, eq=False)
class Tried:
    """Trainings on two data sets that may be taken.

    Attributes:
        samples: What they left; None where there are no data sets, or all trainings failed.
        refused: Why there is nothing.
    """

    samples: Samples | None
    refused: str = ""


@unit
def offer_worlds(
    poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> Offer:
    """As `choose_worlds`, or why not."""
    try:
        return Offer(choose_worlds(poisoning, copies, scale, target, compute, seed=seed))
    except InputError as err:
        return Offer(None, str(err))


@unit
def try_summaries(
    mechanism: Any, offer: Offer, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Tried:
    """As `sample_summaries`, or why not."""
    if offer.worlds is None:
        return Tried(None, offer.refused)
    try:
        made = sample_summaries(mechanism, offer.worlds, limit_s, compute, first=first, last=last, seed=seed)
    except TrainingError as err:
        return Tried(None, str(err))
    return Tried(made.value)


@unit
def take_best(
    attack: Any,
    names: tuple[str, ...],
    offers: tuple[Offer, ...],
    tried: tuple[tuple[Tried, ...], ...],
    compute: Compute,
) -> Outcome[Worlds]:
    """The data sets of the poisoning that shows most; the first of equals is taken.

    Args:
        attack: What tells the worlds apart.
        names: Of the poisonings.
        offers: What each of them gave.
        tried: Trainings on each.
        compute: Where it runs.
    Returns: The data sets; the notes say what was tried.
    Raises: RunError when no poisoning fits.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    shown, refused, worlds = {}, {}, {}
    for name, offer, parts in zip(names, offers, tried, strict=True):
        reasons = [part.refused for part in parts if part.samples is None]
        if offer.worlds is None or reasons:
            refused[name] = reasons[0]
            continue
        worlds[name] = offer.worlds
        with threadpool_limits(compute.threads):
            shown[name] = what_it_shows(attack, joined([part.samples for part in parts if part.samples is not None]))
    if not shown:
        raise RunError(f"no poisoning fits: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
    best = max(shown, key=lambda name: shown[name])
    words = [f"{name} {format_lower(bound)} ({right:.0%} right)" for name, (bound, right) in shown.items()]
    words += [f"{name} does not fit: {shortened(why)}" for name, why in refused.items()]
    told = f"of {len(offers)} poisonings {best} was taken; bounds on their own trainings: {', '.join(words)}"
    return Outcome(worlds[best], notes=(told,))


def what_it_shows(attack: Any, trainings: Samples) -> tuple[float, float]:
    """The bound of every second training, learned from the others, and the share of right guesses among them."""
    usual = trainings.usual_width
    summaries, truth = trainings.of_width(usual), trainings.truth[trainings.width == usual]
    judged = np.arange(len(truth)) % 2 == 1
    if min(len(np.unique(truth[part])) for part in (judged, ~judged)) < 2:
        return 0.0, 0.5
    scores = attack.score(SummaryView(summaries[~judged], truth[~judged], summaries[judged]))
    estimator = FairCoins()
    bound = estimator.bound([estimator.tally(Scores(scores, truth[judged]))])
    return bound.lower, float(((scores > 0) == truth[judged]).mean())
