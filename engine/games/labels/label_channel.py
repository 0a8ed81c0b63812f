"""Label mechanisms are cheap to run: their channel is learned on releases of known labels, then fresh ones are guessed.

Source: ours. The fair pair is that of Malek et al. (2021), arXiv:2106.03408, with both labels drawn by the challenger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_releases import (
    ChannelView,
    LabelReleases,
    PairedReleases,
    guessed,
    hidden_half,
    released_anew,
)
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, CheckTest, Fits, Played, Setting
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
    of labels, drawn at random; a fair coin decides which of the two is planted. The mechanism sees labels alone: the
    data set says how many rows and classes there are.

    Attributes:
        search: Releases that the channel is learned on, >= 2.
        releases: Fresh releases that are guessed, >= 1; their canaries are counted together.
    """

    fits: ClassVar[Fits] = Fits(
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
                "too little noise, noise that rows or releases share, rows that go bare",
                again={"releases": 4},
            ),
        ),
    )

    search: int = 20
    releases: int = 50

    def __post_init__(self) -> None:
        require(self.search >= 2, "search must be >= 2 releases", search=self.search)
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)

    def play(self, setting: Setting, work: Work) -> Played:
        target, resources = setting.parts.target, setting.resources.on_cpus
        search, fresh = (
            work.add(
                release,
                setting.mechanism,
                count,
                setting.required("target"),
                seed=setting.seed.child(purpose),
                label=label,
                resources=resources,
                after=setting.after,
            )
            for release, count, purpose, label in (
                (release_known, self.search, "search", "releases to learn from"),
                (release_paired, self.releases, "releases", "fresh releases"),
            )
        )
        guesses = work.add(
            guess_channel, setting.attack, search, fresh, label="guesses in fresh releases", resources=resources
        )
        canaries = self.releases * ((len(target) + 1) // 2)
        return Played(
            (guesses,),
            trainings=(search, fresh),
            reference=Reference(PairedLabels(target.classes), canaries, "canaries"),
        )


@unit
def release_known(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> LabelReleases:
    planted = [seed.child(release, "labels").rng().integers(0, target.classes, len(target)) for release in range(count)]
    released = [
        released_anew(mechanism, target.with_(labels=labels), seed.child(release, "noise"))
        for release, labels in enumerate(planted)
    ]
    return LabelReleases(np.stack(released), np.stack(planted), target.classes)


@unit
def release_paired(mechanism: Any, count: int, target: Examples, *, seed: Seed) -> PairedReleases:
    """Releases in which half of the labels are at stake, each one of a pair that a fair coin chose."""
    made = []
    for release in range(count):
        rng = seed.child(release, "labels").rng()
        planted = rng.integers(0, target.classes, len(target))
        bit = rng.random(len(target)) < 0.5
        other = (planted + rng.integers(1, target.classes, len(target))) % target.classes
        known, _ = hidden_half(planted, rng)
        first, second = np.where(bit, planted, other), np.where(bit, other, planted)
        released = released_anew(mechanism, target.with_(labels=planted), seed.child(release, "noise"))
        made.append((released, known, first, second, bit))
    return PairedReleases(*map(np.stack, zip(*made, strict=True)))


@unit
def guess_channel(attack: Any, search: LabelReleases, fresh: PairedReleases) -> Iterator[Scores]:
    """Scores the canaries of fresh releases, of whose other labels the attack knows all: one replay."""
    score, truth = guessed(attack, search, fresh)
    yield scored(0, truth, score)
