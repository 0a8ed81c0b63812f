"""Labels of tiny data sets that are made for the purpose: differential privacy holds for every pair of neighbours.

Data that one happens to have hide what a mechanism gives away: one vote among twenty, one row in a split. Of several
small data sets, nearly all of whose labels are known, the one that gives most away is released again and guessed.
Source: ours. The fair pair is that of Malek et al. (2021), arXiv:2106.03408; that the auditor may choose the data is
Jagielski et al. (2020), arXiv:2006.07709.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_releases import (
    HIDDEN,
    NOT_LABELS,
    ChannelView,
    LabelOutcome,
    LabelReleases,
    PairedReleases,
    guessed,
    hidden_half,
    released_anew,
)
from dpaudit.engine.games.protocol import (
    LABEL_MECHANISMS,
    LEARNERS,
    NOISELESS_TRIALS,
    CheckTest,
    GameTraits,
    Played,
    Setting,
)
from dpaudit.errors import SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.registry import register

Ints = NDArray[np.int64]
Asked = tuple[Ints, Ints, Ints, NDArray[np.bool_]]
"""What is known of labels, the pair of each, and its coin."""

MIN_TRIED = 4
"""Releases of each data set that is tried: half to learn from, half to judge by."""
ENOUGH_TRIED = 10_000
"""Labels at stake after which a data set has been tried enough, if it was released a dozen times."""
ENOUGH_TRAINED = 400
"""The same, where each release takes a training."""
PARTS = 8
"""Units that train a learner for the fresh releases; those of label mechanisms take milliseconds, so one makes all."""
MOST_ROWS_TRIED = 100_000
"""Rows of all releases after which a data set has been tried enough, if it was released as often as is due."""
MOST_ROWS = 1_000_000
"""Rows of all fresh releases at most."""
MOST_RELEASES = 125_000
"""Fresh releases at most: so that each label at stake has a number of its own in 32 bits."""
GIVEN_UP = 24
"""Releases of a data set of which not one came out, after which it is left out."""
SURE = (0.5, 1.0, 2.0, 4.0)
"""Log-odds of two classes at which what a model says of a label counts as surer."""
SMALLEST = 1e-12
"""Probability below which none is told apart."""
NOTHING = -1
"""Stands for the design when none could be released."""
JUDGED_AT, SURELY_JUDGED_AT = 0.95, 0.997
"""Confidences of the bounds that data sets are chosen by, a dozen and more; no bounds that are reported."""
MAX_POINTS = 64
"""Points far apart that a data set has at most."""
FAR = 5.0
"""How far they are from the middle, in units of the largest number among the features."""
LARGE = 16_384
"""Rows of the largest data set of labels."""
LARGEST_SIZE = 5_000
"""Rows of a data set that is made, at most."""
MAX_SIZES = 4
"""Sizes that a mechanism's own fields may add."""


