"""The game of many coins in one run: each canary has a separate fair coin, and the attacker guesses them all.

A game of this kind is Algorithm 1 in four pure functions: `design` (the challenger's draws that decide the training
data), `intervene` (the resulting training data), `draw` (the coins and other draws after training) and `hint` (what the
attacker is shown). Everything else is here: trainings, replays of each, and their scores. A game is observational if
the training data are unchanged (Definition 4), which is found by comparing them.
Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, inlined, tossing, unit
from dpaudit.engine.attacks.learn import Folds, learn
from dpaudit.engine.games.protocol import Candidates, GameTraits, Played, Setting, require_units
from dpaudit.engine.games.reference import CoinResponse, Reference, Response
from dpaudit.errors import SpecError, require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Rows

RowsT = TypeVar("RowsT", bound=Rows)
FOLDS = 5
"""Number of folds of a learned control; each is scored by a model trained on the others."""
LEARNED_ROUNDS = 8
"""Number of replays from which a control learns: fresh bits and draws on the same rows."""


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
    shadows: Any = None  # answers of shadow models; None without them


@dataclass(frozen=True)
class Coins(Generic[RowsT]):
    """Base of the games of many coins in one run. `draw`, `hint` and `released` must be given.

    Attributes:
        replays: Number of draws of the bits for one trained model, >= 1.
        canaries: Number of target rows that are canaries; None for all.
        trainings: Number of independent trainings, >= 1; their bounds are combined like replays.
    """

    replays: int = 100
    canaries: int | None = None
    trainings: int = 1
    traits: ClassVar[GameTraits]
    bits_follow: ClassVar[Literal["", "design", "replay"]] = ""
    """Seed that alone decides the bits, by `toss` as the first draw: of the design or of each replay; "" for others."""
    counts: ClassVar[tuple[str, ...]] = ("replays", "trainings")
    """Fields that affect no single training; units do not depend on them, so that a longer audit reuses units."""

    def __post_init__(self) -> None:
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.canaries is None or self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    # The four functions

    def design(self, canaries: RowsT, rng: np.random.Generator) -> Design:
        """Return the draws that decide the training data; by default there are none."""
        return Design()

    def intervene(self, train: RowsT, design: Design) -> RowsT:
        """Return the data on which the mechanism runs; the canaries are the first rows of `train`."""
        if design.included is None:
            return train
        trained_on = np.ones(len(train), np.bool_)
        trained_on[: len(design.included)] = design.included
        return train.take(trained_on)

    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Return the draws of one replay."""
        raise NotImplementedError

    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """Return the points and labels shown to the attacker."""
        raise NotImplementedError

    # What else a game may state

    def released(self, mechanism: Any, train: RowsT, canaries: RowsT, *, seed: Seed, compute: Compute) -> Any:
        """Run the mechanism and return its release: a frozen dataclass of arrays, tables and numbers.

        The return annotation must name the dataclass, from which the release is stored and restored.

        Args:
            mechanism: The audited mechanism.
            train: Rows on which it runs.
            canaries: Rows that may be shown, in `train` or not.
            seed: Seed of this run.
            compute: Available devices and threads.
        Raises: TrainingError if the training with this seed failed.
        """
        raise NotImplementedError

    def view(self, replayed: Replayed[RowsT], reveal: Reveal) -> Any:
        """Return the attack's view; by default the release and the shown canaries."""
        return Candidates(replayed.release, replayed.setup.canaries.take(reveal.points))

    def response(self, setting: Setting) -> Response:
        """Return the game's response to randomised response, from which the sensitivity is planned."""
        return CoinResponse()

    def prepared(self, setting: Setting, work: Work) -> Any:
        """Return what all trainings share, as placeholders for the arguments of units; by default nothing."""
        return None

    def training(
        self, setting: Setting, work: Work, prepared: Any, number: int, label: str = "", kind: str = ""
    ) -> Unit:
        """Return the unit of one run of the mechanism, which gives its release; the seeds are those of its kind."""
        return work.add(
            run_mechanism,
            self.without_counts(),
            setting.mechanism,
            setting.required_part("target"),
            design_seed=self.design_seed(setting, number, kind),
            seed=setting.seed.child(f"{kind}training", number),
            label=label or f"training {number + 1} of {self.trainings}",
            **setting.unit_options,
            returns=type(self).released,
        )

    def replayed(self, setting: Setting, prepared: Any, release: Any) -> Any:
        """Return a placeholder for the inputs of replays, with this release."""
        return inlined(release_replayed, self.without_counts(), setting.required_part("target"), release)

    def finished(self, played: Played, setting: Setting, work: Work, prepared: Any) -> Played:
        """Return the plan, with what this game alone adds to it."""
        return played

    # The plan

    def play(self, setting: Setting, work: Work) -> Played:
        target = setting.parts.target
        require_units(self.fewest_units(len(target), setting.rows_per_unit)[0])
        prepared = self.prepared(setting, work)
        trainings: list[Unit] = []
        evidence: list[Unit] = []
        for number in range(self.trainings):
            trainings.append(self.training(setting, work, prepared, number))
            evidence += work.split(
                play_replays,
                self.replays,
                self._replays_per_unit(self.canary_count(target), setting.rows_per_unit),
                self.without_counts(),
                setting.informed_attack,
                self.replayed(setting, prepared, trainings[-1]),
                design_seed=self.design_seed(setting, number),
                seed=setting.seed.child("replays"),
                label="replays",
                resources=setting.resources.without_gpu,
                offset=number * self.replays,
            )
        replays = self.replays * self.trainings
        played = Played(
            tuple(evidence),
            trainings=tuple(trainings),
            reference=Reference(self.response(setting), self.canary_count(target), "canaries", replays),
            replays=replays,
            observational=self.is_observational(target, self.design_seed(setting, 0)),
        )
        return self.finished(played, setting, work, prepared)

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Return lower limits of the number of units and of those with scores, for a target set of `rows` rows."""
        replay_units = self.trainings * -(-self.replays // self._replays_per_unit(self.canaries or rows, rows_per_unit))
        return self.trainings + replay_units, replay_units

    def _replays_per_unit(self, canaries: int, rows_per_unit: int) -> int:
        """Return the number of replays in a unit: at most `rows_per_unit` score rows, and at least two units."""
        return max(1, min(rows_per_unit // canaries, -(-self.replays // 2)))

    def design_seed(self, setting: Setting, number: int, kind: str = "") -> Seed:
        """Return the seed of the design of one training."""
        return setting.seed.child(f"{kind}design", number)

    def without_counts(self) -> Self:
        """Return the game as units see it, with the defaults of `counts`."""
        return replace(self, **{name: getattr(type(self), name) for name in self.counts})

    @staticmethod
    def toss(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return fair bits, shape (count,)."""
        return rng.random(count) < 0.5

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


