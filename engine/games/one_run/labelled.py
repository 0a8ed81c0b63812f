"""Many coins about labelled examples: reference model, utility, control on held-out rows, ceiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, inlined, measuring, unit
from dpaudit.engine.games.coins import CanarySetup, Coins, Design, Replayed, Reveal, play_replays
from dpaudit.engine.games.one_run.answers import LabelRelease, Predictions, ShadowAnswers
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, Played, Setting
from dpaudit.engine.games.proxies import Predictor
from dpaudit.engine.games.reference import WITHOUT_PRIVACY
from dpaudit.engine.games.taught import add_teachers
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.teachers import AnsweredQueries

Answers = Predictions | LabelRelease
"""Answers about each of n points, by the model of a learner or by a label mechanism."""
MAX_REPLAYS = 20
"""Largest number of replays on held-out rows, or against a mechanism without privacy; more hardly change the median."""


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


@dataclass(frozen=True)
class Prepared:
    """Units and placeholders that all trainings of a game share."""

    queries: Any  # placeholder for the points about which both models are queried
    reference: Unit  # unit with the predictions of the proxy
    shadows: tuple[Unit, ...] = ()  # units that train shadow models
    shadow_seeds: tuple[Seed, ...] = ()  # seeds of the coins that select their canaries


@dataclass(frozen=True)
class LabelledCoins(Coins[Examples]):
    """Base of the games about labelled examples; the attacker has a reference, the predictions of the spec's proxy."""

    controlled_on: ClassVar[str] = "rows the mechanism never saw,"
    answers_with_labels: ClassVar[bool] = False
    """True if a mechanism with no privacy answers with the secret labels, so that the ceiling needs a run. Otherwise it
    reveals every bit, and the ceiling follows without a run."""
    needs_reference: ClassVar[bool] = False
    """True if the reference part defines the secret, such as the bins of an attribute."""

    # What a game may state

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Return True if the bound relies on a proxy."""
        return False

    def has_control(self) -> bool:
        """Return True if the game also runs on held-out rows."""
        return False

    def fresh_points(self, setting: Setting, work: Work) -> Any:
        """Return a placeholder for points to show instead of canaries, as many or more; None for a game without."""
        return None

    def proxy_task(self, examples: Examples, reference: Examples | None) -> Examples:
        """Return the prediction task of the proxy, with the secret as label; by default the rows unchanged."""
        return examples

    def model_answers(self, predict: Predictor, examples: Examples, reference: Examples | None) -> NDArray[np.float64]:
        """Return the model outputs that the attacker sees for these rows; by default class probabilities."""
        return predict(examples)

    # The four functions, and what a mechanism gives

    def intervene(self, train: Examples, design: Design) -> Examples:
        """Return the data on which the mechanism runs, with planted labels if there are any."""
        if design.labels is not None:
            train = train.with_first_labels(design.labels)
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

    def released(
        self, mechanism: Any, train: Examples, canaries: Examples, *, seed: Seed, compute: Compute
    ) -> LabelRelease:
        """Run a label mechanism and return the released labels of the canaries.

        Raises: InputError for a wrong number, type or range of labels.
        """
        rng, name = np.random.default_rng(seed.sequence()), type(mechanism).__qualname__
        labels = np.asarray(mechanism.release(train.labels.copy(), classes=train.classes, rng=rng))
        require(
            labels.shape == train.labels.shape and np.issubdtype(labels.dtype, np.integer),
            f"{name}.release must return one integer label for each of {len(train)} examples",
            shape=labels.shape,
            type=labels.dtype,
        )
        require(
            bool((labels >= 0).all() and (labels < train.classes).all()),
            f"{name}.release must return labels in 0..{train.classes - 1}",
            lowest=labels.min(),
            highest=labels.max(),
        )
        return LabelRelease(labels[: len(canaries)].astype(np.int64), train.classes)

    # The plan

    def prepared(self, setting: Setting, work: Work) -> Prepared:
        """Return the points of the game and the proxy's predictions for them."""
        if setting.proxy is None:
            raise SpecError(
                "this game needs a `proxy`, the source of the attacker's reference model. Add one to the audit"
            )
        queries = inlined(
            queries_of,
            self.without_counts(),
            setting.required_part("target"),
            setting.part_argument("test"),
            self.fresh_points(setting, work),
            setting.part_argument("reference") if self.needs_reference else None,
        )
        reference = work.add(
            proxy_predictions,
            self.without_counts(),
            setting.proxy,
            setting.data,
            queries,
            setting.part_argument("reference"),
            seed=setting.seed.child("reference"),
            label="reference model",
            **setting.reference_options,
        )
        return Prepared(queries, reference)

    def training(
        self, setting: Setting, work: Work, prepared: Prepared, number: int, label: str = "", kind: str = ""
    ) -> Unit:
        if self._plays_releases(setting):
            cheap = replace(setting, resources=setting.resources.without_gpu)
            return super().training(cheap, work, prepared, number, label, kind)
        game, design_seed = self.without_counts(), self.design_seed(setting, number, kind)
        measures = not kind and not self.plants(setting.parts.target, design_seed)
        return add_training(
            setting,
            work,
            inlined(training_rows, game, setting.required_part("target"), design_seed=design_seed),
            setting.part_argument("test") if measures else None,
            game=game,
            queries=prepared.queries,
            seed=setting.seed.child(f"{kind}training", number),
            label=label or f"training {number + 1} of {self.trainings}",
        )

    def replayed(self, setting: Setting, prepared: Prepared, release: Any, *, held_out: bool = False) -> Any:
        """Return a placeholder for the inputs of replays for canaries and fresh points, or for held-out rows."""
        shadows = () if held_out else prepared.shadows
        return inlined(
            answers_replayed,
            self.without_counts(),
            prepared.queries,
            prepared.reference,
            release,
            shadows,
            prepared.shadow_seeds[: len(shadows)],
            held_out=held_out,
        )

    def finished(self, played: Played, setting: Setting, work: Work, prepared: Prepared) -> Played:
        """Return the plan with utility, shadow models, control and ceiling."""
        utility: tuple[Unit, ...] = ()
        planted = self.plants(setting.parts.target, self.design_seed(setting, 0))
        if planted and len(setting.parts.test) and not self._plays_releases(setting):
            utility = (add_utility(setting, work, "utility, a training on the true labels"),)
        return replace(
            played,
            trainings=(*utility, *played.trainings),
            shadows=prepared.shadows,
            control=self._control(setting, work, prepared, played.trainings[0]),
            ceiling=self._ceiling(setting, work, prepared),
            conditional=self.rests_on_proxy(setting),
            controlled_on=self.controlled_on,
        )

    def plants(self, target: Examples, seed: Seed) -> bool:
        """Return True if the mechanism is trained on planted labels."""
        return self.design(self.canaries_of(target), seed.rng()).labels is not None

    def control_replays(self, setting: Setting, prepared: Prepared, trained: Unit) -> list[tuple[str, Any]]:
        """Return (description, inputs) of the replays of the control, with the best informed one last.

        By default these use held-out rows with the proxy only and, for learners, also with the first trained model.
        """
        if not self.has_control() or not len(setting.parts.test):
            return []
        alone = ("proxy alone", self.replayed(setting, prepared, self.silence(setting, prepared), held_out=True))
        if self._plays_releases(setting):  # a label mechanism has no answers for other rows
            return [alone]
        return [alone, ("model and proxy", self.replayed(setting, prepared, trained, held_out=True))]

    def silence(self, setting: Setting, prepared: Prepared) -> Any:
        """Return a placeholder of uninformative answers, which leave the attack the proxy only."""
        return inlined(uninformative_answers, self._kind_of_answers(setting), prepared.reference)

    def _control(self, setting: Setting, work: Work, prepared: Prepared, trained: Unit) -> tuple[Unit, ...]:
        """Return the control units: each control with the attack, and the best informed one also with a classifier."""
        replayed_inputs = self.control_replays(setting, prepared, trained)
        units = [(False, f"control, {what}", replayed) for what, replayed in replayed_inputs]
        units += [(True, f"control, a classifier, {what}", replayed) for what, replayed in replayed_inputs[-1:]]
        count, seed = min(self.replays, MAX_REPLAYS), setting.seed.child("held-out")
        return tuple(
            self._replays(setting, work, replayed, count, seed, label, learns=learns)
            for learns, label, replayed in units
        )

    def _ceiling(self, setting: Setting, work: Work, prepared: Prepared) -> tuple[Unit, ...]:
        """Return the unit of the game against a mechanism without privacy, if that needs a run."""
        bare = None
        if setting.measures_ceiling and not self._plays_releases(setting):
            bare = getattr(setting.mechanism, "without_noise", lambda: None)()
            model = getattr(setting.mechanism, "model", None)
            if bare is None and isinstance(model, Trainer):
                bare = NonPrivate(model)
        if bare is not None:
            revealing = self.training(replace(setting, mechanism=bare), work, prepared, 0, WITHOUT_PRIVACY)
        elif self.answers_with_labels:
            kind, seed = self._kind_of_answers(setting), self.design_seed(setting, 0)
            revealing = inlined(true_answers, self.without_counts(), kind, prepared.queries, design_seed=seed)
        else:
            return ()
        replayed, count = self.replayed(setting, prepared, revealing), min(self.replays * self.trainings, MAX_REPLAYS)
        seed, label = setting.seed.child("replays"), "what a mechanism without privacy would show"
        return (self._replays(setting, work, replayed, count, seed, label),)

    def _replays(
        self,
        setting: Setting,
        work: Work,
        replayed: Any,
        count: int,
        seed: Seed,
        label: str,
        *,
        learns: bool = False,
    ) -> Unit:
        """Return the unit of `count` replays of the first training with other inputs."""
        return work.add(
            play_replays,
            self.without_counts(),
            setting.informed_attack,
            replayed,
            design_seed=self.design_seed(setting, 0),
            seed=seed,
            first=0,
            last=count,
            label=label,
            resources=setting.resources.without_gpu,
            learns=learns,
        )

    def _plays_releases(self, setting: Setting) -> bool:
        return self.traits.capability_of(setting.mechanism) is LABEL_MECHANISMS

    def _kind_of_answers(self, setting: Setting) -> type[Answers]:
        return LabelRelease if self._plays_releases(setting) else Predictions


