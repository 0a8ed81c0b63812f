"""Plan of one-run games about labelled examples: reference, trainings, replays, control on held-out rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, inlined, measuring, unit
from dpaudit.engine.data.partition import shared_name
from dpaudit.engine.games.one_run.answers import LabelRelease, Predictions, ShadowAnswers
from dpaudit.engine.games.one_run.game import OneRunGame, play_replays
from dpaudit.engine.games.one_run.rules import CanarySetup, Design, Replayed, Reveal
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, Played, Setting, require_units
from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.engine.games.reference import WITHOUT_PRIVACY, Reference
from dpaudit.engine.games.taught import add_teachers
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.teachers import AnsweredQueries

Answers = Predictions | LabelRelease
"""Answers about each of n points, by the model of a learner or by a label mechanism."""
CONTROL_REPLAYS = 20
"""Largest number of replays on held-out rows; more hardly change their median."""
CEILING_REPLAYS = 20
"""Largest number of replays against a mechanism without privacy; they differ only in the other labels drawn."""


@dataclass(frozen=True)
class ProxyGame(OneRunGame[Examples]):
    """A one-run game whose attacker has a reference: the predictions of the spec's proxy."""

    controlled_on: ClassVar[str] = "rows the mechanism never saw,"
    answers_with_labels: ClassVar[bool] = False
    """True if a mechanism with no privacy answers with the secret labels, so that the ceiling needs a run. Otherwise it
    reveals every bit, and the ceiling follows without a run."""
    needs_reference: ClassVar[bool] = False
    """True if the reference part defines the secret, such as the bins of an attribute."""

    def play(self, setting: Setting, work: Work) -> Played:
        if setting.proxy is None:
            raise SpecError(
                "this game needs a `proxy`, the source of the attacker's reference model. Add one to the audit"
            )
        inputs = self._inputs(setting, work)
        trainings: list[Unit] = []
        evidence: list[Unit] = []
        for number in range(self.trainings):
            trained = self._training(setting, work, inputs, number)
            trainings.append(trained)
            evidence += self.replays_of(setting, work, inputs.rules, inputs.canaries(trained), number)
        return Played(
            tuple(evidence),
            trainings=(*self._utility_units(setting, work), *trainings),
            shadows=inputs.shadows,
            control=self._control(setting, work, inputs, trainings[0]),
            ceiling=self._ceiling(setting, work, inputs),
            reference=self._reference(setting),
            replays=self.replays * self.trainings,
            observational=self.is_observational(setting.parts.target, self.design_seed(setting, 0)),
            conditional=self.rests_on_proxy(setting),
            controlled_on=self.controlled_on,
        )

    def _inputs(self, setting: Setting, work: Work) -> ProxyGameInputs:
        """Return the points of the game and the proxy's predictions for them."""
        count = self.canary_count(setting.parts.target)
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        fresh = self.draw_fresh(count, setting.seed.child("fresh").rng())
        self.fresh_of(setting.parts.test if fresh is None else fresh, count)
        rules = self.without_counts()
        queries = inlined(
            queries_of,
            rules,
            setting.required_part("target"),
            setting.part_argument("test"),
            None if fresh is None else work.share(shared_name("fresh", fresh), fresh),
            setting.part_argument("reference") if self.needs_reference else None,
        )
        reference = work.add(
            proxy_predictions,
            rules,
            setting.proxy,
            setting.data,
            queries,
            setting.part_argument("reference"),
            seed=setting.seed.child("reference"),
            label="reference model",
            **setting.reference_options,
        )
        return ProxyGameInputs(
            rules, queries, reference, LabelRelease if self._plays_releases(setting) else Predictions
        )

    def _training(self, setting: Setting, work: Work, inputs: ProxyGameInputs, number: int, label: str = "") -> Unit:
        design_seed, seed = self.design_seed(setting, number), setting.seed.child("training", number)
        label, target = label or f"training {number + 1} of {self.trainings}", setting.required_part("target")
        if self._plays_releases(setting):
            return work.add(
                release_labels,
                inputs.rules,
                setting.mechanism,
                target,
                design_seed=design_seed,
                seed=seed,
                label=label,
                resources=setting.resources.without_gpu,
                after=setting.after,
            )
        test = setting.part_argument("test")
        return add_training(setting, work, inputs, test, design_seed=design_seed, seed=seed, label=label)

    def _utility_units(self, setting: Setting, work: Work) -> tuple[Unit, ...]:
        """Return the unit that measures utility if labels are planted: a training on true labels, without an attack."""
        planted = self.plants(setting.parts.target, self.design_seed(setting, 0))
        if not planted or not len(setting.parts.test) or self._plays_releases(setting):
            return ()
        return (add_utility(setting, work, "utility, a training on the true labels"),)

    def plants(self, target: Examples, seed: Seed) -> bool:
        """Return True if the mechanism is trained on planted labels."""
        return self.design(self.canaries_of(target), seed.rng()).labels is not None

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Return True if the bound relies on a proxy."""
        return False

    def control_replays(self, setting: Setting, inputs: ProxyGameInputs, trained: Unit) -> list[tuple[str, Any]]:
        """Return (description, inputs) of the replays of the control, with the best informed one last.

        By default these use held-out rows with the proxy only and, for learners, also with the first trained model.
        """
        if not self.has_control() or not len(setting.parts.test):
            return []
        alone = ("proxy alone", inputs.held_out(inputs.silence()))
        if self._plays_releases(setting):  # a label mechanism has no answers for other rows
            return [alone]
        return [alone, ("model and proxy", inputs.held_out(trained))]

    def _control(self, setting: Setting, work: Work, inputs: ProxyGameInputs, trained: Unit) -> tuple[Unit, ...]:
        """Return the control units: each control with the attack, and the best informed one also with a classifier."""
        replayed_inputs = self.control_replays(setting, inputs, trained)
        if not replayed_inputs:
            return ()
        from dpaudit.engine.games.one_run.distinguisher import replay_with_classifier  # few games have a control

        replay_units: list[tuple[Any, str, Any]] = [
            (play_replays, what, replayed) for what, replayed in replayed_inputs
        ]
        replay_units += [
            (replay_with_classifier, f"a classifier, {what}", replayed) for what, replayed in replayed_inputs[-1:]
        ]
        return tuple(
            work.add(
                play_unit,
                inputs.rules,
                setting.informed_attack,
                replayed,
                design_seed=self.design_seed(setting, 0),
                seed=setting.seed.child("held-out"),
                first=0,
                last=min(self.replays, CONTROL_REPLAYS),
                label=f"control, {what}",
                resources=setting.resources.without_gpu,
            )
            for play_unit, what, replayed in replay_units
        )

    def _ceiling(self, setting: Setting, work: Work, inputs: ProxyGameInputs) -> tuple[Unit, ...]:
        """Return the unit of the game against a mechanism without privacy, if that needs a run."""
        bare = _without_privacy(setting.mechanism) if setting.measures_ceiling else None
        if bare is not None and not self._plays_releases(setting):
            revealing = self._training(replace(setting, mechanism=bare), work, inputs, 0, WITHOUT_PRIVACY)
        elif self.answers_with_labels:
            revealing = inputs.truth(self.design_seed(setting, 0))
        else:
            return ()
        played = work.add(
            play_replays,
            inputs.rules,
            setting.informed_attack,
            inputs.canaries(revealing),
            design_seed=self.design_seed(setting, 0),
            seed=setting.seed.child("replays"),
            first=0,
            last=min(self.replays * self.trainings, CEILING_REPLAYS),
            label="what a mechanism without privacy would show",
            resources=setting.resources.without_gpu,
        )
        return (played,)

    def _reference(self, setting: Setting) -> Reference:
        canaries = self.canaries_of(setting.parts.target)
        task = self.proxy_task(canaries, setting.parts.reference if self.needs_reference else None)
        return Reference(self.response(task), len(canaries), "canaries", self.replays * self.trainings)

    def _plays_releases(self, setting: Setting) -> bool:
        return self.traits.capability_of(setting.mechanism) is LABEL_MECHANISMS

    def draw_fresh(self, count: int, rng: np.random.Generator) -> Examples | None:
        """Return fresh points from a source other than the test part; None if there is none."""
        return None

    def has_control(self) -> bool:
        """Return True if the game also runs on held-out rows."""
        return False

    def proxy_task(self, examples: Examples, reference: Examples | None) -> Examples:
        """Return the prediction task of the proxy, with the secret as label; by default the rows unchanged."""
        return examples

    def model_answers(self, predict: Predictor, examples: Examples, reference: Examples | None) -> NDArray[np.float64]:
        """Return the model outputs that the attacker sees for these rows; by default class probabilities."""
        return predict(examples)

    def intervene(self, train: Examples, design: Design) -> Examples:
        """Return the data on which the mechanism runs, with planted labels if there are any."""
        if design.labels is not None:
            labels = train.labels.copy()
            labels[: len(design.labels)] = design.labels
            train = train.with_(labels=labels)
        return super().intervene(train, design)

    def view(self, replayed: Replayed[Examples], reveal: Reveal) -> Any:
        """Return the answers of mechanism and proxy at the shown points, with the shown labels."""
        setup, labels = replayed.setup, reveal.labels
        assert replayed.reference is not None
        if labels is None:
            labels = np.concatenate([setup.canaries.labels, setup.fresh.labels])[reveal.points]
        release, reference = replayed.release, replayed.reference
        if len(release) != len(reveal.points) or (np.diff(reveal.points) != 1).any():
            release, reference = release.at(reveal.points), reference[reveal.points]
        return release.view(reference, labels)

    def held_out_of(self, test: Examples | None, count: int) -> Examples | None:
        """Return up to `count` held-out rows for the control; None if the game has no control."""
        if not self.has_control() or test is None:
            return None
        return test.take(np.arange(min(count, len(test))))


@dataclass(frozen=True)
class ProxyGameInputs:
    """Inputs of replays: points, answers of the proxy, and answers of the mechanism or substitutes for them.

    Each method returns a placeholder for the arguments of a unit.
    """

    rules: ProxyGame  # the game with 1 replay and training
    queries: Any  # placeholder for the points about which both models are queried
    reference: Unit  # unit with the predictions of the proxy
    kind: type[Answers]  # class of the mechanism's answers
    shadows: tuple[Unit, ...] = ()  # units that train shadow models
    shadow_seeds: tuple[Seed, ...] = ()  # seeds of the coins that select their canaries

    def canaries(self, answers: Any) -> Any:
        """Return replay inputs for canaries and fresh points with these answers."""
        return inlined(
            canaries_replayed, self.rules, self.queries, self.reference, answers, self.shadows, self.shadow_seeds
        )

    def held_out(self, answers: Any) -> Any:
        """Return replay inputs for held-out rows with these answers."""
        return inlined(held_out_replayed, self.rules, self.queries, self.reference, answers)

    def silence(self) -> Any:
        """Return uninformative answers."""
        return inlined(uninformative_answers, self.kind, self.reference)

    def truth(self, design_seed: Seed) -> Any:
        """Return the answers of a mechanism without privacy."""
        return inlined(true_answers, self.rules, self.kind, self.queries, design_seed=design_seed)


@dataclass(frozen=True, eq=False)
class Queries:
    """Points about which both models are queried."""

    canaries: Examples  # m rows of the training data
    fresh: Examples  # points shown instead of canaries, m or none
    held_out: Examples | None  # held-out rows of the control; None if there is no control
    reference: Examples | None  # the reference part, if it defines the secret

    def ask(self, model: Predictor) -> NDArray[np.float32]:
        """Return the model's answers for canaries, fresh points and held-out rows, stacked; shape (points, classes)."""
        parts = [self.canaries, self.fresh, *([self.held_out] if self.held_out is not None else [])]
        return np.concatenate([model(points) for points in parts if len(points)]).astype(np.float32)

    @property
    def shown_count(self) -> int:
        """Number of points that can be shown: canaries and fresh points."""
        return len(self.canaries) + len(self.fresh)


