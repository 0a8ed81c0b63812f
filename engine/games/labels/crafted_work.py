"""The units of the game label-crafted: data sets that are tried, the choice, fresh releases and the guesses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import from_outside
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.labels.label_releases import (
    HIDDEN,
    ChannelView,
    LabelReleases,
    PairedReleases,
    hidden_half,
    joined,
)
from dpaudit.engine.games.one_run.answers import checked_release
from dpaudit.errors import require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.simultaneous_guess_count import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features, own_features
from dpaudit.mechanisms.protocols import LabelMechanism

Ints = NDArray[np.int64]

MOST_POINTS = 64
"""Points far apart that a data set has at most."""
FAR = 5.0
"""How far they are from the middle, in units of the largest number among the features."""
SURE = (0.5, 1.0, 2.0, 4.0)
"""Log-odds of two classes at which what a model says of a label counts as surer."""
SMALLEST = 1e-12
"""Probability below which none is told apart."""
NOTHING = -1
"""Stands for the design when none could be released."""
JUDGED_AT = 0.8
"""Confidence of the bounds that data sets are chosen by; no bound that is reported."""


@dataclass(frozen=True)
class Design:
    """A small data set that is made for the purpose.

    Attributes:
        rows: At points of their own, >= 1.
        others: Further rows, all at one other point, half of class 0 and half of class 1, all known; >= 0.
        at_stake: How many of the first rows have labels that may be at stake, half of which are in each release; None
            for `rows`.
        labels: "drawn" from all classes; from "two"; or, but for those at stake, which are drawn from two, "balanced"
            between the two so that one label more decides, or "alike".
    """

    rows: int
    others: int = 0
    at_stake: int | None = None
    labels: Literal["drawn", "two", "balanced", "alike"] = "drawn"

    @property
    def size(self) -> int:
        """All rows."""
        return self.rows + self.others

    @property
    def stake(self) -> int:
        """Labels at stake in a release."""
        return ((self.at_stake or self.rows) + 1) // 2

    def used(self, classes: int) -> int:
        """How many of the first classes labels at stake are drawn from."""
        return classes if self.labels == "drawn" else 2

    def planted(self, classes: int, rng: np.random.Generator) -> Ints:
        """Labels of one release, shape (size,)."""
        labels = np.zeros(self.size, np.int64)
        drawn = (self.at_stake or self.rows) if self.labels in ("balanced", "alike") else self.rows
        labels[:drawn] = rng.integers(0, self.used(classes), drawn)
        if self.labels != "alike":
            labels[drawn:] = np.arange(self.size - drawn) % 2 == 0
        return labels

    def __str__(self) -> str:
        stake = "one label" if self.stake == 1 else f"{self.stake} labels"
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        others = f" and {self.others} at one point" if self.others else ""
        law = {
            "drawn": "of all classes",
            "two": "of two classes",
            "balanced": "others in balance",
            "alike": "others alike",
        }
        return f"{rows}{others}, {stake} at stake, {law[self.labels]}"


def points_of(features: Features) -> int:
    """How many points far apart there are for such features."""
    if isinstance(features, np.ndarray):
        return min(MOST_POINTS, 2 * int(np.prod(features.shape[1:])))
    return min(MOST_POINTS, len(features) - 1)


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


def released_symbols(mechanism: Any, train: Examples, design: Design, seed: Seed, compute: Compute) -> Ints:
    """What a copy of the mechanism that has released nothing before says of its training labels, shape (n,).

    A label mechanism says a class. A learner's model says the likeliest class of each row; where labels at stake are of
    two classes, which of the two is likelier, and how much.
    """
    own, name = copy.deepcopy(mechanism), type(mechanism).__qualname__
    if isinstance(mechanism, LabelMechanism):
        rng = np.random.default_rng(seed.sequence())
        labels = own.release(train.labels.copy(), classes=train.classes, rng=rng)
        return checked_release(labels, train, name).labels
    given = train.with_(features=own_features(train.features), labels=train.labels.copy())
    model = own.fit(given, seed=seed.sequence(), compute=compute)
    says = np.asarray(model.probabilities(own_features(train.features)))
    require(says.shape == (len(train), train.classes), f"{name}: the model must give (n, classes)", shape=says.shape)
    require(bool(np.isfinite(says).all()), f"{name}: the model must give finite probabilities")
    if design.used(train.classes) > 2:
        return np.asarray(says.argmax(axis=1), np.int64)
    log_odds = np.diff(np.log(np.maximum(says[:, :2].astype(np.float64), SMALLEST)), axis=1)[:, 0]
    return 2 * np.searchsorted(SURE, np.abs(log_odds)).astype(np.int64) + (log_odds > 0)


def symbols_of(mechanism: Any, design: Design, classes: int) -> int:
    """How many different things are said of a label."""
    if isinstance(mechanism, LabelMechanism) or design.used(classes) > 2:
        return classes
    return 2 * (len(SURE) + 1)


@dataclass(frozen=True, eq=False)
class Tried:
    """What came of one data set.

    Attributes:
        design: In words.
        releases: Of it, whose labels are all known; None where the mechanism refused it.
        refused: Why it did; "" where it did not.
    """

    design: str
    releases: LabelReleases | None
    refused: str = ""


@unit
def try_design(mechanism: Any, count: int, design: Design, target: Examples, compute: Compute, *, seed: Seed) -> Tried:
    """Releases one data set `count` times; each release's seeds are children of `seed`."""
    planted, released = [], []
    features = crafted_features(target.features, design)
    for release in range(count):
        own = seed.child(release)
        labels = design.planted(target.classes, own.child("labels").rng())
        train = target.with_(features=features, labels=labels)
        try:
            released.append(released_symbols(mechanism, train, design, own.child("noise"), compute))
        except BaseException as err:  # whatever the mechanism raises: this data set is left out
            if from_outside(err):
                raise
            return Tried(str(design), None, f"{type(err).__name__}: {shortened(err)}")
        planted.append(labels)
    symbols, used = symbols_of(mechanism, design, target.classes), design.used(target.classes)
    known = LabelReleases(np.stack(released), np.stack(planted), symbols, design.at_stake or design.rows, used)
    return Tried(str(design), known)