@unit
def queries_of(
    game: LabelledCoins, target: Examples, test: Examples | None, fresh: Examples | None, reference: Examples | None
) -> Queries:
    """Return the points of a game; `fresh` are points to show instead of canaries, if there are any."""
    canaries = game.canaries_of(target)
    rows = np.arange(len(canaries))
    held_out = test.take(rows[: len(test)]) if game.has_control() and test is not None else None
    return Queries(canaries, canaries.take(rows[:0]) if fresh is None else fresh.take(rows), held_out, reference)


@unit
def proxy_predictions(
    game: LabelledCoins,
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
        reference=None if reference is None else game.proxy_task(reference, reference).writable(),
        data=data,
        seed=seed.sequence(),
        compute=compute,
    )
    return Predictions(queries.ask(lambda points: predict(game.proxy_task(points, reference))))


@unit
def training_rows(game: LabelledCoins, target: Examples, *, design_seed: Seed) -> Examples:
    """Return the rows on which a mechanism trains."""
    return game.intervened(target, design_seed)


def add_training(
    setting: Setting,
    work: Work,
    train: Any,
    test: Any,
    *,
    seed: Seed,
    label: str,
    game: LabelledCoins | None = None,
    queries: Any = None,
) -> Unit:
    """Add one training of a learner, with its teachers if it has any, and return the unit with its answers.

    Args:
        train: Placeholder of the rows on which it trains.
        test: Placeholder of the rows on which utility is measured; None to measure none.
        seed: Seed of the training.
        label: Name of the training.
        game: The game, without counts; None to ask nothing.
        queries: Placeholder of the points about which the model is asked; None to ask nothing.
    """
    return work.add(
        train_model,
        game,
        setting.mechanism,
        queries,
        train,
        test,
        setting.part_argument("validation"),
        answered=add_teachers(setting, work, train, seed=seed, label=label),
        metrics={} if test is None else dict(setting.metrics),
        seed=seed,
        label=label,
        **setting.unit_options,
    )


