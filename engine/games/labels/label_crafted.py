"""Game "label-crafted": secret labels in small data sets that the challenger designs.

Differential privacy must hold for every pair of neighbouring data sets. The given data can hide a leak, such as one
vote among twenty or one row in a split. The game tries several designs with few secret labels, and guesses in fresh
releases of the design that leaks most.
Source: ours. Pairs of labels are as in Malek et al. (2021), arXiv:2106.03408. The choice of data by the auditor follows
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
    guess_labels,
    hide_half,
    release_labels,
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
from dpaudit.errors import CODE_ERRORS, RunError, SpecError, described, error_of_code, require
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.registry import register

Ints = NDArray[np.int64]
LabelDraw = tuple[Ints, Ints, Ints, NDArray[np.bool_]]
"""Known labels, first label, second label and coin of each row; arrays of shape (n,)."""

MIN_DESIGN_RELEASES = 4
"""Fewest search releases of a design: half for learning, half held out."""
MAX_TRIED_LABELS = 10_000
"""Search canaries of a design that suffice, after at least 12 releases."""
MAX_TRIED_TRAINED_LABELS = 400
"""Search canaries of a design that suffice if each release needs a training."""
TRAINING_UNITS = 8
"""Number of units that train a learner for fresh releases; label mechanisms are fast and need one unit."""
MAX_TRIED_ROWS = 100_000
"""Search rows of a design that suffice, after at least `MIN_DESIGN_RELEASES` releases."""
MAX_FRESH_ROWS = 1_000_000
"""Largest number of rows of all fresh releases together."""
MAX_RELEASES = 125_000
"""Largest number of fresh releases; canary numbers must fit into 32 bits."""
MAX_FAILURES = 24
"""Number of failed releases after which a design without any success is skipped."""
CONFIDENCE_STEPS = (0.5, 1.0, 2.0, 4.0)
"""Thresholds of the absolute log-odds of two classes, which separate levels of a model's confidence."""
MIN_PROBABILITY = 1e-12
"""Smaller probabilities are raised to this value."""
NO_DESIGN = -1
"""Number that stands for no design."""
CHOICE_CONFIDENCES = (0.95, 0.997)
"""Confidences of the bounds by which designs are chosen; these bounds are not reported."""
MAX_POINTS = 64
"""Largest number of distant points in a design."""
POINT_DISTANCE = 5.0
"""Distance of these points from the origin, in units of the largest absolute feature."""
LARGE_SIZE = 16_384
"""Rows of the largest design for label mechanisms."""
MAX_FIELD_SIZE = 5_000
"""Largest field value that counts as a number of rows."""
MAX_FIELD_SIZES = 4
"""Largest number of sizes taken from fields of the mechanism."""


