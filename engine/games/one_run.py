"""Games that need one training: many canaries at once, each with its own fair bit.

A one-run game is Algorithm 1 in four pure functions: `design` (those of the challenger's draws that decide the training
data), `intervene` (the training data they lead to), `draw` (the bits, and what else is drawn after training) and `hint`
(what the adversary is shown). One training serves as many replays as fresh draws make sense for. Whether a game is
observational is not declared: the data before and after the intervention are compared (Definition 4).

Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.engine.games.protocol import AdversaryView, GamePlan, Setting
from dpaudit.engine.partition import Parts
from dpaudit.engine.score_table import SCHEMA, probabilities_of, probability_table, score_rows
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.claim import Relation
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, LabelMechanism, Model


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
class Design:
    """The draws that decide the training data.

    Attributes:
        included: Which canaries are trained on, shape (m,); None = all.
        labels: The labels canaries are trained with, shape (m,); None = their own.
    """

    included: NDArray[np.bool_] | None = None
    labels: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Draw:
    """The draws of one replay.

    Attributes:
        bits: One fair bit for each canary, shape (m,); True = world 1, the training label or a member is shown.
        labels: Labels drawn to be shown in world 0, shape (m,), for games that draw some.
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
        replays: How often bits are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, >= 1; their bounds are combined like replays.
    """

    replays: int = 100
    canaries: int | None = None
    trainings: int = 1

    def __post_init__(self) -> None:
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.canaries is None or self.canaries >= 1, "canaries must be >= 1", canaries=self.canaries)

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """Which neighbouring data sets its two worlds are."""

    @property
    @abstractmethod
    def assumes(self) -> str:
        """What must hold beside the arithmetic for the bound to hold."""

    def design(self, canaries: Examples, rng: np.random.Generator) -> Design:
        """The draws that decide the training data; none unless a game makes some."""
        return Design()

    @abstractmethod
    def draw(self, stage: Stage, design: Design, rng: np.random.Generator) -> Draw:
        """The draws of one replay."""

    @abstractmethod
    def hint(self, stage: Stage, design: Design, draw: Draw) -> Hint:
        """What the adversary is shown."""

    def needs_fresh_points(self) -> bool:
        """Whether held-out points are shown in world 0."""
        return False

    def intervene(self, train: Examples, design: Design) -> Examples:
        """The data the mechanism is run on; the canaries are the first rows of `train`."""
        if design.labels is not None:
            labels = train.labels.copy()
            labels[: len(design.labels)] = design.labels
            train = train.with_(labels=labels)
        if design.included is not None:
            kept = np.ones(len(train), np.bool_)
            kept[: len(design.included)] = design.included
            train = train.take(kept)
        return train

    def is_observational(self, target: Examples, seed: Seed) -> bool:
        """Whether the intervention of this seed leaves the training data as they are (Definition 4)."""
        return self.intervene(target, self.design(self.canaries_of(target), seed.rng())).digest == target.digest

    def plan(self, setting: Setting) -> GamePlan:
        """Reference, trainings, replays.

        Raises: SpecError when a part of the data the game needs is empty.
        """
        if setting.proxy is None:
            raise SpecError("this game needs a `proxy`: where the adversary's reference model comes from")
        self.fresh_of(setting.parts.test, self.canary_count(setting.parts.target))
        reference = Unit(
            ObserveReference(self._once(), setting.proxy, setting.data, setting.seed.child("reference")),
            "reference model",
            _names(setting.parts, "target", "reference", "test"),
            resources=setting.resources,
        )
        units, scores, trainings = [reference], [], []
        for number in range(self.trainings):
            train = Unit(
                RunMechanism(
                    self._once(),
                    setting.mechanism,
                    setting.seed.child("training", number),
                    self._design_seed(setting, number),
                ),
                f"training {number + 1} of {self.trainings}",
                _names(setting.parts, "target", "test", "validation"),
                resources=setting.resources,
            )
            trainings.append(train.key)
            plays = self._play_units(setting, number, reference.key, train.key)
            units += [train, *plays]
            scores += [play.key for play in plays]
        observational = self.is_observational(setting.parts.target, self._design_seed(setting, 0))
        return GamePlan(tuple(units), tuple(scores), tuple(trainings), observational)

    def _play_units(self, setting: Setting, training: int, reference: str, trained: str) -> list[Unit]:
        step = max(1, min(setting.rows_per_unit // self.canary_count(setting.parts.target), -(-self.replays // 2)))
        offset = training * self.replays
        return [
            Unit(
                PlayReplays(
                    self._once(),
                    setting.attack,
                    self._design_seed(setting, training),
                    setting.seed.child("replays"),
                    offset + first,
                    offset + min(first + step, self.replays),
                    trained,
                ),
                f"replays {offset + first + 1}-{offset + min(first + step, self.replays)}",
                _names(setting.parts, "target", "test"),
                (reference, trained),
                setting.resources,
            )
            for first in range(0, self.replays, step)
        ]

    def _design_seed(self, setting: Setting, training: int) -> Seed:
        return setting.seed.child("design", training)

    def _once(self) -> OneRunGame:
        """The game without its numbers of replays and trainings: asking for more reuses what is finished."""
        return replace(self, replays=1, trainings=1)

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
                f"this game shows one fresh point a canary: the test part must have at least {count} rows, got {have}; "
                "give `split.test` a larger share or ask for fewer `canaries`"
            )
        return test.take(np.arange(count))


def _names(parts: Parts, *which: str) -> tuple[str, ...]:
    return tuple(name for name in (parts.name(part) for part in which) if name)


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


def _ask(model: Any, canaries: Examples, fresh: Examples) -> NDArray[np.float64]:
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
        return probability_table(_ask(predict, canaries, fresh), {})


@dataclass(frozen=True)
class RunMechanism:
    """One run of the mechanism on the data the game leads to, scored right where it was trained.

    Attributes:
        game: Decides the intervention.
        mechanism: What is audited.
        seed: Seed of the training.
        design_seed: Seed of the draws that decide the training data.
    """

    game: OneRunGame
    mechanism: Any
    seed: Seed
    design_seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Probabilities at every point the adversary may be shown; the model's utility beside them."""
        target, test = _required(inputs, "target"), _part(inputs, "test")
        canaries, fresh = _queries(self.game, inputs)
        train = self.game.intervene(target, self.game.design(canaries, self.design_seed.rng()))
        if isinstance(self.mechanism, LabelMechanism):
            released = self._release(target, train)
            return probability_table(np.eye(target.classes)[released[: len(canaries)]], {})
        model = self.mechanism.fit(
            train, seed=self.seed.sequence(), compute=compute, validation=_part(inputs, "validation")
        )
        asked = _ask(lambda examples: model.probabilities(examples.features), canaries, fresh)
        return probability_table(asked, utility(model, test) if test is not None else {})

    def _release(self, target: Examples, train: Examples) -> NDArray[np.int64]:
        if len(train) != len(target) or self.game.needs_fresh_points():
            raise SpecError("a label mechanism releases labels, not membership; audit it with a label game")
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
    """Replays `first` to `last` - 1 of one training: fresh bits and draws, the hint, the attack's scores.

    Attributes:
        game: What is played.
        attack: The adversary.
        design_seed: Seed of the draws that decided the training data.
        seed: Each replay's seed is a child of this one.
        first: First replay.
        last: One past the last replay.
        training: Key of the unit that ran the mechanism, for the score table.
    """

    game: OneRunGame
    attack: Any
    design_seed: Seed
    seed: Seed
    first: int
    last: int
    training: str

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """One record batch a replay, one at a time."""
        reference, target = (probabilities_of(table) for table in inputs.tables)
        canaries, fresh = _queries(self.game, inputs)
        stage = Stage(canaries, fresh, _cumulative(reference[: len(canaries)]))
        design = self.game.design(canaries, self.design_seed.rng())
        for replay in range(self.first, self.last):
            draw = self.game.draw(stage, design, self.seed.child(replay).rng())
            shown = self.game.hint(stage, design, draw)
            everyone = len(target) == len(shown.points) and bool((np.diff(shown.points) == 1).all())
            view = AdversaryView(
                target=target if everyone else target[shown.points],
                reference=reference if everyone else reference[shown.points],
                labels=shown.labels,
            )
            yield score_rows(self.training, replay, draw.bits, self.attack.score(view))


def _cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]
