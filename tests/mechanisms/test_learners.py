"""Label-private learners: their releases, privacy accounting and training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse
from dpaudit.mechanisms.learners.lp_mst import (
    LP1ST,
    LP2ST,
    Embedder,
    LP1STDomainPrior,
    LP1STNoiseCorrection,
    LP1STOutOfDomainPrior,
    Numbers,
    PrincipalComponents,
    RandomConvolutions,
    ReleasedLabels,
    correct_for_noise,
    discrete_laplace,
    nearest_centres,
    noisy_class_shares,
)
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.learners.recalled_labels import NoisyOneHotLabels, Recall, build_recall_model
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.planted.learners import LeakyRandomizedResponse, LP1STDrawnAgain
from dpaudit.mechanisms.protocols import Learner, Model
from dpaudit.testing import check_mechanism
from tests.bank.planted_learners import LP1STDomainPriorUncharged, OneHotLaplaceSigmaForB

FALSE_FAILURE = 1e-9  # of each chi-square or binomial check below
SEED, ONE = SeedSequence(21), Compute(threads=1)

Answer = Callable[[Features], NDArray[np.float64]]


@dataclass(frozen=True)
class Answering:
    """A model with fixed answers."""

    answer: Answer

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return self.answer(features)


@dataclass(frozen=True)
class RecordingTrainer:
    """A trainer that records its training sets; its models return fixed answers."""

    answer: Answer = lambda features: np.full((len(features), 2), 0.5)
    training_sets: list[Examples] = field(default_factory=list)
    validations: list[Examples | None] = field(default_factory=list)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        self.training_sets.append(train)
        self.validations.append(validation)
        return Answering(self.answer)


def numbered(labels: NDArray[np.int64], classes: int = 2) -> Examples:
    """Examples whose only feature is their row number."""
    return Examples(np.arange(len(labels), dtype=np.float32)[:, None], labels, classes)


def rows(examples: Examples) -> NDArray[np.int64]:
    assert not isinstance(examples.features, pa.Table)
    return examples.features[:, 0].astype(np.int64)


def plausible(count: int, trials: int, probability: float) -> bool:
    low, high = binom.ppf(np.array([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2]), trials, probability)
    return bool(low <= count <= high)


def trained_on(learner: Any, examples: Examples, seed: SeedSequence = SEED) -> list[Examples]:
    """Return the training sets of the learner's trainer, in order."""
    learner.fit(examples, seed=seed, compute=ONE)
    return list(learner.model.training_sets)


LEARNERS: list[Callable[[Any], Learner]] = [
    lambda model: NonPrivate(model),
    lambda model: ReleasedLabels(LeakyRandomizedResponse(1.0), model),
    lambda model: LP1ST(1.0, model),
    lambda model: LP1STNoiseCorrection(1.0, model),
    lambda model: LP1STDomainPrior(1.0, clusters=5, model=model),
    lambda model: LP2ST(1.0, model=model),
    lambda model: LP2ST(1.0, (0.5, 0.3, 0.2), 0.5, True, model),
    lambda model: PATE(1.0, teachers=4, queries=50, model=model),
    lambda model: LP1STDrawnAgain(1.0, model),
]


@pytest.mark.parametrize("make", LEARNERS)
def test_every_learner_trains_a_model_again_from_the_same_seed(make: Callable[[Any], Learner]) -> None:
    """Learners do not modify data, and pass the validation examples on."""
    learner = make(CatBoost(iterations=3, depth=2))
    assert isinstance(learner, Learner)
    check_mechanism(learner)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 3)).astype(np.float32)
    examples = Examples(features, (features[:, 0] > 0).astype(np.int64), 2)
    trainer, validation = RecordingTrainer(), examples.take(np.arange(40))
    make(trainer).fit(examples, seed=SeedSequence(5), compute=ONE, validation=validation)
    assert all(passed is validation for passed in trainer.validations)


def test_non_private_trains_on_true_labels_and_claims_nothing() -> None:
    labels = np.arange(50) % 2
    learner = NonPrivate(RecordingTrainer())
    assert (trained_on(learner, numbered(labels))[0].labels == labels).all()
    assert learner.claim() == Claim(math.inf)


