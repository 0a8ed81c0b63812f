"""What the units of a one-run game do: ask the proxy, run the mechanism, play replays."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.findings.score_table import SCHEMA, probabilities_of, probability_table, score_rows
from dpaudit.engine.games.distinguisher import Distinguisher, Round
from dpaudit.engine.games.one_run_rules import CanarySetup, OneRunRules, Predictor
from dpaudit.engine.spec.partition import part_of, required_part
from dpaudit.engine.views.answers import Answers, Predictions, checked_release, release_table
from dpaudit.engine.views.canary_view import LabelRelease
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, own_features
from dpaudit.mechanisms.protocols import Compute, Model


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


def _queries(game: OneRunRules, inputs: Inputs) -> Queries:
    canaries = game.canaries_of(required_part(inputs, "target"))
    test, drawn = part_of(inputs, "test"), part_of(inputs, "fresh")
    fresh = next(part for part in (drawn, test, canaries) if part is not None)
    return Queries(canaries, game.fresh_of(fresh, len(canaries)), game.held_out_of(test, len(canaries)))


@dataclass(frozen=True)
class ObserveReference:
    """The proxy's probabilities of what is at stake, at every point the adversary may be shown."""

    game: OneRunRules
    proxy: Any
    data: Any
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Trains or evaluates the proxy; one row of probabilities for each canary, then each fresh point."""
        queries, reference = _queries(self.game, inputs), part_of(inputs, "reference")
        predict = self.proxy.predictor(
            reference=None if reference is None else self.game.proxy_task(reference, reference).writable(),
            data=self.data,
            seed=self.seed.sequence(),
            compute=compute,
        )
        return probability_table(queries.ask(lambda points: predict(self.game.proxy_task(points, reference))), {})


@dataclass(frozen=True)
class RunMechanism:
    """One run of the mechanism on the data the game leads to, its answers taken right where it ran.

    Attributes:
        game: Decides the intervention.
        mechanism: What is audited.
        seed: Seed of the run.
        design_seed: Seed of the draws that decide the training data.
    """

    game: OneRunRules
    mechanism: Any
    seed: Seed
    design_seed: Seed

    def training_data(self, inputs: Inputs) -> Examples:
        """The target part after the intervention."""
        target = required_part(inputs, "target")
        return self.game.intervene(target, self.game.design(self.game.canaries_of(target), self.design_seed.rng()))


@dataclass(frozen=True)
class TrainModel(RunMechanism):
    """One training of a learner."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """The model's answers at every point the adversary may be shown; its utility beside them."""
        test, reference = part_of(inputs, "test"), part_of(inputs, "reference")
        validation = part_of(inputs, "validation")
        model = self.mechanism.fit(
            self.training_data(inputs).writable(),
            seed=self.seed.sequence(),
            compute=compute,
            validation=None if validation is None else validation.writable(),
        )
        require(
            isinstance(model, Model),
            f"{type(self.mechanism).__qualname__}.fit must give a model with a method `probabilities(features)`",
            model=type(model).__qualname__,
        )

        def predict(examples: Examples) -> NDArray[np.float64]:
            answers: NDArray[np.float64] = model.probabilities(own_features(examples.features))
            return answers

        asked = _queries(self.game, inputs).ask(lambda points: self.game.model_answers(predict, points, reference))
        return Predictions(asked.astype(np.float32)).table(utility(model, test) if test is not None else {})


@dataclass(frozen=True)
class ReleaseLabels(RunMechanism):
    """One release of a label mechanism."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """The released labels of the canaries."""
        train = self.training_data(inputs)
        rng = np.random.default_rng(self.seed.sequence())
        released = self.mechanism.release(train.labels.copy(), classes=train.classes, rng=rng)
        release = checked_release(released, train, type(self.mechanism).__qualname__)
        canaries = self.game.canary_count(required_part(inputs, "target"))
        return release_table(LabelRelease(release.labels[:canaries], release.classes))


def utility(model: Model, test: Examples) -> dict[str, float]:
    """Accuracy and mean log-loss (nats, probabilities cut at 1e-15) on held-out examples."""
    probabilities = model.probabilities(own_features(test.features))
    at_label = probabilities[np.arange(len(test)), test.labels]
    return {
        "test_accuracy": float(np.mean(probabilities.argmax(axis=1) == test.labels)),
        "test_log_loss": float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    }


@dataclass(frozen=True, eq=False)
class Replayed:
    """What replays are played with.

    Attributes:
        setup: What the challenger draws from.
        answers: What the mechanism answers at each point that may be shown.
        reference: What the proxy answers there, shape (points, classes).
    """

    setup: CanarySetup
    answers: Answers
    reference: NDArray[np.float32]


@dataclass(frozen=True)
class PlayReplays:
    """Replays `first` to `last` - 1 of one training: fresh bits and draws, the hint, the attack's scores.

    Attributes:
        game: What is played.
        attack: The adversary.
        answers: Which kind of answers the mechanism gave.
        design_seed: Seed of the draws that decided the training data.
        seed: Each replay's seed is a child of this one.
        first: First replay.
        last: One past the last replay.
        reference: Key of the unit that asked the proxy.
        training: Key of the unit that ran the mechanism.
    """

    game: OneRunRules
    attack: Any
    answers: type[Answers]
    design_seed: Seed
    seed: Seed
    first: int
    last: int
    reference: str
    training: str

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """One record batch a replay, one at a time."""
        for replay, played in self.rounds(self.replayed(inputs), self.seed, range(self.first, self.last)):
            yield score_rows(self.training, replay, played.bits, played.score)

    def rounds(self, replayed: Replayed, seed: Seed, numbers: Iterable[int]) -> Iterator[tuple[int, Round]]:
        """Rounds of the game with their numbers; each one's draws come from a child of the seed."""
        design = self.game.design(replayed.setup.canaries, self.design_seed.rng())
        for number in numbers:
            draw = self.game.draw(replayed.setup, design, seed.child(number).rng())
            shown = self.game.hint(replayed.setup, design, draw)
            everyone = len(replayed.answers) == len(shown.points) and bool((np.diff(shown.points) == 1).all())
            answers = replayed.answers if everyone else replayed.answers.at(shown.points)
            reference = replayed.reference if everyone else replayed.reference[shown.points]
            view = answers.view(reference, shown.labels)
            yield number, Round(view, self.attack.score(copy.deepcopy(view)), draw.bits)

    def replayed(self, inputs: Inputs) -> Replayed:
        """What is replayed: the canaries, or fresh points in their place."""
        reference = probabilities_of(inputs.tables[self.reference])
        queries, part = _queries(self.game, inputs), part_of(inputs, "reference")
        proxy_cdf = cumulative(reference[: len(queries.canaries)])
        setup = CanarySetup(self.game.proxy_task(queries.canaries, part), queries.fresh, proxy_cdf)
        answers = self.answers.of(inputs.tables[self.training]).at(slice(queries.shown))
        return Replayed(setup, answers, reference[: queries.shown])


