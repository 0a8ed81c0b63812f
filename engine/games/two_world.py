"""Games of many trainings: each trial trains one model, with the challenge or without, decided by its own fair coin.

A trial is decided by its number and the seed alone. Trials are trained in stacks, one unit each, and asked about their
challenge right there; the attack is a unit of its own, so that another attack costs no training. The challenge points
are chosen, and shadow models trained, before any audited model and from seeds of their own.

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiments 1 and 2, section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.attacks.challenge import ChallengeView
from dpaudit.engine.canaries.points import GivenRow
from dpaudit.engine.findings.score_table import SCHEMA
from dpaudit.engine.games.challenges import Challenges, challenge_table, challenges_of, with_crafted
from dpaudit.engine.games.confidence import accuracy, confidences
from dpaudit.engine.games.protocol import GamePlan, Setting
from dpaudit.engine.games.shadows import MOST_SHADOWS, TrainShadows, shadows_of
from dpaudit.engine.games.stacks import (
    ObservedTrainings,
    TrainingRun,
    parameter_count,
    require_learner,
    require_observable,
    train_observed,
    train_runs,
)
from dpaudit.errors import RunError, SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial's draws.

    Attributes:
        truth: World 1: the challenge is trained on.
        challenge: Which point is shown, in the pool with the crafted points behind it.
        rows: What the model is trained on.
    """

    truth: bool
    challenge: int
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stage:
    """What trials are drawn from.

    Attributes:
        pool: Rows of the pool.
        challenges: The challenge points' places, shape (k,); empty when each trial draws its own.
        sources: Rows of the pool the challenges are made from or are, shape (k,).
        population: Rows no trial trains on, shape (P,).
        base: The base set S, for games that fix it, shape (n - 1,).
    """

    pool: int
    challenges: NDArray[np.int64]
    sources: NDArray[np.int64]
    population: NDArray[np.int64]
    base: NDArray[np.int64]


