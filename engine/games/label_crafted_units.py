"""The units of the game label-crafted: data sets that are tried, the choice, fresh releases and the guesses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.signals import from_outside
from dpaudit.actors.unit import Inputs
from dpaudit.engine.findings.score_table import score_rows
from dpaudit.engine.games.label_releases import GuessReleases, releases_column, releases_table
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.answers import checked_release
from dpaudit.engine.views.channel_view import HIDDEN, ChannelView, LabelReleases, hidden_half
from dpaudit.errors import require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.guess_band_estimator import GuessBand
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.examples import Examples, Features, own_features
from dpaudit.mechanisms.protocols import Compute, LabelMechanism

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


def releases_of(table: pa.Table) -> LabelReleases:
    """The releases of a table, whose labels are all known."""
    about = table.schema.metadata
    at_stake, used, classes = (int(about[name]) for name in (b"at_stake", b"used", b"classes"))
    return LabelReleases(releases_column(table, "released"), releases_column(table, "planted"), classes, at_stake, used)


def _table(columns: dict[str, list[NDArray[Any]]], design: Design, classes: int, symbols: int) -> pa.Table:
    at_stake = str(design.at_stake or design.rows)
    said = {"design": str(design), "at_stake": at_stake, "used": str(design.used(classes))}
    return releases_table({name: np.stack(values) for name, values in columns.items()}, symbols, said)


@dataclass(frozen=True)
class TryDesign:
    """Releases of one data set whose labels are all known.

    Attributes:
        mechanism: What is audited.
        count: How many releases.
        seed: Each release's seeds are children of this one.
        design: The data set.
    """

    mechanism: Any
    count: int
    seed: Seed
    design: Design

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a release and example; none, and why, where the mechanism refuses the data."""
        target = required_part(inputs, "target")
        columns: dict[str, list[NDArray[Any]]] = {"planted": [], "released": []}
        features = crafted_features(target.features, self.design)
        for release in range(self.count):
            seed = self.seed.child(release)
            labels = self.design.planted(target.classes, seed.child("labels").rng())
            train = target.with_(features=features, labels=labels)
            try:
                released = released_symbols(self.mechanism, train, self.design, seed.child("noise"), compute)
            except BaseException as err:  # whatever the mechanism raises: this data set is left out
                if from_outside(err):
                    raise
                why = f"{type(err).__name__}: {shortened(err)}"
                return pa.table({}).replace_schema_metadata({"design": str(self.design), "refused": why})
            columns["planted"].append(labels)
            columns["released"].append(released)
        symbols = symbols_of(self.mechanism, self.design, target.classes)
        return _table(columns, self.design, target.classes, symbols)


@dataclass(frozen=True)
class TakeBestDesign:
    """The data set that shows most.

    Attributes:
        attack: The adversary.
        tried: Keys of the units that tried them, in a fixed order; the first of equals is taken.
    """

    attack: Any
    tried: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """The releases of the best data set; which it is and what was tried, in its metadata."""
        shown: dict[int, tuple[float, float]] = {}
        words = []
        for number, key in enumerate(self.tried):
            table = inputs.tables[key]
            about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
            if "refused" in about:
                words.append(f"{about['design']}: refused ({about['refused']})")
                continue
            bound, right = shown[number] = what_it_shows(self.attack, releases_of(table))
            words.append(f"{about['design']}: {format_lower(bound)} ({right:.0%} right)")
        if not shown:
            told = f"no data set that was made could be released, so nothing was looked at: {'; '.join(words)}"
            return pa.table({}).replace_schema_metadata({"taken": str(NOTHING), "told": told})
        best = max(shown, key=lambda number: shown[number])
        table = inputs.tables[self.tried[best]]
        taken = table.schema.metadata[b"design"].decode()
        told = (
            f"of {len(self.tried)} data sets this one was taken: {taken}; on releases of their own, {'; '.join(words)}"
        )
        about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        return table.replace_schema_metadata({**about, "taken": str(best), "told": told})


def what_it_shows(attack: Any, releases: LabelReleases) -> tuple[float, float]:
    """The bound of every second release, learned from the others, and the share of right guesses there."""
    rng = np.random.default_rng(len(releases.released))  # of the adversary's own
    learned, judged = (releases.at(np.arange(start, len(releases.released), 2)) for start in (0, 1))
    used = releases.used or releases.classes
    asked = [_paired(planted, releases.at_stake, used, rng) for planted in judged.planted]
    columns = {name: np.stack([pairs[name] for pairs in asked]) for name in _PAIRED}
    score, truth = scored(attack, learned, judged.released, columns)
    estimator = GuessBand(confidence=JUDGED_AT)
    bound = estimator.bound([estimator.tally(Scores(score, truth))])
    return bound.lower, float(((score > 0) == truth).mean())


