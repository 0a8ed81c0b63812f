"""Game for label reconstruction: belief about each label before and after a release (Busa-Fekete et al., 2024).

The prior of each example comes from a model that has not seen its label. The attacker scores each label by a release
about bags, and the posterior follows from Bayes' rule. The evidence includes the true labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, logit

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, measuring, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import BAG_MECHANISMS, GameTraits, Played, Setting, require_units
from dpaudit.engine.games.proxies import KnownLaw
from dpaudit.errors import InputError, SpecError, require
from dpaudit.estimators.label_reconstruction.advantage import (
    bag_log_ratio,
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_laplace_additive_advantage,
    rr_additive_advantage,
)
from dpaudit.estimators.label_reconstruction.bags import Posteriors
from dpaudit.estimators.measures import pairs_above
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import (
    LEFT_OUT,
    Bags,
    GeometricProportions,
    LabelProportions,
    LaplaceProportions,
)
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.models.tables import tabular_input
from dpaudit.mechanisms.protocols import BagMechanism
from dpaudit.registry import register

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BagView:
    """The attacker's view of B bags of k examples: priors, release and likelihood."""

    prior: NDArray[np.float64]  # P[label = 1 | features] of each example, shape (B, k)
    released: NDArray[np.float64]  # released numbers for label 1, shape (B,)
    # log P[released | s labels are 1] for s = 0 .. k, up to a constant in each bag, shape (B, k + 1)
    law: NDArray[np.float64]
    shows: ClassVar[str] = "what a release says of bags of labels"


