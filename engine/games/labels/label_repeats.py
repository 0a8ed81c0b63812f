"""Seed check of label mechanisms: the same labels are released repeatedly, each time with a new random generator."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.games.labels.label_designs import form_code, release_labels
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, CheckTest, Setting
from dpaudit.engine.games.reference import PairedLabels
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import require
from dpaudit.mechanisms.queries.row_function import CallOutcome
from dpaudit.registry import register

CODES = 16_777_213
"""Number of codes of forms and of whole releases; each is exact in single precision."""


@dataclass(frozen=True, eq=False)
class ChangedLabel:
    """Labels of a data set, and two labels of one of its records."""

    labels: NDArray[np.int64]  # shape (n,)
    canary: int  # record whose label differs
    label_0: int
    label_1: int

    def of(self, world: bool) -> NDArray[np.int64]:
        labels = self.labels.copy()
        labels[self.canary] = self.label_1 if world else self.label_0
        return labels


@register("game", "label-repeats", source="Ours")
@dataclass(frozen=True)
class LabelRepeats(TwoWorlds):
    """Interventional game: a few labels are released repeatedly; for each release, a fair coin decides one label.

    A mechanism that ignores its random generator repeats its releases, which reveals the label: noise that depends on
    the labels only (a constant seed, a seed hashed from the labels, or no noise) gives the same release for the same
    labels. The metric `same_labels_released_alike` is the share of repeated releases.

    Attributes:
        trials: Number of releases to guess, >= 2.
        stack: Number of releases in one unit, >= 1.
        search: Number of releases that the attacker learns from, >= 4.
        rows: Number of labels in a release, >= 1; they belong to the first rows of the target part.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and releases that share no state: a fresh copy of the mechanism makes each "
        "release, with a separate random generator.",
        views={LABEL_MECHANISMS: SummaryView},
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS,
                (Relation.LABEL, Relation.REPLACE),
                "noise that ignores the given generator: a constant seed, or one made from the labels",
                growth_on_repeat={"trials": 2},
            ),
        ),
    )
    learns_once: ClassVar[bool] = False

    trials: int = 2_000
    stack: int = 2_000
    search: int = 500
    rows: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[ChangedLabel]:
        (target,) = rows
        labels = rng.integers(0, target.classes, min(self.rows, len(target)))
        canary = int(rng.integers(len(labels)))
        label_0, label_1 = rng.permutation(target.classes)[:2].tolist()
        yield ChangedLabel(labels, canary, label_0, label_1)

    def run(self, mechanism: Any, pair: ChangedLabel, runs: Runs) -> Outcomes:
        """Return if the canary's label is either one, and the codes of the form and of the whole release."""

        def release(world: bool, seed: Seed) -> CallOutcome:
            released = release_labels(mechanism, pair.of(world), runs.rows[0].classes, seed)
            if released.fault:
                return CallOutcome(f"form {form_code(released.ending)}", np.empty(0), released.fault)
            symbols = released.numbers.astype(np.int64)
            label = symbols[pair.canary]
            codes = form_code(released.ending) % CODES, zlib.crc32(symbols.tobytes()) % CODES
            return CallOutcome("a release", np.array([label == pair.label_0, label == pair.label_1, *codes]))

        return runs.each(release)

    def metric_names(self, rows: tuple[Any, ...]) -> tuple[str, ...]:
        return ("same_labels_released_alike",)

    def metrics(self, outcomes: Outcomes, rows: tuple[Any, ...]) -> Mapping[str, float]:
        """Return the share of releases that equal the previous release of the same labels."""
        vectors = np.split(outcomes.vector, np.cumsum(outcomes.width)[:-1])
        results = [(ending, tuple(vector)) for ending, vector in zip(outcomes.ending, vectors, strict=True)]
        same = []
        for world in (False, True):
            of_world = [result for result, truth in zip(results, outcomes.truth, strict=True) if truth == world]
            same += [first == second for first, second in itertools.pairwise(of_world)]
        return {"same_labels_released_alike": float(np.mean(same)) if same else 0.0}

    def response(self, setting: Setting) -> PairedLabels:
        return PairedLabels(setting.parts.target.classes)