@dataclass(frozen=True)
class TwoWorldGame(ABC):
    """The fields and the plan of both games.

    The target part of the data is the pool. A trial trains on about half of it, and so does a shadow model.

    Attributes:
        trials: Models audited, each with a coin of its own, >= 2.
        stack: Models trained by one unit, >= 1.
        shadows: Shadow models, even, >= 2; trained only when the canary or the attack asks for them.
        queries: Augmented queries of each point (images only), 1 = the point as it is.
        population: Points of the pool no trial trains on, always asked about, for rmia, >= 0.
        shadow_mechanism: What shadow models are trained by; None = the audited mechanism. A cheaper one may do.
    """

    trials: int = 1000
    stack: int = 64
    shadows: int = 64
    queries: int = 1
    population: int = 200
    shadow_mechanism: Any = field(default=None, metadata={"kind": "mechanism"})
    uses_proxy: ClassVar[bool] = False
    usual_attack: ClassVar[str] = "lira-online"
    usual_estimator: ClassVar[str] = "band"
    independent_trials: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.trials >= 2, "trials must be >= 2", trials=self.trials)
        require(self.stack >= 1, "stack must be >= 1", stack=self.stack)
        require(
            self.shadows % 2 == 0 and 2 <= self.shadows <= MOST_SHADOWS,
            f"shadows must be even (they come in pairs) and in 2..{MOST_SHADOWS}",
            shadows=self.shadows,
        )
        require(self.queries >= 1, "queries must be >= 1", queries=self.queries)
        require(self.population >= 0, "population must be >= 0", population=self.population)

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """Which neighbouring data sets its two worlds are."""

    @property
    @abstractmethod
    def assumes(self) -> str:
        """What must hold beside the arithmetic for the bound to hold."""

    @property
    @abstractmethod
    def chooses(self) -> Any:
        """The canary that fixes the challenge points; None when each trial draws its own."""

    @abstractmethod
    def stage(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> Stage:
        """What all trials have in common.

        Raises: SpecError when the pool is too small.
        """

    @abstractmethod
    def trial(self, stage: Stage, rng: np.random.Generator) -> Trial:
        """The draws of one trial."""

    def plan(self, setting: Setting) -> GamePlan:
        """Shadow models and choice of challenges in the order they need each other, trials, scores.

        Raises: SpecError when mechanism, attack and canary do not go together.
        """
        require_learner(setting.mechanism)
        self.stage(len(setting.parts.target), None, self.population, setting.seed)
        needs = _needs(setting.attack)
        gradient = hasattr(self.chooses, "gradient")
        if gradient and needs != {"gradients"}:
            raise SpecError(
                "a gradient canary is no point whose confidence could be asked for; use attack: gradient-dot"
            )
        if gradient or "gradients" in needs:
            require_observable(setting.mechanism)
        shadows, choice = self._preparation(setting, bool("shadows" in needs))
        crafted = choice if choice and self.chooses.crafted else []
        trials = self._trial_units(setting, needs, choice)
        used = tuple(unit.key for unit in shadows) if "shadows" in needs else ()
        scores = [
            Unit(
                ScoreTrials(setting.attack, part, len(used)),
                f"scores of {what}",
                (),
                (*part, *used),
                setting.resources,
            )
            for what, part in (
                [(unit.label.removeprefix("training "), (unit.key,)) for unit in trials]
                if setting.sequential
                else [(f"{self.trials} trials", tuple(unit.key for unit in trials))]
            )
        ]
        before = [*crafted, *shadows] if crafted else [*shadows, *choice]
        return GamePlan(
            (*before, *trials, *scores),
            tuple(unit.key for unit in scores),
            tuple(unit.key for unit in trials),
            observational=False,
        )

    def _preparation(self, setting: Setting, attack_needs: bool) -> tuple[list[Unit], list[Unit]]:
        """Units of the shadow models, and the unit that chooses the challenges (none or one)."""
        canary = self.chooses
        if canary is None or hasattr(canary, "gradient"):
            return (self._shadow_units(setting, []) if attack_needs else []), []
        if canary.crafted:
            choice = [self._choice(setting, [])]
            return (self._shadow_units(setting, choice) if attack_needs else []), choice
        shadows = self._shadow_units(setting, []) if attack_needs or canary.selects else []
        return shadows, [self._choice(setting, shadows if canary.selects else [])]

    def _choice(self, setting: Setting, shadows: list[Unit]) -> Unit:
        task = ChooseChallenges(self.chooses, setting.seed.child("canary"))
        return Unit(task, "challenge points", _pool(setting), tuple(unit.key for unit in shadows), setting.resources)

    def _shadow_units(self, setting: Setting, crafted: list[Unit]) -> list[Unit]:
        step = 2 * -(-self.stack // 2)
        mechanism = setting.mechanism if self.shadow_mechanism is None else self.shadow_mechanism
        return [
            Unit(
                TrainShadows(
                    mechanism, setting.seed.child("shadows"), first, min(first + step, self.shadows), self.queries
                ),
                f"shadow models {first + 1}-{min(first + step, self.shadows)}",
                _pool(setting),
                tuple(unit.key for unit in crafted),
                setting.resources,
            )
            for first in range(0, self.shadows, step)
        ]

    def _trial_units(self, setting: Setting, needs: frozenset[str], choice: list[Unit]) -> list[Unit]:
        task = TrainTrials(
            # Only what decides a trial: more trials, other shadow models, reuse what is finished.
            replace(self, trials=2, stack=1, shadows=2, shadow_mechanism=None, population=0),
            setting.mechanism,
            setting.seed.child("trials"),
            population=self.population,
            watched="gradients" in needs,
        )
        return [
            Unit(
                replace(task, first=first, last=min(first + self.stack, self.trials)),
                f"training trials {first + 1}-{min(first + self.stack, self.trials)}",
                (*_pool(setting), *_shared(setting, "test"), *_shared(setting, "validation")),
                tuple(unit.key for unit in choice),
                setting.resources,
            )
            for first in range(0, self.trials, self.stack)
        ]


@register("game", "ind-mia", source="arXiv:2206.05199, Experiment 2 (IND-MIA)")
@dataclass(frozen=True)
class IndMia(TwoWorldGame):
    """Two worlds, add/remove: a fixed base set, trained on with the challenge point or without it.

    Attributes:
        trials: Models audited, each with a coin of its own, >= 2.
        stack: Models trained by one unit, >= 1.
        shadows: Shadow models, even, >= 2; trained only when the canary or the attack asks for them.
        queries: Augmented queries of each point (images only), 1 = the point as it is.
        population: Points of the pool no trial trains on, always asked about, for rmia, >= 0.
        shadow_mechanism: What shadow models are trained by; None = the audited mechanism. A cheaper one may do.
        canary: Which challenge points; a trial is about one of them, drawn at random.
    """

    canary: Any = field(default=GivenRow(), metadata={"kind": "canary"})

    @property
    def relation(self) -> Relation:
        """One record is present or absent."""
        return Relation.ADD_REMOVE

    @property
    def assumes(self) -> str:
        """Nothing: every trial has a training and a coin of its own."""
        return (
            "Nothing beyond fair coins and independent trainings: challenge points and attack were fixed before the "
            "audited models were trained."
        )

    @property
    def chooses(self) -> Any:
        """The canary."""
        return self.canary

    def stage(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> Stage:
        """A random half of the pool as base set, without the rows that challenges are or are made from."""
        order = seed.child("base").rng().permutation(pool)
        sources = np.empty(0, np.int64) if challenges is None else challenges.rows
        places = np.empty(0, np.int64) if challenges is None else challenges.points(pool)
        order = order[~np.isin(order, sources)]
        size = min(pool // 2, len(order) - population)
        _require_room(size, pool, population)
        return Stage(pool, places, sources, order[size : size + population], order[:size])

    def trial(self, stage: Stage, rng: np.random.Generator) -> Trial:
        """The coin, and which of the challenges."""
        truth = bool(rng.random() < 0.5)
        if not len(stage.challenges):  # the canary is a gradient
            return Trial(truth, -1, stage.base)
        challenge = int(stage.challenges[rng.integers(len(stage.challenges))])
        return Trial(truth, challenge, np.append(stage.base, challenge) if truth else stage.base)


@register("game", "mia", source="arXiv:2206.05199, Experiment 1 (MIA)")
@dataclass(frozen=True)
class Mia(TwoWorldGame):
    """Two worlds, replace: a fresh base set and two fresh points; one is trained on, and the attack is shown the first.

    Attributes:
        trials: Models audited, each with a coin of its own, >= 2.
        stack: Models trained by one unit, >= 1.
        shadows: Shadow models, even, >= 2; trained only when the attack asks for them.
        queries: Augmented queries of each point (images only), 1 = the point as it is.
        population: Points of the pool no trial trains on, always asked about, for rmia, >= 0.
        shadow_mechanism: What shadow models are trained by; None = the audited mechanism. A cheaper one may do.
    """

    @property
    def relation(self) -> Relation:
        """One record is replaced by another."""
        return Relation.REPLACE

    @property
    def assumes(self) -> str:
        """Nothing: every trial has a data set, a training and a coin of its own."""
        return "Nothing beyond fair coins and independent trainings: each trial draws its data from the pool anew."

    @property
    def chooses(self) -> Any:
        """Nothing: points are drawn by the trials."""
        return None

    def stage(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> Stage:
        """The population is set aside; the rest is drawn from."""
        _require_room(pool - population - 2, pool, population)
        none = np.empty(0, np.int64)
        order = seed.child("population").rng().permutation(pool)
        return Stage(pool, none, none, order[:population], order[population:])

    def trial(self, stage: Stage, rng: np.random.Generator) -> Trial:
        """The coin, the base set, the point shown and the point in its place."""
        truth = bool(rng.random() < 0.5)
        size = min(stage.pool // 2, len(stage.base) - 1)
        drawn = rng.choice(stage.base, size + 1, replace=False)
        shown, other, base = drawn[0], drawn[1], drawn[2:]
        return Trial(truth, int(shown), np.append(base, shown if truth else other))


def _require_room(rows: int, pool: int, population: int) -> None:
    if rows < 1:
        raise SpecError(
            f"the target part must have rows to train on beside challenges and population, it has {pool} and the "
            f"population takes {population}; lower `population` or give `split.target` a larger share"
        )


def _needs(attack: Any) -> frozenset[str]:
    if not hasattr(attack, "score_trials"):
        name = getattr(attack, "registered_name", type(attack).__name__)
        raise SpecError(
            f"the attack {name} scores many canaries of one model; a two-world game needs one that scores trials: "
            "loss, lira-online, lira-offline, rmia, difficulty-calibration or gradient-dot"
        )
    return frozenset(attack.needs)


def _shared(setting: Setting, part: str) -> tuple[str, ...]:
    name = setting.parts.name(part)
    return (name,) if name else ()


def _pool(setting: Setting) -> tuple[str, ...]:
    return _shared(setting, "target")


def _part(inputs: Inputs, part: str) -> Examples | None:
    return next((value for name, value in inputs.shared.items() if name.startswith(f"{part}:")), None)


def _target(inputs: Inputs) -> Examples:
    pool = _part(inputs, "target")
    assert pool is not None
    return pool


@dataclass(frozen=True)
class ChooseChallenges:
    """Chooses or makes the challenge points, from the pool and the shadow models when it looks at them."""

    canary: Any
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A challenge table."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        shadows = shadows_of(inputs.tables) if inputs.tables else None
        with threadpool_limits(compute.threads):
            return challenge_table(self.canary.choose(_target(inputs), shadows, self.seed.rng()))


@dataclass(frozen=True)
class TrainTrials:
    """Trains the models of trials `first` to `last` - 1 and asks each about its challenge.

    Attributes:
        game: Decides each trial.
        mechanism: What is audited.
        seed: Trial t draws from `seed.child(t)`, its model trains with `seed.child(t, 0)`.
        population: How many points no trial trains on are asked about as well.
        watched: Whether the steps are watched, for white-box attacks.
        first: First trial.
        last: One past the last trial.
    """

    game: Any
    mechanism: Any
    seed: Seed
    population: int
    watched: bool
    first: int = 0
    last: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a trial: trial, truth, point, failed; lists confidence, population and products where asked for.

        Raises: TrainingError when no model could be trained.
        """
        pool = _target(inputs)
        challenges = challenges_of(inputs.tables[0], pool) if inputs.tables else None
        points = with_crafted(pool, challenges)
        stage = self.game.stage(len(pool), challenges, self.population, self.seed)
        numbers = range(self.first, self.last)
        trials = [self.game.trial(stage, self.seed.child(number).rng()) for number in numbers]
        runs = [
            TrainingRun(trial.rows, self.seed.child(number, 0)) for number, trial in zip(numbers, trials, strict=True)
        ]
        made = self._train(points, trials, runs, compute, _part(inputs, "validation"))
        errors = [model for model in made.models if isinstance(model, TrainingError)]
        if len(errors) == len(trials):
            raise errors[0]
        shown = np.array([trial.challenge for trial in trials])
        arrays: dict[str, NDArray[Any]] = {
            "confidence": self._at_challenge(made, points, shown, compute),
            "population": self._at_population(made, points, stage, compute),
            "products": made.products,
        }
        table = pa.table(
            {
                "trial": pa.array(list(numbers), pa.int32()),
                "truth": [trial.truth for trial in trials],
                "point": pa.array(shown, pa.int32()),
                "failed": [isinstance(model, TrainingError) for model in made.models],
                **{name: _lists(values) for name, values in arrays.items() if values.shape[1]},
            }
        )
        return table.replace_schema_metadata(
            {"population": stage.population.astype(np.int64).tobytes().hex(), **self._metrics(made, inputs, compute)}
        )

    def _train(
        self,
        points: Examples,
        trials: list[Trial],
        runs: list[TrainingRun],
        compute: Compute,
        validation: Examples | None,
    ) -> ObservedTrainings:
        canary = self.game.chooses
        if hasattr(canary, "gradient"):
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
            shown = np.array([trial.challenge for trial in trials])
            return train_observed(self.mechanism, points, runs, compute=compute, points=shown)
        models = train_runs(self.mechanism, points, runs, compute=compute, validation=validation)
        return ObservedTrainings(models, np.zeros((len(runs), 0)))

    def _at_challenge(
        self, made: ObservedTrainings, points: Examples, shown: NDArray[np.int64], compute: Compute
    ) -> NDArray[np.float32]:
        if shown.min() < 0:
            return np.zeros((len(shown), 0), np.float32)
        different, place = np.unique(shown, return_inverse=True)
        phi = confidences(made.models, points.take(different), queries=self.game.queries, compute=compute)
        return phi[np.arange(len(shown)), :, place]

    def _at_population(
        self, made: ObservedTrainings, points: Examples, stage: Stage, compute: Compute
    ) -> NDArray[np.float32]:
        if not len(stage.population):
            return np.zeros((len(made.models), 0), np.float32)
        return confidences(made.models, points.take(stage.population), queries=1, compute=compute)[:, 0]

    def _metrics(self, made: ObservedTrainings, inputs: Inputs, compute: Compute) -> dict[str, str]:
        failed = float(np.mean([isinstance(model, TrainingError) for model in made.models]))
        test = _part(inputs, "test")
        found = {"test_accuracy": accuracy(made.models, test, compute)} if test is not None else {}
        return {f"metric:{name}": repr(value) for name, value in {**found, "failed_share": failed}.items()}


@dataclass(frozen=True)
class ScoreTrials:
    """The attack on all trials at once.

    Attributes:
        attack: The adversary.
        trainings: Keys of the units that trained the trials, for the score table.
        shadows: How many of the last inputs are shadow tables.
    """

    attack: Any
    trainings: tuple[str, ...]
    shadows: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay, canary = number of the trial."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """All trials as one record batch.

        Raises: RunError when a score is no number.
        """
        tables = inputs.tables[: len(self.trainings)]
        trials = pa.concat_tables(tables, promote_options="none").combine_chunks()
        population = np.frombuffer(bytes.fromhex(tables[0].schema.metadata[b"population"].decode()), np.int64)
        truth = trials["truth"].to_numpy()
        failed = trials["failed"].to_numpy()
        view = ChallengeView(
            target=_array(trials, "confidence")[~failed],
            point=trials["point"].to_numpy().astype(np.int64)[~failed],
            population=_array(trials, "population")[~failed],
            population_points=population,
            shadows=shadows_of(inputs.tables[len(self.trainings) :]) if self.shadows else None,
            products=_array(trials, "products")[~failed].astype(np.float64),
        )
        # A failed training counts as the attack's worst guess: dropping it would bias the bound.
        scores = np.where(truth, -np.inf, np.inf)
        scores[~failed] = self.attack.score_trials(view)
        if np.isnan(scores).any():
            raise RunError(f"the attack {type(self.attack).__name__} gave scores that are no numbers")
        unit = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables]).astype(np.int32)
        yield pa.record_batch(
            [
                pa.DictionaryArray.from_arrays(pa.array(unit), pa.array(self.trainings)),
                pa.array(np.zeros(len(truth), np.int32)),
                trials["trial"].combine_chunks().cast(pa.int32()),
                pa.array(truth),
                pa.array(scores.astype(np.float32)),
            ],
            schema=SCHEMA,
        )


def _lists(values: NDArray[Any]) -> pa.Array:
    """Rows of an array (n, width) as lists."""
    flat = np.ascontiguousarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    """The array behind `_lists`; of width 0 where there is no such column."""
    if name not in table.column_names:
        return np.empty((table.num_rows, 0), np.float32)
    column = table[name].combine_chunks()
    values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), column.type.list_size)