@dataclass(frozen=True)
class Design:
    """A small data set designed by the challenger.

    Attributes:
        rows: Number of rows at separate points, >= 1.
        others: Number of further rows at one other point, with known labels, half of class 0 and half of class 1; >= 0.
        canary_rows: Number of first rows that may be canaries; half of them are in each release. None for `rows`.
        labels: Law of the labels. "drawn": uniform over all classes. "two": uniform over two classes. With all others,
            canary labels are uniform over two classes. Other labels are "balanced" between these two; all "alike";
            "rare": of all classes except the first; or "lone": of all classes except the first two.
        place: Position of the first row; rows are rotated by this number.
    """

    rows: int
    others: int = 0
    canary_rows: int | None = None
    labels: Literal["drawn", "two", "balanced", "alike", "rare", "lone"] = "drawn"
    place: int = 0

    @property
    def size(self) -> int:
        return self.rows + self.others

    @property
    def canaries(self) -> int:
        """Number of secret labels in each release."""
        return ((self.canary_rows or self.rows) + 1) // 2

    def used(self, classes: int) -> int:
        """Return the number of first classes from which canary labels are drawn."""
        return classes if self.labels == "drawn" else 2

    def planted(self, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        labels = np.zeros(self.size, np.int64)
        random_rows = self.rows if self.labels in ("drawn", "two") else (self.canary_rows or self.rows)
        labels[:random_rows] = rng.integers(0, self.used(classes), random_rows)
        if self.labels in ("rare", "lone"):
            absent = 1 if self.labels == "rare" or classes == 2 else 2
            labels[random_rows:] = absent + np.arange(self.size - random_rows) % (classes - absent)
        elif self.labels != "alike":
            labels[random_rows:] = np.arange(self.size - random_rows) % 2 == 0
        return labels

    def swapped(self, classes: int) -> NDArray[np.int64]:
        """Return the mechanism's symbol of each symbol; "rare" canary labels are the first and last class."""
        symbols = np.arange(classes + NOT_LABELS)
        if self.labels == "rare":
            symbols[[1, classes - 1]] = symbols[[classes - 1, 1]]
        return symbols

    def __str__(self) -> str:
        canaries = "one label" if self.canaries == 1 else f"{self.canaries} labels"
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
        return f"{rows}{others}, {canaries} at stake{place}, {law[self.labels]}"


def designs_for(mechanism: Any, target: Examples) -> tuple[Design, ...]:
    """Return the designs to try on a mechanism, instead of the target data."""
    points = 0 if isinstance(mechanism, LabelMechanism) else point_count(target.features)
    designs = _all_designs(mechanism, points)
    if target.classes == 2:
        designs = [replace(design, labels="drawn") if design.labels == "two" else design for design in designs]
    return tuple(dict.fromkeys(designs))


def max_canaries(mechanism: Any) -> int:
    """Return the largest number of canaries in one release of any design."""
    return max(design.canaries for design in _all_designs(mechanism, MAX_POINTS))


def _all_designs(mechanism: Any, points: int) -> list[Design]:
    sizes = public_sizes(mechanism)
    is_labels = isinstance(mechanism, LabelMechanism)
    return _designs_for_labels(sizes) if is_labels else _designs_for_learners(sizes, points)


def public_sizes(mechanism: Any) -> list[int]:
    """Return integer fields of the mechanism that may be numbers of rows, in ascending order."""
    if not is_dataclass(mechanism):
        return []
    values = [getattr(mechanism, field.name) for field in fields(mechanism) if field.init]
    whole = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in whole if 2 <= value <= MAX_FIELD_SIZE)[:MAX_FIELD_SIZES]


def _designs_for_labels(sizes: list[int]) -> list[Design]:
    halves = [Design(rows) for rows in (1, 2, 3, 8, 20, *sizes)]
    two = [Design(8, labels="two")]
    ties = [Design(rows, canary_rows=1, labels="balanced") for rows in (3, 20, *sizes)]
    places = ((2, 0), (20, 0), (256, 170))
    alike = [Design(rows, canary_rows=1, labels="alike", place=place) for rows, place in places]
    rare = [Design(20, canary_rows=1, labels="rare", place=12)]
    rare += [Design(rows, canary_rows=1, labels="lone", place=place) for rows, place in ((256, 101), (2_048, 1_459))]
    large = [Design(2_048, canary_rows=1, labels="balanced", place=2_047), Design(LARGE_SIZE)]
    return [*halves, *two, *ties, *alike, *rare, *large]


def _designs_for_learners(sizes: list[int], points: int) -> list[Design]:
    """Return designs with at most `points` separate points; further rows lie at one other point."""
    designs = [Design(min(2, points)), Design(points), Design(points, labels="two")]
    for size in sizes:
        if size <= points:
            designs += [Design(size, labels="two"), Design(size, canary_rows=1, labels="balanced")]
        else:
            designs.append(Design(points, size - points, labels="two"))
    return [*designs, Design(points, 16 * points, labels="two")]


def point_count(features: Features) -> int:
    """Return the number of distant points that the features allow."""
    if isinstance(features, np.ndarray):
        return min(MAX_POINTS, 2 * int(np.prod(features.shape[1:])))
    return min(MAX_POINTS, len(features) - 1)


