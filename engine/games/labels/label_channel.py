"""Label mechanisms are cheap to run: their channel is learned on releases of known labels, then fresh ones are guessed.

Source: ours. The fair pair is that of Malek et al. (2021), arXiv:2106.03408, with both labels drawn by the challenger.
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
    guessed,
    hidden_half,
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
    """Interventional: learns a label mechanism's channel on releases of random labels, and guesses in fresh ones.

    In each fresh release half of the rows have labels that everyone knows. Each of the others, the canaries, has a pair
    of labels, drawn at random; a fair coin decides which of the two is planted. Labels are drawn in turn evenly, by the
    class frequencies of the data, and each class half as often as the one before, so that some are rare. The mechanism
    sees labels alone. A release that fails is an outcome like any other.

    Attributes:
        search: Releases that the channel is learned on, >= 2.
        releases: Fresh releases that are guessed, >= 1; their canaries are counted together.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: the challenger draws both labels of each "
        "canary, and each release is made by a copy of the mechanism that has released nothing before.",
        views={LABEL_MECHANISMS: ChannelView},
        attack="learned-channel",
        estimator="simultaneous-guess-count",
        repeats_calls=True,
        helps="more `releases`, or more rows",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "too little noise, noise that rows or releases share, rows released without noise",
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
        at_stake = (len(target) + 1) // 2
        bare_releases = min(self.releases, -(-NOISELESS_TRIALS // max(1, at_stake)))
        search, fresh, *bare = (
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
                (release_paired, setting.noiseless, bare_releases, "releases", "releases without noise"),
            )
            if played is not None
        )
        guesses, *shown = (
            work.add(guess_channel, setting.attack, search, each, label=f"guesses in {each.label}", resources=resources)
            for each in (fresh, *bare)
        )
        return Played(
            (guesses,),
            trainings=(search, fresh),
            ceiling=tuple(shown),
            noiseless=bool(shown),
            reference=Reference(PairedLabels(target.classes), self.releases * at_stake, "canaries"),
        )


def _laws(target: Examples, releases: int) -> NDArray[np.float64]:
    """How often each class is planted in each release: in turn evenly, as in the data, and each half as often as the
    one before; shape (releases, K).
    """
    k = target.classes
    own, halved = np.bincount(target.labels, minlength=k) + 1.0, 0.5 ** np.arange(k)
    return np.stack([np.full(k, 1 / k), own / own.sum(), halved / halved.sum()])[np.arange(releases) % 3]


@unit
def release_known(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> Outcome[LabelReleases]:
    k, n = target.classes, len(target)
    laws = _laws(target, count)
    planted = [seed.child(number, "labels").rng().choice(k, n, p=law) for number, law in enumerate(laws)]
    released, form, failures = release_all(mechanism, [target.with_(labels=one) for one in planted], seed)
    known = LabelReleases(released, np.stack(planted), k, form, laws=laws)
    kept = _kept(mechanism, target, seed.child("again"))
    return Outcome(known, notes=(kept,) if kept else (), failures=failures)


def _kept(mechanism: Any, train: Examples, seed: Seed) -> str:
    """A sentence where one object releases the same twice whatever the seed, and another object something else."""
    one, other = copy.deepcopy(mechanism), copy.deepcopy(mechanism)

    def released(by: Any, number: int) -> NDArray[Any]:
        rng = np.random.default_rng(seed.child(number).sequence())
        return np.asarray(by.release(train.labels.copy(), classes=train.classes, rng=rng))

    try:
        first, again, afresh = released(one, 0), released(one, 1), released(other, 1)
    except BaseException as err:  # other people's code may raise anything; what it does is judged by the releases
        if raised_externally(err):
            raise
        return ""
    if not np.array_equal(first, again) or np.array_equal(again, afresh):
        return ""
    return (
        "one object gave the same labels twice, whatever the seed: it keeps its noise. Each release here was made by a "
        "copy that had released nothing, so the verdict is about one release; of several releases the noise cancels. "
        "Draw the noise anew in each call"
    )


@unit
def release_paired(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> Outcome[PairedReleases]:
    """Releases in which half of the labels are at stake, each one of a pair that a fair coin chose."""
    k, n = target.classes, len(target)
    trains, asked = [], []
    for number, law in enumerate(_laws(target, count)):
        rng = seed.child(number, "labels").rng()
        first = rng.choice(k, n, p=law)
        second = (first + rng.integers(1, k, n)) % k
        bit = rng.random(n) < 0.5
        planted = np.where(bit, first, second)
        trains.append(target.with_(labels=planted))
        asked.append((hidden_half(planted, rng)[0], first, second, bit))
    released, form, failures = release_all(mechanism, trains, seed)
    known, first, second, bit = map(np.stack, zip(*asked, strict=True))
    return Outcome(PairedReleases(released, known, first, second, bit, form), failures=failures)


@unit
def guess_channel(attack: Any, search: LabelReleases, fresh: PairedReleases) -> Iterator[Scores]:
    """Scores the canaries of fresh releases, of whose other labels the attack knows all: one replay."""
    score, truth = guessed(attack, search, fresh)
    yield scored(0, truth, score)