@dataclass(frozen=True, eq=False)
class Taken:
    """The data set that was taken.

    Attributes:
        number: Which; `NOTHING` where none could be released.
        releases: Of it, to learn from; None where there are none.
    """

    number: int
    releases: LabelReleases | None


@unit
def take_best_design(attack: Any, tried: tuple[Tried, ...]) -> Outcome[Taken]:
    """The data set that shows most; the first of equals is taken."""
    shown: dict[int, tuple[float, float]] = {}
    words = []
    for number, one in enumerate(tried):
        if one.releases is None:
            words.append(f"{one.design}: refused ({one.refused})")
            continue
        bound, right = shown[number] = what_it_shows(attack, one.releases)
        words.append(f"{one.design}: {format_lower(bound)} ({right:.0%} right)")
    if not shown:
        why = f"no data set that was made could be released, so nothing was looked at: {'; '.join(words)}"
        return Outcome(Taken(NOTHING, None), notes=(why,))
    best = max(shown, key=lambda number: shown[number])
    note = (
        f"of {len(tried)} data sets this one was taken: {tried[best].design}; on releases of their own, "
        f"{'; '.join(words)}"
    )
    return Outcome(Taken(best, tried[best].releases), notes=(note,))


def what_it_shows(attack: Any, releases: LabelReleases) -> tuple[float, float]:
    """The bound of every second release, learned from the others, and the share of right guesses there."""
    rng = np.random.default_rng(len(releases.released))  # of the adversary's own
    learned, judged = (releases.at(np.arange(start, len(releases.released), 2)) for start in (0, 1))
    used = releases.used or releases.classes
    asked = [_paired(planted, releases.at_stake, used, rng) for planted in judged.planted]
    score, truth = guessed(attack, learned, PairedReleases(judged.released, *_stacked(asked)))
    estimator = SimultaneousGuessCount(confidence=JUDGED_AT)
    bound = estimator.bound([estimator.tally(Scores(score, truth))])
    return bound.lower, float(((score > 0) == truth).mean())