def crafted_features(features: Features, design: Design) -> Features:
    """Return features of the design: distant points, and the origin for other rows; for a table, rows of the table."""
    if not isinstance(features, np.ndarray):
        places = np.minimum(np.arange(design.size), design.rows) % len(features)
        return features.take(pa.array(places))
    width = int(np.prod(features.shape[1:]))
    largest = float(np.abs(features).max(initial=0.0)) or 1.0
    points = np.zeros((design.size, width), np.float32)
    place = np.arange(design.rows)
    points[place, place % width] = POINT_DISTANCE * largest * np.where(place // width % 2 == 0, 1.0, -1.0)
    return points.reshape(design.size, *features.shape[1:])


@register("game", "label-crafted", source="Ours, after Malek et al. (2021) and Jagielski et al. (2020)")
@dataclass(frozen=True)
class LabelCrafted:
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

    def play(self, setting: Setting, work: Work) -> Played:
        designs = designs_for(setting.mechanism, setting.parts.target)
        if self.search < MIN_DESIGN_RELEASES * len(designs):
            least = MIN_DESIGN_RELEASES * len(designs)
            raise SpecError(f"search must be at least {least} to try {len(designs)} data sets, got {self.search}")
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
            for seed in dict.fromkeys(
                (setting.search_seed, setting.seed)
            )  # a confirmatory run reuses the search of the first pass
        )
        choice = work.add(
            take_best_design,
            setting.attack,
            tried,
            two=quick,
            label=f"best of {len(designs)} data sets",
            resources=setting.resources.without_gpu,
        )
        sharing, parts = max_canaries(setting.mechanism), 1 if quick else TRAINING_UNITS

        def add_releases(played: Setting | None, canaries: int, label: str, second: bool = False) -> tuple[Any, ...]:
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
                    second=second,
                    seed=played.seed.child("others" if second else "releases"),
                    label=f"{label} {part + 1}/{parts}" if parts > 1 else label,
                    resources=setting.resources,
                )
                for part in range(parts)
                if played is not None
            )

        fresh = add_releases(setting, self.canaries, "fresh releases")
        others = add_releases(setting, self.canaries, "fresh releases of a second data set", True) if quick else ()
        noiseless = add_releases(setting.noiseless, min(self.canaries, NOISELESS_TRIALS), "releases without noise")
        guesses, *noiseless_guesses = (
            work.add(
                guess_crafted,
                setting.attack,
                choice,
                *both,
                sharing=sharing,
                label=f"guesses in {label}",
                resources=setting.resources.without_gpu,
            )
            for both, label in (((fresh, others), "fresh releases"), ((noiseless, ()), "releases without noise"))
            if both[0]
        )
        ceiling = tuple(noiseless_guesses) or (
            work.add(
                reveal_labels,
                fresh,
                others,
                sharing=sharing,
                label="what a mechanism without privacy would show",
                resources=setting.resources.without_gpu,
            ),
        )
        return Played(
            (guesses,),
            trainings=(*fresh, *others),
            ceiling=ceiling,
            noiseless=bool(noiseless_guesses),
            choices=(choice,),
        )


def release_function(
    mechanism: Any, target: Examples, design: Design, compute: Compute
) -> Callable[[Ints, Seed], LabelOutcome]:
    """Return a function from labels, canary rows first, to a release by a fresh copy of the mechanism.

    The symbols of a label mechanism are classes. The symbols of a learner are the most likely class of each row, or for
    canary labels of two classes, the likelier one with a level of confidence.
    """
    k = target.classes
    if isinstance(mechanism, LabelMechanism):
        swapped, rows = design.swapped(k), np.arange(design.size)
        order, inverse = np.roll(rows, design.place), np.roll(rows, -design.place)

        def of_labels(labels: Ints, seed: Seed) -> LabelOutcome:
            outcome = release_labels(mechanism, swapped[labels[order]], k, seed)
            return replace(outcome, symbols=swapped[outcome.symbols[inverse]])

        return of_labels
    train = target.with_(features=crafted_features(target.features, design), labels=np.zeros(design.size, np.int64))

    def of_model(labels: Ints, seed: Seed) -> LabelOutcome:
        try:
            return LabelOutcome(_model_symbols(mechanism, train.with_(labels=labels), design, seed, compute), 0)
        except BaseException as err:  # any exception may depend on the labels
            if raised_externally(err):
                raise
            symbols, name = symbols_of(mechanism, design, k), type(err).__name__
            return LabelOutcome.failed(design.size, symbols, name, described(err))

    return of_model


