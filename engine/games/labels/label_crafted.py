"""Labels of tiny data sets that are made for the purpose: differential privacy holds for every pair of neighbours.

Data that one happens to have hide what a mechanism gives away: one vote among twenty, one row in a split that nobody
knows. So several small data sets are tried, in which nearly all labels are known to the attacker; the one that gives
most away is released again, and fresh coins decide what is guessed there.

Source: ours. The fair pair is that of Malek et al. (2021), arXiv:2106.03408; that the auditor may choose the data is
Jagielski et al. (2020), arXiv:2006.07709.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.fits import LABEL_MECHANISMS, LEARNERS, CheckTest, Fits
from dpaudit.engine.games.labels.crafted_work import (
    MOST_POINTS,
    Design,
    guess_crafted,
    points_of,
    release_crafted,
    take_best_design,
    tell_labels,
    try_design,
)
from dpaudit.engine.games.labels.label_releases import ChannelView
from dpaudit.engine.games.protocol import Played, Setting
from dpaudit.errors import SpecError, require
from dpaudit.registry import register

FEWEST_TRIED = 4
"""Releases of each data set that is tried: half to learn from, half to judge by."""
ENOUGH_TRIED = 400
"""Labels at stake after which a data set has been tried enough, if it was released a dozen times."""
LARGEST_SIZE = 5_000
"""Rows of a data set that is made, at most."""
MOST_SIZES = 4
"""Sizes that a mechanism's own fields may add."""
PARTS = 8
"""Units that train a learner for the fresh releases; those of label mechanisms take milliseconds, so one makes all."""


