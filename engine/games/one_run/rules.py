"""Games that need one training: many canaries at once, each with its own fair bit.

Algorithm 1 in four pure functions: `design` (those of the challenger's draws that decide the training data),
`intervene` (the training data they lead to), `draw` (the bits, and what else is drawn after training) and `hint` (what
the adversary is shown). Whether a game is observational is found by comparing the data (Definition 4).
Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.protocol import Candidates, GameTraits
from dpaudit.engine.games.reference import CoinResponse, Response
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Rows

RowsT = TypeVar("RowsT", bound=Rows)


@dataclass(frozen=True, eq=False)
class CanarySetup(Generic[RowsT]):
    """What the challenger draws from."""

    canaries: RowsT  # the canaries, m rows of the training data
    fresh: RowsT  # held-out rows, at most m; empty when the game needs none
    # cumulative class probabilities of the proxy at the canaries, shape (m, classes), if there is one
    proxy_cdf: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Design:
    """The draws that decide the training data."""

    included: NDArray[np.bool_] | None = None  # which canaries are trained on, shape (m,); None = all
    labels: NDArray[np.int64] | None = None  # the labels canaries are trained with, shape (m,); None = their own


@dataclass(frozen=True, eq=False)
class TrialRandomness:
    """The draws of one replay."""

    # one fair bit for each canary, shape (m,); True = world 1, the training label or a member is shown
    bits: NDArray[np.bool_]
    labels: NDArray[np.int64] | None = None  # labels drawn to be shown in world 0, shape (m,), for games that draw some


@dataclass(frozen=True, eq=False)
class Reveal:
    """What is shown for each canary."""

    points: NDArray[np.int64]  # which query it is, shape (m,): i = canary i, m + i = fresh point i
    labels: NDArray[np.int64] | None = None  # the label it is shown with, shape (m,); None = its own, if it has one


@dataclass(frozen=True, eq=False)
class Replayed(Generic[RowsT]):
    """What replays are played with."""

    setup: CanarySetup[RowsT]  # what the challenger draws from
    release: Any  # what the mechanism gave out, a frozen dataclass of arrays; or its answers at each point of the game
    # what the proxy answers there, shape (points, classes); None without a proxy
    reference: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class OneRunRules(ABC, Generic[RowsT]):
    """The fields and the rules all one-run games share.

    Attributes:
        replays: How often bits are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, >= 1; their bounds are combined like replays.
    """

    replays: int = 100
    canaries: int | None = None
    trainings: int = 1
    traits: ClassVar[GameTraits]
    needs_fresh_points: ClassVar[bool] = False
    """Whether held-out points are shown in world 0."""

    def __post_init__(self) -> None:
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.canaries is None or self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    def design(self, canaries: RowsT, rng: np.random.Generator) -> Design:
        """The draws that decide the training data; none unless a game makes some."""
        return Design()

    @abstractmethod
    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """The draws of one replay."""

    @abstractmethod
    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """What the adversary is shown."""

    def view(self, replayed: Replayed[RowsT], reveal: Reveal) -> Any:
        """What the attack gets to see. Here: the release as it is, and the canaries that are shown."""
        return Candidates(replayed.release, replayed.setup.canaries.take(reveal.points))

    def response(self, canaries: RowsT) -> Response:
        """What the game makes of randomised response on these canaries, where their labels are at stake."""
        return CoinResponse()

    def intervene(self, train: RowsT, design: Design) -> RowsT:
        """The data the mechanism is run on; the canaries are the first rows of `train`."""
        if design.included is None:
            return train
        trained_on = np.ones(len(train), np.bool_)
        trained_on[: len(design.included)] = design.included
        return train.take(trained_on)

    def is_observational(self, target: RowsT, seed: Seed) -> bool:
        """Whether the intervention of this seed leaves the training data as they are (Definition 4)."""
        return self.intervened(target, seed).digest == target.digest

    def intervened(self, target: RowsT, seed: Seed) -> RowsT:
        """The data the mechanism is run on, by the design that this seed draws."""
        return self.intervene(target, self.design(self.canaries_of(target), seed.rng()))

    def canary_count(self, target: RowsT) -> int:
        """How many canaries there are in a target set."""
        if self.canaries is not None and self.canaries > len(target):
            raise SpecError(f"canaries must be at most the {len(target)} rows of the target set, got {self.canaries}")
        return self.canaries or len(target)

    def canaries_of(self, target: RowsT) -> RowsT:
        """The canaries: the first rows of the target set."""
        count = self.canary_count(target)
        return target if count == len(target) else target.take(np.arange(count))

    def fresh_of(self, test: RowsT | None, count: int) -> RowsT:
        """As many held-out points as there are canaries."""
        if not self.needs_fresh_points:
            assert test is not None
            return test.take(np.arange(0))
        if test is None or len(test) < count:
            have = 0 if test is None else len(test)
            raise SpecError(
                f"this game shows one fresh point a canary: the test part must have at least {count} rows, got {have}; "
                "give `split.test` a larger share or ask for fewer `canaries`"
            )
        return test.take(np.arange(count))


@dataclass(frozen=True)
class IncludedByCoin(OneRunRules[RowsT]):
    """Interventional: each canary is trained on with probability 1/2, whatever rows are and whatever is released.

    Attributes:
        replays: 1: the bits decide the training, so new bits need a new training.
    """

    replays: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.replays == 1,
            "a training of the membership game has one replay, since its bits decide what is trained on",
            do="ask for more `trainings` instead",
            replays=self.replays,
        )

    def design(self, canaries: RowsT, rng: np.random.Generator) -> Design:
        """A fair bit for each canary; True = trained on."""
        return Design(included=rng.random(len(canaries)) < 0.5)

    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """The bits the training was designed with."""
        assert design.included is not None
        return TrialRandomness(design.included)

    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """All canaries, as they are."""
        return Reveal(np.arange(len(setup.canaries)))
