"""What the units of a two-world membership game do: choose the challenges, train the trials, show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.canaries.protocol import Canary, GradientCanary
from dpaudit.engine.games.confidence import accuracy, confidences
from dpaudit.engine.games.stacks import ObservedTrainings, TrainingRun, parameter_count, train_observed, train_runs
from dpaudit.engine.games.trials import ScoreTrials, vector_column, vectors_in
from dpaudit.engine.games.two_world_rules import Trial, TrialSetup, TwoWorldRules
from dpaudit.engine.spec.partition import part_of, required_part
from dpaudit.engine.views.challenge_view import ChallengeView
from dpaudit.engine.views.challenges import challenge_table, challenges_of, with_crafted
from dpaudit.engine.views.shadows import shadows_of
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, TrainingError


@dataclass(frozen=True)
class ChooseChallenges:
    """Chooses or makes the challenge points, from the pool and the shadow models when it looks at them.

    Attributes:
        canary: What chooses.
        seed: Of the choice.
        shadows: Keys of the units that trained the shadow models it looks at.
    """

    canary: Canary
    seed: Seed
    shadows: tuple[str, ...] = ()

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A challenge table."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        shadows = shadows_of([inputs.tables[key] for key in self.shadows]) if self.shadows else None
        with threadpool_limits(compute.threads):
            return challenge_table(self.canary.choose(required_part(inputs, "target"), shadows, self.seed.rng()))


@dataclass(frozen=True)
class TrainTrials:
    """Trains the models of trials `first` to `last` - 1 and asks each about its challenge.

    Attributes:
        game: Decides each trial.
        mechanism: What is audited.
        seed: Trial t draws from `seed.child(t)`, its model trains with `seed.child(t, 0)`.
        population: How many points no trial trains on are asked about as well.
        watched: Whether the steps are watched, for white-box attacks.
        challenges: Key of the unit that chose the challenge points; None = the trials draw their own.
        first: First trial.
        last: One past the last trial.
    """

    game: TwoWorldRules
    mechanism: Any
    seed: Seed
    population: int
    watched: bool
    challenges: str | None
    first: int = 0
    last: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a trial: trial, truth, point, failed; lists confidence, population, gradients if asked for.

        Raises: TrainingError when no model could be trained.
        """
        pool = required_part(inputs, "target")
        challenges = None if self.challenges is None else challenges_of(inputs.tables[self.challenges], pool)
        points = with_crafted(pool, challenges)
        setup = self.game.setup(len(pool), challenges, self.population, self.seed)
        numbers = range(self.first, self.last)
        trials = [self.game.trial(setup, self.seed.child(number).rng()) for number in numbers]
        runs = [
            TrainingRun(trial.rows, self.seed.child(number, 0)) for number, trial in zip(numbers, trials, strict=True)
        ]
        trained = self._train(points, trials, runs, compute, part_of(inputs, "validation"))
        errors = [model for model in trained.models if isinstance(model, TrainingError)]
        if len(errors) == len(trials):
            raise errors[0]
        challenge = np.array([trial.challenge for trial in trials])
        arrays: dict[str, NDArray[Any]] = {
            "confidence": self._at_challenge(trained, points, challenge, compute),
            "population": self._at_population(trained, points, setup, compute),
            "gradient_products": trained.products,
            "gradient_norms": trained.norms,
        }
        table = pa.table(
            {
                "trial": pa.array(list(numbers), pa.int32()),
                "truth": [trial.truth for trial in trials],
                "point": pa.array(challenge, pa.int32()),
                "failed": [isinstance(model, TrainingError) for model in trained.models],
                **{name: vector_column(values) for name, values in arrays.items() if values.shape[1]},
            }
        )
        return table.replace_schema_metadata(
            {"population": setup.population.astype(np.int64).tobytes().hex(), **self._metrics(trained, inputs, compute)}
        )

    def _train(
        self,
        points: Examples,
        trials: list[Trial],
        runs: list[TrainingRun],
        compute: Compute,
        validation: Examples | None,
    ) -> ObservedTrainings:
        canary = self.game.challenge_canary
        if isinstance(canary, GradientCanary):
            size = parameter_count(self.mechanism, points)
            # One gradient for all trials: what comes or goes is fixed before they are drawn.
            gradient = canary.gradient(size, self.seed.child("gradient").rng())
            return train_observed(
                self.mechanism,
                points,
                runs,
                compute=compute,
                gradients=np.broadcast_to(gradient, (len(runs), size)),
                inserted=np.array([trial.truth for trial in trials]),
            )
        if self.watched:
            challenge = np.array([trial.challenge for trial in trials])
            return train_observed(self.mechanism, points, runs, compute=compute, points=challenge)
        models = train_runs(self.mechanism, points, runs, compute=compute, validation=validation)
        return ObservedTrainings(models, np.zeros((len(runs), 0)), np.zeros((len(runs), 0)))

    def _at_challenge(
        self, trained: ObservedTrainings, points: Examples, challenge: NDArray[np.int64], compute: Compute
    ) -> NDArray[np.float32]:
        if challenge.min() < 0:
            return np.zeros((len(challenge), 0), np.float32)
        different, place = np.unique(challenge, return_inverse=True)
        phi = confidences(trained.models, points.take(different), queries=self.game.queries, compute=compute)
        return phi[np.arange(len(challenge)), :, place]

    def _at_population(
        self, trained: ObservedTrainings, points: Examples, setup: TrialSetup, compute: Compute
    ) -> NDArray[np.float32]:
        if not len(setup.population):
            return np.zeros((len(trained.models), 0), np.float32)
        return confidences(trained.models, points.take(setup.population), queries=1, compute=compute)[:, 0]

    def _metrics(self, trained: ObservedTrainings, inputs: Inputs, compute: Compute) -> dict[str, str]:
        failed = float(np.mean([isinstance(model, TrainingError) for model in trained.models]))
        test = part_of(inputs, "test")
        found = {"test_accuracy": accuracy(trained.models, test, compute)} if test is not None else {}
        return {f"metric:{name}": repr(value) for name, value in {**found, "failed_share": failed}.items()}


@dataclass(frozen=True)
class ScoreChallenges(ScoreTrials):
    """The attack on challenge points.

    Attributes:
        shadows: Keys of the units that trained the shadow models the attack looks at.
    """

    shadows: tuple[str, ...] = ()

    def view(self, trials: pa.Table, inputs: Inputs) -> ChallengeView:
        """Confidences and gradients of the target models, and what shadow models say."""
        population = inputs.tables[self.trainings[0]].schema.metadata[b"population"].decode()
        return ChallengeView(
            target=vectors_in(trials, "confidence"),
            point=trials["point"].to_numpy().astype(np.int64),
            population=vectors_in(trials, "population"),
            population_points=np.frombuffer(bytes.fromhex(population), np.int64),
            shadows=shadows_of([inputs.tables[key] for key in self.shadows]) if self.shadows else None,
            gradient_products=vectors_in(trials, "gradient_products").astype(np.float64),
            gradient_norms=vectors_in(trials, "gradient_norms").astype(np.float64),
        )