@register("game", "label-advantage", source="Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, section 4")
@dataclass(frozen=True)
class LabelAdvantage:
    """Game that measures how much a release about bags of labels improves the attacker's knowledge of each label.

    There must be two classes.

    Attributes:
        releases: Number of independent releases of the same labels, >= 1, each with new bags.
        folds: Number of folds of the target part, >= 2, if there is no reference part. The prior of a fold comes from a
            model trained on the other folds.
        utility: Measures the utility of the release on the test part; None to measure nothing.
    """

    releases: int = 10
    folds: int = 5
    utility: Utility | None = None

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="The prior must be the law of the labels given the features, and labels independent of each other "
        "given these; an attacker who knows more, or sees a second release, gains more.",
        views={BAG_MECHANISMS: BagView},
        attack="bayes-optimal",
        estimator="label-advantage",
        evidence=Posteriors,
        uses_proxy=True,
    )

    def __post_init__(self) -> None:
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)
        require(self.folds >= 2, "folds must be >= 2", folds=self.folds)

    def play(self, setting: Setting, work: Work) -> Played:
        target = setting.parts.target
        if target.classes != 2:
            raise SpecError(
                f"label-advantage needs labels of two classes, {target.name} has {target.classes}. Merge classes"
            )
        try:  # fail before any training
            setting.mechanism.bags(target, rng=setting.seed.child("planning").rng())
        except InputError as err:
            raise SpecError(f"{target.name}: {err}") from err
        each = max(1, min(setting.rows_per_unit // len(target), -(-self.releases // 2)))
        require_units(-(-self.releases // each))
        releases = work.split(
            play_releases,
            self.releases,
            each,
            setting.mechanism,
            setting.attack,
            self._priors(setting, work),
            setting.required_part("target"),
            seed=setting.seed.child("releases"),
            label="releases",
            resources=setting.resources.without_gpu,
            after=setting.after,
        )
        return Played(releases, trainings=self._utility(setting, work), replays=self.releases, observational=True)

    def _priors(self, setting: Setting, work: Work) -> tuple[Unit, ...]:
        has_reference = isinstance(setting.proxy, KnownLaw) or len(setting.parts.reference) > 0
        folds = 1 if has_reference else self.folds
        if len(setting.parts.target) < 2 * folds:
            raise SpecError(
                f"{folds} folds need at least {2 * folds} examples, got {len(setting.parts.target)}. Use more data"
            )
        return tuple(
            work.add(
                find_priors,
                setting.proxy,
                setting.data,
                setting.required_part("target"),
                setting.part_argument("reference"),
                fold=fold,
                folds=folds,
                seed=setting.seed.child("prior"),
                label=f"priors, fold {fold + 1} of {folds}" if folds > 1 else "priors",
                **setting.reference_options,
            )
            for fold in range(folds)
        )

    def _utility(self, setting: Setting, work: Work) -> tuple[Unit, ...]:
        if self.utility is None:
            return ()
        if len(setting.parts.test) < 4:
            raise SpecError(
                "utility is measured on the test part, which has too few rows. Give `split.test` a larger share"
            )
        measurement = work.add(
            measure_utility,
            setting.mechanism,
            self.utility,
            setting.required_part("target"),
            setting.required_part("test"),
            seed=setting.seed.child("utility"),
            label=f"utility, {self.utility.trainings} trainings",
            **setting.unit_options,
        )
        return (measurement,)


@dataclass(frozen=True, eq=False)
class Priors:
    """Prior probabilities of some labels."""

    ROWS: ClassVar[bool] = True

    row: NDArray[np.int64]  # rows of the examples in the target part, shape (n,)
    prior: Floats  # P[label = 1 | features] of each, shape (n,)


@unit
def find_priors(
    proxy: Any,
    data: Any,
    target: Examples,
    reference: Examples | None,
    compute: Compute,
    *,
    fold: int,
    folds: int,
    seed: Seed,
) -> Priors:
    """Return the priors of one fold of the target part, from a model that has not seen its labels."""
    fold_of_row = seed.child("folds").rng().permutation(len(target)) % folds
    rows = np.flatnonzero(fold_of_row == fold)
    train = target.take(fold_of_row != fold) if folds > 1 else reference
    predict = proxy.predictor(
        reference=None if train is None else train.writable(),
        data=data,
        seed=seed.child(fold).sequence(),
        compute=compute,
    )
    return Priors(rows, np.asarray(predict(target.take(rows)), np.float64)[:, 1])


@unit
def play_releases(
    mechanism: BagMechanism,
    attack: Any,
    priors: tuple[Priors, ...],
    target: Examples,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Iterator[Posteriors]:
    """Yield the posteriors after releases `first` to `last` - 1, with the true labels."""
    prior = np.empty(len(target))
    for fold in priors:
        prior[fold.row] = fold.prior
    for number in range(first, last):
        yield _release(mechanism, attack, prior, target, number, seed.child(number))


def _release(
    mechanism: BagMechanism, attack: Any, prior: Floats, target: Examples, number: int, seed: Seed
) -> Posteriors:
    """Return the posteriors after one release; `prior` has shape (n,)."""
    bags = mechanism.bags(target, rng=seed.child("bags").rng())
    released = mechanism.release_counts(bags.counts(target.labels, 2), rng=seed.child("noise").rng())[:, 1]
    shift, expected = np.zeros_like(prior), np.zeros_like(prior)
    for members in members_by_size(bags):
        bag_numbers, size = bags.assignment[members[:, 0]], members.shape[1]
        law = mechanism.log_likelihood(released[bag_numbers], size)
        score = np.asarray(attack.score(BagView(prior[members], released[bag_numbers], law)), np.float64)
        require(score.shape == members.shape, "the attack must give one score for each example", shape=score.shape)
        shift[members] = score
        advantage = expected_advantage(mechanism, prior[members])
        expected[members] = np.nan if advantage is None else advantage
    certain = (prior == 0) | (prior == 1)
    with np.errstate(divide="ignore"):
        posterior = np.where(certain, prior, expit(logit(prior) + np.where(certain, 0.0, shift)))
    advantages = None if np.isnan(expected).any() else expected
    return Posteriors(prior, posterior, bags.assignment, number, shift, advantages, target.labels)


def members_by_size(bags: Bags) -> Iterator[NDArray[np.int64]]:
    """The examples of all bags of one size, shape (bags, size), size by size."""
    order = np.argsort(bags.assignment, kind="stable")[np.count_nonzero(bags.assignment == LEFT_OUT) :]
    first = np.cumsum(bags.sizes) - bags.sizes
    for size in np.unique(bags.sizes):
        yield order[first[bags.sizes == size][:, None] + np.arange(size)]


@singledispatch
def expected_advantage(mechanism: Any, prior: Floats) -> Floats | None:
    """Return the expected additive advantage of each example, shape (bags, k); None without a formula."""
    return None


@expected_advantage.register
def _(mechanism: RandomizedResponse, prior: Floats) -> Floats | None:
    if math.isinf(mechanism.epsilon):
        return llp_additive_advantage(prior)
    return np.asarray(rr_additive_advantage(prior, epsilon=mechanism.epsilon))


@expected_advantage.register
def _(mechanism: LabelProportions, prior: Floats) -> Floats | None:
    return llp_additive_advantage(prior)


@expected_advantage.register
def _(mechanism: LaplaceProportions, prior: Floats) -> Floats | None:
    return llp_laplace_additive_advantage(prior, epsilon=mechanism.epsilon)


@expected_advantage.register
def _(mechanism: GeometricProportions, prior: Floats) -> Floats | None:
    return llp_geometric_additive_advantage(prior, epsilon=mechanism.epsilon)


@register("attack", "bayes-optimal", source="Busa-Fekete et al. (2024), Definition 3.6 and section 4")
@dataclass(frozen=True)
class BayesOptimal:
    """Exact log-likelihood ratio of label 1 to label 0, by the release of the example's bag.

    It is optimal if the priors are correct and the labels are independent.
    """

    view: ClassVar[type[BagView]] = BagView

    def score(self, view: BagView) -> NDArray[np.float64]:
        """Return log P[release | label 1] - log P[release | label 0] for each example, in nats, shape (B, k)."""
        return bag_log_ratio(view.prior, view.law)


SMALL_MLP = Mlp(hidden=(32,), epochs=5, batch_size=256, optimizer="adam", standardise=True)


@dataclass(frozen=True)
class Utility:
    """Training on a release: minibatch Adam on the proportions of bags, over a grid of learning rates.

    Attributes:
        model: A perceptron and its training; `batch_size` counts examples.
        learning_rates: Learning rates, each > 0. The best one by the mean AUC on one half of the test part is reported
            on the other half.
        runs: Number of releases to train on, >= 1, each with new initial weights.
    """

    model: Network = field(default=SMALL_MLP, metadata={"kind": "model"})
    learning_rates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03)
    runs: int = 3

    def __post_init__(self) -> None:
        require_network(self.model, of="utility")
        rates = self.learning_rates
        require(len(rates) > 0, "learning_rates must hold at least one")
        require(all(rate > 0 for rate in rates), "learning_rates must be > 0", learning_rates=rates)
        require(self.runs >= 1, "runs must be >= 1", runs=self.runs)

    @property
    def trainings(self) -> int:
        return self.runs * len(self.learning_rates)


@dataclass(frozen=True, eq=False)
class Learned:
    """Results of trainings, all of shape (trainings,); NaN for a failed training."""

    ROWS: ClassVar[bool] = True

    learning_rate: Floats
    run: NDArray[np.int64]  # number of the release that it is trained on
    choosing_auc: Floats  # AUC on the half of the test part that chooses the learning rate
    test_auc: Floats  # AUC on the other half
    test_log_loss: Floats  # mean log-loss on the other half


@unit
@measuring(lambda: ("learning_rate", "test_auc", "test_log_loss", "test_auc_error", "test_log_loss_error"))
def measure_utility(
    mechanism: BagMechanism, utility: Utility, target: Examples, test: Examples, compute: Compute, *, seed: Seed
) -> Outcome[Learned]:
    """Train on releases of the target part and measure AUC and log-loss on the test part."""
    target, test = _one_hot_encoded(target, test)
    models = _trained(mechanism, utility, target, compute, seed)
    scores = np.array([_scored(model, test) for model in models])
    rates, runs = np.array(utility.learning_rates), np.arange(utility.runs)
    learned = Learned(np.tile(rates, len(runs)), np.repeat(runs, len(rates)), *scores.T)
    return Outcome(learned, metrics=_best(learned, utility))


def _trained(
    mechanism: BagMechanism, utility: Utility, target: Examples, compute: Compute, seed: Seed
) -> Sequence[Any]:
    from dpaudit.mechanisms.training.bag_stack import BagTask, train_on_bags

    tasks = []
    for run in range(utility.runs):
        run_seed = seed.child(run)
        bags = mechanism.bags(target, rng=run_seed.child("bags").rng())
        counts = bags.counts(target.labels, target.classes)
        released = mechanism.release_counts(counts, rng=run_seed.child("noise").rng())
        targets = mechanism.targets(released).astype(np.float32)
        rows, shares = padded(bags)
        tasks += [
            BagTask(rows, shares, targets, rate, run_seed.child("training").sequence())
            for rate in utility.learning_rates
        ]
    return train_on_bags(utility.model.recipe, target.features, tasks, classes=target.classes, compute=compute)


def padded(bags: Bags) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows of each bag and their weights in its mean, both of shape (B, size of the largest bag)."""
    order = np.argsort(bags.assignment, kind="stable")[np.count_nonzero(bags.assignment == LEFT_OUT) :]
    first = np.cumsum(bags.sizes) - bags.sizes
    place = np.arange(int(bags.sizes.max()))
    inside = place < bags.sizes[:, None]
    rows = order[np.where(inside, first[:, None] + place, first[:, None])]
    return rows, np.where(inside, 1 / bags.sizes[:, None], 0.0).astype(np.float32)


def _scored(model: Any, test: Examples) -> tuple[float, float, float]:
    """Return AUC on one half of the test part, AUC and mean log-loss on the other; NaN for a failed training."""
    if isinstance(model, TrainingError):
        return math.nan, math.nan, math.nan
    answers = model.probabilities(test.features)
    half = len(test) // 2
    at_label = answers[np.arange(len(test)), test.labels][half:]
    return (
        auc(answers[:half, 1], test.labels[:half]),
        auc(answers[half:, 1], test.labels[half:]),
        float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    )


def auc(score: Floats, label: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve, with ties counted half; NaN if a class is missing."""
    members, others = np.sort(score[label == 1]), np.sort(score[label != 1])
    return pairs_above(members, others) / (members.size * others.size) if members.size and others.size else math.nan


def _best(learned: Learned, utility: Utility) -> dict[str, float]:
    """Return the metrics of the learning rate with the best mean AUC on the choosing half."""
    rate = learned.learning_rate
    means = {value: float(learned.choosing_auc[rate == value].mean()) for value in utility.learning_rates}
    finite = {value: mean for value, mean in means.items() if not np.isnan(mean)}
    if not finite:
        raise TrainingError("the loss is not finite at any learning rate. Use smaller `learning_rates`")
    best = max(finite, key=lambda value: finite[value])
    metrics = {"learning_rate": best}
    for name in ("test_auc", "test_log_loss"):
        values = getattr(learned, name)[rate == best]
        metrics[name] = float(values.mean())
        if values.size > 1:
            metrics[f"{name}_error"] = float(values.std(ddof=1) / np.sqrt(values.size))
    return metrics


def _one_hot_encoded(train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """Return both as float32 arrays, one-hot encoded by the categories of `train`; arrays stay unchanged."""
    if not isinstance(train.features, pa.Table):
        return train, test
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(
        max_categories=20, handle_unknown="infrequent_if_exist", sparse_output=False, dtype=np.float32
    )
    numbers = [name for name in train.features.column_names if name not in train.categorical]
    coder = make_column_transformer((SimpleImputer(), numbers), (encoder, list(train.categorical)))
    coder.fit(tabular_input(train.features, train.categorical))

    def coded(part: Examples) -> Examples:
        table = tabular_input(part.features, part.categorical)
        return part.with_(features=np.asarray(coder.transform(table), np.float32))

    return coded(train), coded(test)