def _model_symbols(mechanism: Any, train: Examples, design: Design, seed: Seed, compute: Compute) -> Ints:
    learner, name = copy.deepcopy(mechanism), type(mechanism).__qualname__
    train_copy = train.with_(features=writable_features(train.features), labels=train.labels.copy())
    model = learner.fit(train_copy, seed=seed.sequence(), compute=compute)
    probabilities = np.asarray(model.probabilities(writable_features(train.features)))
    require(
        probabilities.shape == (len(train), train.classes),
        f"{name}: probabilities of the model must have shape (n, classes)",
        shape=probabilities.shape,
    )
    require(bool(np.isfinite(probabilities).all()), f"{name}: probabilities of the model must be finite")
    if design.used(train.classes) > 2:
        return np.asarray(probabilities.argmax(axis=1), np.int64)
    log_odds = np.diff(np.log(np.maximum(probabilities[:, :2].astype(np.float64), MIN_PROBABILITY)), axis=1)[:, 0]
    return 2 * np.searchsorted(CONFIDENCE_STEPS, np.abs(log_odds)).astype(np.int64) + (log_odds > 0)


def symbols_of(mechanism: Any, design: Design, classes: int) -> int:
    """Return the number of symbols of a successful release."""
    if isinstance(mechanism, LabelMechanism) or design.used(classes) > 2:
        return classes
    return 2 * (len(CONFIDENCE_STEPS) + 1)


@dataclass(frozen=True, eq=False)
class DesignReleases:
    """Search releases of one design."""

    design: str  # description
    releases: LabelReleases | None  # with known labels; None if the mechanism refused the design
    refused: str = ""  # reason of the refusal


@dataclass(frozen=True, eq=False)
class AcceptedDesigns:
    """Mask of the designs that the mechanism accepts."""

    taken: NDArray[np.bool_]  # shape (designs,)


