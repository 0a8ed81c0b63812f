"""Label mechanisms are cheap to run: their channel is learned on releases of known labels, then fresh ones are guessed.

Source: ours. The fair pair is that of Malek et al. (2021), arXiv:2106.03408, with both labels drawn by the challenger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.findings.score_table import score_rows
from dpaudit.engine.games.fits import LABEL_MECHANISMS, Fits, Look
from dpaudit.engine.games.label_releases import GuessReleases, RepeatedReleases, releases_column, releases_table
from dpaudit.engine.games.protocol import GamePlan, Setting
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.channel_view import ChannelView, LabelReleases, hidden_half
from dpaudit.errors import require
from dpaudit.mechanisms.protocols import Compute
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
        estimator="guess-band",
        helps="more `releases`, or more rows",
        looks=(
            Look(
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

    def plan(self, setting: Setting) -> GamePlan:
        """Releases to learn from, fresh ones, and the guesses."""
        target, rows = setting.parts.target, setting.parts.names("target")

        def unit(task: Any, label: str, *needs: str) -> Unit:
            return Unit(task, label, () if needs else rows, needs or setting.after, setting.resources.on_cpus)

        seed = setting.seed
        search = unit(SearchReleases(setting.mechanism, self.search, seed.child("search")), "releases to learn from")
        fresh = unit(PairedReleases(setting.mechanism, self.releases, seed.child("releases")), "fresh releases")
        guesses = unit(
            PlayChannel(setting.attack, search.key, (fresh.key,)), "guesses in fresh releases", search.key, fresh.key
        )
        canaries = self.releases * canaries_in(len(target))
        return GamePlan(
            units=(search, fresh, guesses),
            scores=(guesses.key,),
            trainings=(search.key, fresh.key),
            observational=False,
            reading=setting.reading,
            reference=Reference(PairedLabels(target.classes), canaries, "canaries"),
        )


def canaries_in(rows: int) -> int:
    """How many rows of a release are canaries."""
    return (rows + 1) // 2


@dataclass(frozen=True)
class SearchReleases(RepeatedReleases):
    """Releases of labels that are drawn evenly and known."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a release and example."""
        target = required_part(inputs, "target")
        planted = [
            self.seed.child(release, "labels").rng().integers(0, target.classes, len(target))
            for release in range(self.count)
        ]
        released = [self.released(labels, target, release) for release, labels in enumerate(planted)]
        return releases_table({"planted": np.stack(planted), "released": np.stack(released)}, target.classes)


@dataclass(frozen=True)
class PairedReleases(RepeatedReleases):
    """Releases in which half of the labels are at stake, each one of a pair that a fair coin chose."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a release and example: what was released, what everyone knows, the pair, the coin."""
        target = required_part(inputs, "target")
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _PAIRED}
        for release in range(self.count):
            rng = self.seed.child(release, "labels").rng()
            planted = rng.integers(0, target.classes, len(target))
            bit = rng.random(len(target)) < 0.5
            other = (planted + rng.integers(1, target.classes, len(target))) % target.classes
            known, _ = hidden_half(planted, rng)
            first, second = np.where(bit, planted, other), np.where(bit, other, planted)
            values = (self.released(planted, target, release), known, first, second, bit)
            for name, value in zip(_PAIRED, values, strict=True):
                columns[name].append(value)
        return releases_table({name: np.stack(values) for name, values in columns.items()}, target.classes)


_PAIRED = ("released", "known", "first", "second", "truth")


@dataclass(frozen=True)
class PlayChannel(GuessReleases):
    """Scores the canaries of fresh releases, of whose other labels the attack knows all."""

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """The one replay."""
        learned = inputs.tables[self.search]
        classes = int(learned.schema.metadata[b"classes"])
        search = LabelReleases(releases_column(learned, "released"), releases_column(learned, "planted"), classes)
        fresh = LabelReleases(self.asked(inputs, "released"), self.asked(inputs, "known"), classes)
        at_stake = fresh.canaries
        first, second = (self.asked(inputs, name)[at_stake] for name in ("first", "second"))
        score = self.attack.score(ChannelView(search, fresh, first, second))
        yield score_rows(self.fresh[0], 0, self.asked(inputs, "truth")[at_stake], score)
