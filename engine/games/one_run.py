"""Games that need one training: many canaries at once, each with its own fair bit.

A one-run game is Algorithm 1 in four pure functions: `design` (those of the challenger's draws that decide the training
data), `intervene` (the training data they lead to), `draw` (the bits, and what else is drawn after training) and `hint`
(what the adversary is shown). One training serves as many replays as fresh draws make sense for. Whether a game is
observational is not declared: the data before and after the intervention are compared (Definition 4).

Source: arXiv:2511.14084, Algorithms 1 and 2, Definition 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.findings.score_table import SCHEMA, probabilities_of, probability_table, score_rows
from dpaudit.engine.games.protocol import AdversaryView, GamePlan, Setting
from dpaudit.engine.spec.partition import Parts
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, LabelMechanism, Model

CONTROL_REPLAYS = 20
"""Replays on held-out rows at most: their median moves little beyond that."""

Predictor = Callable[[Examples], NDArray[np.float64]]
"""From examples to class probabilities, shape (n, classes)."""


@dataclass(frozen=True, eq=False)
class Stage:
    """What the challenger draws from.

    Attributes:
        canaries: The canaries, m rows of the training data; their labels are what is at stake.
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

    def draw_fresh(self, count: int, rng: np.random.Generator) -> Examples | None:
        """Fresh points from elsewhere than the test part, for games that have such a source."""
        return None

    def has_control(self) -> bool:
        """Whether the game is played on held-out rows too, which the mechanism never saw."""
        return False

    def asks_reference(self) -> bool:
        """Whether the question at stake is worded with the help of the reference part."""
        return False

    def posed(self, examples: Examples, reference: Examples | None) -> Examples:
        """What the proxy is asked: the features it sees, and as labels what is at stake. Here: the rows as they are."""
        return examples

    def answered(self, predict: Predictor, examples: Examples, reference: Examples | None) -> NDArray[np.float64]:
        """What the adversary learns of the mechanism's model at these rows. Here: its class probabilities."""
        return predict(examples)

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
        if hasattr(setting.attack, "score_trials"):
            raise SpecError("this attack scores independent trials: play it in a two-world game (ind-mia, mia)")
        count = self.canary_count(setting.parts.target)
        drawn = self.draw_fresh(count, setting.seed.child("fresh").rng())
        shared = {} if drawn is None else {f"fresh:{drawn.digest[:24]}": drawn}
        self.fresh_of(setting.parts.test if drawn is None else drawn, count)
        reference = Unit(
            ObserveReference(self._once(), setting.proxy, setting.data, setting.seed.child("reference")),
            "reference model",
            (*_names(setting.parts, "target", "reference", "test"), *shared),
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
                (*_names(setting.parts, "target", "test", "validation", *self._worded_with()), *shared),
                resources=setting.resources,
            )
            trainings.append(train.key)
            plays = self._play_units(setting, number, reference.key, train.key, tuple(shared))
            units += [train, *plays]
            scores += [play.key for play in plays]
        controls = self._control_units(setting, reference.key, trainings[0])
        observational = self.is_observational(setting.parts.target, self._design_seed(setting, 0))
        return GamePlan(
            units=(*units, *controls),
            scores=tuple(scores),
            trainings=tuple(trainings),
            observational=observational,
            controls=tuple(control.key for control in controls),
            shared=shared,
            replays=self.replays * self.trainings,
        )

    def _worded_with(self) -> tuple[str, ...]:
        return ("reference",) if self.asks_reference() else ()

    def _control_units(self, setting: Setting, reference: str, trained: str) -> list[Unit]:
        """The game on held-out rows, once with the first trained model at hand and once with the reference alone."""
        if not self.has_control() or not len(setting.parts.test):
            return []
        # A label mechanism answers for the rows it was given only.
        models = [reference] if isinstance(setting.mechanism, LabelMechanism) else [trained, reference]
        return [
            Unit(
                PlayHeldOut(
                    self._once(),
                    _informed(setting),
                    self._design_seed(setting, 0),
                    setting.seed.child("held-out"),
                    0,
                    min(self.replays, CONTROL_REPLAYS),
                    model,
                ),
                f"control on held-out rows, {'model and proxy' if model == trained else 'proxy alone'}",
                _names(setting.parts, "target", "test", *self._worded_with()),
                (reference,) if model == reference else (reference, model),
                setting.resources,
            )
            for model in models
        ]

    def _play_units(
        self, setting: Setting, training: int, reference: str, trained: str, drawn: tuple[str, ...]
    ) -> list[Unit]:
        step = max(1, min(setting.rows_per_unit // self.canary_count(setting.parts.target), -(-self.replays // 2)))
        offset = training * self.replays
        return [
            Unit(
                PlayReplays(
                    self._once(),
                    _informed(setting),
                    self._design_seed(setting, training),
                    setting.seed.child("replays"),
                    offset + first,
                    offset + min(first + step, self.replays),
                    trained,
                ),
                f"replays {offset + first + 1}-{offset + min(first + step, self.replays)}",
                (*_names(setting.parts, "target", "test", *self._worded_with()), *drawn),
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

    def held_out_of(self, test: Examples | None, count: int) -> Examples | None:
        """The held-out rows of the control, at most as many as there are canaries; None when it is not played."""
        if not self.has_control() or test is None:
            return None
        return test.take(np.arange(min(count, len(test))))


def _informed(setting: Setting) -> Any:
    """The attack, told which mechanism it attacks if it asks for it."""
    if hasattr(setting.attack, "knowing"):
        return setting.attack.knowing(setting.mechanism, setting.parts.target.classes)
    return setting.attack


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


@dataclass(frozen=True, eq=False)
class Queries:
    """The points both models are asked about.

    Attributes:
        canaries: Rows of the training data, m of them.
        fresh: Points shown in their place, m or none.
        held_out: Rows of the control, which the mechanism never saw; None when it is not played.
    """

    canaries: Examples
    fresh: Examples
    held_out: Examples | None

    def ask(self, model: Predictor) -> NDArray[np.float64]:
        """Answers for canaries, fresh points and held-out rows, below each other."""
        asked = [self.canaries, self.fresh, *([self.held_out] if self.held_out is not None else [])]
        return np.concatenate([model(points) for points in asked if len(points)])

    @property
    def shown(self) -> int:
        """How many points can be shown: the canaries and the fresh points."""
        return len(self.canaries) + len(self.fresh)


def _queries(game: OneRunGame, inputs: Inputs) -> Queries:
    canaries = game.canaries_of(_required(inputs, "target"))
    test, drawn = _part(inputs, "test"), _part(inputs, "fresh")
    fresh = next(part for part in (drawn, test, canaries) if part is not None)
    return Queries(canaries, game.fresh_of(fresh, len(canaries)), game.held_out_of(test, len(canaries)))


@dataclass(frozen=True)
class ObserveReference:
    """The proxy's probabilities of what is at stake, at every point the adversary may be shown."""

    game: OneRunGame
    proxy: Any
    data: Any
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Trains or evaluates the proxy; one row of probabilities for each canary, then each fresh point."""
        queries, reference = _queries(self.game, inputs), _part(inputs, "reference")
        predict = self.proxy.predictor(
            reference=None if reference is None else self.game.posed(reference, reference),
            data=self.data,
            seed=self.seed.sequence(),
            compute=compute,
        )
        return probability_table(queries.ask(lambda points: predict(self.game.posed(points, reference))), {})


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
        """The model's answers at every point the adversary may be shown; its utility beside them."""
        target, test = _required(inputs, "target"), _part(inputs, "test")
        queries, reference = _queries(self.game, inputs), _part(inputs, "reference")
        train = self.game.intervene(target, self.game.design(queries.canaries, self.design_seed.rng()))
        if isinstance(self.mechanism, LabelMechanism):
            released = self._release(target, train)
            return probability_table(np.eye(target.classes)[released[: len(queries.canaries)]], {})
        model = self.mechanism.fit(
            train, seed=self.seed.sequence(), compute=compute, validation=_part(inputs, "validation")
        )
        require(
            isinstance(model, Model),
            f"{type(self.mechanism).__qualname__}.fit must give a model with a method `probabilities(features)`",
            model=type(model).__qualname__,
        )

        def predict(examples: Examples) -> NDArray[np.float64]:
            answers: NDArray[np.float64] = model.probabilities(examples.features)
            return answers

        asked = queries.ask(lambda points: self.game.answered(predict, points, reference))
        return probability_table(asked, utility(model, test) if test is not None else {})

    def _release(self, target: Examples, train: Examples) -> NDArray[np.int64]:
        if len(train) != len(target) or self.game.needs_fresh_points() or self.game.asks_reference():
            raise SpecError("a label mechanism releases labels and nothing else; audit it with a label game")
        released: NDArray[np.int64] = self.mechanism.release(
            train.labels, classes=train.classes, rng=np.random.default_rng(self.seed.sequence())
        )
        return checked_labels(released, train, type(self.mechanism).__qualname__)


def checked_labels(released: Any, train: Examples, name: str) -> NDArray[np.int64]:
    """What a label mechanism released.

    Raises: InputError when it is not one class for each example.
    """
    labels = np.asarray(released)
    require(
        labels.shape == train.labels.shape and np.issubdtype(labels.dtype, np.integer),
        f"{name}.release must give one integer label for each of {len(train)} examples",
        shape=labels.shape,
        type=labels.dtype,
    )
    require(
        bool((labels >= 0).all() and (labels < train.classes).all()),
        f"{name}.release must give labels in 0..{train.classes - 1}",
        lowest=labels.min(),
        highest=labels.max(),
    )
    return labels.astype(np.int64)


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
        scene = self._scene(inputs)
        design = self.game.design(scene.stage.canaries, self.design_seed.rng())
        for replay in range(self.first, self.last):
            draw = self.game.draw(scene.stage, design, self.seed.child(replay).rng())
            shown = self.game.hint(scene.stage, design, draw)
            everyone = len(scene.target) == len(shown.points) and bool((np.diff(shown.points) == 1).all())
            view = AdversaryView(
                target=scene.target if everyone else scene.target[shown.points],
                reference=scene.reference if everyone else scene.reference[shown.points],
                labels=shown.labels,
            )
            yield score_rows(self.training, replay, draw.bits, self.attack.score(view))

    def _scene(self, inputs: Inputs) -> _Scene:
        reference, target = (probabilities_of(table) for table in inputs.tables)
        queries, part = _queries(self.game, inputs), _part(inputs, "reference")
        count = len(queries.canaries)
        stage = Stage(self.game.posed(queries.canaries, part), queries.fresh, _cumulative(reference[:count]))
        return _Scene(stage, target[: queries.shown], reference[: queries.shown])


@dataclass(frozen=True)
class PlayHeldOut(PlayReplays):
    """The same game on rows the mechanism never saw: what the attack shows there, it owes to the proxy's shift.

    With the reference alone, the target's answers are replaced by equal ones, which say nothing.
    """

    def _scene(self, inputs: Inputs) -> _Scene:
        queries, part = _queries(self.game, inputs), _part(inputs, "reference")
        assert queries.held_out is not None
        rows = slice(queries.shown, None)
        reference = probabilities_of(inputs.tables[0])[rows]
        if len(inputs.tables) > 1:
            target = probabilities_of(inputs.tables[1])[rows]
        else:
            target = np.full_like(reference, 1 / reference.shape[1])
        stage = Stage(self.game.posed(queries.held_out, part), queries.held_out, _cumulative(reference))
        return _Scene(stage, target, reference)


@dataclass(frozen=True, eq=False)
class _Scene:
    """What replays are played with: what the challenger draws from, and both models' answers."""

    stage: Stage
    target: NDArray[np.float32]
    reference: NDArray[np.float32]


def _cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]