@dataclass(frozen=True)
class PlayHeldOut(PlayReplays):
    """The same game on rows the mechanism never saw: what the attack shows there, it owes to the proxy's shift."""

    def replayed(self, inputs: Inputs) -> Replayed:
        """What is replayed: held-out rows."""
        queries, part = _queries(self.game, inputs), part_of(inputs, "reference")
        assert queries.held_out is not None
        rows = slice(queries.shown, None)
        reference = probabilities_of(inputs.tables[self.reference])[rows]
        setup = CanarySetup(self.game.proxy_task(queries.held_out, part), queries.held_out, cumulative(reference))
        return Replayed(setup, self.held_out_answers(inputs, rows, reference), reference)

    def held_out_answers(self, inputs: Inputs, rows: slice, reference: NDArray[np.float32]) -> Answers:
        """What the mechanism's model answers on those rows."""
        return self.answers.of(inputs.tables[self.training]).at(rows)


@dataclass(frozen=True)
class PlayProxyAlone(PlayHeldOut):
    """The control with answers that say nothing in place of the mechanism's: the attack has the proxy alone."""

    def held_out_answers(self, inputs: Inputs, rows: slice, reference: NDArray[np.float32]) -> Answers:
        """Silence."""
        return self.answers.silent(*reference.shape)


@dataclass(frozen=True)
class PlayReferenceAlone(PlayReplays):
    """The game itself with answers that say nothing: what the attack shows then, the points shown differ by."""

    def replayed(self, inputs: Inputs) -> Replayed:
        """The same points, and silence."""
        played = super().replayed(inputs)
        return replace(played, answers=self.answers.silent(*played.reference.shape))


LEARNED_ROUNDS = 8
"""Rounds a classifier learns from: fresh bits and draws on the same rows."""


@dataclass(frozen=True)
class PlayDistinguisher:
    """A control with a classifier in the attack's place, which learns from further rounds on other rows.

    Attributes:
        control: The control; its rounds are the same as without the classifier.
    """

    control: PlayReplays

    @property
    def seed(self) -> Seed:
        """The control's."""
        return self.control.seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """One record batch a replay, one at a time."""
        control, replayed = self.control, self.control.replayed(inputs)
        learning = self.seed.child("learning")
        rounds = [played for _, played in control.rounds(replayed, learning, range(LEARNED_ROUNDS))]
        classifier = Distinguisher(rounds, learning.child("parts").rng())
        for replay, played in control.rounds(replayed, self.seed, range(control.first, control.last)):
            yield score_rows(control.training, replay, played.bits, classifier.score(played))


@dataclass(frozen=True)
class PlayTruth(PlayReplays):
    """The same game against a mechanism that hides nothing: what is at stake is its answer."""

    def replayed(self, inputs: Inputs) -> Replayed:
        """What is replayed: the canaries, and the labels they are trained with as answers."""
        reference = probabilities_of(inputs.tables[self.reference])
        queries, part = _queries(self.game, inputs), part_of(inputs, "reference")
        canaries = self.game.proxy_task(queries.canaries, part)
        setup = CanarySetup(canaries, queries.fresh, cumulative(reference[: len(canaries)]))
        planted = self.game.design(canaries, self.design_seed.rng()).labels
        labels = canaries.labels if planted is None else planted
        return Replayed(setup, self.answers.telling(labels, canaries.classes), reference[: queries.shown])


def cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cumulative class probabilities of each row, the last one 1; shape (n, classes)."""
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]