@unit
def queries_of(
    rules: ProxyGame, target: Examples, test: Examples | None, fresh: Examples | None, reference: Examples | None
) -> Queries:
    """Return the points of a game; `fresh` are points from a source other than the test part."""
    canaries = rules.canaries_of(target)
    source = next(part for part in (fresh, test, canaries) if part is not None)
    count = len(canaries)
    return Queries(canaries, rules.fresh_of(source, count), rules.held_out_of(test, count), reference)


@unit
def proxy_predictions(
    rules: ProxyGame,
    proxy: Any,
    data: Any,
    queries: Queries,
    reference: Examples | None,
    compute: Compute,
    *,
    seed: Seed,
) -> Predictions:
    """Return the proxy's probabilities of the secret at every point that may be shown."""
    predict = proxy.predictor(
        reference=None if reference is None else rules.proxy_task(reference, reference).writable(),
        data=data,
        seed=seed.sequence(),
        compute=compute,
    )
    return Predictions(queries.ask(lambda points: predict(rules.proxy_task(points, reference))))


def add_training(
    setting: Setting, work: Work, inputs: ProxyGameInputs, test: Any, *, design_seed: Seed, seed: Seed, label: str
) -> Unit:
    """Add one training of the mechanism, with its teachers if it has any, and return the unit with its answers.

    Args:
        test: Placeholder of the rows on which utility is measured; None to measure none.
        design_seed: Seed of the training data.
        seed: Seed of the training.
        label: Name of the training.
    """
    target = setting.required_part("target")
    rows = inlined(training_rows, inputs.rules, target, design_seed=design_seed)
    return work.add(
        train_model,
        inputs.rules,
        setting.mechanism,
        inputs.queries,
        target,
        test,
        setting.part_argument("validation"),
        answered=add_teachers(setting, work, rows, seed=seed, label=label),
        design_seed=design_seed,
        seed=seed,
        label=label,
        **setting.unit_options,
    )


