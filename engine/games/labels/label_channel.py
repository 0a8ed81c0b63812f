"""Game "label-channel": the attacker learns how true labels map to released labels, and guesses in fresh releases.

Source: ours. Pairs of labels are as in Malek et al. (2021), arXiv:2106.03408, but the challenger draws both labels.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_coins import LabelCoins, Searched, known_releases
from dpaudit.engine.games.labels.label_designs import ChannelView, Design, Ints, LabelDraw, hide_half
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, CheckTest, GameTraits, Setting
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@dataclass(frozen=True)
class GivenRows(Design):
    """The rows of the given data, half of them canaries; `laws` of the classes take turns."""

    laws: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def of(cls, target: Examples) -> GivenRows:
        k = target.classes
        frequencies, halving = np.bincount(target.labels, minlength=k) + 1.0, 0.5 ** np.arange(k)
        laws = (np.full(k, 1 / k), frequencies / frequencies.sum(), halving / halving.sum())
        return cls(len(target), laws=tuple(tuple(law.tolist()) for law in laws))

    @property
    def most_releases(self) -> int:
        return sys.maxsize

    def planted(self, classes: int, rng: np.random.Generator, number: int = 0) -> Ints:
        return rng.choice(classes, self.size, p=self.laws[number % len(self.laws)])

    def pairs(self, classes: int, rng: np.random.Generator, number: int = 0) -> LabelDraw:
        first = self.planted(classes, rng, number)
        second = (first + rng.integers(1, classes, self.size)) % classes
        coin = rng.random(self.size) < 0.5
        return hide_half(np.where(coin, first, second), rng)[0], first, second, coin

    def facts(self, classes: int, releases: int) -> Mapping[str, Any]:
        return {"laws": np.array(self.laws)[np.arange(releases) % len(self.laws)]}


@register("game", "label-channel", source="Ours, after Malek et al. (2021), arXiv:2106.03408")
@dataclass(frozen=True)
class LabelChannel(LabelCoins):
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

    def designs(self, setting: Setting) -> tuple[GivenRows, ...]:
        return (GivenRows.of(setting.parts.target),)

    def chosen(self, setting: Setting, work: Work, designs: tuple[Any, ...]) -> Unit:
        return work.add(
            release_known,
            setting.mechanism,
            designs[0],
            setting.required_part("target"),
            count=self.search,
            seed=setting.seed.child("search"),
            label="releases to learn from",
            resources=setting.resources.without_gpu,
            after=setting.after,
        )

    def reference(self, setting: Setting, designs: tuple[Any, ...]) -> Reference:
        return Reference(PairedLabels(setting.parts.target.classes), self.most_canaries(designs), "canaries")


@unit
def release_known(
    mechanism: Any, design: GivenRows, target: Examples, compute: Compute, *, count: int, seed: Seed
) -> Outcome[Iterator[Searched]]:
    """Make the search releases. Raises: RunError if all of them failed."""
    releases, outcomes = known_releases(design, mechanism, target, compute, range(count), seed)
    if len(outcomes.failures) == count:
        raise RunError(f"each of {count} releases failed, the first with {outcomes.fault[0]}")
    note = _kept_noise_note(mechanism, target, seed.child("again"))
    return Outcome(iter((Searched(0, releases),)), notes=(note,) if note else (), failures=outcomes.failures)


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
