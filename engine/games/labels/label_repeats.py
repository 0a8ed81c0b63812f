"""The seed check of label mechanisms: the same labels released again and again, each time with a fresh generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.labels.label_releases import release_all
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, NOISELESS_TRIALS, CheckTest, GameTraits, Played, Setting
from dpaudit.engine.games.reference import PairedLabels, Reference
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class RepeatsView:
    """Releases of n rows, of which one, the canary, had one label in world 1 and another one in world 0."""

    search: NDArray[np.int64]  # releases whose world is known, then the code of their form, shape (releases, n + 1)
    worlds: NDArray[np.bool_]  # their worlds, shape (releases,)
    fresh: NDArray[np.int64]  # releases to be told apart, of the same kind, shape (trials, n + 1)
    canary: int  # the row of the canary
    shows: ClassVar[str] = "the same labels but for one, released again and again"


@register("attack", "recognised-release", source="Ours; Neyman-Pearson on counted releases")
@dataclass(frozen=True)
class RecognisedRelease:
    """How often the whole release was seen in each world before; where never, how often the canary's own label was.

    Noise that follows nothing but the labels (a seed in the source, a seed hashed from the labels, none at all) makes
    the same release of the same labels, whatever generator is handed over.
    """

    view: ClassVar[type[RepeatsView]] = RepeatsView

    def score(self, view: RepeatsView) -> NDArray[np.float64]:
        """Log-odds of world 1, in nats, shape (trials,)."""
        scores = _log_odds(view, view.canary) + _log_odds(view, -1)
        seen = [Counter(row.tobytes() for row in view.search[view.worlds == world]) for world in (0, 1)]
        for trial, row in enumerate(view.fresh):
            absent, present = (counts[row.tobytes()] for counts in seen)
            if absent + present:
                scores[trial] = np.log(present + 0.5) - np.log(absent + 0.5)
        return scores


def _log_odds(view: RepeatsView, place: int) -> NDArray[np.float64]:
    """Of world 1, by how often what stands in one place of a fresh release was seen in each world."""
    values, inverse = np.unique(np.concatenate([view.search[:, place], view.fresh[:, place]]), return_inverse=True)
    before, now = np.split(inverse, [len(view.search)])
    counts = np.stack([np.bincount(before[view.worlds == world], minlength=values.size) for world in (0, 1)]) + 0.5
    odds: NDArray[np.float64] = np.diff(np.log(counts / counts.sum(axis=1, keepdims=True)), axis=0)[0][now]
    return odds


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

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: each release is made by a copy of the "
        "mechanism that has released nothing before, with a generator of its own.",
        views={LABEL_MECHANISMS: RepeatsView},
        attack="recognised-release",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "noise that ignores the given generator: a seed in the source, or made from the labels",
                growth_on_repeat={"trials": 2},
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

    def play(self, setting: Setting, work: Work) -> Played:
        design, resources = setting.seed.child("design"), setting.resources.without_gpu
        search, fresh, *bare = (
            work.add(
                release_repeatedly,
                played.mechanism,
                count,
                self.rows,
                setting.required_part("target"),
                design=design,
                seed=played.seed.child(purpose),
                label=label,
                resources=resources,
                after=setting.after,
            )
            for played, count, purpose, label in (
                (setting, self.search, "search", "releases to learn from"),
                (setting, self.trials, "trials", "trial releases"),
                (setting.noiseless, min(self.trials, NOISELESS_TRIALS), "trials", "releases without noise"),
            )
            if played is not None
        )
        guesses, *shown = (
            work.add(guess_repeats, setting.attack, search, each, label=f"guesses in {each.label}", resources=resources)
            for each in (fresh, *bare)
        )
        return Played(
            (guesses,),
            trainings=(fresh,),
            ceiling=tuple(shown),
            noiseless=bool(shown),
            reference=Reference(PairedLabels(setting.parts.target.classes), self.trials, "trials"),
        )


@dataclass(frozen=True, eq=False)
class Repeats:
    """Releases of the same labels, but for one that a fair coin decides."""

    released: NDArray[np.int64]  # symbols of n rows, then the code of their form, shape (releases, n + 1)
    truth: NDArray[np.bool_]  # the coins, shape (releases,)
    canary: int  # row of the label that they decide


@unit
def release_repeatedly(
    mechanism: Any, count: int, rows: int, target: Examples, *, design: Seed, seed: Seed
) -> Outcome[Repeats]:
    """Releases the first `rows` labels `count` times; `design` decides the labels, the canary and its two labels."""
    target = target.take(np.arange(min(rows, len(target))))
    rng = design.rng()
    labels = rng.integers(0, target.classes, len(target))
    canary = int(rng.integers(len(target)))
    pair = rng.permutation(target.classes)[:2]
    truth = seed.child("coins").rng().random(count) < 0.5
    trains = []
    for bit in truth:
        given = labels.copy()
        given[canary] = pair[0 if bit else 1]
        trains.append(target.with_(labels=given))
    symbols, form, failures = release_all(mechanism, trains, seed)
    released = np.column_stack([symbols, form])
    metrics = {"same_labels_released_alike": _alike(released, truth)}
    return Outcome(Repeats(released, truth, canary), metrics=metrics, failures=failures)


def _alike(released: NDArray[np.int64], truth: NDArray[np.bool_]) -> float:
    """Share of releases that are the same as the one before of the same labels."""
    pairs = [released[truth == world] for world in (False, True)]
    same = np.concatenate([(rows[1:] == rows[:-1]).all(axis=1) for rows in pairs])
    return float(same.mean()) if same.size else 0.0


@unit
def guess_repeats(attack: Any, search: Repeats, fresh: Repeats) -> Iterator[Scores]:
    """Scores whole releases by those of each world that were seen: one replay."""
    view = RepeatsView(search.released, search.truth, fresh.released, search.canary)
    yield scored(0, fresh.truth, attack.score(view))