@register("game", "label-crafted", source="Ours, after Malek et al. (2021) and Jagielski et al. (2020)")
@dataclass(frozen=True)
class LabelCrafted:
    """Interventional: labels of small data sets made for the purpose, of which the attacker knows nearly all.

    Sizes are 1 to 20 rows for label mechanisms, 2 and up to 64 points far apart for learners, and whole numbers among
    the mechanism's own fields (teachers, queries); where these are larger, further rows lie at one point, half of one
    label and half of another. At stake is one label or each second one. A data set that the mechanism refuses is left
    out. The one that shows most on releases of its own is played.

    Attributes:
        search: Releases to choose the data set by, and to learn from, >= 4 for each that is tried; divided among them.
        releases: Fresh releases that are guessed at most, >= 1.
        canaries: Labels at stake after which no fresh release is made any more, >= 1.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: the challenger makes the data and draws "
        "both labels of each canary, and each release is made by a copy of the mechanism that has released nothing "
        "before.",
        views={LABEL_MECHANISMS: ChannelView, LEARNERS: ChannelView},
        attack="learned-channel",
        estimator="simultaneous-guess-count",
        sharing=lambda mechanism: most_at_stake(mechanism),
        helps="more `releases` and `canaries`, or data that the mechanism does not refuse",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "what shows in data made for it alone: ties, rows that share noise, labels that stand alone",
                game={"search": 2_000, "releases": 4_000, "canaries": 4_000},
            ),
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "what shows in small data made for it: votes that one label decides, noise that two rows share",
                trainings=500,
                scales={"search": 0.36, "releases": 0.64},
                cost=1 / 4,
                least=100,
                again={"releases": 1.5, "canaries": 4},
            ),
        ),
    )

    search: int = 180
    releases: int = 320
    canaries: int = 2_000

    def __post_init__(self) -> None:
        require(self.search >= FEWEST_TRIED, f"search must be >= {FEWEST_TRIED} releases", search=self.search)
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)
        require(self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    def play(self, setting: Setting, work: Work) -> Played:
        """Releases of each data set, the choice, fresh releases, the guesses, and what no secret at all would show.

        Raises: SpecError when there are too few releases to try all data sets.
        """
        designs = self._designs(setting)
        each = self.search // len(designs)
        if each < FEWEST_TRIED:
            raise SpecError(
                f"search must be at least {FEWEST_TRIED * len(designs)} to try {len(designs)} data sets, got "
                f"{self.search}"
            )
        seed, target = setting.seed, setting.required("target")
        tried = tuple(
            work.add(
                try_design,
                setting.mechanism,
                min(each, max(12, -(-ENOUGH_TRIED // design.stake))),
                design,
                target,
                seed=seed.child("search", number),
                label=f"tried: {design}",
                resources=setting.resources,
                after=setting.after,
            )
            for number, design in enumerate(designs)
        )
        choice = work.add(
            take_best_design,
            setting.attack,
            tried,
            label=f"best of {len(designs)} data sets",
            resources=setting.resources.on_cpus,
        )
        parts = 1 if self.fits.face_of(setting.mechanism) is LABEL_MECHANISMS else PARTS
        fresh = tuple(
            work.add(
                release_crafted,
                setting.mechanism,
                choice,
                designs,
                target,
                most=self.releases,
                canaries=self.canaries,
                part=part,
                parts=parts,
                seed=seed.child("releases"),
                label=f"fresh releases {part + 1}/{parts}" if parts > 1 else "fresh releases",
                resources=setting.resources,
            )
            for part in range(parts)
        )
        guesses = work.add(
            guess_crafted,
            setting.attack,
            choice,
            fresh,
            label="guesses in fresh releases",
            resources=setting.resources.on_cpus,
        )
        told = work.add(
            tell_labels,
            fresh,
            label="what a mechanism without privacy would show",
            resources=setting.resources.on_cpus,
        )
        return Played((guesses,), trainings=fresh, ceiling=(told,), choices=(choice,))

    def _designs(self, setting: Setting) -> tuple[Design, ...]:
        classes = setting.parts.target.classes
        sizes = public_sizes(setting.mechanism)
        if self.fits.face_of(setting.mechanism) is LABEL_MECHANISMS:
            made = _of_labels(sizes)
        else:
            made = _of_learners(sizes, points_of(setting.parts.target.features))
        if classes == 2:  # two classes are all there are
            made = [replace(one, labels="drawn") if one.labels == "two" else one for one in made]
        return tuple(dict.fromkeys(made))


def most_at_stake(mechanism: Any) -> int:
    """Labels at stake in one release, at most, whichever data set is taken."""
    sizes = public_sizes(mechanism)
    labels = LabelCrafted.fits.face_of(mechanism) is LABEL_MECHANISMS
    made = _of_labels(sizes) if labels else _of_learners(sizes, MOST_POINTS)
    return max(design.stake for design in made)


def public_sizes(mechanism: Any) -> list[int]:
    """Whole numbers among the fields of a mechanism that could be numbers of rows, the smallest first."""
    if not is_dataclass(mechanism):
        return []
    values = [getattr(mechanism, field.name) for field in fields(mechanism) if field.init]
    whole = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in whole if 2 <= value <= LARGEST_SIZE)[:MOST_SIZES]


def _of_labels(sizes: list[int]) -> list[Design]:
    """Data sets of labels alone."""
    halves = [Design(rows) for rows in (1, 2, 3, 8, 20, *sizes)]
    two = [Design(8, labels="two")]
    ties = [Design(rows, at_stake=1, labels="balanced") for rows in (3, 20, *sizes)]
    return [*halves, *two, *ties, Design(2, at_stake=1, labels="alike"), Design(20, at_stake=1, labels="alike")]


def _of_learners(sizes: list[int], points: int) -> list[Design]:
    """Data sets of points; those of many rows have all but the first `points` at one point."""
    made = [Design(min(2, points)), Design(points), Design(points, labels="two")]
    for size in sizes:
        if size <= points:
            made += [Design(size, labels="two"), Design(size, at_stake=1, labels="balanced")]
        else:
            made.append(Design(points, size - points, labels="two"))
    return [*made, Design(points, 16 * points, labels="two")]