def test_lp_1st_learns_from_one_randomised_response() -> None:
    labels, epsilon = np.arange(40_000) % 4, 1.3
    learner = LP1ST(epsilon, RecordingTrainer())
    (trained,) = trained_on(learner, numbered(labels, 4))
    assert learner.claim() == Claim(epsilon)
    assert (rows(trained) == np.arange(40_000)).all()
    assert plausible(int((trained.labels == labels).sum()), len(labels), RandomizedResponse(epsilon).keep(4))
    other = trained_on(LP1ST(epsilon, RecordingTrainer()), numbered(labels, 4), SeedSequence(22))[0]
    assert (other.labels != trained.labels).any()


def test_released_labels_claim_what_their_mechanism_claims() -> None:
    learner = ReleasedLabels(LeakyRandomizedResponse(1.0), RecordingTrainer())
    labels = np.zeros(40_000, np.int64)
    (trained,) = trained_on(learner, numbered(labels))
    assert learner.claim() == Claim(1.0)
    assert plausible(int((trained.labels == 0).sum()), 40_000, RandomizedResponse(3.0).keep(2))


# Noise correction


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_correction_is_the_published_formula_for_two_classes(epsilon: float) -> None:
    p = np.linspace(0, 1, 101)
    expected = np.clip(((1 + math.exp(epsilon)) * p - 1) / (math.exp(epsilon) - 1), 0, 1)
    corrected = correct_for_noise(np.stack([1 - p, p], axis=1), epsilon)
    np.testing.assert_allclose(corrected[:, 1], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(corrected.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_correction_inverts_randomised_response(classes: int, epsilon: float) -> None:
    true = np.random.default_rng(0).dirichlet(np.ones(classes), size=100)
    noisy = true @ RandomizedResponse(epsilon).transition(classes)
    np.testing.assert_allclose(correct_for_noise(noisy, epsilon), true, rtol=0, atol=1e-12)


def test_corrected_rows_are_distributions_after_clipping() -> None:
    """(.9, .1, 0) at epsilon 1: T^-1 gives (q (1 + 2f) - f) / (1 - f), f = 1/e; the last entry is cut to 0."""
    f = math.exp(-1)
    first, second = (0.9 * (1 + 2 * f) - f) / (1 - f), (0.1 * (1 + 2 * f) - f) / (1 - f)
    assert first > 1
    assert second < 0
    np.testing.assert_array_equal(correct_for_noise(np.array([[0.9, 0.1, 0.0]]), 1.0), [[1.0, 0.0, 0.0]])
    raw = np.random.default_rng(1).dirichlet(np.ones(5), size=1000)
    corrected = correct_for_noise(raw, 0.3)
    assert (corrected >= 0).all()
    np.testing.assert_allclose(corrected.sum(axis=1), 1, rtol=1e-12)


def test_the_learner_corrects_its_model() -> None:
    trainer = RecordingTrainer(lambda features: np.tile([0.6, 0.4], (len(features), 1)))
    plain, repaired = LP1ST(1.0, trainer), LP1STNoiseCorrection(1.0, trainer)
    examples = numbered(np.arange(100) % 2)
    model = repaired.fit(examples, seed=SEED, compute=ONE)
    plain.fit(examples, seed=SEED, compute=ONE)
    assert (trainer.training_sets[0].labels == trainer.training_sets[1].labels).all()
    np.testing.assert_array_equal(
        model.probabilities(examples.features), correct_for_noise(np.tile([0.6, 0.4], (100, 1)), 1.0)
    )
    assert repaired.claim() == plain.claim() == Claim(1.0)


# Domain prior


@pytest.mark.parametrize("rate", [0.0125, 0.5, 3.0])
def test_discrete_laplace_follows_its_law(rate: float) -> None:
    """Chi-square on values from -m to m with both tails joined, each expected at least 25 times."""
    noise = discrete_laplace(rate, (100_000,), np.random.default_rng(0))
    share = math.tanh(rate / 2)  # (1 - e^-rate) / (1 + e^-rate), the mass of 0
    largest = int(math.log(100_000 * share / 25) / rate)
    values = np.arange(-largest, largest + 1)
    expected = 100_000 * share * np.exp(-rate * np.abs(values))
    inside = np.abs(noise) <= largest
    counts = np.append(np.bincount(noise[inside] + largest, minlength=len(values)), (~inside).sum())
    expected = np.append(expected, 100_000 - expected.sum())
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(FALSE_FAILURE, len(expected) - 1)


def test_noisy_counts_of_one_changed_label_stay_within_epsilon() -> None:
    """By enumeration: counts (3, 1) against (2, 2), noise e^(-|t| eps / 2) on each; the worst odds are e^eps."""
    epsilon, outputs = 0.8, np.arange(-40, 45)
    first_law, other = (
        np.add.outer(-np.abs(outputs - first), -np.abs(outputs - second)) * epsilon / 2
        for first, second in ((3, 1), (2, 2))
    )
    assert np.abs(first_law - other).max() == pytest.approx(epsilon, rel=1e-12)


def test_class_shares_are_exact_without_noise_and_equal_without_positive_counts() -> None:
    cluster, labels = np.array([0, 0, 0, 0, 1, 2]), np.array([0, 0, 0, 1, 2, 1])
    shares = noisy_class_shares(cluster, labels, 3, 200.0, np.random.default_rng(0))
    np.testing.assert_array_equal(shares, [[0.75, 0.25, 0], [0, 0, 1], [0, 1, 0]])
    empty = noisy_class_shares(np.array([1]), np.array([2]), 3, 200.0, np.random.default_rng(0))
    np.testing.assert_allclose(empty[0], 1 / 3, rtol=1e-15)
    drowned = noisy_class_shares(np.arange(500), np.zeros(500, np.int64), 3, 0.01, np.random.default_rng(0))
    assert np.isfinite(drowned).all()
    np.testing.assert_allclose(drowned.sum(axis=1), 1, rtol=1e-12)


def test_the_cost_of_the_prior_is_subtracted_from_the_labels() -> None:
    """Balanced classes in one cluster: k* = 2, so labels are kept with e^(eps - eps_p) / (1 + e^(eps - eps_p)).

    The same count is no draw of the uncharged learner's rate: the planted defect is visible.
    """
    labels = np.arange(40_000) % 2
    agreement = {}
    for make in (LP1STDomainPrior, LP1STDomainPriorUncharged):
        (trained,) = trained_on(make(2.0, 1.0, clusters=1, model=RecordingTrainer()), numbered(labels))
        agreement[make] = int((trained.labels == labels).sum())
        assert make(2.0, 1.0).claim() == Claim(2.0)
    assert plausible(agreement[LP1STDomainPrior], 40_000, RandomizedResponse(1.0).keep(2))
    assert plausible(agreement[LP1STDomainPriorUncharged], 40_000, RandomizedResponse(2.0).keep(2))
    assert not plausible(agreement[LP1STDomainPrior], 40_000, RandomizedResponse(2.0).keep(2))
    with pytest.raises(InputError, match="epsilon must be greater than prior_epsilon"):
        LP1STDomainPrior(0.05)


@pytest.mark.parametrize(("epsilon", "distinct"), [(1.0, 1), (2.0, 1), (8.0, 2)])
def test_three_percent_clicks_leave_no_label_at_small_epsilon(epsilon: float, distinct: int) -> None:
    """Why the paper's table 2 has no result there. The noise moves the shares of 20,000 rows far less than needed."""
    labels = (np.arange(20_000) % 100 < 3).astype(np.int64)
    (trained,) = trained_on(LP1STDomainPrior(epsilon, clusters=1, model=RecordingTrainer()), numbered(labels))
    assert len(set(trained.labels)) == distinct


def test_clusters_may_be_the_values_of_a_column() -> None:
    """At epsilon 30 shares and labels are almost exact, and each group has different labels."""
    names = np.array(["a", "b", None], dtype=object)[np.arange(600) % 3]
    labels = np.where(names == "a", 0, np.where(names == "b", 1, 2)).astype(np.int64)
    data = Examples(pa.table({"x": np.zeros(600), "group": pa.array(names)}), labels, 3, categorical=("group",))
    learner = LP1STDomainPrior(30.0, 15.0, group_by="group", model=RecordingTrainer())
    assert (trained_on(learner, data)[0].labels == labels).all()
    # Each group has one label, of which its prior is sure: k* = 1, and the labels are answered from the prior alone.
    small = LP1STDomainPrior(15.001, 15.0, group_by="group", model=RecordingTrainer())
    assert (trained_on(small, data)[0].labels == labels).all()
    with pytest.raises(InputError, match="group_by must be one of the categorical columns"):
        LP1STDomainPrior(1.0, group_by="x", model=RecordingTrainer()).fit(data, seed=SEED, compute=ONE)


def test_k_means_recovers_clusters_and_numbers_them_without_gaps() -> None:
    rng = np.random.default_rng(0)
    centre = rng.integers(3, size=300)
    vectors = 100 * np.eye(3)[centre] + rng.normal(size=(300, 3))
    clusters = nearest_centres(vectors, 3, SEED)
    assert len({(c, f) for c, f in zip(centre, clusters, strict=True)}) == 3
    assert set(nearest_centres(np.repeat([[0.0], [1.0]], 5, axis=0), 50, SEED)) == {0, 1}
    assert sorted(nearest_centres(vectors, 300, SEED)) == list(range(300))
    np.testing.assert_array_equal(clusters, nearest_centres(vectors, 3, SEED))


@pytest.mark.parametrize("embedder", [Numbers(), PrincipalComponents(4), RandomConvolutions(6, 3)])
def test_embeddings_are_finite_and_repeatable(embedder: Embedder) -> None:
    pictures = np.random.default_rng(0).random((40, 2, 8, 8)).astype(np.float32)
    vectors = embedder.embed(pictures, ())
    assert isinstance(embedder, Embedder)
    assert vectors.shape == (40, {Numbers: 128, PrincipalComponents: 4, RandomConvolutions: 24}[type(embedder)])
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(vectors, embedder.embed(pictures, ()))


def test_numbers_are_standardised_and_missing_ones_are_the_mean() -> None:
    data = pa.table({"x": [1.0, None, 3.0], "c": ["a", "b", "c"], "same": [2.0, 2.0, 2.0]})
    np.testing.assert_allclose(Numbers().embed(data, ("c",)), [[-1, 0], [0, 0], [1, 0]])
    with pytest.raises(InputError, match="needs a numeric column"):
        Numbers().embed(data.select(["c"]), ("c",))
    with pytest.raises(InputError, match="needs images"):
        RandomConvolutions().embed(data, ("c",))


def test_the_out_of_domain_prior_embeds_pictures() -> None:
    pictures = np.random.default_rng(0).random((60, 1, 6, 6)).astype(np.float32)
    learner = LP1STOutOfDomainPrior(1.0, clusters=4, model=RecordingTrainer())
    assert learner.prior_epsilon == 0.025
    (trained,) = trained_on(learner, Examples(pictures, np.arange(60) % 2, 2))
    assert len(trained) == 60


# Stages


def test_lp_2st_answers_each_label_once() -> None:
    """The second half's by a model sure of class 1, k* = 1; the first half's, unchanged, by randomised response."""
    labels = np.zeros(20_000, np.int64)
    sure = RecordingTrainer(lambda features: np.tile([0.0, 1.0], (len(features), 1)))
    first, last = trained_on(LP2ST(1.0, model=sure), numbered(labels))
    assert (len(first), len(last)) == (10_000, 20_000)
    assert (rows(last) == np.arange(20_000)).all()
    assert (last.labels[rows(first)] == first.labels).all()
    assert plausible(int((first.labels == 0).sum()), 10_000, RandomizedResponse(1.0).keep(2))
    assert (np.delete(last.labels, rows(first)) == 1).all()


def test_an_undecided_prior_makes_every_stage_randomised_response() -> None:
    labels = np.arange(40_000) % 2
    _, last = trained_on(LP2ST(1.0, model=RecordingTrainer()), numbered(labels))
    assert plausible(int((last.labels == labels).sum()), 40_000, RandomizedResponse(1.0).keep(2))


def test_stages_grow_by_their_shares_in_random_order() -> None:
    trained = trained_on(LP2ST(1.0, (0.5, 0.3, 0.2), model=RecordingTrainer()), numbered(np.zeros(1000, np.int64)))
    assert [len(stage) for stage in trained] == [500, 800, 1000]
    assert set(rows(trained[0])) < set(rows(trained[1])) < set(rows(trained[2]))
    assert (rows(trained[0]) != np.arange(500)).any()
    for bad in ((), (0.5, 0.4), (1.2, -0.2)):
        with pytest.raises(InputError, match="shares must be > 0 and sum to 1"):
            LP2ST(1.0, bad)


def test_temperature_sharpens_the_prior() -> None:
    """Probabilities (.6, .4) at epsilon 1: k* = 2 at temperature 1, since .6 < e/(1+e) = .731.

    At T = .4 they are .6^2.5 : .4^2.5 = .734 : .266, so k* = 1.
    """
    unsure = lambda features: np.tile([0.6, 0.4], (len(features), 1))  # noqa: E731
    labels = np.ones(1000, np.int64)
    second = {}
    for temperature in (1.0, 0.4):
        first, last = trained_on(LP2ST(1.0, temperature=temperature, model=RecordingTrainer(unsure)), numbered(labels))
        second[temperature] = np.delete(last.labels, rows(first))
    assert set(second[1.0]) == {0, 1}
    assert set(second[0.4]) == {0}


def test_tiny_temperatures_do_not_lose_the_prior() -> None:
    unsure = lambda features: np.tile([0.2, 0.5, 0.3], (len(features), 1))  # noqa: E731
    learner = LP2ST(1.0, temperature=1e-4, model=RecordingTrainer(unsure))
    first, last = trained_on(learner, numbered(np.zeros(100, np.int64), 3))
    assert (np.delete(last.labels, rows(first)) == 1).all()


def test_unlikely_labels_of_earlier_stages_are_dropped() -> None:
    """k* = 1 in stage 2, so of stage 1 only the examples released as class 1 are left."""
    sure = RecordingTrainer(lambda features: np.tile([0.1, 0.9], (len(features), 1)))
    first, last = trained_on(LP2ST(0.5, drop_unlikely=True, model=sure), numbered(np.zeros(1000, np.int64)))
    assert set(first.labels) == {0, 1}
    assert len(last) == 500 + int((first.labels == 1).sum())
    assert (last.labels == 1).all()


def test_redrawn_labels_are_independent_draws_on_the_same_examples() -> None:
    """Both draws keep a label with probability keep^2; the pair of them costs twice the claim."""
    labels = np.zeros(40_000, np.int64)
    learner = LP1STDrawnAgain(1.0, RecordingTrainer())
    (trained,) = trained_on(learner, numbered(labels))
    first, second = trained.labels.reshape(2, -1)
    assert (rows(trained).reshape(2, -1) == np.arange(40_000)).all()
    assert plausible(int(((first == 0) & (second == 0)).sum()), 40_000, RandomizedResponse(1.0).keep(2) ** 2)
    assert learner.claim() == Claim(1.0)


# What was released, seen as it is


def test_recall_predicts_the_label_shares_of_training_examples() -> None:
    """Rows 0 and 1 occur twice, with labels (0, 2) and (1, 1); row 2 is not in the training data."""
    features = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    train = Examples(features, np.array([0, 1, 2, 1]), 3)
    queries = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    expected = [[0, 1, 0], [0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_array_equal(Recall().fit(train, seed=SEED, compute=ONE).probabilities(queries), expected)
    tables = [pa.table({"a": part[:, 0], "b": part[:, 1].astype(str)}) for part in (features, queries)]
    model = Recall().fit(train.with_(features=tables[0]), seed=SEED, compute=ONE)
    np.testing.assert_array_equal(model.probabilities(tables[1]), expected)
    assert build_recall_model(features[:0], np.zeros((0, 2))).probabilities(queries).tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize("labels", [OneHotLaplace(1.0), OneHotLaplaceSigmaForB(1.0)])
def test_noisy_one_hot_labels_reach_their_extreme_odds_for_a_quarter_of_two_classes(labels: OneHotLaplace) -> None:
    """o_y >= 1 and the other <= 0, each with probability 1/2: odds e^(2/b), which for the defect is e^(sqrt(2) eps)."""
    count, truth = 40_000, np.arange(40_000) % 2
    learner = NoisyOneHotLabels(labels)
    model = learner.fit(numbered(truth), seed=SEED, compute=ONE)
    right = model.probabilities(numbered(truth).features)[np.arange(count), truth]
    extreme = 2 / labels.scale()
    losses = np.log(right / (1 - right))
    assert losses.max() == pytest.approx(extreme, rel=1e-9)
    assert plausible(int((losses > extreme * (1 - 1e-9)).sum()), count, 0.25)
    assert learner.claim() == Claim(1.0)