_PAIRED = ("known", "first", "second", "truth")


def _paired(planted: Ints, at_stake: int | None, used: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """What is known of one release's labels, and the pair and the coin of each row; at stake is what is not known."""
    known, _ = hidden_half(planted, rng, at_stake=at_stake)
    bit = rng.random(planted.size) < 0.5
    other = (planted + rng.integers(1, used, planted.size)) % used
    return {
        "known": known,
        "first": np.where(bit, planted, other),
        "second": np.where(bit, other, planted),
        "truth": bit,
    }


def scored(
    attack: Any, learned: LabelReleases, released: Ints, columns: dict[str, NDArray[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and truths of all labels at stake; where a release failed, the worst guess."""
    fresh = replace(learned, released=released, planted=columns["known"])
    at_stake, truth = fresh.canaries, columns["truth"]
    scores = np.where(truth, -np.inf, np.inf)
    there = (released != HIDDEN).all(axis=1)
    if there.any():
        rows = at_stake & there[:, None]
        view = ChannelView(learned, fresh.at(np.flatnonzero(there)), columns["first"][rows], columns["second"][rows])
        scores[rows] = attack.score(view)
    return scores[at_stake], truth[at_stake]


@dataclass(frozen=True)
class CraftedReleases:
    """Some fresh releases of the data set that was taken: labels at stake, each one of a pair that a fair coin chose.

    Attributes:
        mechanism: What is audited.
        most: How many releases at most, all parts together.
        seed: Each release's seeds are children of this one.
        canaries: Labels at stake after which it is enough.
        choice: Key of the unit that chose the data set.
        designs: Those it chose from.
        part: Which releases are made here: this one and every `parts`-th after it.
        parts: Of how many.
    """

    mechanism: Any
    most: int
    seed: Seed
    canaries: int
    choice: str
    designs: tuple[Design, ...]
    part: int = 0
    parts: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a release and example: what was released, what everyone knows, the pair, the coin, an error.

        A release that failed has `HIDDEN` for what was released.
        """
        target = required_part(inputs, "target")
        taken = int(inputs.tables[self.choice].schema.metadata[b"taken"])
        design = self.designs[taken]
        count = 0 if taken == NOTHING else min(self.most, -(-self.canaries // design.stake))
        if self.part >= count:
            return pa.table({})
        features = crafted_features(target.features, design)
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("planted", "released", *_PAIRED, "error")}
        for release in range(self.part, count, self.parts):
            seed = self.seed.child(release)
            rng = seed.child("labels").rng()
            planted = design.planted(target.classes, rng)
            pairs = _paired(planted, design.at_stake or design.rows, design.used(target.classes), rng)
            train = target.with_(features=features, labels=planted)
            error = np.full(design.size, "", object)
            try:
                released = released_symbols(self.mechanism, train, design, seed.child("noise"), compute)
            except BaseException as err:  # whatever the mechanism raises: counted as the worst guess
                if from_outside(err):
                    raise
                released = np.full(design.size, HIDDEN)
                error[0] = f"release {release} (seed {seed}): {type(err).__name__}: {shortened(err)}"
            for name, values in {"planted": planted, "released": released, **pairs, "error": error}.items():
                columns[name].append(values)
        return _table(columns, design, target.classes, symbols_of(self.mechanism, design, target.classes))


@dataclass(frozen=True)
class PlayCrafted(GuessReleases):
    """The attack learns from the releases that the data set was chosen by, and scores fresh ones of it."""

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """The one replay; where nothing could be released, one guess that says nothing."""
        released = self.asked(inputs, "released")
        if not released.size:
            yield score_rows(self.fresh[0], 0, np.array([True]), np.array([0.0]))
            return
        columns = {name: self.asked(inputs, name) for name in _PAIRED}
        score, truth = self.scored(releases_of(inputs.tables[self.search]), released, columns)
        yield score_rows(self.fresh[0], 0, truth, score)

    def scored(
        self, learned: LabelReleases, released: Ints, columns: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Scores and truths of the labels at stake."""
        return scored(self.attack, learned, released, columns)


@dataclass(frozen=True)
class TellAll(PlayCrafted):
    """The same game against a mechanism that hides nothing: each label at stake is told."""

    def scored(
        self, learned: LabelReleases, released: Ints, columns: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Certainty."""
        truth = columns["truth"][columns["known"] == HIDDEN]
        return np.where(truth, 1.0, -1.0), truth
