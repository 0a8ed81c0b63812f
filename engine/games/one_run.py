"""Games that need one training: many canaries at once, each with its own fair bit.

A one-run game is three pure functions, Algorithm 1's: `artifacts` (the challenger's draws), `intervene` (the training
data they lead to) and `hint` (what the adversary is shown). Whether a game is observational is not declared: the unit
that trains compares the data before and after the intervention, and a game that changed it gets one replay a training.

Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.engine.games.protocol import AdversaryView, GamePlan, Setting
from dpaudit.engine.score_table import SCHEMA, probabilities_of, probability_table, score_rows
from dpaudit.errors import AuditError, SpecError, require
from dpaudit.mechanisms.claim import Relation
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, LabelMechanism, Model

ROWS_PER_UNIT = 2_000_000
"""Score rows of one unit: seconds of work, tens of megabytes."""


@dataclass(frozen=True, eq=False)
class Stage:
    """What the challenger draws from.

    Attributes:
        canaries: The canaries, m rows of the training data.
        fresh: Held-out examples, at most m rows; empty when the game needs none.
        proxy: Cumulative class probabilities of the proxy at the canaries, shape (m, classes).
    """

    canaries: Examples
    fresh: Examples
    proxy: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Artifacts:
    """The challenger's draws.

    Attributes:
        bits: One fair bit for each canary, shape (m,); True = world 1.
        labels: Labels drawn from the proxy, shape (m,), for games that draw some.
    """

    bits: NDArray[np.bool_]
    labels: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Hint:
    """What is shown for each canary.

    Attributes:
        points: Which query it is, shape (m,): i = canary i, m + i = fresh point i.
        labels: The label it is shown with, shape (m,).
    """

    points: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class OneRunGame(ABC):
    """The fields and the plan all one-run games share.

    Attributes:
        replays: How often the game is played, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
    """

    replays: int = 100
    canaries: int | None = None

    def __post_init__(self) -> None:
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)
        require(self.canaries is None or self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """Which neighbouring data sets its two worlds are."""

    @abstractmethod
    def artifacts(self, stage: Stage, rng: np.random.Generator) -> Artifacts:
        """The challenger's draws for one replay (line 2)."""

    @abstractmethod
    def intervene(self, train: Examples, artifacts: Artifacts) -> Examples:
        """The data the mechanism is run on (line 3); the canaries are the first rows of `train`."""

    @abstractmethod
    def hint(self, stage: Stage, artifacts: Artifacts) -> Hint:
        """What the adversary is shown (line 5)."""

    def needs_fresh_points(self) -> bool:
        """Whether held-out points are shown in world 0."""
        return False

    def is_observational(self, stage: Stage, train: Examples) -> bool:
        """Whether the intervention leaves the data as it is, by trying it on one draw."""
        return self.intervene(train, self.artifacts(stage, np.random.default_rng(0))).digest == train.digest

    def plan(self, setting: Setting) -> GamePlan:
        """Reference, trainings, replays.

        Raises: SpecError when the parts the game needs are empty.
        """
        if setting.proxy is None:
            raise SpecError("this game needs a `proxy`: where the adversary's reference model comes from")
        if not self.replays_share_a_training(setting):
            trainings = self.replays
        else:
            trainings = 1
        target, reference, test, validation = (setting.parts.name(part) for part in ("target", "reference", "test", "validation"))
        names = tuple(name for name in (target, reference, test, validation) if name)
        observe = Unit(
            ObserveReference(self, setting.proxy, setting.data, setting.seed.child("reference")),
            "reference model",
            tuple(name for name in (target, reference, test) if name),
            resources=setting.resources,
        )
        units, scores, keys = [observe], [], []
        count = self.canary_count(setting.parts.target)
        for training in range(trainings):
            seed = setting.seed.child("training", training)
            play_seed = setting.seed.child("replays")
            train = Unit(
                RunMechanism(self, setting.mechanism, seed, play_seed.child(training), trainings > 1),
                f"training {training + 1}/{trainings}",
                names,
                (observe.key,),
                setting.resources,
            )
            units.append(train)
            keys.append(train.key)
            replays = [training] if trainings > 1 else list(range(self.replays))
            step = max(1, min(ROWS_PER_UNIT // count, -(-len(replays) // 2)))
            for first in range(0, len(replays), step):
                chosen = replays[first : first + step]
                play = Unit(
                    PlayReplays(self, setting.attack, play_seed, chosen[0], chosen[-1] + 1, train.key),
                    f"replays {chosen[0] + 1}-{chosen[-1] + 1} of {self.replays}",
                    tuple(name for name in (target, test) if name),
                    (observe.key, train.key),
                    setting.resources,
                )
                units.append(play)
                scores.append(play.key)
        return GamePlan(tuple(units), tuple(scores), tuple(keys))

    def replays_share_a_training(self, setting: Setting) -> bool:
        """One training serves all replays exactly when the game is observational (checked, Definition 4)."""
        canaries = self.canaries_of(setting.parts.target)
        uniform = np.tile(np.linspace(0, 1, canaries.classes + 1)[1:], (len(canaries), 1))
        stage = Stage(canaries, self.fresh_of(setting.parts.test, len(canaries)), uniform)
        return self.is_observational(stage, setting.parts.target)

    def canary_count(self, target: Examples) -> int:
        """How many canaries there are in a target set.

        Raises: SpecError when it has fewer rows than canaries are asked for.
        """
        if self.canaries is not None and self.canaries > len(target):
            raise SpecError(f"canaries must be at most the {len(target)} rows of the target set, got {self.canaries}")
        return self.canaries or len(target)

    def canaries_of(self, target: Examples) -> Examples:
        """The canaries: the first rows of the target set."""
        count = self.canary_count(target)
        return target if count == len(target) else target.take(np.arange(count))

    def fresh_of(self, test: Examples | None, count: int) -> Examples:
        """As many held-out points as there are canaries.

        Raises: SpecError when the game needs them and there are too few.
        """
        if not self.needs_fresh_points():
            assert test is not None
            return test.take(np.arange(0))
        if test is None or len(test) < count:
            have = 0 if test is None else len(test)
            raise SpecError(
                f"this game shows one fresh point for each canary: the test part must have at least {count} rows, got {have}; "
                "give `split.test` a larger share or ask for fewer `canaries`"
            )
        return test.take(np.arange(count))


def _stage(game: OneRunGame, target: Examples, test: Examples | None, reference: NDArray[np.float32]) -> Stage:
    canaries = game.canaries_of(target)
    fresh = game.fresh_of(test if test is not None else target, len(canaries))
    proxy = np.cumsum(reference[: len(canaries)], axis=1, dtype=np.float64)
    return Stage(canaries, fresh, proxy / proxy[:, -1:])


def _part(inputs: Inputs, part: str) -> Examples | None:
    """A shared part by the word before its digest."""
    return next((value for name, value in inputs.shared.items() if name.startswith(f"{part}:")), None)


def _required(inputs: Inputs, part: str) -> Examples:
    examples = _part(inputs, part)
    if examples is None:
        raise SpecError(f"the {part} part of the data is empty; give `split.{part}` a share above 0")
    return examples


def _queries(game: OneRunGame, inputs: Inputs) -> tuple[Examples, Examples]:
    """The points both models are asked about: the canaries, then the fresh points."""
    canaries = game.canaries_of(_required(inputs, "target"))
    test = _part(inputs, "test")
    return canaries, game.fresh_of(test if test is not None else canaries, len(canaries))


def _asked(model: Any, canaries: Examples, fresh: Examples) -> NDArray[np.float64]:
    at_canaries = model(canaries)
    return np.concatenate([at_canaries, model(fresh)]) if len(fresh) else at_canaries


@dataclass(frozen=True)
class ObserveReference:
    """The proxy's class probabilities at every point the adversary may be shown."""

    game: OneRunGame
    proxy: Any
    data: Any
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Trains or evaluates the proxy; one row of probabilities for each canary, then each fresh point."""
        canaries, fresh = _queries(self.game, inputs)
        predict = self.proxy.predictor(
            reference=_part(inputs, "reference"), data=self.data, seed=self.seed.sequence(), compute=compute
        )
        return probability_table(_asked(predict, canaries, fresh), {})


@dataclass(frozen=True)
class RunMechanism:
    """One run of the mechanism on the data the game leads to, scored right where it was trained.

    Attributes:
        game: Decides the intervention.
        mechanism: What is audited.
        seed: Seed of the training.
        play_seed: Seed of the replay this training belongs to.
        intervenes: Whether the plan expects the data to be changed; a surprise is an error.
    """

    game: OneRunGame
    mechanism: Any
    seed: Seed
    play_seed: Seed
    intervenes: bool

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Probabilities at every point the adversary may be shown; the model's utility beside them."""
        target, test = _required(inputs, "target"), _part(inputs, "test")
        stage = _stage(self.game, target, test, probabilities_of(inputs.tables[0]))
        train = self.game.intervene(target, self.game.artifacts(stage, self.play_seed.rng()))
        if not self.intervenes and train.digest != target.digest:
            raise AuditError("the game changed the training data on some draws only; it cannot share one training")
        if isinstance(self.mechanism, LabelMechanism):
            released = self._release(target, train)
            return probability_table(np.eye(target.classes)[released[: len(stage.canaries)]], {})
        model = self.mechanism.fit(
            train, seed=self.seed.sequence(), compute=compute, validation=_part(inputs, "validation")
        )
        asked = _asked(lambda examples: model.probabilities(examples.features), stage.canaries, stage.fresh)
        return probability_table(asked, utility(model, test) if test is not None else {})

    def _release(self, target: Examples, train: Examples) -> NDArray[np.int64]:
        if len(train) != len(target) or self.game.needs_fresh_points():
            raise SpecError("a label mechanism releases labels, not membership; audit it with the label-inference game")
        released: NDArray[np.int64] = self.mechanism.release(
            train.labels, classes=train.classes, rng=np.random.default_rng(self.seed.sequence())
        )
        return released


def utility(model: Model, test: Examples) -> dict[str, float]:
    """Accuracy and mean log-loss (nats, probabilities cut at 1e-15) on held-out examples."""
    probabilities = model.probabilities(test.features)
    at_label = probabilities[np.arange(len(test)), test.labels]
    return {
        "test_accuracy": float(np.mean(probabilities.argmax(axis=1) == test.labels)),
        "test_log_loss": float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    }


@dataclass(frozen=True)
class PlayReplays:
    """Replays `first` to `last` - 1: fresh bits and draws, the hint, the attack's scores.

    Attributes:
        game: What is played.
        attack: The adversary.
        seed: Each replay's seed is a child of this one.
        first: First replay.
        last: One past the last replay.
        training: Key of the unit that ran the mechanism, for the score table.
    """

    game: OneRunGame
    attack: Any
    seed: Seed
    first: int
    last: int
    training: str

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Any:
        """One record batch a replay, one at a time."""
        reference, target = (probabilities_of(table) for table in inputs.tables)
        stage = _stage(self.game, _required(inputs, "target"), _part(inputs, "test"), reference)
        for replay in range(self.first, self.last):
            artifacts = self.game.artifacts(stage, self.seed.child(replay).rng())
            shown = self.game.hint(stage, artifacts)
            everyone = bool((shown.points == np.arange(len(shown.points))).all())
            view = AdversaryView(
                target=target if everyone and len(target) == len(shown.points) else target[shown.points],
                reference=reference if everyone and len(reference) == len(shown.points) else reference[shown.points],
                labels=shown.labels,
            )
            yield score_rows(self.training, replay, artifacts.bits, self.attack.score(view))