@unit
def try_once(
    mechanism: Any, designs: tuple[Design, ...], target: Examples, compute: Compute, *, seed: Seed
) -> AcceptedDesigns:
    """Release each design once, or up to `MIN_DESIGN_RELEASES` times until a release succeeds."""

    def accepts(number: int, design: Design) -> bool:
        release_labels_of = release_function(mechanism, target, design, compute)
        seeds = [seed.child(number, release) for release in range(MIN_DESIGN_RELEASES)]
        return any(
            not release_labels_of(
                design.planted(target.classes, release_seed.child("labels").rng()), release_seed.child("noise")
            ).failure
            for release_seed in seeds
        )

    return AcceptedDesigns(np.array([accepts(number, design) for number, design in enumerate(designs)]))


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
) -> DesignReleases:
    """Make the search releases of one design: its share of all `search` releases, at most `enough`.

    Accepted designs share them equally. Other designs get `MIN_DESIGN_RELEASES` more releases.
    """
    count = min(search // max(1, int(accepted.taken.sum())) if accepted.taken[number] else MIN_DESIGN_RELEASES, enough)
    planted, released = [], list[LabelOutcome]()
    release_labels_of = release_function(mechanism, target, design, compute)
    for release in range(count):
        release_seed = seed.child(release)
        planted.append(design.planted(target.classes, release_seed.child("labels").rng()))
        released.append(release_labels_of(planted[-1], release_seed.child("noise")))
        if len(released) == min(count, MAX_FAILURES) and all(outcome.failure for outcome in released):
            return DesignReleases(str(design), None, released[0].failure)
    symbols, used = symbols_of(mechanism, design, target.classes), design.used(target.classes)
    form = np.array([outcome.form for outcome in released])
    released_symbols = np.stack([outcome.symbols for outcome in released])
    releases = LabelReleases(
        released_symbols, np.stack(planted), symbols, form, design.canary_rows or design.rows, used
    )
    return DesignReleases(str(design), releases)


@dataclass(frozen=True, eq=False)
class ChosenDesign:
    """The chosen design, and a second one if the best is not clear."""

    number: int  # position of the design; `NO_DESIGN` if no design could be released
    releases: LabelReleases | None  # its search releases
    other: int = NO_DESIGN  # position of the second design
    of_other: LabelReleases | None = None  # search releases of the second design


@unit
def take_best_design(attack: Any, tried: tuple[DesignReleases, ...], *, two: bool = False) -> Outcome[ChosenDesign]:
    """Return the design with the largest bound on its search releases; the first one of equals.

    With `two`, also return the design with the largest bound at a higher confidence if it is another one. That one has
    more canaries, so its bound on fresh releases is closer to the true epsilon if all labels leak equally.
    """
    tried = tuple(
        _joined([candidate for candidate in tried if candidate.design == design])
        for design in {candidate.design: None for candidate in tried}
    )
    evidence: dict[int, tuple[float, float, float]] = {}
    descriptions = []
    for number, candidate in enumerate(tried):
        if candidate.releases is None:
            descriptions.append(f"{candidate.design}: refused ({candidate.refused})")
            continue
        bound, accuracy, _ = evidence[number] = design_evidence(attack, candidate.releases)
        descriptions.append(f"{candidate.design}: {format_lower(bound)} ({accuracy:.0%} right)")
    errors = {error_of_code(candidate.refused) for candidate in tried}
    if not evidence and len(errors) == 1 and min(errors).startswith(CODE_ERRORS):
        raise RunError(f"the mechanism failed on all {len(tried)} data sets in the same way: {min(errors)}")
    if not evidence:
        note = f"data set chosen: none, because the mechanism refused all of them; {'; '.join(descriptions)}"
        return Outcome(ChosenDesign(NO_DESIGN, None), notes=(note,))
    best = max(evidence, key=lambda number: evidence[number])
    surest = max(evidence, key=lambda number: evidence[number][::-1]) if two else best
    names = tried[best].design + (f"; and {tried[surest].design}" if surest != best else "")
    note = f"data set chosen: {names}; bounds on search releases of {len(tried)} data sets: {'; '.join(descriptions)}"
    if surest == best:
        return Outcome(ChosenDesign(best, tried[best].releases), notes=(note,))
    return Outcome(ChosenDesign(best, tried[best].releases, surest, tried[surest].releases), notes=(note,))


def _joined(tried: Sequence[DesignReleases]) -> DesignReleases:
    """Return the search releases of one design from several units."""
    parts = [candidate.releases for candidate in tried if candidate.releases is not None]
    if not parts:
        return tried[0]
    released, planted = (np.concatenate([getattr(part, name) for part in parts]) for name in ("released", "planted"))
    form = np.concatenate([part.form for part in parts])
    return replace(tried[0], releases=replace(parts[0], released=released, planted=planted, form=form))


def design_evidence(attack: Any, releases: LabelReleases) -> tuple[float, float, float]:
    """Return a bound, the share of correct guesses and a bound at higher confidence, on half of the releases.

    The attack learns from the other half.
    """
    rng = np.random.default_rng(len(releases.released))  # randomness of the attacker
    learned, held_out = (releases.at(np.arange(start, len(releases.released), 2)) for start in (0, 1))
    used = releases.used or releases.classes
    draws = [_draw_pairs(planted, releases.at_stake, used, rng) for planted in held_out.planted]
    score, truth = guess_labels(attack, learned, _paired_releases(held_out.released, draws, held_out.form))
    scores = Scores(score, truth)
    estimators = [SimultaneousGuessCount(confidence=confidence) for confidence in CHOICE_CONFIDENCES]
    bound, cautious_bound = (estimator.bound([estimator.tally(scores)]).lower for estimator in estimators)
    return bound, float(((score > 0) == truth).mean()), cautious_bound


def _draw_pairs(planted: Ints, canary_rows: int | None, used: int, rng: np.random.Generator) -> LabelDraw:
    """Draw the canaries, pairs and coins of a release with planted labels."""
    known_labels, _ = hide_half(planted, rng, canary_rows=canary_rows)
    bit = rng.random(planted.size) < 0.5
    other = (planted + rng.integers(1, used, planted.size)) % used
    return known_labels, np.where(bit, planted, other), np.where(bit, other, planted), bit


@unit
def release_crafted(
    mechanism: Any,
    chosen: ChosenDesign,
    designs: tuple[Design, ...],
    target: Examples,
    compute: Compute,
    *,
    most: int,
    canaries: int,
    part: int,
    parts: int,
    seed: Seed,
    second: bool = False,
) -> Outcome[PairedReleases]:
    """Make every `parts`-th fresh release of the chosen (or second) design, starting with number `part`.

    There are at most `most` releases, and no more than `canaries` canaries need. Failed releases are outcomes too.
    """
    number = chosen.other if second else chosen.number
    if number == NO_DESIGN:
        return Outcome(_no_releases(0))
    design = designs[number]
    count = min(most, -(-canaries // design.canaries), max(1, MAX_FRESH_ROWS // design.size))
    release_labels_of = release_function(mechanism, target, design, compute)
    released, draws, failures = list[LabelOutcome](), [], []
    for release in range(part, count, parts):
        release_seed = seed.child(release)
        rng = release_seed.child("labels").rng()
        planted = design.planted(target.classes, rng)
        draws.append(_draw_pairs(planted, design.canary_rows or design.rows, design.used(target.classes), rng))
        outcome = release_labels_of(planted, release_seed.child("noise"))
        released.append(outcome)
        if outcome.failure:
            failures.append(f"release {release} (seed {release_seed}): {outcome.failure}")
    if not released:
        return Outcome(_no_releases(design.size))
    symbols, form = (np.array([getattr(outcome, name) for outcome in released]) for name in ("symbols", "form"))
    return Outcome(_paired_releases(symbols, draws, form), failures=tuple(failures))


def _paired_releases(released: Ints, draws: list[LabelDraw], form: Ints) -> PairedReleases:
    known_labels, first, second, bit = map(np.stack, zip(*draws, strict=True))
    return PairedReleases(released, known_labels, first, second, bit, form)


def _no_releases(size: int) -> PairedReleases:
    empty = np.zeros((0, size), np.int64)
    return PairedReleases(empty, empty, empty, empty, empty.astype(np.bool_), np.zeros(0, np.int64))


@unit
def guess_crafted(
    attack: Any,
    chosen: ChosenDesign,
    fresh: tuple[PairedReleases, ...],
    others: tuple[PairedReleases, ...],
    *,
    sharing: int,
) -> Iterator[Scores]:
    """Return the scores of all canaries in fresh releases as one replay; the attack learns from search releases.

    `sharing` is the largest number of canaries of one release; their numbers are consecutive.
    """
    groups = ((chosen.releases, fresh), (chosen.of_other, others))
    joined = [(search, PairedReleases.joined(parts)) for search, parts in groups if search is not None and parts]
    guesses = [(paired, *guess_labels(attack, search, paired)) for search, paired in joined if len(paired.released)]
    yield _join_scores(guesses, sharing)


@unit
def reveal_labels(
    fresh: tuple[PairedReleases, ...], others: tuple[PairedReleases, ...], *, sharing: int
) -> Iterator[Scores]:
    """Return the scores of the game against a mechanism without privacy, which reveals each canary label."""
    groups = [PairedReleases.joined(releases) for releases in (fresh, others) if releases]
    revealed = [(paired, paired.truth[paired.known == HIDDEN]) for paired in groups if len(paired.released)]
    yield _join_scores([(paired, np.where(truth, 1.0, -1.0), truth) for paired, truth in revealed], sharing)


def _join_scores(
    groups: Sequence[tuple[PairedReleases, NDArray[np.float64], NDArray[np.bool_]]], sharing: int
) -> Scores:
    """Return all scores; the number of a canary, divided by `sharing` and rounded down, is its release."""
    if not groups:
        return scored(0, np.array([True]), np.array([0.0]))  # no release succeeded: one uninformative guess
    numbers, release_count = list[Ints](), 0
    for paired, *_ in groups:
        hidden = paired.known == HIDDEN
        first = (release_count + np.arange(len(hidden)))[:, None] * sharing
        numbers.append((first + np.cumsum(hidden, axis=1) - 1)[hidden])
        release_count += len(hidden)
    _, scores, truths = zip(*groups, strict=True)
    return scored(0, np.concatenate(truths), np.concatenate(scores), np.concatenate(numbers))