def add_utility(setting: Setting, work: Work, label: str) -> Unit:
    """Return the unit of a training on the unchanged target part that measures utility, without an attack."""
    target, test, seed = setting.required_part("target"), setting.required_part("test"), setting.seed.child("utility")
    return add_training(setting, work, target, test, seed=seed, label=label)


@unit
@measuring(lambda test, metrics: () if test is None else {*ModelUtility.__dataclass_fields__, *metrics})
def train_model(
    game: LabelledCoins | None,
    mechanism: Any,
    queries: Queries | None,
    train: Examples,
    test: Examples | None,
    validation: Examples | None,
    compute: Compute,
    *,
    answered: AnsweredQueries | None,
    metrics: Mapping[str, Callable[..., float]],
    seed: Seed,
) -> Outcome[Predictions]:
    """Train a learner once and return its answers at every point that may be shown, with utility metrics if asked for.

    Args:
        answered: Answers of the learner's teachers; None for a learner without separate teachers.
        metrics: The user's metrics of utility, by name.
    """
    model = fitted(mechanism, train, validation, compute, seed, answered)

    def predict(examples: Examples) -> NDArray[np.float64]:
        return np.asarray(model.probabilities(writable_features(examples.features)))

    answers = np.zeros((0, train.classes), np.float32)
    if game is not None and queries is not None:
        reference = queries.reference
        answers = queries.ask(lambda points: game.model_answers(predict, points, reference))
    return Outcome(Predictions(answers), metrics={} if test is None else utility(model, test, metrics))


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