@dataclass(frozen=True)
class Design:
    """A small data set that is made for the purpose."""

    rows: int  # at points of their own, >= 1
    others: int = 0  # further rows, all at one other point, half of class 0 and half of class 1, all known; >= 0
    # how many of the first rows have labels that may be at stake, half of which are in each release; None for `rows`
    at_stake: int | None = None
    # "drawn" from all classes; from "two"; or, but for those at stake, which are drawn from two, "balanced" between the
    # two so that one label more decides, "alike", "rare": of all classes but the first one, which a label at stake may
    # have alone, or "lone": of all but the first two, so that it is alone whatever it is
    labels: Literal["drawn", "two", "balanced", "alike", "rare", "lone"] = "drawn"
    place: int = 0  # by how many rows all are moved on, the last ones to the front: where those at stake are

    @property
    def size(self) -> int:
        return self.rows + self.others

    @property
    def stake(self) -> int:
        return ((self.at_stake or self.rows) + 1) // 2

    def used(self, classes: int) -> int:
        """How many of the first classes labels at stake are drawn from."""
        return classes if self.labels == "drawn" else 2

    def planted(self, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        labels = np.zeros(self.size, np.int64)
        drawn = self.rows if self.labels in ("drawn", "two") else (self.at_stake or self.rows)
        labels[:drawn] = rng.integers(0, self.used(classes), drawn)
        if self.labels in ("rare", "lone"):
            absent = 1 if self.labels == "rare" or classes == 2 else 2
            labels[drawn:] = absent + np.arange(self.size - drawn) % (classes - absent)
        elif self.labels != "alike":
            labels[drawn:] = np.arange(self.size - drawn) % 2 == 0
        return labels

    def swapped(self, classes: int) -> NDArray[np.int64]:
        """What each symbol is to the mechanism: of "rare" labels, those at stake are the first class and the last."""
        symbols = np.arange(classes + NOT_LABELS)
        if self.labels == "rare":
            symbols[[1, classes - 1]] = symbols[[classes - 1, 1]]
        return symbols

    def __str__(self) -> str:
        stake = "one label" if self.stake == 1 else f"{self.stake} labels"
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        others = f" and {self.others} at one point" if self.others else ""
        law = {
            "drawn": "of all classes",
            "two": "of two classes",
            "balanced": "others in balance",
            "alike": "others alike",
            "rare": "others of all classes but one",
            "lone": "others of all classes but two",
        }
        place = f" at row {self.place + 1:,}" if self.place else ""
        return f"{rows}{others}, {stake} at stake{place}, {law[self.labels]}"


def designs_for(mechanism: Any, target: Examples) -> tuple[Design, ...]:
    """The data sets that are tried on a mechanism, in place of some data."""
    if isinstance(mechanism, LabelMechanism):
        made = _of_labels(public_sizes(mechanism))
    else:
        made = _of_learners(public_sizes(mechanism), points_of(target.features))
    if target.classes == 2:  # two classes are all there are
        made = [replace(one, labels="drawn") if one.labels == "two" else one for one in made]
    return tuple(dict.fromkeys(made))


def most_at_stake(mechanism: Any) -> int:
    """Labels at stake in one release, at most, whichever data set is taken."""
    sizes = public_sizes(mechanism)
    made = _of_labels(sizes) if isinstance(mechanism, LabelMechanism) else _of_learners(sizes, MAX_POINTS)
    return max(design.stake for design in made)


def public_sizes(mechanism: Any) -> list[int]:
    """Whole numbers among the fields of a mechanism that could be numbers of rows, the smallest first."""
    if not is_dataclass(mechanism):
        return []
    values = [getattr(mechanism, field.name) for field in fields(mechanism) if field.init]
    whole = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in whole if 2 <= value <= LARGEST_SIZE)[:MAX_SIZES]


def _of_labels(sizes: list[int]) -> list[Design]:
    halves = [Design(rows) for rows in (1, 2, 3, 8, 20, *sizes)]
    two = [Design(8, labels="two")]
    ties = [Design(rows, at_stake=1, labels="balanced") for rows in (3, 20, *sizes)]
    places = ((2, 0), (20, 0), (256, 170))
    alike = [Design(rows, at_stake=1, labels="alike", place=place) for rows, place in places]
    rare = [Design(20, at_stake=1, labels="rare", place=12)]
    rare += [Design(rows, at_stake=1, labels="lone", place=place) for rows, place in ((256, 101), (2_048, 1_459))]
    large = [Design(2_048, at_stake=1, labels="balanced", place=2_047), Design(LARGE)]
    return [*halves, *two, *ties, *alike, *rare, *large]


def _of_learners(sizes: list[int], points: int) -> list[Design]:
    """Data sets of points; those of many rows have all but the first `points` at one point."""
    made = [Design(min(2, points)), Design(points), Design(points, labels="two")]
    for size in sizes:
        if size <= points:
            made += [Design(size, labels="two"), Design(size, at_stake=1, labels="balanced")]
        else:
            made.append(Design(points, size - points, labels="two"))
    return [*made, Design(points, 16 * points, labels="two")]


def points_of(features: Features) -> int:
    """How many points far apart there are for such features."""
    if isinstance(features, np.ndarray):
        return min(MAX_POINTS, 2 * int(np.prod(features.shape[1:])))
    return min(MAX_POINTS, len(features) - 1)