@unit
def training_rows(rules: ProxyGame, target: Examples, *, design_seed: Seed) -> Examples:
    """Return the rows on which a mechanism trains."""
    return rules.intervened(target, design_seed)


def _measured(rules: ProxyGame, target: Examples, test: Examples | None, design_seed: Seed) -> set[str]:
    return set() if test is None or rules.plants(target, design_seed) else {*ModelUtility.__dataclass_fields__}


@unit
@measuring(_measured)
def train_model(
    rules: ProxyGame,
    mechanism: Any,
    queries: Queries,
    target: Examples,
    test: Examples | None,
    validation: Examples | None,
    compute: Compute,
    *,
    answered: AnsweredQueries | None,
    design_seed: Seed,
    seed: Seed,
) -> Outcome[Predictions]:
    """Train a learner once and return its answers at every point that may be shown.

    The outcome has utility metrics unless labels are planted.

    Args:
        answered: Answers of the learner's teachers; None for a learner without separate teachers.
    """
    train = training_rows(rules, target, design_seed=design_seed)
    model = fitted(mechanism, train, validation, compute, seed, answered)

    def predict(examples: Examples) -> NDArray[np.float64]:
        return np.asarray(model.probabilities(writable_features(examples.features)))

    answers = queries.ask(lambda points: rules.model_answers(predict, points, queries.reference))
    if test is None or not _measured(rules, target, test, design_seed):
        return Outcome(Predictions(answers))
    return Outcome(Predictions(answers), metrics=asdict(utility(model, test)))