@dataclass(frozen=True)
class IncludedByCoin(Coins[RowsT]):
    """Interventional game for any rows and releases: each canary is trained on with probability 1/2.

    Attributes:
        replays: Always 1, because the bits decide the training data.
    """

    replays: int = 1
    bits_follow: ClassVar[Literal["", "design", "replay"]] = "design"

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
        return Design(included=self.toss(len(canaries), rng))

    def draw(self, setup: CanarySetup[RowsT], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Return the bits of the design."""
        assert design.included is not None
        return TrialRandomness(design.included)

    def hint(self, setup: CanarySetup[RowsT], design: Design, draw: TrialRandomness) -> Reveal:
        """Show all canaries unchanged."""
        return Reveal(np.arange(len(setup.canaries)))


@unit
def run_mechanism(game: Any, mechanism: Any, target: Any, compute: Compute, *, design_seed: Seed, seed: Seed) -> Any:
    """Run the mechanism once and return its release."""
    train = game.intervened(target, design_seed)
    return game.released(mechanism, train, game.canaries_of(target), seed=seed, compute=compute)


@unit
def release_replayed(game: Coins[RowsT], target: RowsT, release: Any) -> Replayed[RowsT]:
    canaries = game.canaries_of(target)
    return Replayed(CanarySetup(canaries, canaries.take(np.arange(0))), release)


def bits_of_replays(replays: Sequence[Scores], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]] | None:
    """Return the bits of replays by the seeds of their unit; None if they follow from the data too."""
    game: Coins[Any] = arguments["game"]
    if not game.bits_follow:
        return None
    seeds = [
        arguments["design_seed"] if game.bits_follow == "design" else arguments["seed"].child(scores.replay)
        for scores in replays
    ]
    return [game.toss(scores.score.size, seed.rng()) for seed, scores in zip(seeds, replays, strict=True)]


@unit
@tossing(bits_of_replays)
def play_replays(
    game: Coins[RowsT],
    attack: Any,
    replayed: Replayed[RowsT],
    *,
    design_seed: Seed,
    seed: Seed,
    first: int,
    last: int,
    learns: bool = False,
) -> Iterator[Scores]:
    """Yield the scores of replays `first` to `last` - 1 of one training.

    Each replay draws from a child of `seed`; the training data were drawn from `design_seed`. If it `learns`, a
    classifier scores them that trains on further replays of other rows: the attack may miss errors of a proxy.
    """
    score: Callable[[ScoredReplay], NDArray[np.float64]] = attrgetter("score")
    if learns:
        learning = seed.child("learning")
        rounds = scored_replays(game, attack, replayed, design_seed, learning, range(LEARNED_ROUNDS))
        score = learned_by_folds([played for _, played in rounds], learning.child("parts").rng())
    for replay, played in scored_replays(game, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, score(played))


@dataclass(frozen=True, eq=False)
class ScoredReplay:
    """A replay: the attacker's view, its scores and the bits."""

    view: Any
    score: NDArray[np.float64]  # scores of m canaries
    bits: NDArray[np.bool_]  # the secret bits

    @property
    def columns(self) -> NDArray[np.float64]:
        """Features of each canary from which a control learns, shape (m, columns)."""
        return np.column_stack([self.score, *self.view.columns()])


def scored_replays(
    game: Coins[RowsT],
    attack: Any,
    replayed: Replayed[RowsT],
    design_seed: Seed,
    seed: Seed,
    numbers: Iterable[int],
) -> Iterator[tuple[int, ScoredReplay]]:
    design = game.design(replayed.setup.canaries, design_seed.rng())
    for number in numbers:
        draw = game.draw(replayed.setup, design, seed.child(number).rng())
        view = game.view(replayed, game.hint(replayed.setup, design, draw))
        yield number, ScoredReplay(view, attack.score(copy.deepcopy(view)), draw.bits)


def learned_by_folds(
    rounds: Sequence[ScoredReplay], rng: np.random.Generator
) -> Callable[[ScoredReplay], NDArray[np.float64]]:
    """Learn from replays of the same m rows; return the log-odds of world 1 of the rows of another replay, shape (m,).

    `rng` assigns the folds. Log-odds are 0 if a fold had no training rows.
    """
    fold = rng.permutation(len(rounds[0].bits)) % FOLDS
    columns = np.concatenate([played.columns for played in rounds])
    odds = learn(columns, np.concatenate([played.bits for played in rounds]), Folds(fold, rng))
    return lambda played: odds(played.columns)
