"""The seed check of label mechanisms: the same labels released again and again, with a generator of its own each time.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.findings.score_table import score_rows
from dpaudit.engine.games.fits import LABEL_MECHANISMS, Fits, Look
from dpaudit.engine.games.label_releases import GuessReleases, RepeatedReleases, releases_column, releases_table
from dpaudit.engine.games.protocol import GamePlan, Setting
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.repeats_view import RepeatsView
from dpaudit.errors import require
from dpaudit.mechanisms.protocols import Compute
from dpaudit.registry import register


@register("game", "label-repeats", source="Ours")
@dataclass(frozen=True)
class LabelRepeats:
    """Interventional: a few labels are released again and again; a coin decides one of them anew for each release.

    A mechanism whose noise does not follow the generator it is given repeats itself, and then one label's change shows.
    How often two releases of the same labels were alike is among the measures.

    Attributes:
        search: Releases that the adversary learns from, >= 2.
        trials: Releases that are guessed, >= 2.
        rows: Labels of a release, >= 1; the first ones of the target part.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: each release is made by a copy of the "
        "mechanism that has released nothing before, with a generator of its own.",
        views={LABEL_MECHANISMS: RepeatsView},
        attack="recognised-release",
        estimator="fair-coins",
        independent_trials=True,
        helps="more `trials`",
        looks=(
            Look(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "noise that does not follow the generator: a seed in the source, or made from the labels",
                again={"trials": 2},
            ),
        ),
    )

    search: int = 500
    trials: int = 2000
    rows: int = 64

    def __post_init__(self) -> None:
        require(self.search >= 2, "search must be >= 2 releases", search=self.search)
        require(self.trials >= 2, "trials must be >= 2", trials=self.trials)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def plan(self, setting: Setting) -> GamePlan:
        """Releases to learn from, fresh ones, and the guesses."""
        design, rows = setting.seed.child("design"), setting.parts.names("target")

        def releases(count: int, purpose: str, label: str) -> Unit:
            task = CoinReleases(setting.mechanism, count, setting.seed.child(purpose), self.rows, design)
            return Unit(task, label, rows, setting.after, setting.resources.on_cpus)

        search = releases(self.search, "search", "releases to learn from")
        fresh = releases(self.trials, "trials", "trial releases")
        play = PlayRepeats(setting.attack, search.key, (fresh.key,))
        guesses = Unit(play, "guesses in trial releases", (), (search.key, fresh.key), setting.resources.on_cpus)
        return GamePlan(
            units=(search, fresh, guesses),
            scores=(guesses.key,),
            trainings=(fresh.key,),
            observational=False,
            reading=setting.reading,
            reference=Reference(PairedLabels(setting.parts.target.classes), self.trials, "trials"),
        )


@dataclass(frozen=True)
class CoinReleases(RepeatedReleases):
    """Releases of the same labels, but for one that a fair coin decides.

    Attributes:
        rows: How many labels at most.
        design: Seed of the labels, of the canary and of its two labels.
    """

    rows: int
    design: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a release and example; the release's coin stands in each of its rows."""
        target = required_part(inputs, "target")
        target = target.take(np.arange(min(self.rows, len(target))))
        rng = self.design.rng()
        labels = rng.integers(0, target.classes, len(target))
        canary = int(rng.integers(len(target)))
        pair = rng.permutation(target.classes)[:2]
        truth = self.seed.child("coins").rng().random(self.count) < 0.5
        released = np.empty((self.count, len(target)), np.int64)
        for release, bit in enumerate(truth):
            given = labels.copy()
            given[canary] = pair[0 if bit else 1]
            released[release] = self.released(given, target, release)
        worlds = np.repeat(truth[:, None], len(target), axis=1)
        about = {"canary": str(canary), "metric:same_labels_released_alike": repr(_alike(released, truth))}
        return releases_table({"released": released, "truth": worlds}, target.classes, about)


def _alike(released: NDArray[np.int64], truth: NDArray[np.bool_]) -> float:
    """Share of releases that are the same as the one before of the same labels."""
    pairs = [released[truth == world] for world in (False, True)]
    same = np.concatenate([(rows[1:] == rows[:-1]).all(axis=1) for rows in pairs])
    return float(same.mean()) if same.size else 0.0


@dataclass(frozen=True)
class PlayRepeats(GuessReleases):
    """Scores whole releases by those of each world that were seen."""

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """The one replay."""
        learned = inputs.tables[self.search]
        about = learned.schema.metadata
        view = RepeatsView(
            releases_column(learned, "released"),
            releases_column(learned, "truth")[:, 0],
            self.asked(inputs, "released"),
            int(about[b"canary"]),
            int(about[b"classes"]),
        )
        yield score_rows(self.fresh[0], 0, self.asked(inputs, "truth")[:, 0], self.attack.score(view))