def add_utility(setting: Setting, work: Work, label: str) -> Unit:
    """Return the unit of a training on the unchanged target part that measures utility, without an attack."""
    target, seed = setting.required_part("target"), setting.seed.child("utility")
    return work.add(
        measure_utility,
        setting.mechanism,
        target,
        setting.required_part("test"),
        setting.part_argument("validation"),
        answered=add_teachers(setting, work, target, seed=seed, label=label),
        seed=seed,
        label=label,
        **setting.unit_options,
    )


@unit
@measuring(lambda: ModelUtility.__dataclass_fields__)
def measure_utility(
    mechanism: Any,
    target: Examples,
    test: Examples,
    validation: Examples | None,
    compute: Compute,
    *,
    answered: AnsweredQueries | None,
    seed: Seed,
) -> Outcome[ModelUtility]:
    """Train on the true labels and return the utility on the test part; `answered` as in `train_model`."""
    measured = utility(fitted(mechanism, target, validation, compute, seed, answered), test)
    return Outcome(measured, metrics=asdict(measured))


def _without_privacy(mechanism: Any) -> Any:
    """Return the mechanism without its noise, or a training of its model on the true labels; None if it has neither."""
    bare = getattr(mechanism, "without_noise", lambda: None)()
    model = getattr(mechanism, "model", None)
    return NonPrivate(model) if bare is None and isinstance(model, Trainer) else bare


def fitted(
    mechanism: Any,
    train: Examples,
    validation: Examples | None,
    compute: Compute,
    seed: Seed,
    answered: AnsweredQueries | None,
) -> Model:
    """Return a trained model of the mechanism, a student if its teachers have `answered`.

    Raises: InputError if it has no method `probabilities`.
    """
    train, validation = train.writable(), None if validation is None else validation.writable()
    settings: dict[str, Any] = {"seed": seed.sequence(), "compute": compute, "validation": validation}
    if answered is None:
        model = mechanism.fit(train, **settings)
    else:
        model = mechanism.train_student(train, answered, **settings)
    require(
        isinstance(model, Model),
        f"{type(mechanism).__qualname__}.fit must return a model with a method `probabilities(features)`",
        model=type(model).__qualname__,
    )
    return cast(Model, model)