def crafted_features(features: Features, design: Design) -> Features:
    """Points far apart, one a row, and the middle for the others; of a table, its own rows."""
    if not isinstance(features, np.ndarray):
        places = np.minimum(np.arange(design.size), design.rows) % len(features)
        return features.take(pa.array(places))
    width = int(np.prod(features.shape[1:]))
    largest = float(np.abs(features).max(initial=0.0)) or 1.0
    made = np.zeros((design.size, width), np.float32)
    place = np.arange(design.rows)
    made[place, place % width] = FAR * largest * np.where(place // width % 2 == 0, 1.0, -1.0)
    return made.reshape(design.size, *features.shape[1:])


@register("game", "label-crafted", source="Ours, after Malek et al. (2021) and Jagielski et al. (2020)")
@dataclass(frozen=True)
class LabelCrafted:
    """Interventional: labels of small data sets made for the purpose, of which the attacker knows nearly all.

    Sizes are 1 to 20, 256, 2,048 and 16,384 rows for label mechanisms, 2 and up to 64 points far apart for learners,
    and whole numbers among the mechanism's own fields (teachers, queries); where these are larger, further rows lie at
    one point, half of one label and half of another. At stake is each second label, or one, first or elsewhere, the
    only one of its class or not. A release that fails is an outcome like any other; a data set of which no release
    comes out is left out. The one that shows most on releases of its own is played.

    Attributes:
        search: Releases to choose the data set by, and to learn from, >= 4 for each that is tried; divided among them.
        releases: Fresh releases that are guessed at most, >= 1.
        canaries: Labels at stake after which no fresh release is made any more, >= 1.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: the challenger makes the data and draws "
        "both labels of each canary, and each release is made by a copy of the mechanism that has released nothing "
        "before.",
        views={LABEL_MECHANISMS: ChannelView, LEARNERS: ChannelView},
        attack="learned-channel",
        estimator="simultaneous-guess-count",
        sharing=most_at_stake,
        repeats_calls=True,
        helps="more `releases` and `canaries`, or data that the mechanism does not refuse",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "what shows in data made for it: ties, rows that share noise, a label that stands alone or decides a "
                "failure, what only thousands of rows bring about",
                game={"search": 16_000, "releases": 4_000, "canaries": 400_000},
            ),
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "what shows in small data made for it: votes that one label decides, noise that two rows share",
                trainings=500,
                scales={"search": 0.36, "releases": 0.64},
                cost=1 / 4,
                min_trainings=100,
                growth_on_repeat={"releases": 1.5, "canaries": 4},
            ),
        ),
    )

    search: int = 180
    releases: int = 320
    canaries: int = 2_000

    def __post_init__(self) -> None:
        require(self.search >= MIN_TRIED, f"search must be >= {MIN_TRIED} releases", search=self.search)
        require(
            1 <= self.releases <= MOST_RELEASES, f"releases must be in [1, {MOST_RELEASES:,}]", releases=self.releases
        )
        require(self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    def play(self, setting: Setting, work: Work) -> Played:
        designs = designs_for(setting.mechanism, setting.parts.target)
        if self.search < MIN_TRIED * len(designs):
            raise SpecError(
                f"search must be at least {MIN_TRIED * len(designs)} to try {len(designs)} data sets, got {self.search}"
            )
        target = setting.required_part("target")
        quick = self.traits.capability_of(setting.mechanism) is LABEL_MECHANISMS
        able = work.add(
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
                able,
                design,
                target,
                search=self.search,
                enough=min(
                    max(12, -(-(ENOUGH_TRIED if quick else ENOUGH_TRAINED) // design.stake)),
                    max(MIN_TRIED, MOST_ROWS_TRIED // design.size),
                ),
                seed=seed.child("search", number),
                label=f"tried: {design}",
                **setting.unit_options,
            )
            for number, design in enumerate(designs)
            for seed in dict.fromkeys((setting.search_seed, setting.seed))  # a repeat knows what the first pass saw
        )
        choice = work.add(
            take_best_design,
            setting.attack,
            tried,
            two=quick,
            label=f"best of {len(designs)} data sets",
            resources=setting.resources.without_gpu,
        )
        sharing, parts = most_at_stake(setting.mechanism), 1 if quick else PARTS

        def releases(played: Setting | None, canaries: int, label: str, other: bool = False) -> tuple[Any, ...]:
            return tuple(
                work.add(
                    release_crafted,
                    played.mechanism,
                    choice,
                    designs,
                    target,
                    most=self.releases,
                    canaries=canaries,
                    part=part,
                    parts=parts,
                    other=other,
                    seed=played.seed.child("others" if other else "releases"),
                    label=f"{label} {part + 1}/{parts}" if parts > 1 else label,
                    resources=setting.resources,
                )
                for part in range(parts)
                if played is not None
            )

        fresh = releases(setting, self.canaries, "fresh releases")
        others = releases(setting, self.canaries, "fresh releases of a second data set", True) if quick else ()
        bare = releases(setting.noiseless, min(self.canaries, NOISELESS_TRIALS), "releases without noise")
        guesses, *shown = (
            work.add(
                guess_crafted,
                setting.attack,
                choice,
                *both,
                sharing=sharing,
                label=f"guesses in {label}",
                resources=setting.resources.without_gpu,
            )
            for both, label in (((fresh, others), "fresh releases"), ((bare, ()), "releases without noise"))
            if both[0]
        )
        if shown:
            trained = (*fresh, *others)
            return Played((guesses,), trainings=trained, ceiling=tuple(shown), noiseless=True, choices=(choice,))
        told = work.add(
            tell_labels,
            fresh,
            others,
            sharing=sharing,
            label="what a mechanism without privacy would show",
            resources=setting.resources.without_gpu,
        )
        return Played((guesses,), trainings=(*fresh, *others), ceiling=(told,), choices=(choice,))


def releasing(
    mechanism: Any, target: Examples, design: Design, compute: Compute
) -> Callable[[Ints, Seed], LabelOutcome]:
    """A call that gives what a copy of the mechanism that has released nothing before says of labels.

    Those at stake come first. A label mechanism says a class. A learner's model says the likeliest class of each row;
    where labels at stake are of two classes, which of the two is likelier, and how much.
    """
    k = target.classes
    if isinstance(mechanism, LabelMechanism):
        swapped, rows = design.swapped(k), np.arange(design.size)
        there, back = np.roll(rows, design.place), np.roll(rows, -design.place)

        def of_labels(labels: Ints, seed: Seed) -> LabelOutcome:
            moved = released_anew(mechanism, swapped[labels[there]], k, seed)
            return replace(moved, symbols=swapped[moved.symbols[back]])

        return of_labels
    train = target.with_(features=crafted_features(target.features, design), labels=np.zeros(design.size, np.int64))

    def of_model(labels: Ints, seed: Seed) -> LabelOutcome:
        try:
            return LabelOutcome(_said(mechanism, train.with_(labels=labels), design, seed, compute), 0)
        except BaseException as err:  # whatever the mechanism raises may tell of its labels
            if raised_externally(err):
                raise
            name = type(err).__name__
            return LabelOutcome.failed(design.size, symbols_of(mechanism, design, k), name, f"{name}: {shortened(err)}")

    return of_model


def _said(mechanism: Any, train: Examples, design: Design, seed: Seed, compute: Compute) -> Ints:
    own, name = copy.deepcopy(mechanism), type(mechanism).__qualname__
    given = train.with_(features=writable_features(train.features), labels=train.labels.copy())
    model = own.fit(given, seed=seed.sequence(), compute=compute)
    says = np.asarray(model.probabilities(writable_features(train.features)))
    require(says.shape == (len(train), train.classes), f"{name}: the model must give (n, classes)", shape=says.shape)
    require(bool(np.isfinite(says).all()), f"{name}: the model must give finite probabilities")
    if design.used(train.classes) > 2:
        return np.asarray(says.argmax(axis=1), np.int64)
    log_odds = np.diff(np.log(np.maximum(says[:, :2].astype(np.float64), SMALLEST)), axis=1)[:, 0]
    return 2 * np.searchsorted(SURE, np.abs(log_odds)).astype(np.int64) + (log_odds > 0)


def symbols_of(mechanism: Any, design: Design, classes: int) -> int:
    if isinstance(mechanism, LabelMechanism) or design.used(classes) > 2:
        return classes
    return 2 * (len(SURE) + 1)


@dataclass(frozen=True, eq=False)
class Tried:
    """What came of one data set."""

    design: str  # in words
    releases: LabelReleases | None  # whose labels are all known; None where the mechanism refused the data set
    refused: str = ""  # why it did


@dataclass(frozen=True, eq=False)
class Able:
    """Which data sets the mechanism takes."""

    taken: NDArray[np.bool_]  # by the number of the design, shape (designs,)


@unit
def try_once(mechanism: Any, designs: tuple[Design, ...], target: Examples, compute: Compute, *, seed: Seed) -> Able:
    """Releases each data set once, or `MIN_TRIED` times where that fails."""

    def takes(number: int, design: Design) -> bool:
        made_of = releasing(mechanism, target, design, compute)
        seeds = [seed.child(number, release) for release in range(MIN_TRIED)]
        return any(
            not made_of(design.planted(target.classes, own.child("labels").rng()), own.child("noise")).failure
            for own in seeds
        )

    return Able(np.array([takes(number, design) for number, design in enumerate(designs)]))


@unit
def try_design(
    mechanism: Any,
    number: int,
    able: Able,
    design: Design,
    target: Examples,
    compute: Compute,
    *,
    search: int,
    enough: int,
    seed: Seed,
) -> Tried:
    """Releases one data set as often as its share of all `search` releases, `enough` at most.

    Those that the mechanism takes share them; the others are tried `MIN_TRIED` times more. Each release's seeds are
    children of `seed`.
    """
    count = min(search // max(1, int(able.taken.sum())) if able.taken[number] else MIN_TRIED, enough)
    planted, released = [], list[LabelOutcome]()
    made_of = releasing(mechanism, target, design, compute)
    for release in range(count):
        own = seed.child(release)
        planted.append(design.planted(target.classes, own.child("labels").rng()))
        released.append(made_of(planted[-1], own.child("noise")))
        if len(released) == min(count, GIVEN_UP) and all(one.failure for one in released):
            return Tried(str(design), None, released[0].failure)
    symbols, used = symbols_of(mechanism, design, target.classes), design.used(target.classes)
    form = np.array([one.form for one in released])
    made = np.stack([one.symbols for one in released])
    known = LabelReleases(made, np.stack(planted), symbols, form, design.at_stake or design.rows, used)
    return Tried(str(design), known)


@dataclass(frozen=True, eq=False)
class Taken:
    """The data set that was taken, and another one where it is not clear which is the best."""

    number: int  # `NOTHING` where none could be released
    releases: LabelReleases | None  # of it, to learn from; None where there are none
    other: int = NOTHING  # the second
    of_other: LabelReleases | None = None


@unit
def take_best_design(attack: Any, tried: tuple[Tried, ...], *, two: bool = False) -> Outcome[Taken]:
    """The data set that shows most, of all that were tried; the first of equals is taken.

    With `two` another one is taken that shows more at a higher confidence: it has many labels at stake, and if all leak
    alike it comes nearer to what leaks.
    """
    tried = tuple(
        _joined([one for one in tried if one.design == design]) for design in {one.design: None for one in tried}
    )
    shown: dict[int, tuple[float, float, float]] = {}
    words = []
    for number, one in enumerate(tried):
        if one.releases is None:
            words.append(f"{one.design}: refused ({one.refused})")
            continue
        bound, right, _ = shown[number] = what_it_shows(attack, one.releases)
        words.append(f"{one.design}: {format_lower(bound)} ({right:.0%} right)")
    if not shown:
        why = "data set chosen: no data set that was made could be released, so nothing was looked at: "
        why += "; ".join(words)
        return Outcome(Taken(NOTHING, None), notes=(why,))
    best = max(shown, key=lambda number: shown[number])
    surest = max(shown, key=lambda number: shown[number][::-1]) if two else best
    named = tried[best].design + (f"; and {tried[surest].design}" if surest != best else "")
    note = f"data set chosen: of {len(tried)} data sets this one was taken: {named}; on releases of their own, "
    note += "; ".join(words)
    if surest == best:
        return Outcome(Taken(best, tried[best].releases), notes=(note,))
    return Outcome(Taken(best, tried[best].releases, surest, tried[surest].releases), notes=(note,))


def _joined(tried: Sequence[Tried]) -> Tried:
    """One data set, tried several times."""
    found = [one.releases for one in tried if one.releases is not None]
    if not found:
        return tried[0]
    released, planted = (np.concatenate([getattr(one, name) for one in found]) for name in ("released", "planted"))
    form = np.concatenate([one.form for one in found])
    return replace(tried[0], releases=replace(found[0], released=released, planted=planted, form=form))


def what_it_shows(attack: Any, releases: LabelReleases) -> tuple[float, float, float]:
    """Of every second release, learned from the others: the bound, the share of right guesses, a surer bound."""
    rng = np.random.default_rng(len(releases.released))  # of the adversary's own
    learned, judged = (releases.at(np.arange(start, len(releases.released), 2)) for start in (0, 1))
    used = releases.used or releases.classes
    asked = [_paired(planted, releases.at_stake, used, rng) for planted in judged.planted]
    score, truth = guessed(attack, learned, PairedReleases(judged.released, *_stacked(asked), judged.form))
    scores = Scores(score, truth)
    estimators = [SimultaneousGuessCount(confidence=confidence) for confidence in (JUDGED_AT, SURELY_JUDGED_AT)]
    bound, surer = (estimator.bound([estimator.tally(scores)]).lower for estimator in estimators)
    return bound, float(((score > 0) == truth).mean()), surer


def _paired(planted: Ints, at_stake: int | None, used: int, rng: np.random.Generator) -> Asked:
    """What is known of one release's labels, the pair and the coin of each row; at stake is what is not known."""
    known, _ = hidden_half(planted, rng, at_stake=at_stake)
    bit = rng.random(planted.size) < 0.5
    other = (planted + rng.integers(1, used, planted.size)) % used
    return known, np.where(bit, planted, other), np.where(bit, other, planted), bit


@unit
def release_crafted(
    mechanism: Any,
    taken: Taken,
    designs: tuple[Design, ...],
    target: Examples,
    compute: Compute,
    *,
    most: int,
    canaries: int,
    part: int,
    parts: int,
    seed: Seed,
    other: bool = False,
) -> Outcome[PairedReleases]:
    """Fresh releases of the data set that was taken, or the other one: of all number `part` and every `parts`-th after.

    There are `most` at most, and no more than have so many `canaries`, labels at stake, together. One that failed is an
    outcome, and among the failures.
    """
    number = taken.other if other else taken.number
    if number == NOTHING:
        return Outcome(_no_releases(0))
    design = designs[number]
    count = min(most, -(-canaries // design.stake), max(1, MOST_ROWS // design.size))
    made_of = releasing(mechanism, target, design, compute)
    released, asked, failures = list[LabelOutcome](), [], []
    for release in range(part, count, parts):
        own = seed.child(release)
        rng = own.child("labels").rng()
        planted = design.planted(target.classes, rng)
        asked.append(_paired(planted, design.at_stake or design.rows, design.used(target.classes), rng))
        made = made_of(planted, own.child("noise"))
        released.append(made)
        if made.failure:
            failures.append(f"release {release} (seed {own}): {made.failure}")
    if not released:
        return Outcome(_no_releases(design.size))
    symbols, form = np.stack([one.symbols for one in released]), np.array([one.form for one in released])
    return Outcome(PairedReleases(symbols, *_stacked(asked), form), failures=tuple(failures))


def _stacked(asked: list[Asked]) -> Asked:
    known, first, second, bit = map(np.stack, zip(*asked, strict=True))
    return known, first, second, bit


def _no_releases(size: int) -> PairedReleases:
    none = np.zeros((0, size), np.int64)
    return PairedReleases(none, none, none, none, none.astype(np.bool_), np.zeros(0, np.int64))


@unit
def guess_crafted(
    attack: Any, taken: Taken, fresh: tuple[PairedReleases, ...], others: tuple[PairedReleases, ...], *, sharing: int
) -> Iterator[Scores]:
    """The attack learns from the releases that data sets were chosen by, and scores fresh ones: one replay.

    `sharing` labels of one release, at most, have numbers that follow each other.
    """
    both = ((taken.releases, fresh), (taken.of_other, others))
    known = [(learned, PairedReleases.joined(asked)) for learned, asked in both if learned is not None and asked]
    yield _numbered(
        [(asked, *guessed(attack, learned, asked)) for learned, asked in known if len(asked.released)], sharing
    )


@unit
def tell_labels(
    fresh: tuple[PairedReleases, ...], others: tuple[PairedReleases, ...], *, sharing: int
) -> Iterator[Scores]:
    """The same game against a mechanism without privacy: each label at stake is told."""
    both = [PairedReleases.joined(asked) for asked in (fresh, others) if asked]
    truths = [(asked, asked.truth[asked.known == HIDDEN]) for asked in both if len(asked.released)]
    yield _numbered([(asked, np.where(truth, 1.0, -1.0), truth) for asked, truth in truths], sharing)


def _numbered(
    scored_of: Sequence[tuple[PairedReleases, NDArray[np.float64], NDArray[np.bool_]]], sharing: int
) -> Scores:
    """Scores and truths with numbers: divided by `sharing` and rounded down, that of a release."""
    if not scored_of:
        return scored(0, np.array([True]), np.array([0.0]))  # one guess that says nothing: nothing could be released
    numbers, releases = list[Ints](), 0
    for asked, *_ in scored_of:
        hidden = asked.known == HIDDEN
        first = (releases + np.arange(len(hidden)))[:, None] * sharing
        numbers.append((first + np.cumsum(hidden, axis=1) - 1)[hidden])
        releases += len(hidden)
    _, scores, truths = zip(*scored_of, strict=True)
    return scored(0, np.concatenate(truths), np.concatenate(scores), np.concatenate(numbers))
