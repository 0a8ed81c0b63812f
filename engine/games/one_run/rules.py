"""Rules of games with one training: many canaries at once, each with a separate fair bit.

Algorithm 1 in four pure functions: `design` (the challenger's draws that decide the training data), `intervene` (the
resulting training data), `draw` (the bits and other draws after training) and `hint` (the values shown to the
attacker). A game is observational if the training data are unchanged (Definition 4), which is found by comparing them.
Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.one_run.answers import ShadowAnswers
from dpaudit.engine.games.protocol import Candidates, GameTraits
from dpaudit.engine.games.reference import CoinResponse, Response
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Rows

RowsT = TypeVar("RowsT", bound=Rows)


@dataclass(frozen=True, eq=False)
class CanarySetup(Generic[RowsT]):
    """Rows from which the challenger draws."""

    canaries: RowsT  # m canaries, rows of the training data
    fresh: RowsT  # held-out rows, at most m; empty when the game needs none
    # cumulative class probabilities of the proxy at the canaries, shape (m, classes); None without a proxy
    proxy_cdf: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Design:
    """Draws that decide the training data."""

    included: NDArray[np.bool_] | None = None  # mask of canaries in the training data, shape (m,); None for all
    labels: NDArray[np.int64] | None = None  # training labels of the canaries, shape (m,); None for their true labels


@dataclass(frozen=True, eq=False)
class TrialRandomness:
    """Draws of one replay."""

    # one fair bit for each canary, shape (m,); True = world 1, the training label or a member is shown
    bits: NDArray[np.bool_]
    labels: NDArray[np.int64] | None = None  # labels to show in world 0, shape (m,); None for games without


@dataclass(frozen=True, eq=False)
class Reveal:
    """Point and label shown for each canary."""

    points: NDArray[np.int64]  # shown point, shape (m,): i = canary i, m + i = fresh point i
    labels: NDArray[np.int64] | None = None  # shown label, shape (m,); None for the label of the point


@dataclass(frozen=True, eq=False)
class Replayed(Generic[RowsT]):
    """Inputs of replays."""

    setup: CanarySetup[RowsT]  # rows from which the challenger draws
    release: Any  # release of the mechanism, a frozen dataclass of arrays, or its answers at each point
    # answers of the proxy at each point, shape (points, classes); None without a proxy
    reference: NDArray[np.float32] | None = None
    shadows: ShadowAnswers | None = None  # None without shadow models


@dataclass(frozen=True)
class OneRunRules(ABC, Generic[RowsT]):
    """Base of the rules of all one-run games.

    Attributes:
        replays: Number of draws of the bits for one trained model, >= 1.
        canaries: Number of target rows that are canaries; None for all.
        trainings: Number of independent trainings, >= 1; their bounds are combined like replays.
    """

    replays: int = 100
    canaries: int | None = None
    trainings: int = 1
    traits: ClassVar[GameTraits]
    needs_fresh_points: ClassVar[bool] = False
    """True if held-out points are shown in world 0."""

    def __post_init__(self) -> None:
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.canaries is None or self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    def design(self, canaries: RowsT, rng: np.random.Generator) -> Design:
        """Return the draws that decide the training data; by default there are none."""
        return Design()

    @abstractmethod
    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Return the draws of one replay."""

    @abstractmethod
    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """Return the points and labels shown to the attacker."""

    def view(self, replayed: Replayed[RowsT], reveal: Reveal) -> Any:
        """Return the attack's view; by default the release and the shown canaries."""
        return Candidates(replayed.release, replayed.setup.canaries.take(reveal.points))

    def response(self, canaries: RowsT) -> Response:
        """Return the game's response to randomised response on these canaries, for planning the sensitivity."""
        return CoinResponse()

    def intervene(self, train: RowsT, design: Design) -> RowsT:
        """Return the data on which the mechanism runs; the canaries are the first rows of `train`."""
        if design.included is None:
            return train
        trained_on = np.ones(len(train), np.bool_)
        trained_on[: len(design.included)] = design.included
        return train.take(trained_on)

    def is_observational(self, target: RowsT, seed: Seed) -> bool:
        """Return True if the intervention of this seed leaves the training data unchanged (Definition 4)."""
        return self.intervened(target, seed).digest == target.digest

    def intervened(self, target: RowsT, seed: Seed) -> RowsT:
        """Return the data on which the mechanism runs, by the design drawn from this seed."""
        return self.intervene(target, self.design(self.canaries_of(target), seed.rng()))

    def canary_count(self, target: RowsT) -> int:
        """Return the number of canaries in a target set; SpecError if it has too few rows."""
        if self.canaries is not None and self.canaries > len(target):
            raise SpecError(f"canaries must be at most the {len(target)} rows of the target set, got {self.canaries}")
        return self.canaries or len(target)

    def canaries_of(self, target: RowsT) -> RowsT:
        """Return the canaries, which are the first rows of the target set."""
        count = self.canary_count(target)
        return target if count == len(target) else target.take(np.arange(count))

    def fresh_of(self, test: RowsT | None, count: int) -> RowsT:
        """Return `count` held-out points, or none if the game needs none; SpecError if there are too few."""
        if not self.needs_fresh_points:
            assert test is not None
            return test.take(np.arange(0))
        if test is None or len(test) < count:
            have = 0 if test is None else len(test)
            raise SpecError(
                f"this game shows a fresh point for each canary: the test part must have at least {count} rows, got "
                f"{have}. Give `split.test` a larger share or ask for fewer `canaries`"
            )
        return test.take(np.arange(count))


@dataclass(frozen=True)
class IncludedByCoin(OneRunRules[RowsT]):
    """Interventional rules for any rows and releases: each canary is trained on with probability 1/2.

    Attributes:
        replays: Always 1, because the bits decide the training data.
    """

    replays: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.replays == 1,
            "a training of the membership game has one replay, because its bits decide the training data",
            do="ask for more `trainings` instead",
            replays=self.replays,
        )

    def design(self, canaries: RowsT, rng: np.random.Generator) -> Design:
        """Draw a fair bit for each canary; True = trained on."""
        return Design(included=rng.random(len(canaries)) < 0.5)

    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Return the bits of the design."""
        assert design.included is not None
        return TrialRandomness(design.included)

    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """Show all canaries unchanged."""
        return Reveal(np.arange(len(setup.canaries)))