@unit
def release_labels(
    rules: ProxyGame, mechanism: Any, target: Examples, *, design_seed: Seed, seed: Seed
) -> LabelRelease:
    """Run a label mechanism once and return the released labels of the canaries."""
    train = rules.intervened(target, design_seed)
    rng = np.random.default_rng(seed.sequence())
    released = mechanism.release(train.labels.copy(), classes=train.classes, rng=rng)
    release = checked_release(released, train, type(mechanism).__qualname__)
    return release.at(slice(rules.canary_count(target)))


@dataclass(frozen=True)
class ModelUtility:
    """Utility of a model on held-out examples."""

    test_accuracy: float
    test_log_loss: float  # mean in nats, with probabilities clipped at 1e-15
    test_accuracy_error: float  # standard error over the test rows
    test_log_loss_error: float  # standard error over the test rows
    majority_accuracy: float  # accuracy of always predicting the most frequent label of the test rows


def utility(model: Model, test: Examples) -> ModelUtility:
    """Return the utility of a model trained on true labels."""
    probabilities = model.probabilities(writable_features(test.features))
    right = probabilities.argmax(axis=1) == test.labels
    loss = -np.log(np.clip(probabilities[np.arange(len(test)), test.labels], 1e-15, 1.0))
    root = float(np.sqrt(len(test)))
    return ModelUtility(
        float(right.mean()),
        float(loss.mean()),
        float(right.std() / root),
        float(loss.std() / root),
        test.majority_share,
    )


@unit
def uninformative_answers(kind: type[Answers], reference: Predictions) -> Answers:
    """Return uninformative answers for every point, which leave the attack the proxy only."""
    return kind.uninformative(*reference.probabilities.shape)


@unit
def true_answers(rules: ProxyGame, kind: type[Answers], queries: Queries, *, design_seed: Seed) -> Answers:
    """Return the answers of a mechanism without privacy: the secret of each canary as trained."""
    canaries = rules.proxy_task(queries.canaries, queries.reference)
    planted = rules.design(canaries, design_seed.rng()).labels
    return kind.revealing(canaries.labels if planted is None else planted, canaries.classes)


@unit
def canaries_replayed(
    rules: ProxyGame,
    queries: Queries,
    reference: Predictions,
    answers: Answers,
    shadows: tuple[Predictions, ...],
    shadow_seeds: tuple[Seed, ...],
) -> Replayed[Examples]:
    """Return replay inputs for canaries and fresh points."""
    canaries = rules.proxy_task(queries.canaries, queries.reference)
    proxy = reference.probabilities[: queries.shown_count]
    setup = CanarySetup(canaries, queries.fresh, cumulative(proxy[: len(canaries)]))
    return Replayed(
        setup, answers.at(slice(queries.shown_count)), proxy, shadow_answers(rules, canaries, shadows, shadow_seeds)
    )


def shadow_answers(
    rules: ProxyGame, canaries: Examples, shadows: tuple[Predictions, ...], seeds: tuple[Seed, ...]
) -> ShadowAnswers | None:
    """Return the answers of shadow models at the canaries, with the coins of their seeds; None without models."""
    if not shadows:
        return None
    answers = np.stack([shadow.probabilities[: len(canaries)] for shadow in shadows])
    return ShadowAnswers(answers, np.array([rules.design(canaries, seed.rng()).included for seed in seeds]))


@unit
def held_out_replayed(
    rules: ProxyGame, queries: Queries, reference: Predictions, answers: Answers
) -> Replayed[Examples]:
    """Return replay inputs for held-out rows, where any success of the attack is due to the proxy's shift."""
    assert queries.held_out is not None
    rows = slice(queries.shown_count, None)
    proxy = reference.probabilities[rows]
    setup = CanarySetup(rules.proxy_task(queries.held_out, queries.reference), queries.held_out, cumulative(proxy))
    return Replayed(setup, answers.at(rows), proxy)


def cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return cumulative class probabilities of each row, ending in 1; shape (n, classes)."""
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]


def checked_release(released: Any, train: Examples, mechanism: str) -> LabelRelease:
    """Return validated released labels. Raises: InputError for a wrong number, type or range."""
    labels = np.asarray(released)
    require(
        labels.shape == train.labels.shape and np.issubdtype(labels.dtype, np.integer),
        f"{mechanism}.release must return one integer label for each of {len(train)} examples",
        shape=labels.shape,
        type=labels.dtype,
    )
    require(
        bool((labels >= 0).all() and (labels < train.classes).all()),
        f"{mechanism}.release must return labels in 0..{train.classes - 1}",
        lowest=labels.min(),
        highest=labels.max(),
    )
    return LabelRelease(labels.astype(np.int64), train.classes)
