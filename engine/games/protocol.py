"""The game between challenger and adversary (Algorithm 1), and what a game hands the planner.

Source: arXiv:2511.14084, Algorithm 1 (after Swanberg et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources, Unit
from dpaudit.claims import Relation
from dpaudit.engine.spec.partition import Parts
from dpaudit.mechanisms.examples import Examples


@dataclass(frozen=True, eq=False)
class AdversaryView:
    """What the adversary sees of m canaries: outputs on the points it is shown, and nothing of the truth.

    Attributes:
        target: Class probabilities of the audited mechanism, shape (m, classes); in the attribute game, the
            probability it gives the record's label with each value of the attribute, shape (m, values).
        reference: Probabilities of the adversary's own model M' for what is at stake, of the same shape.
        labels: The labels it is shown (in the attribute game, the values), shape (m,).
    """

    target: NDArray[np.float32]
    reference: NDArray[np.float32]
    labels: NDArray[np.int64]


class Attack(Protocol):
    """The adversary (registered as "attack"): one score for each canary."""

    def score(self, view: AdversaryView) -> NDArray[np.float64]:
        """Scores, shape (m,); larger = more likely that the training label, or a member, is shown."""
        ...


@dataclass(frozen=True)
class Setting:
    """What a game is planned from.

    Attributes:
        mechanism: What is audited.
        proxy: Where the adversary's reference comes from.
        attack: The adversary.
        data: The data set's description (not its rows).
        parts: Which rows are the training set, the reference set and so on, with the shared names of each.
        seed: The audit's seed.
        resources: What one unit occupies.
        rows_per_unit: Score rows one unit should make at most: seconds of work, and memory where scores are kept.
        sequential: Whether trials are read while later ones still run: their scores must come in several tables, in the
            order of the trials, none of which needs a later trial.
    """

    mechanism: Any
    proxy: Any
    attack: Any
    data: Any
    parts: Parts
    seed: Seed
    resources: Resources
    rows_per_unit: int
    sequential: bool = False


@dataclass(frozen=True)
class GamePlan:
    """The units of one game.

    Attributes:
        units: All of them, each after those it needs.
        scores: Keys of the units whose tables are score tables, in the order of their rows.
        trainings: Keys of the units that ran the mechanism.
        observational: Whether the training data are left as they are (Definition 4), found by comparing them.
        controls: Keys of the units that play the game on rows the mechanism never saw, one for each distinguisher.
        shared: Large inputs the game brings beside the parts of the data, by name.
        replays: How many replays there are, each a bound of its own; None where the scores make one bound together,
            which no part of them may be missing from.
    """

    units: tuple[Unit, ...]
    scores: tuple[str, ...]
    trainings: tuple[str, ...]
    observational: bool
    controls: tuple[str, ...] = ()
    shared: Mapping[str, Examples] = field(default_factory=dict)
    replays: int | None = None


class Game(Protocol):
    """An experiment (registered as "game")."""

    @property
    def relation(self) -> Relation:
        """Which neighbouring data sets its two worlds are."""
        ...

    @property
    def assumes(self) -> str:
        """What must hold beside the arithmetic for the bound to hold, as a sentence."""
        ...

    def plan(self, setting: Setting) -> GamePlan:
        """Every unit, each with its seed; nothing runs."""
        ...
