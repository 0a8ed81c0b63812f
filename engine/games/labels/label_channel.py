"""Game "label-channel": the attacker learns how true labels map to released labels, and guesses in fresh releases.

Source: ours. Pairs of labels are as in Malek et al. (2021), arXiv:2106.03408, but the challenger draws both labels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_releases import (
    ChannelView,
    LabelReleases,
    PairedReleases,
    guess_labels,
    hide_half,
    release_all,
)
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, NOISELESS_TRIALS, CheckTest, GameTraits, Played, Setting
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "label-channel", source="Ours, after Malek et al. (2021), arXiv:2106.03408")
@dataclass(frozen=True)
class LabelChannel:
    """Interventional game: the attacker learns how true labels map to released labels, and guesses in fresh releases.

    The attacker learns from releases of random labels. In each fresh release, it knows the labels of half of the rows.
    The remaining rows are canaries: each has a random pair of labels, and a fair coin decides which one is planted.
    Three label laws take turns: uniform, the class frequencies of the data, and each class half as frequent as the one
    before. A failed release is an outcome too.

    Attributes:
        search: Number of releases from which the attacker learns, >= 2.
        releases: Number of fresh releases, >= 1; their canaries are counted together.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: the challenger draws both labels of each "
        "canary, and a fresh copy of the mechanism makes each release.",
        views={LABEL_MECHANISMS: ChannelView},
        attack="learned-channel",
        estimator="simultaneous-guess-count",
        repeats_calls=True,
        helps="more `releases`, or more rows",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "too little noise, noise shared by rows or releases, rows released without noise",
                growth_on_repeat={"releases": 4},
            ),
        ),
    )

    search: int = 20
    releases: int = 50

    def __post_init__(self) -> None:
        require(self.search >= 2, "search must be >= 2 releases", search=self.search)
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)

    def play(self, setting: Setting, work: Work) -> Played:
        target, resources = setting.parts.target, setting.resources.without_gpu
        canaries = (len(target) + 1) // 2
        noiseless_releases = min(self.releases, -(-NOISELESS_TRIALS // max(1, canaries)))
        search, fresh, *noiseless = (
            work.add(
                release,
                played.mechanism,
                count,
                setting.required_part("target"),
                seed=played.seed.child(purpose),
                label=label,
                resources=resources,
                after=setting.after,
            )
            for release, played, count, purpose, label in (
                (release_known, setting, self.search, "search", "releases to learn from"),
                (release_paired, setting, self.releases, "releases", "fresh releases"),
                (release_paired, setting.noiseless, noiseless_releases, "releases", "releases without noise"),
            )
            if played is not None
        )
        guesses, *noiseless_guesses = (
            work.add(guess_channel, setting.attack, search, each, label=f"guesses in {each.label}", resources=resources)
            for each in (fresh, *noiseless)
        )
        return Played(
            (guesses,),
            trainings=(search, fresh),
            ceiling=tuple(noiseless_guesses),
            noiseless=bool(noiseless_guesses),
            reference=Reference(PairedLabels(target.classes), self.releases * canaries, "canaries"),
        )


def _laws(target: Examples, releases: int) -> NDArray[np.float64]:
    """Return the planted class frequencies of each release, shape (releases, K)."""
    k = target.classes
    frequencies, halved = np.bincount(target.labels, minlength=k) + 1.0, 0.5 ** np.arange(k)
    return np.stack([np.full(k, 1 / k), frequencies / frequencies.sum(), halved / halved.sum()])[
        np.arange(releases) % 3
    ]


@unit
def release_known(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> Outcome[LabelReleases]:
    k, n = target.classes, len(target)
    laws = _laws(target, count)
    planted = [seed.child(number, "labels").rng().choice(k, n, p=law) for number, law in enumerate(laws)]
    released, form, failures = release_all(mechanism, [target.with_(labels=labels) for labels in planted], seed)
    releases = LabelReleases(released, np.stack(planted), k, form, laws=laws)
    note = _kept_noise_note(mechanism, target, seed.child("again"))
    return Outcome(releases, notes=(note,) if note else (), failures=failures)


def _kept_noise_note(mechanism: Any, train: Examples, seed: Seed) -> str:
    """Return a note if the mechanism object keeps its noise: it ignores the seed of its second release; else ""."""
    first_copy, second_copy = copy.deepcopy(mechanism), copy.deepcopy(mechanism)

    def released(labels_mechanism: Any, number: int) -> NDArray[Any]:
        rng = np.random.default_rng(seed.child(number).sequence())
        return np.asarray(labels_mechanism.release(train.labels.copy(), classes=train.classes, rng=rng))

    try:
        first, repeated, other_release = released(first_copy, 0), released(first_copy, 1), released(second_copy, 1)
    except BaseException as err:  # user code may raise anything, and the game itself counts failed releases
        if raised_externally(err):
            raise
        return ""
    if not np.array_equal(first, repeated) or np.array_equal(repeated, other_release):
        return ""
    return (
        "the mechanism object released the same labels twice although the seeds differ, so it keeps its noise. In this "
        "audit, a fresh copy made each release, so the verdict is about a single release. Over several releases the "
        "noise cancels. Draw new noise in each call"
    )


@unit
def release_paired(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> Outcome[PairedReleases]:
    """Make releases in which half of the labels are secret, each chosen from a pair by a fair coin."""
    k, n = target.classes, len(target)
    trains, draws = [], []
    for number, law in enumerate(_laws(target, count)):
        rng = seed.child(number, "labels").rng()
        first = rng.choice(k, n, p=law)
        second = (first + rng.integers(1, k, n)) % k
        bit = rng.random(n) < 0.5
        planted = np.where(bit, first, second)
        trains.append(target.with_(labels=planted))
        draws.append((hide_half(planted, rng)[0], first, second, bit))
    released, form, failures = release_all(mechanism, trains, seed)
    known_labels, first, second, bit = map(np.stack, zip(*draws, strict=True))
    return Outcome(PairedReleases(released, known_labels, first, second, bit, form), failures=failures)


@unit
def guess_channel(attack: Any, search: LabelReleases, fresh: PairedReleases) -> Iterator[Scores]:
    """Return the scores of all canaries as one replay; the attack knows all other labels."""
    score, truth = guess_labels(attack, search, fresh)
    yield scored(0, truth, score)
