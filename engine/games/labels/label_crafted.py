"""Game "label-crafted": secret labels in small data sets that the challenger designs.

Differential privacy must hold for every pair of neighbouring data sets. The given data can hide a leak, such as one
vote among twenty or one row in a split. The game tries several designs with few secret labels, and guesses in fresh
releases of the design that leaks most.
Source: ours. Pairs of labels are as in Malek et al. (2021), arXiv:2106.03408. The choice of data by the auditor follows
Jagielski et al. (2020), arXiv:2006.07709.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_coins import LabelCoins, Searched, guess_labels, known_releases
from dpaudit.engine.games.labels.label_designs import (
    ChannelView,
    Design,
    LabelReleases,
    PairedReleases,
    designs_for,
    drawn_pairs,
    max_canaries,
)
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, LEARNERS, CheckTest, GameTraits, Setting
from dpaudit.errors import CODE_ERRORS, RunError, SpecError, error_of_code, require
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

MIN_DESIGN_RELEASES = 4
"""Fewest search releases of a design: half for learning, half held out."""
MAX_TRIED_LABELS = 10_000
"""Search canaries of a design that suffice, after at least 12 releases."""
MAX_TRIED_TRAINED_LABELS = 400
"""Search canaries of a design that suffice if each release needs a training."""
MAX_TRIED_ROWS = 100_000
"""Search rows of a design that suffice, after at least `MIN_DESIGN_RELEASES` releases."""
MAX_RELEASES = 125_000
"""Largest number of fresh releases; canary numbers must fit into 32 bits."""
MAX_FAILURES = 24
"""Number of failed releases after which a design without any success is skipped."""
CHOICE_CONFIDENCES = (0.95, 0.997)
"""Confidences of the bounds by which designs are chosen; these bounds are not reported."""


@register("game", "label-crafted", source="Ours, after Malek et al. (2021) and Jagielski et al. (2020)")
@dataclass(frozen=True)
class LabelCrafted(LabelCoins):
    """Interventional game: the attacker guesses secret labels in a small data set, of which it knows most labels.

    Designs for label mechanisms have 1 to 20, 256, 2,048 and 16,384 rows. Designs for learners have 2 to 64 distant
    points. Integer fields of the mechanism (teachers, queries) give further sizes. A design has one canary, or half of
    its rows are canaries. A failed release is an outcome too; designs whose releases all fail are skipped. The game
    plays the design with the largest bound on search releases.

    Attributes:
        search: Number of search releases, divided among the designs, >= 4 for each; the attack learns from them.
        releases: Largest number of fresh releases, >= 1.
        canaries: Number of canaries after which no further fresh release is made, >= 1.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: the challenger makes the data and draws "
        "both labels of each canary, and a fresh copy of the mechanism makes each release.",
        views={LABEL_MECHANISMS: ChannelView, LEARNERS: ChannelView},
        attack="learned-channel",
        estimator="simultaneous-guess-count",
        sharing=max_canaries,
        repeats_calls=True,
        helps="more `releases` and `canaries`, or data that the mechanism does not refuse",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "leaks in designed data: ties, noise that rows share, a unique label or one that decides a failure, "
                "effects of thousands of rows",
                game={"search": 16_000, "releases": 4_000, "canaries": 400_000},
            ),
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "leaks in small designed data: votes that one label decides, noise that two rows share",
                trainings=500,
                scales={"search": 0.36, "releases": 0.64},
                cost=1 / 4,
                min_trainings=100,
                growth_on_repeat={"releases": 1.5, "canaries": 4},
            ),
        ),
    )

    used_designs: ClassVar[int] = 2

    search: int = 180
    releases: int = 320
    canaries: int = 2_000

    def __post_init__(self) -> None:
        require(
            self.search >= MIN_DESIGN_RELEASES, f"search must be >= {MIN_DESIGN_RELEASES} releases", search=self.search
        )
        require(
            1 <= self.releases <= MAX_RELEASES, f"releases must be in [1, {MAX_RELEASES:,}]", releases=self.releases
        )
        require(self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    def designs(self, setting: Setting) -> tuple[Design, ...]:
        designs = designs_for(setting.mechanism, setting.parts.target)
        least = MIN_DESIGN_RELEASES * len(designs)
        if self.search < least:
            raise SpecError(f"search must be at least {least} to try {len(designs)} data sets, got {self.search}")
        return designs

    def most_canaries(self, designs: tuple[Any, ...]) -> int:
        return self.canaries

    def chosen(self, setting: Setting, work: Work, designs: tuple[Any, ...]) -> Unit:
        target = setting.required_part("target")
        quick = self.traits.capability_of(setting.mechanism) is LABEL_MECHANISMS
        accepted = work.add(
            try_once,
            setting.mechanism,
            designs,
            target,
            seed=setting.search_seed.child("able"),
            label="which data sets it takes",
            **setting.unit_options,
        )
        tried = tuple(
            work.add(
                try_design,
                setting.mechanism,
                number,
                accepted,
                design,
                target,
                search=self.search,
                enough=min(
                    max(12, -(-(MAX_TRIED_LABELS if quick else MAX_TRIED_TRAINED_LABELS) // design.canaries)),
                    max(MIN_DESIGN_RELEASES, MAX_TRIED_ROWS // design.size),
                ),
                seed=seed.child("search", number),
                label=f"tried: {design}",
                **setting.unit_options,
            )
            for number, design in enumerate(designs)
            # a confirmatory run reuses the search of the first pass
            for seed in dict.fromkeys((setting.search_seed, setting.seed))
        )
        return work.add(
            take_best_designs,
            setting.attack,
            designs,
            tried,
            most=self.used_designs if quick else 1,
            label=f"best of {len(designs)} data sets",
            resources=setting.resources.without_gpu,
        )


@dataclass(frozen=True, eq=False)
class AcceptedDesigns:
    """Mask of the designs that the mechanism accepts."""

    taken: NDArray[np.bool_]  # shape (designs,)


@unit
def try_once(
    mechanism: Any, designs: tuple[Design, ...], target: Examples, compute: Compute, *, seed: Seed
) -> AcceptedDesigns:
    """Release each design once, or up to `MIN_DESIGN_RELEASES` times until a release succeeds."""

    def succeeds(number: int, design: Design, release: int) -> bool:
        return not known_releases(design, mechanism, target, compute, [release], seed.child(number))[1].failures

    attempts = range(MIN_DESIGN_RELEASES)
    return AcceptedDesigns(
        np.array([any(succeeds(*each, release) for release in attempts) for each in enumerate(designs)])
    )


@unit
def try_design(
    mechanism: Any,
    number: int,
    accepted: AcceptedDesigns,
    design: Design,
    target: Examples,
    compute: Compute,
    *,
    search: int,
    enough: int,
    seed: Seed,
) -> Searched:
    """Make the search releases of one design: its share of all `search` releases, at most `enough`.

    Accepted designs share them equally. Other designs get `MIN_DESIGN_RELEASES` more releases.
    """
    count = min(search // max(1, int(accepted.taken.sum())) if accepted.taken[number] else MIN_DESIGN_RELEASES, enough)
    releases, outcomes = known_releases(design, mechanism, target, compute, range(count), seed, MAX_FAILURES)
    if (outcomes.fault != "").all():
        return Searched(number, None, str(outcomes.fault[0]))
    return Searched(number, releases)


@unit
def take_best_designs(
    attack: Any, designs: tuple[Design, ...], tried: tuple[Searched, ...], *, most: int
) -> Outcome[Iterator[Searched]]:
    """Return the design with the largest bound on search releases, the first one of equals; none if all are refused.

    With `most` = 2, also return the design with the largest bound at a higher confidence if it is another one. That one
    has more canaries, so its bound on fresh releases is closer to the true epsilon if all labels leak equally.
    """
    by_design = []
    for number in range(len(designs)):
        of_design = [each for each in tried if each.number == number]  # of both passes
        parts = [each.releases for each in of_design if each.releases is not None]
        by_design.append(replace(of_design[0], releases=LabelReleases.joined(parts)) if parts else of_design[0])
    evidence: dict[int, tuple[float, float, float]] = {}
    descriptions = []
    for number, (design, candidate) in enumerate(zip(designs, by_design, strict=True)):
        if candidate.releases is None:
            descriptions.append(f"{design}: refused ({candidate.refused})")
            continue
        bound, accuracy, _ = evidence[number] = design_evidence(attack, candidate.releases)
        descriptions.append(f"{design}: {format_lower(bound)} ({accuracy:.0%} right)")
    errors = {error_of_code(candidate.refused) for candidate in by_design}
    if not evidence and len(errors) == 1 and min(errors).startswith(CODE_ERRORS):
        raise RunError(f"the mechanism failed on all {len(designs)} data sets in the same way: {min(errors)}")
    if not evidence:
        note = f"data set chosen: none, because the mechanism refused all of them; {'; '.join(descriptions)}"
        return Outcome(iter(()), notes=(note,))
    best = max(evidence, key=lambda number: evidence[number])
    surest = max(evidence, key=lambda number: evidence[number][::-1])
    numbers = list(dict.fromkeys((best, surest)))[:most]
    names = "; and ".join(str(designs[number]) for number in numbers)
    note = f"data set chosen: {names}; bounds on search releases of {len(designs)} data sets: {'; '.join(descriptions)}"
    return Outcome((by_design[number] for number in numbers), notes=(note,))


def design_evidence(attack: Any, releases: LabelReleases) -> tuple[float, float, float]:
    """Return a bound, the share of correct guesses and a bound at higher confidence, on half of the releases.

    The attack learns from the other half.
    """
    rng = np.random.default_rng(len(releases.released))  # randomness of the attacker
    learned, held_out = (releases.at(np.arange(start, len(releases.released), 2)) for start in (0, 1))
    used = releases.used or releases.classes
    draws = [drawn_pairs(planted, releases.at_stake, used, rng) for planted in held_out.planted]
    score, truth = guess_labels(attack, learned, PairedReleases.of(held_out.released, held_out.form, draws))
    scores = Scores(score, truth)
    estimators = [SimultaneousGuessCount(confidence=confidence) for confidence in CHOICE_CONFIDENCES]
    bound, cautious_bound = (estimator.bound([estimator.tally(scores)]).lower for estimator in estimators)
    return bound, float(((score > 0) == truth).mean()), cautious_bound
