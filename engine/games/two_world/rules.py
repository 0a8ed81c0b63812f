"""Two-world membership games: what a trial trains on, and about which challenge point the attack is asked.

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiments 1 and 2, section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.trials import TrialGame
from dpaudit.engine.games.two_world.canaries import Canary, GradientCanary
from dpaudit.engine.games.two_world.views import Challenges
from dpaudit.errors import require

MAX_SHADOWS = 2**15 - 1
ON_STEPS = "gradient-likelihood"
"""The attack on the steps of a learner that states their sampling and their noise."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial's draws."""

    truth: bool  # world 1: the challenge is trained on
    challenge: int  # which point is shown, in the pool with the crafted points behind it
    rows: NDArray[np.int64]  # what the model is trained on


@dataclass(frozen=True, eq=False)
class TrialSetup:
    """What trials are drawn from."""

    pool: int  # rows of the pool
    challenges: NDArray[np.int64]  # the challenge points' places, shape (k,); empty when each trial draws its own
    sources: NDArray[np.int64]  # rows of the pool the challenges are made from or are, shape (k,)
    population: NDArray[np.int64]  # rows no trial trains on, shape (P,)
    base: NDArray[np.int64]  # the base set S, for games that fix it, shape (n - 1,)


@dataclass(frozen=True)
class TwoWorldRules(TrialGame, ABC):
    """The fields and the rules of both games.

    The target part of the data is the pool. A trial trains on about half of it, and so does a shadow model.

    Attributes:
        shadows: Shadow models, even, >= 2; trained only when the canary or the attack asks for them.
        queries: Augmented queries of each point (images only), 1 = the point as it is.
        population: Points of the pool no trial trains on, always asked about, for rmia, >= 0.
        shadow_mechanism: What shadow models are trained by; None = the audited mechanism. A cheaper one may do.
    """

    shadows: int = 64
    queries: int = 1
    population: int = 200
    shadow_mechanism: Any = field(default=None, metadata={"kind": "mechanism"})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.shadows % 2 == 0 and 2 <= self.shadows <= MAX_SHADOWS,
            f"shadows must be even (they come in pairs) and in 2..{MAX_SHADOWS}",
            shadows=self.shadows,
        )
        require(self.queries >= 1, "queries must be >= 1", queries=self.queries)
        require(self.population >= 0, "population must be >= 0", population=self.population)

    @property
    @abstractmethod
    def challenge_canary(self) -> Canary | GradientCanary | None:
        """The canary that fixes the challenge points; None when each trial draws its own."""

    @property
    def usual_attack(self) -> str:
        """Where the canary is a gradient, which has no confidence to be asked for, one that reads the steps."""
        return ON_STEPS if isinstance(self.challenge_canary, GradientCanary) else self.traits.attack

    @abstractmethod
    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        """What all trials have in common."""

    @abstractmethod
    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        """The draws of one trial."""