def _paired(planted: Ints, at_stake: int | None, used: int, rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
    """What is known of one release's labels, the pair and the coin of each row; at stake is what is not known."""
    known, _ = hidden_half(planted, rng, at_stake=at_stake)
    bit = rng.random(planted.size) < 0.5
    other = (planted + rng.integers(1, used, planted.size)) % used
    return known, np.where(bit, planted, other), np.where(bit, other, planted), bit


def _stacked(rows: list[tuple[NDArray[Any], ...]]) -> Iterator[NDArray[Any]]:
    """Columns of several releases."""
    return (np.stack(column) for column in zip(*rows, strict=True))


def guessed(
    attack: Any, learned: LabelReleases, asked: PairedReleases
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and truths of all labels at stake; where a release failed, the worst guess."""
    fresh = replace(learned, released=asked.released, planted=asked.known)
    at_stake, truth = fresh.canaries, asked.truth
    scores = np.where(truth, -np.inf, np.inf)
    there = (asked.released != HIDDEN).all(axis=1)
    if there.any():
        rows = at_stake & there[:, None]
        view = ChannelView(learned, fresh.at(np.flatnonzero(there)), asked.first[rows], asked.second[rows])
        scores[rows] = attack.score(view)
    return scores[at_stake], truth[at_stake]


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
) -> Outcome[PairedReleases]:
    """Fresh releases of the data set that was taken, one of several parts of them.

    Args:
        mechanism: What is audited.
        taken: Which of the data sets.
        designs: Those it was chosen from.
        target: The rows that say what features and classes there are.
        compute: Where it runs.
        most: How many releases at most, all parts together.
        canaries: Labels at stake after which it is enough.
        part: Which releases are made here: this one and every `parts`-th after it.
        parts: How many parts there are.
        seed: Each release's seeds are children of this one.
    Returns: Releases; one that failed has `HIDDEN` for what was released, and is among the failures.
    """
    if taken.number == NOTHING:
        return Outcome(_no_releases(0))
    design = designs[taken.number]
    count = min(most, -(-canaries // design.stake))
    features = crafted_features(target.features, design)
    released, asked, failures = [], [], []
    for release in range(part, count, parts):
        own = seed.child(release)
        rng = own.child("labels").rng()
        planted = design.planted(target.classes, rng)
        asked.append(_paired(planted, design.at_stake or design.rows, design.used(target.classes), rng))
        train = target.with_(features=features, labels=planted)
        try:
            released.append(released_symbols(mechanism, train, design, own.child("noise"), compute))
        except BaseException as err:  # whatever the mechanism raises: counted as the worst guess
            if from_outside(err):
                raise
            released.append(np.full(design.size, HIDDEN))
            failures.append(f"release {release} (seed {own}): {type(err).__name__}: {shortened(err)}")
    if not released:
        return Outcome(_no_releases(design.size))
    return Outcome(PairedReleases(np.stack(released), *_stacked(asked)), failures=tuple(failures))


def _no_releases(size: int) -> PairedReleases:
    none = np.zeros((0, size), np.int64)
    return PairedReleases(none, none, none, none, none.astype(np.bool_))


@unit
def guess_crafted(attack: Any, taken: Taken, fresh: tuple[PairedReleases, ...]) -> Iterator[Scores]:
    """The attack learns from the releases that the data set was chosen by, and scores fresh ones: one replay."""
    asked = joined(fresh)
    if taken.releases is None or not asked.released.size:
        yield _nothing_said()
        return
    score, truth = guessed(attack, taken.releases, asked)
    yield scored(0, truth, score)


@unit
def tell_labels(fresh: tuple[PairedReleases, ...]) -> Iterator[Scores]:
    """The same game against a mechanism without privacy: each label at stake is told."""
    asked = joined(fresh)
    if not asked.released.size:
        yield _nothing_said()
        return
    truth = asked.truth[asked.known == HIDDEN]
    yield scored(0, truth, np.where(truth, 1.0, -1.0))


def _nothing_said() -> Scores:
    """One guess that says nothing, where nothing could be released."""
    return scored(0, np.array([True]), np.array([0.0]))
