"""Seed check of label mechanisms: the same labels are released repeatedly, each time with a new random generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, Work, measuring, unit
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
    """Releases of n rows; one of them, the canary, has different labels in the two worlds."""

    search: NDArray[np.int64]  # symbols, then the code of the form, shape (releases, n + 1)
    worlds: NDArray[np.bool_]  # world of each search release, shape (releases,)
    fresh: NDArray[np.int64]  # releases of unknown worlds, as `search`, shape (trials, n + 1)
    canary: int  # row of the canary
    shows: ClassVar[str] = "repeated releases of labels that differ in one row"


@register("attack", "recognised-release", source="Ours; Neyman-Pearson on counted releases")
@dataclass(frozen=True)
class RecognisedRelease:
    """Score a release by its frequency in each world; if it is new, by the frequencies of the canary's label and form.

    Noise that depends on the labels only (a constant seed, a seed hashed from the labels, or no noise) gives the same
    release for the same labels, with any random generator.
    """

    view: ClassVar[type[RepeatsView]] = RepeatsView

    def score(self, view: RepeatsView) -> NDArray[np.float64]:
        """Return log-odds of world 1, in nats, shape (trials,)."""
        scores = _log_odds(view, view.canary) + _log_odds(view, -1)
        counts_by_world = [Counter(row.tobytes() for row in view.search[view.worlds == world]) for world in (0, 1)]
        for trial, row in enumerate(view.fresh):
            absent, present = (counts[row.tobytes()] for counts in counts_by_world)
            if absent + present:
                scores[trial] = np.log(present + 0.5) - np.log(absent + 0.5)
        return scores


def _log_odds(view: RepeatsView, place: int) -> NDArray[np.float64]:
    """Return log-odds of world 1 of each fresh release, by the frequencies of its value in one column."""
    values, inverse = np.unique(np.concatenate([view.search[:, place], view.fresh[:, place]]), return_inverse=True)
    before, now = np.split(inverse, [len(view.search)])
    counts = np.stack([np.bincount(before[view.worlds == world], minlength=values.size) for world in (0, 1)]) + 0.5
    odds: NDArray[np.float64] = np.diff(np.log(counts / counts.sum(axis=1, keepdims=True)), axis=0)[0][now]
    return odds


@register("game", "label-repeats", source="Ours")
@dataclass(frozen=True)
class LabelRepeats:
    """Interventional game: a few labels are released repeatedly; for each release, a fair coin decides one label.

    A mechanism that ignores its random generator repeats its releases, which reveals the label. The metric
    `same_labels_released_alike` is the share of repeated releases.

    Attributes:
        search: Number of releases that the attacker learns from, >= 2.
        trials: Number of releases to guess, >= 2.
        rows: Number of labels in a release, >= 1; they belong to the first rows of the target part.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: a fresh copy of the mechanism makes each "
        "release, with a separate random generator.",
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
                "noise that ignores the given generator: a constant seed, or one made from the labels",
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
        search, fresh, *noiseless = (
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
        guesses, *noiseless_guesses = (
            work.add(guess_repeats, setting.attack, search, each, label=f"guesses in {each.label}", resources=resources)
            for each in (fresh, *noiseless)
        )
        return Played(
            (guesses,),
            trainings=(fresh,),
            ceiling=tuple(noiseless_guesses),
            noiseless=bool(noiseless_guesses),
            reference=Reference(PairedLabels(setting.parts.target.classes), self.trials, "trials"),
        )


@dataclass(frozen=True, eq=False)
class Repeats:
    """Releases of labels that are equal except for one, which a fair coin decides."""

    released: NDArray[np.int64]  # symbols of n rows, then the code of the form, shape (releases, n + 1)
    truth: NDArray[np.bool_]  # coins, shape (releases,)
    canary: int  # row of the label that the coins decide


@unit
@measuring(lambda: ("same_labels_released_alike",))
def release_repeatedly(
    mechanism: Any, count: int, rows: int, target: Examples, *, design: Seed, seed: Seed
) -> Outcome[Repeats]:
    """Make `count` releases of `rows` labels; `design` decides the labels, the canary and its two labels."""
    target = target.take(np.arange(min(rows, len(target))))
    rng = design.rng()
    labels = rng.integers(0, target.classes, len(target))
    canary = int(rng.integers(len(target)))
    pair = rng.permutation(target.classes)[:2]
    truth = seed.child("coins").rng().random(count) < 0.5
    trains = []
    for bit in truth:
        trial_labels = labels.copy()
        trial_labels[canary] = pair[0 if bit else 1]
        trains.append(target.with_(labels=trial_labels))
    symbols, form, failures = release_all(mechanism, trains, seed)
    released = np.column_stack([symbols, form])
    metrics = {"same_labels_released_alike": _repeat_share(released, truth)}
    return Outcome(Repeats(released, truth, canary), metrics=metrics, failures=failures)


def _repeat_share(released: NDArray[np.int64], truth: NDArray[np.bool_]) -> float:
    """Return the share of releases that equal the previous release of the same labels."""
    pairs = [released[truth == world] for world in (False, True)]
    same = np.concatenate([(rows[1:] == rows[:-1]).all(axis=1) for rows in pairs])
    return float(same.mean()) if same.size else 0.0


@unit
def guess_repeats(attack: Any, search: Repeats, fresh: Repeats) -> Iterator[Scores]:
    """Return the scores of all fresh releases as one replay."""
    view = RepeatsView(search.released, search.truth, fresh.released, search.canary)
    yield scored(0, fresh.truth, attack.score(view))