@dataclass(frozen=True)
class ModelUtility:
    """Utility of a model on held-out examples."""

    test_accuracy: float
    test_log_loss: float  # mean in nats, with probabilities clipped at 1e-15
    test_accuracy_error: float  # standard error over the test rows
    test_log_loss_error: float  # standard error over the test rows
    majority_accuracy: float  # accuracy of always predicting the most frequent label of the test rows


def utility(model: Model, test: Examples, metrics: Mapping[str, Callable[..., float]]) -> dict[str, float]:
    """Return the utility of a model trained on true labels: the fields of `ModelUtility`, and the user's metrics.

    Raises: TrainingError if a metric raises or does not return a number.
    """
    probabilities = model.probabilities(writable_features(test.features))
    right = probabilities.argmax(axis=1) == test.labels
    loss = -np.log(np.clip(probabilities[np.arange(len(test)), test.labels], 1e-15, 1.0))
    root = float(np.sqrt(len(test)))
    measured = ModelUtility(
        float(right.mean()),
        float(loss.mean()),
        float(right.std() / root),
        float(loss.std() / root),
        test.majority_share,
    )
    return asdict(measured) | {name: _measured(name, metrics[name], test.labels, probabilities) for name in metrics}


def _measured(name: str, metric: Callable[..., float], labels: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """Return the value of a metric of the user."""
    try:
        return float(metric(labels.copy(), probabilities.copy()))
    except Exception as err:  # code of the user may raise anything
        raise TrainingError(f"metric {name!r} must return a number: {type(err).__name__}: {err}") from err


@unit
def uninformative_answers(kind: type[Answers], reference: Predictions) -> Answers:
    """Return uninformative answers for every point, which leave the attack the proxy only."""
    return kind.uninformative(*reference.probabilities.shape)


@unit
def true_answers(game: LabelledCoins, kind: type[Answers], queries: Queries, *, design_seed: Seed) -> Answers:
    """Return the answers of a mechanism without privacy: the secret of each canary as trained."""
    canaries = game.proxy_task(queries.canaries, queries.reference)
    planted = game.design(canaries, design_seed.rng()).labels
    return kind.revealing(canaries.labels if planted is None else planted, canaries.classes)


@unit
def answers_replayed(
    game: LabelledCoins,
    queries: Queries,
    reference: Predictions,
    answers: Answers,
    shadows: tuple[Predictions, ...],
    shadow_seeds: tuple[Seed, ...],
    *,
    held_out: bool,
) -> Replayed[Examples]:
    """Return replay inputs for canaries and fresh points, with answers of shadow models and the coins of their seeds.

    With `held_out`, for held-out rows, where any success of the attack is due to the proxy's shift.
    """
    rows, part = queries.canaries, slice(queries.shown_count)
    if held_out:
        assert queries.held_out is not None
        rows, part = queries.held_out, slice(queries.shown_count, None)
    canaries, proxy = game.proxy_task(rows, queries.reference), reference.probabilities[part]
    shadow_answers = None
    if shadows:
        member = np.array([game.design(canaries, seed.rng()).included for seed in shadow_seeds])
        answered = np.stack([shadow.probabilities[: len(canaries)] for shadow in shadows])
        shadow_answers = ShadowAnswers(answered, member)
    setup = CanarySetup(canaries, queries.fresh, cumulative(proxy[: len(canaries)]))
    return Replayed(setup, answers.at(part), proxy, shadow_answers)


def cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return cumulative class probabilities of each row, ending in 1; shape (n, classes)."""
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]
