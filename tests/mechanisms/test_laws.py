"""The law of what each mechanism draws, against what its claim needs; each check fails at 10 % less noise.

Scales are worked out here from epsilon, delta and the sensitivity, never asked of the mechanism. False failure of each
case < 1e-6, and 10 % less noise is missed with probability < 1e-6: both are binomial probabilities (see `laws`), and
the second is asserted and tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import gamma, laplace, norm

from dpaudit.claims import ComposedLaplace
from dpaudit.engine.data.generated import MadePhrases
from dpaudit.mechanisms.adapters.opacus_dp_sgd import OpacusDpSgd
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse, RRWithPrior
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes, NoisySums
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.lp_mst import (
    LP1ST,
    LP2ST,
    LP1STDomainPrior,
    LP1STNoiseCorrection,
    LP1STOutOfDomainPrior,
    ReleasedLabels,
)
from dpaudit.mechanisms.learners.pate import PATE, PateFm, confident_gnmax
from dpaudit.mechanisms.learners.random_forest import PrivateForest
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels, NoisyOneHotLabels
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.predictors.ensemble import CaPC, PatePredictor
from dpaudit.mechanisms.predictors.local import StandIn
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.mechanisms.teachers import AnsweredQueries
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.registry import catalogue
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from dpaudit.synthetic_tables.mechanisms.mst_like import MstLike
from tests.mechanisms.laws import FALSE_FAILURE, Cells, departures, miss
from tests.mechanisms.test_learners import RecordingTrainer, numbered, rows
from tests.test_composed_laplace import twin_delta

LESS = 0.9
"""Share of the noise that the planted defects add."""
DRAWS = 100_000
"""Draws in one release."""
DELTA = 1e-5
CPU = Compute()


@dataclass(frozen=True)
class Quieter:
    """A defect: the same claim with 10 % less noise, and the chances of its cells."""

    mechanism: Any
    chances: Sequence[float]
    what: str = "noise"


@dataclass(frozen=True)
class Case:
    """A mechanism, the cells of its draws, their probabilities under the claim, and the defects to detect."""

    name: str
    mechanism: Any
    cells: Callable[[Any], Cells]
    chances: Sequence[float]
    quieter: Sequence[Quieter]
    what: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.what}".strip()


def two_releases(cells_of: Callable[[Any, SeedSequence], Cells]) -> Callable[[Any], Cells]:
    """Return the cells of two releases with different seeds."""
    return lambda mechanism: np.stack([cells_of(mechanism, seed) for seed in SeedSequence(7).spawn(2)])


# Laws, from the claim


def answered_truly(epsilon: float, among: int, classes: int | None = None) -> list[float]:
    """Randomised response: the true label e^epsilon times as likely as each other one, of those `among` it chooses."""
    odds = np.array([math.exp(epsilon)] + [1.0] * (among - 1) + [0.0] * ((classes or among) - among))
    return (odds / odds.sum()).tolist()  # type: ignore[no-any-return]


EDGES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""Ends of the cells of a continuous law, in units of the claim's scale."""


def between_edges(cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> list[float]:
    return np.diff(np.concatenate([[0.0], cdf(EDGES), [1.0]])).tolist()  # type: ignore[no-any-return]


def laplace_chances(less: float = 1.0) -> list[float]:
    return between_edges(lambda edges: laplace.cdf(edges / less))


def gaussian_chances(less: float = 1.0) -> list[float]:
    return between_edges(lambda edges: norm.cdf(edges / less))


def smaller_wins(gap: float, scale: float) -> float:
    """Chance that Laplace noise of a scale on two counts makes the smaller one, by `gap`, the larger."""
    return math.exp(-gap / scale) * (1 + gap / (2 * scale)) / 2


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu at which N(0, 1) and N(mu, 1) are (epsilon, delta) apart (Balle and Wang, 2018, theorem 5)."""

    def excess(mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 1e-3, 50, xtol=1e-12))


# Labels


def steps_from_the_truth(mechanism: LabelMechanism, classes: int) -> Cells:
    """Return the distance of each released label from the true one; neighbours in pairs have the same label."""
    labels = np.repeat(np.arange(DRAWS // 2) % classes, 2)
    released = [
        mechanism.release(labels, classes=classes, rng=np.random.default_rng(seed)) for seed in SeedSequence(1).spawn(2)
    ]
    return np.asarray((np.stack(released) - labels) % classes, dtype=np.int64)


def learned_from(learner: Any, seed: SeedSequence, classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the true labels and the training labels of a learner's last model, in the order of the examples."""
    labels = np.repeat(np.arange(DRAWS // 2) % classes, 2)
    learner.model.training_sets.clear()
    learner.fit(numbered(labels, classes), seed=seed, compute=CPU)
    return labels, learner.model.training_sets[-1].labels


def learned_steps(classes: int) -> Callable[[Any], Cells]:
    def cells_of(learner: Any, seed: SeedSequence) -> Cells:
        labels, released = learned_from(learner, seed, classes)
        return (released - labels) % classes

    return two_releases(cells_of)


FEW_LIKELY = (0.49, 0.49, 0.01, 0.01)
"""At epsilon 1, k* = 2: .98 e / (e + 1) = .716 against .49 for one label, .57 for three, .48 for four."""


def second_stage(learner: LP2ST, seed: SeedSequence) -> Cells:
    """Labels of the second stage: label 0 is one of the two that the first stage's model finds likely."""
    learner.model.training_sets.clear()  # type: ignore[attr-defined]
    learner.fit(numbered(np.zeros(2 * DRAWS, np.int64), 4), seed=seed, compute=CPU)
    first, last = learner.model.training_sets  # type: ignore[attr-defined]
    return np.delete(last.labels, rows(first))


def few_likely() -> RecordingTrainer:
    return RecordingTrainer(lambda features: np.tile(FEW_LIKELY, (len(features), 1)))


def undecided(classes: int) -> RecordingTrainer:
    return RecordingTrainer(lambda features: np.full((len(features), classes), 1 / classes))


LABELS = [
    *(
        Case(
            "randomized-response",
            RandomizedResponse(1.0),
            lambda mechanism, classes=classes: steps_from_the_truth(mechanism, classes),
            answered_truly(1.0, classes),
            [Quieter(RandomizedResponse(1 / LESS), answered_truly(1 / LESS, classes))],
            f"{classes} classes",
        )
        for classes in (2, 10)
    ),
    Case(
        "rr-with-prior",
        RRWithPrior(1.0, FEW_LIKELY),
        two_releases(
            lambda mechanism, seed: mechanism.release(
                np.zeros(DRAWS, np.int64), classes=4, rng=np.random.default_rng(seed)
            )
        ),
        answered_truly(1.0, 2, 4),
        [Quieter(RRWithPrior(1 / LESS, FEW_LIKELY), answered_truly(1 / LESS, 2, 4))],
    ),
    *(
        Case(
            name,
            learner(1.0),
            learned_steps(10),
            answered_truly(1.0, 10),
            [Quieter(learner(1 / LESS), answered_truly(1 / LESS, 10))],
            what,
        )
        for name, what, learner in (
            ("lp-1st", "", lambda epsilon: LP1ST(epsilon, RecordingTrainer())),
            ("lp-1st-noise-correction", "", lambda epsilon: LP1STNoiseCorrection(epsilon, RecordingTrainer())),
            ("released-labels", "", lambda epsilon: ReleasedLabels(RandomizedResponse(epsilon), RecordingTrainer())),
            ("lp-2st", "with an undecided model", lambda epsilon: LP2ST(epsilon, model=undecided(10))),
        )
    ),
    Case(
        "lp-2st",
        LP2ST(1.0, model=few_likely()),
        two_releases(second_stage),
        answered_truly(1.0, 2, 4),
        [Quieter(LP2ST(1 / LESS, model=few_likely()), answered_truly(1 / LESS, 2, 4))],
        "second stage",
    ),
]


# Noisy one-hot rows: another label moves two coordinates by 1, so Laplace noise of scale 2 / epsilon


class QuieterOneHotLaplace(OneHotLaplace):
    """DEFECT ON PURPOSE: 10 % less noise than its scale says."""

    def observe(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return OneHotLaplace(self.epsilon / LESS).observe(labels, classes=classes, rng=rng)


class QuieterAlibi(Alibi):
    """DEFECT ON PURPOSE: ALIBI with 10 % less noise."""

    def labels(self) -> OneHotLaplace:
        return QuieterOneHotLaplace(self.epsilon)


def noise_of_rows(mechanism: OneHotLaplace, seed: SeedSequence) -> Cells:
    labels = np.arange(DRAWS // 10) % 10
    noise = mechanism.observe(labels, classes=10, rng=np.random.default_rng(seed)) - np.eye(10)[labels]
    return np.searchsorted(EDGES, noise.ravel() / 2.0)


def largest_is_wrong(mechanism: OneHotLaplace, seed: SeedSequence) -> Cells:
    released = mechanism.release(np.zeros(2 * DRAWS, np.int64), classes=2, rng=np.random.default_rng(seed))
    return np.asarray(released, dtype=np.int64)


def recalled_odds(learner: NoisyOneHotLabels, seed: SeedSequence) -> Cells:
    """0: odds of e^epsilon against the true label of two; 2: as much for it; 1: between."""
    examples = numbered(np.zeros(DRAWS, np.int64))
    probabilities = learner.fit(examples, seed=seed, compute=CPU).probabilities(examples.features)
    odds = np.log(probabilities[:, 0] / probabilities[:, 1])
    return 1 + (odds > 1 - 1e-9).astype(np.int64) - (odds < -1 + 1e-9)


def evidence_signs(learner: Alibi, seed: SeedSequence) -> Cells:
    """0: a coordinate says as much as it can against the truth; 2: for it; 1: between."""
    labels = np.arange(DRAWS // 10) % 10
    task = learner.release_task(TrainingTask(np.arange(len(labels)), labels, seed), classes=10)
    truth = np.where(np.eye(10, dtype=bool)[labels], 1.0, -1.0)
    most = (task.labels * truth * 2.0).ravel()  # in units of 1 / b, b = 2
    return 1 + (most > 1 - 1e-5).astype(np.int64) - (most < -1 + 1e-5)


def odds_chances(less: float = 1.0) -> list[float]:
    """Both coordinates at their worst, at most 0 and at least 1, each with chance e^(-1/b) / 2; at their best, 1/2."""
    worst = (math.exp(-1 / (2 * less)) / 2) ** 2
    return [worst, 1 - worst - 0.25, 0.25]


def sign_chances(less: float = 1.0) -> list[float]:
    worst = math.exp(-1 / (2 * less)) / 2
    return [worst, 0.5 - worst, 0.5]


def wrong(chance: float) -> list[float]:
    return [1 - chance, chance]


ONE_HOT = [
    Case(
        "one-hot-laplace",
        OneHotLaplace(1.0),
        two_releases(noise_of_rows),
        laplace_chances(),
        [Quieter(QuieterOneHotLaplace(1.0), laplace_chances(LESS))],
        "noisy rows",
    ),
    Case(
        "one-hot-laplace",
        OneHotLaplace(1.0),
        two_releases(largest_is_wrong),
        wrong(smaller_wins(1, 2.0)),
        [Quieter(QuieterOneHotLaplace(1.0), wrong(smaller_wins(1, LESS * 2.0)))],
        "released labels",
    ),
    Case(
        "noisy-one-hot-labels",
        NoisyOneHotLabels(OneHotLaplace(1.0)),
        two_releases(recalled_odds),
        odds_chances(),
        [Quieter(NoisyOneHotLabels(QuieterOneHotLaplace(1.0)), odds_chances(LESS))],
    ),
    Case(
        "alibi",
        Alibi(1.0),
        two_releases(evidence_signs),
        sign_chances(),
        [Quieter(QuieterAlibi(1.0), sign_chances(LESS))],
    ),
]


# Counts of bags: another label moves one count by 1, so noise of rate epsilon; bags of one tell the whole law


class QuieterLaplace(LaplaceProportions):
    """DEFECT ON PURPOSE: 10 % less noise on counts."""

    def _noisy(self, positives: Any, sizes: Any, rng: np.random.Generator) -> Any:
        return positives + LESS * (super()._noisy(positives, sizes, rng) - positives)


def noise_of_counts(mechanism: LaplaceProportions, seed: SeedSequence) -> Cells:
    positives = np.arange(DRAWS) % 9
    released = mechanism.release_counts(np.stack([8 - positives, positives], axis=1), rng=np.random.default_rng(seed))
    return np.searchsorted(EDGES, released[:, 1] - positives)


def cut_counts(mechanism: GeometricProportions, seed: SeedSequence) -> Cells:
    """Return the releases for bags of three with one positive label."""
    released = mechanism.release_counts(np.tile([2, 1], (DRAWS, 1)), rng=np.random.default_rng(seed))
    return np.asarray(released[:, 1], dtype=np.int64)


def cut_chances(epsilon: float) -> list[float]:
    """Return the probabilities, with the noise beyond the ends summed up."""
    noise = np.arange(-2000, 2001)
    law = np.exp(-epsilon * np.abs(noise)) / np.exp(-epsilon * np.abs(noise)).sum()
    return [law[noise <= -1].sum(), law[noise == 0].sum(), law[noise == 1].sum(), law[noise >= 2].sum()]


def recalled_from_bags_of_one(learner: AggregatedLabels, seed: SeedSequence) -> Cells:
    """Return 0 if the posterior favours the true label, 1 if it favours the other."""
    examples = numbered(np.arange(DRAWS) // 2 % 2)
    answers = learner.fit(examples, seed=seed, compute=CPU).probabilities(examples.features)
    return (answers[np.arange(DRAWS), examples.labels] < 0.5).astype(np.int64)


COUNTS = [
    Case(
        "llp-laplace",
        LaplaceProportions(epsilon=1.0),
        two_releases(noise_of_counts),
        between_edges(laplace.cdf),
        [Quieter(QuieterLaplace(epsilon=1.0), laplace_chances(LESS))],
    ),
    Case(
        "llp-geometric",
        GeometricProportions(epsilon=1.0),
        two_releases(cut_counts),
        cut_chances(1.0),
        [Quieter(GeometricProportions(epsilon=1 / LESS), cut_chances(1 / LESS))],
    ),
    Case(
        "aggregated-labels",
        AggregatedLabels(GeometricProportions(size=1, epsilon=1.0)),
        two_releases(recalled_from_bags_of_one),
        answered_truly(1.0, 2),
        [Quieter(AggregatedLabels(GeometricProportions(size=1, epsilon=1 / LESS)), answered_truly(1 / LESS, 2))],
    ),
]


# Generators of tables: a record moves one count of each marginal by 1. Without rows, the released counts are the noise

WORDS = {"word": [f"w{number}" for number in range(10)]}


def noise_of_marginals(generator: IndependentMarginals | MstLike, seed: SeedSequence) -> NDArray[np.float64]:
    """Return the noisy counts of a table without rows in as many releases as give `DRAWS` counts."""
    rows = Schema.of(WORDS).draw(0, np.random.default_rng(0))
    seeds = np.random.default_rng(seed).integers(0, 2**31, DRAWS // len(WORDS["word"])).tolist()
    return generator.releases(rows, 1, seeds).measurements[:, : len(WORDS["word"])].ravel()


def cut_marginals(generator: IndependentMarginals, seed: SeedSequence) -> Cells:
    return np.clip(noise_of_marginals(generator, seed), -1, 2).astype(np.int64) + 1


def one_way_noise(generator: MstLike, seed: SeedSequence) -> Cells:
    """A third of rho = 1.5 pays for the one-way marginal: Gaussian noise of deviation 1."""
    return np.searchsorted(EDGES, noise_of_marginals(generator, seed))


GENERATORS = [
    Case(
        "independent-marginals",
        IndependentMarginals(1.0, WORDS),
        two_releases(cut_marginals),
        cut_chances(1.0),
        [Quieter(IndependentMarginals(1.0, WORDS, noise_factor=LESS), cut_chances(1 / LESS))],
    ),
    Case(
        "mst-like",
        MstLike(1.5, WORDS),
        two_releases(one_way_noise),
        gaussian_chances(),
        [Quieter(MstLike(1.5, WORDS, noise_factor=LESS), gaussian_chances(LESS))],
    ),
]


# Domain prior: a label moves two counts of its cluster by 1, so discrete Laplace noise of rate prior_epsilon / 2


def in_groups(groups: NDArray[np.int64], labels: NDArray[np.int64]) -> Examples:
    return Examples(pa.table({"group": pa.array(groups.astype(str))}), labels, 2, categorical=("group",))


def outvoted(learner: LP1STDomainPrior, seed: SeedSequence) -> Cells:
    """Return 1 for each cluster of three labels 0 that are released as 1; the labels have next to no epsilon.

    The larger noisy count is then all that is answered; equal ones are answered by a fair coin.
    """
    clusters = DRAWS // 2
    examples = in_groups(np.repeat(np.arange(clusters), 3), np.zeros(3 * clusters, np.int64))
    learner.model.training_sets.clear()  # type: ignore[attr-defined]
    learner.fit(examples, seed=seed, compute=CPU)
    return learner.model.training_sets[-1].labels[::3]  # type: ignore[attr-defined,no-any-return]


def outvoted_chance(epsilon: float) -> float:
    """By enumeration of both counts' noise, t with probability in proportion to e^(-|t| epsilon / 2)."""
    noise = np.arange(-200, 201)
    law = np.exp(-np.abs(noise) * epsilon / 2)
    joint = np.outer(law, law) / law.sum() ** 2
    zeros, ones = np.maximum(3 + noise, 0)[:, None], np.maximum(noise, 0)[None]
    return float(joint[(ones > zeros)].sum() + joint[ones == zeros].sum() / 2)


def kept_in_one_cluster(learner: LP1STDomainPrior, seed: SeedSequence) -> Cells:
    labels = np.repeat(np.arange(DRAWS // 2) % 2, 2)
    learner.model.training_sets.clear()  # type: ignore[attr-defined]
    learner.fit(in_groups(np.zeros(DRAWS, np.int64), labels), seed=seed, compute=CPU)
    return (learner.model.training_sets[-1].labels - labels) % 2  # type: ignore[attr-defined,no-any-return]


LITTLE = 1e-6
"""Epsilon of the labels when the prior is tested: shares of 1/2 + 1e-6 decide."""

PRIORS = [
    case
    for name, learner in (
        ("lp-1st-domain-prior", LP1STDomainPrior),
        ("lp-1st-out-of-domain-prior", LP1STOutOfDomainPrior),
    )
    for case in (
        Case(
            name,
            learner(1 + LITTLE, 1.0, group_by="group", model=RecordingTrainer()),
            two_releases(outvoted),
            wrong(outvoted_chance(1.0)),
            [
                Quieter(
                    learner(1 / LESS + LITTLE, 1 / LESS, group_by="group", model=RecordingTrainer()),
                    wrong(outvoted_chance(1 / LESS)),
                )
            ],
            "prior",
        ),
        Case(
            name,
            learner(2.0, 1.0, group_by="group", model=RecordingTrainer()),
            two_releases(kept_in_one_cluster),
            answered_truly(2.0 - 1.0, 2),
            [
                Quieter(
                    learner(1 + 1 / LESS, 1.0, group_by="group", model=RecordingTrainer()), answered_truly(1 / LESS, 2)
                )
            ],
            "labels",
        ),
    )
]


# PATE: a label moves two counts by 1 on each query, and the largest by at most 1


class QuieterPATE(PATE):
    """DEFECT ON PURPOSE: 10 % less noise on the votes."""

    def affordable_noise(self) -> float:
        return LESS * super().affordable_noise()


QUERIES = 5
PATE_SCALE = float(
    brentq(
        lambda scale: twin_delta(ComposedLaplace(scale, 2 * QUERIES), 1.0) - DELTA, 3.0, 2.0 * QUERIES + 3, xtol=1e-6
    )
)
"""At which ten Laplace numbers are (1, 1e-5) apart, by the slow twin."""
GAP = 10
VOTES = np.tile([30 + GAP, 30], (2 * DRAWS, 1))
FEW_VOTES = np.tile([5, 0], (2 * DRAWS, 1))


def answered(votes: NDArray[np.int64]) -> Callable[[Any], Cells]:
    return two_releases(lambda learner, seed: learner.answers(votes, np.random.default_rng(seed)))


def sampled_second(scale: float) -> float:
    """Return the probability of drawing the class without votes from positive noisy counts, by the midpoint rule."""
    chances = (np.arange(3000) + 0.5) / 3000
    noise = laplace.ppf(chances) * scale
    first, second = np.maximum(5 + noise, 0)[:, None], np.maximum(noise, 0)[None]
    both = first + second
    return float(np.where(both > 0, second / np.where(both > 0, both, 1), 0.5).mean())


class QuieterAnswers(PateFm):
    """DEFECT ON PURPOSE: 10 % less noise on the votes of the queries that are answered."""

    threshold_share, vote_share = 1.0, LESS

    def release_answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> AnsweredQueries:
        factor = self.noise_factor()
        return confident_gnmax(
            votes,
            threshold=self.threshold,
            threshold_noise=self.threshold_share * factor * self.threshold_noise,
            vote_noise=self.vote_share * factor * self.vote_noise,
            rng=rng,
            answers=self.answers,
        )


class QuieterThreshold(QuieterAnswers):
    """DEFECT ON PURPOSE: 10 % less noise on the count that the threshold looks at."""

    threshold_share, vote_share = LESS, 1.0


GAUSSIANS = {"epsilon": 1.0, "queries": DRAWS, "answers": DRAWS, "threshold": 0.0}
FACTOR = math.sqrt(DRAWS / 160**2 + 2 * DRAWS / 20**2) / gaussian_mu(1.0, DELTA)
LARGEST, SECOND = round(160 * FACTOR), round(160 * FACTOR - 1.4 * 20 * FACTOR)


def confident_answers(learner: PateFm, seed: SeedSequence) -> Cells:
    """0 for no answer, 1 for the most voted class, 2 for the other one."""
    answered = learner.release_answers(np.tile([LARGEST, SECOND], (DRAWS, 1)), np.random.default_rng(seed))
    cells = np.zeros(DRAWS, np.int64)
    cells[answered.queries] = 1 + answered.labels
    return cells


def confident_chances(threshold: float = 1.0, votes: float = 1.0) -> list[float]:
    passes = float(norm.cdf(LARGEST / (threshold * 160 * FACTOR)))
    right = float(norm.cdf((LARGEST - SECOND) / (math.sqrt(2) * votes * 20 * FACTOR)))
    return [1 - passes, passes * right, passes * (1 - right)]


VOTING = [
    Case(
        "pate",
        PATE(1.0, queries=QUERIES, answer="argmax"),
        answered(VOTES),
        wrong(smaller_wins(GAP, PATE_SCALE)),
        [Quieter(QuieterPATE(1.0, queries=QUERIES, answer="argmax"), wrong(smaller_wins(GAP, LESS * PATE_SCALE)))],
        "argmax",
    ),
    Case(
        "pate",
        PATE(1.0, queries=QUERIES, answer="sampled"),
        answered(FEW_VOTES),
        wrong(sampled_second(PATE_SCALE)),
        [Quieter(QuieterPATE(1.0, queries=QUERIES), wrong(sampled_second(LESS * PATE_SCALE)))],
        "sampled",
    ),
    Case(
        "pate-fm",
        PateFm(**GAUSSIANS),  # type: ignore[arg-type]
        two_releases(confident_answers),
        confident_chances(),
        [
            Quieter(QuieterAnswers(**GAUSSIANS), confident_chances(votes=LESS), "votes"),  # type: ignore[arg-type]
            Quieter(QuieterThreshold(**GAUSSIANS), confident_chances(threshold=LESS), "threshold"),  # type: ignore[arg-type]
        ],
    ),
]


# DP-SGD: a record moves a step's sum by the clip, in steps it is sampled for

NETWORK = Mlp(hidden=(64,), epochs=20, batch_size=20, learning_rate=1e-6, momentum=0.0)
ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(a) for a in range(11, 64)] + [64.0, 128.0, 256.0, 512.0, 1024.0]


def renyi_epsilon(multiplier: float, steps: int) -> float:
    """Return epsilon of unsampled steps: Renyi divergence a / (2 m^2) each, converted as Canonne et al. (2020)."""
    return min(
        steps * a / (2 * multiplier**2) + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1) for a in ORDERS
    )


STEP_NOISE = float(brentq(lambda m: renyi_epsilon(m, 20) - 1.0, 1, 200, xtol=1e-9))


@dataclass(frozen=True)
class LooserSteps(DpSgd):
    """DEFECT ON PURPOSE: other steps than its claim is about."""

    noise: float = 1.0
    bound: float = 1.0
    rate: float = 1.0

    def private_steps(self) -> PrivateSteps:
        honest = super().private_steps()
        return PrivateSteps(
            honest.clip * self.bound, honest.noise_multiplier * self.noise, honest.sample_rate * self.rate
        )


def releases(learner: DpSgd, features: NDArray[np.float32], tasks: list[TrainingTask]) -> NDArray[np.float32]:
    """Noisy sums of each step, shape (steps, models, P)."""
    gradients: list[NDArray[np.float32]] = []

    def observer(places: NDArray[np.int64], step: int, parameters: Any, released: Any) -> None:
        gradients.append(released.numpy()[np.argsort(places)] * learner.model.batch_size)

    plan = StackPlan("batched", len(tasks))
    learner.fit_stack(features, tasks, classes=10, compute=CPU, plan=plan, observer=observer)
    return np.stack(gradients)


def step_noise(learner: DpSgd) -> Cells:
    """Sums of steps whose one example has no gradient, in units of the clip and the claim's noise."""
    nothing = TrainingTask(np.array([0]), np.zeros((1, 10), np.float32), SeedSequence(9))
    sums = releases(learner, np.ones((1, 64), np.float32), [nothing])[:, 0]
    return np.searchsorted(EDGES, sums / (learner.clip * STEP_NOISE))


def moved_sums(learner: DpSgd) -> Cells:
    """Return, without noise, 0 if a model's one example took no part, 1 if it moved the sum by the clip, 2 by more."""
    features = np.ones((1, 64), np.float32)
    seeds = SeedSequence(3).spawn(128)
    tasks = [TrainingTask(np.array([0]), np.array([place % 10]), seed) for place, seed in enumerate(seeds)]
    norms = np.linalg.norm(releases(learner, features, tasks), axis=2)
    assert ((norms == 0) | (norms > 0.99 * learner.clip)).all()
    return (norms > 0).astype(np.int64) + (norms > learner.clip * (1 + 1e-4))


def dp_sgd(noise: float = 1.0) -> LooserSteps:
    return LooserSteps(1.0, DELTA, 0.5, 1.0, model=NETWORK, noise=noise)


SMALL = Mlp(hidden=(4,), epochs=40, batch_size=20, learning_rate=1e-6, momentum=0.0)


def dp_sgd_sampled(bound: float = 1.0, rate: float = 1.0) -> LooserSteps:
    return LooserSteps(math.inf, DELTA, 0.01, 0.5, model=SMALL, bound=bound, rate=rate)


OPACUS = {"epsilon": 1.0, "delta": DELTA, "accountant": "rdp"}


def last_step_of_opacus(learner: OpacusDpSgd) -> Cells:
    """Return one step of the first layer's weights. Blank examples have gradient 0: noise m C over the batch.

    The first weights themselves are those of a training that hardly moves.
    """
    blank = Examples(np.zeros((4, 64), np.float32), np.arange(4), 10)
    moved = []
    for seed in SeedSequence(5).spawn(6):
        still, fast = (
            replace(learner, model=opacus_network(rate))
            .fit(blank, seed=seed, compute=CPU)
            .parameters[: 64 * 256]  # type: ignore[attr-defined]
            .astype(np.float64)
            for rate in (1e-30, 1.0)
        )
        moved.append((still - fast) * len(blank))
    return np.searchsorted(EDGES, np.stack(moved) / opacus_multiplier())


def opacus_network(rate: float) -> Mlp:
    return Mlp(hidden=(256,), epochs=1, batch_size=4, learning_rate=rate, momentum=0.0)


def opacus_multiplier() -> float:
    """Return Opacus's epsilon of one unsampled step, for a clip of 1."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(target_epsilon=1.0, target_delta=DELTA, sample_rate=1.0, epochs=1, accountant="rdp")
    )


STEPS = [
    Case(
        "dp-sgd",
        DpSgd(1.0, DELTA, 0.5, 1.0, model=NETWORK),
        step_noise,
        gaussian_chances(),
        [Quieter(dp_sgd(noise=LESS), gaussian_chances(LESS))],
        "noise",
    ),
    Case(
        "dp-sgd",
        DpSgd(math.inf, DELTA, 0.01, 0.5, model=SMALL),
        moved_sums,
        [0.5, 0.5, 0.0],
        [
            Quieter(dp_sgd_sampled(rate=1 / LESS), [1 - 0.5 / LESS, 0.5 / LESS, 0.0], "sampling"),
            Quieter(dp_sgd_sampled(bound=1 / LESS), [0.5, 0.0, 0.5], "clip"),
        ],
        "sampling and clip",
    ),
    Case(
        "opacus-dp-sgd",
        OpacusDpSgd(**OPACUS),  # type: ignore[arg-type]
        last_step_of_opacus,
        gaussian_chances(),
        [Quieter(OpacusDpSgd(**OPACUS, clip=LESS), gaussian_chances(LESS))],  # type: ignore[arg-type]
    ),
]

# Naive Bayes and logistic regression: what is released, in units of the claim's scale, drawn in bulk and one by one

BULK, ALONE = 1_000, 150
"""Trainings of one release: drawn together, or each by `fit`."""
NO_POINTS = np.empty((0, 0), np.float32)
HALVES = Examples(np.repeat(np.float32([[0.25], [0.75]]), 500, 0).repeat(200, 1), np.arange(1_000) % 2, 2)
"""Two classes whose sums about the middle are 0; noise stays far from the clipping limits."""
MANY_CLASSES = Examples(np.zeros((4_000, 1), np.float32), np.arange(4_000) % 200, 200)


def released_by_bayes(learner: GaussianNaiveBayes, data: Examples, seed: SeedSequence, *, bulk: bool) -> NoisySums:
    """Counts, means and variances of many trainings."""
    k, d = data.classes, data.features.shape[1]
    if not bulk:
        models = [learner.fit(data, seed=child, compute=CPU) for child in seed.spawn(ALONE)]
        parts = (np.array([getattr(model, name) for model in models]) for name in ("count", "mean", "variance"))
        return NoisySums(*parts)
    summaries = learner.sample_summaries(data, NO_POINTS, BULK, seed=seed, compute=CPU)
    count, total, squares = np.split(summaries, [k, k * (1 + d)], axis=1)
    wide = count[..., None]
    return NoisySums(count, total.reshape(BULK, k, d) / wide, squares.reshape(BULK, k, d) / wide)


def bayes_counts(seed: SeedSequence, learner: GaussianNaiveBayes, bulk: bool) -> Cells:
    noise = released_by_bayes(learner, MANY_CLASSES, seed, bulk=bulk).count - 20
    return (np.clip(noise, -2, 2) + 2).astype(np.int64).ravel()


def bayes_sums(seed: SeedSequence, learner: GaussianNaiveBayes, bulk: bool) -> Cells:
    """The claim: half the range, times the features, over a third of epsilon."""
    released = released_by_bayes(learner, HALVES, seed, bulk=bulk)
    noise = (released.mean - 0.5) * released.count[..., None]
    return np.searchsorted(EDGES, noise / (0.5 * 200 / 200.0)).ravel()


def bayes_squares(seed: SeedSequence, learner: GaussianNaiveBayes, bulk: bool) -> Cells:
    """The claim: the square of the farther end's distance, times the features, over a third of epsilon."""
    released = released_by_bayes(learner, HALVES, seed, bulk=bulk)
    away = released.mean - 0.5
    noise = released.variance * released.count[..., None] - 500 * (0.0625 + away**2)
    return np.searchsorted(EDGES, noise / ((0.5 + np.abs(away)) ** 2 * 200 / 200.0)).ravel()


def geometric_chances(epsilon: float) -> list[float]:
    """Two-sided geometric: at most -2, -1, 0, 1, at least 2."""
    a = math.exp(-epsilon)
    return [a**2 / (1 + a), a * (1 - a) / (1 + a), (1 - a) / (1 + a), a * (1 - a) / (1 + a), a**2 / (1 + a)]


MANY_PROBLEMS = Examples(np.zeros((40, 2), np.float32), np.arange(40), 40)


@dataclass(frozen=True)
class KnownMinimiser(LogisticOutputPerturbation):
    """Its minimisers are known, so that a thousand fits are a thousand draws of noise and no more."""

    def noiseless(self, train: Examples, compute: Compute) -> NDArray[np.float64]:
        return np.zeros((train.classes, 3))


LENGTHS = np.array([1.0, 2.0, 3.0, 4.5])


def perturbed(seed: SeedSequence, learner: KnownMinimiser, bulk: bool) -> NDArray[np.float64]:
    """Noise on the coefficients of 40 problems, shape (draws, 3), in units of 2 / (n penalty epsilon / 40)."""
    if bulk:
        coefficients = learner.sample_summaries(MANY_PROBLEMS, NO_POINTS, 1_000, seed=seed, compute=CPU).reshape(-1, 3)
    else:
        models = [learner.fit(MANY_PROBLEMS, seed=child, compute=CPU) for child in seed.spawn(200)]
        coefficients = np.concatenate([model.weights for model in models])
    noise: NDArray[np.float64] = coefficients / (2 / (40 * 0.5 * 1.0 / 40))
    return noise


def lengths(seed: SeedSequence, learner: KnownMinimiser, bulk: bool) -> Cells:
    return np.searchsorted(LENGTHS, np.linalg.norm(perturbed(seed, learner, bulk), axis=1))


def directions(seed: SeedSequence, learner: KnownMinimiser, bulk: bool) -> Cells:
    """One coordinate of a uniform direction in three dimensions is uniform (Archimedes); its sign, with another's."""
    noise = perturbed(seed, learner, bulk)
    upright = noise[:, 2] / np.linalg.norm(noise, axis=1)
    return np.searchsorted([-0.5, 0.0, 0.5], upright) * 2 + (noise[:, 0] > 0)


def length_chances(less: float = 1.0) -> list[float]:
    return np.diff(np.concatenate([[0.0], gamma.cdf(LENGTHS / less, 3), [1.0]])).tolist()  # type: ignore[no-any-return]


def objective_noise(seed: SeedSequence, learner: LogisticObjectivePerturbation, bulk: bool) -> NDArray[np.float64]:
    """The linear term, from the gradient at the minimisers: shape (draws, 3), in units of 2 / eps'.

    eps' = 1 - 2 log(1 + 1 / (4 n penalty)) with n = 4 and penalty 0.5; two classes are one problem.
    """
    n, penalty = len(FOUR_ROWS), 0.5
    rows = learner.rows(FOUR_ROWS.features) * np.where(FOUR_ROWS.labels == 1, 1.0, -1.0)[:, None]
    if bulk:
        coefficients = learner.sample_summaries(FOUR_ROWS, NO_POINTS, 40_000, seed=seed, compute=CPU)
    else:
        coefficients = np.concatenate(
            [learner.fit(FOUR_ROWS, seed=child, compute=CPU).weights for child in seed.spawn(OBJECTIVE_ALONE)]
        )
    pulled = rows.T @ expit(-rows @ coefficients.T)
    noise: NDArray[np.float64] = (
        (pulled.T - n * penalty * coefficients) * (1 - 2 * math.log1p(0.25 / (n * penalty))) / 2
    )
    return noise


FOUR_ROWS = Examples(np.float32([[0.6, 0.2], [-0.4, 0.5], [0.1, -0.9], [-0.3, -0.3]]), np.arange(4) % 2, 2)
OBJECTIVE_ALONE = 300


def objective_lengths(seed: SeedSequence, learner: LogisticObjectivePerturbation, bulk: bool) -> Cells:
    return np.searchsorted(LENGTHS, np.linalg.norm(objective_noise(seed, learner, bulk), axis=1))


TOGETHER = Examples(np.full((7, 2), 0.3, np.float32), np.array([0, 0, 0, 0, 0, 1, 1]), 2)
"""Equal records share a leaf of one tree for any splits: five of one class, two of the other."""


def forest_answers(seed: SeedSequence, learner: PrivateForest, bulk: bool) -> Cells:
    """Return the answers of the tree with the records at their position: the larger count, unless noise wins."""
    tree = int(learner.tree_of(learner.clipped(TOGETHER.features))[0])
    if bulk:
        summaries = learner.sample_summaries(TOGETHER, TOGETHER.features[:1], 40_000, seed=seed, compute=CPU)
        return summaries.reshape(-1, learner.trees, 2)[:, tree, 1].astype(np.int64)
    models = [learner.fit(TOGETHER, seed=child, compute=CPU) for child in seed.spawn(2_500)]
    return np.array([model.votes(TOGETHER.features[:1])[0, tree] for model in models])


def forest_chances(epsilon: float) -> list[float]:
    """Permute-and-flip of two classes, three apart: the other one with half of e^(-3 epsilon)."""
    other = math.exp(-3 * epsilon) / 2
    return [1 - other, other]


def exponential_forest_chances(epsilon: float) -> list[float]:
    """Exponential mechanism of two classes, three apart: odds of e^(3 epsilon)."""
    other = 1 / (1 + math.exp(3 * epsilon))
    return [1 - other, other]


def bulk_and_alone(
    name: str, mechanism: Any, less: Any, cells: Any, chances: Sequence[float], fewer: Sequence[float], what: str
) -> list[Case]:
    """Build the cases of one law for both ways to draw."""
    return [
        Case(
            name,
            mechanism,
            lambda learner, bulk=bulk: two_releases(lambda trained, seed: cells(seed, trained, bulk))(learner),  # type: ignore[misc]
            chances,
            [Quieter(less, fewer, f"{what}, {way}")] if less is not None else [],
            f"{what}, {way}",
        )
        for way, bulk in (("in bulk", True), ("one by one", False))
    ]


BAYES, QUIETER_BAYES = GaussianNaiveBayes(600.0), GaussianNaiveBayes(600.0 / LESS)
PERTURBED = KnownMinimiser(1.0, penalty=0.5)
SUMMARIES = [
    *bulk_and_alone(
        "gaussian-naive-bayes",
        GaussianNaiveBayes(3.0),
        GaussianNaiveBayes(3.0 / LESS),
        bayes_counts,
        geometric_chances(1.0),
        geometric_chances(1 / LESS),
        "counts",
    ),
    *bulk_and_alone(
        "gaussian-naive-bayes", BAYES, QUIETER_BAYES, bayes_sums, laplace_chances(), laplace_chances(LESS), "sums"
    ),
    *bulk_and_alone(
        "gaussian-naive-bayes", BAYES, QUIETER_BAYES, bayes_squares, laplace_chances(), laplace_chances(LESS), "squares"
    ),
    *bulk_and_alone(
        "logistic-output-perturbation",
        PERTURBED,
        KnownMinimiser(1.0 / LESS, penalty=0.5),
        lengths,
        length_chances(),
        length_chances(LESS),
        "lengths",
    ),
    *bulk_and_alone(
        "logistic-objective-perturbation",
        LogisticObjectivePerturbation(1.0, penalty=0.5),
        None,
        objective_lengths,
        length_chances(),
        [],
        "lengths",
    ),
    *bulk_and_alone(
        "random-forest",
        PrivateForest(0.25, trees=2, depth=2),
        PrivateForest(0.25 / 0.7, trees=2, depth=2),
        forest_answers,
        forest_chances(0.25),
        forest_chances(0.25 / 0.7),
        "answers",
    ),
    *bulk_and_alone(
        "random-forest",
        PrivateForest(0.25, trees=2, depth=2, selection="exponential"),
        PrivateForest(0.25, trees=2, depth=2),
        forest_answers,
        exponential_forest_chances(0.25),
        forest_chances(0.25),
        "answers, exponential",
    ),
    *bulk_and_alone("logistic-output-perturbation", PERTURBED, None, directions, [1 / 8] * 8, [], "directions"),
]

# Private predictors: Gaussian noise on each count, of which one falls and one rises; records kept at random

SIGMA = 8.0


def predicted(predictor: Any, seed: SeedSequence) -> Cells:
    return predictor.release().answers(VOTES, np.random.default_rng(seed))  # type: ignore[no-any-return]


def smaller_wins_gaussian(predictor: Any) -> list[float]:
    """By the claim, sqrt(2) / sigma-GDP, the noise that a vote that moves needs."""
    sigma = math.sqrt(2) / predictor.claim().curve.mu
    return wrong(float(norm.cdf(-GAP / (math.sqrt(2) * sigma))))


def nearest_is_left_out(predictor: PrivateKnn, seed: SeedSequence) -> Cells:
    """Return 0 if the nearest record votes, 1 if another record votes instead."""
    labels, none = np.array([[0] + [1] * 200]), np.zeros((1, 0), np.int64)
    law = predictor.law(labels, none, none[0], added=False, classes=2)
    return law.draw(2 * DRAWS, np.random.default_rng(seed))[:, 1]


def predicting(predictor: Any) -> Case:
    quieter = replace(predictor, sigma=LESS * SIGMA)
    return Case(
        predictor.registered_name,
        predictor,
        two_releases(predicted),
        smaller_wins_gaussian(predictor) if not isinstance(predictor, PrivateKnn) else wrong(SMALLER),
        [Quieter(quieter, wrong(float(norm.cdf(-GAP / (math.sqrt(2) * LESS * SIGMA)))))],
        "votes",
    )


SMALLER = float(norm.cdf(-GAP / (math.sqrt(2) * SIGMA)))
PREDICTING = [
    *map(
        predicting,
        (
            PatePredictor(SIGMA),
            CaPC(SIGMA),
            PrivateKnn(SIGMA),
            PromptPate(sigma=SIGMA, model=StandIn(public=MadePhrases(raw=True))),
        ),
    ),
    Case(
        "private-knn",
        PrivateKnn(SIGMA, neighbours=1, rate=0.2),
        two_releases(nearest_is_left_out),
        wrong(1 - 0.2),
        [Quieter(PrivateKnn(SIGMA, neighbours=1, rate=0.2 / LESS), wrong(1 - 0.2 / LESS), "sampling")],
        "sampling",
    ),
]

CASES = [*LABELS, *ONE_HOT, *COUNTS, *GENERATORS, *PRIORS, *VOTING, *STEPS, *SUMMARIES, *PREDICTING]
DEFECTS = [(case, quieter) for case in CASES for quieter in case.quieter]

SILENT = {
    "own-predictor": "all that is drawn is drawn by the user's predictor",
    "prediction-endpoint": "all that is drawn is drawn behind the address",
    "llp": "releases counts as they are, and claims nothing",
    "non-private": "trains on the labels as they are, and claims nothing",
    "sklearn": "all that is drawn is drawn by the user's estimator",
    "torch": "all that is drawn is drawn by the user's training loop",
    "callable": "all that is drawn is drawn by the user's function",
    "diffprivlib": "the noise is that of the library, which is run as it is",
    "released-model": "all that is drawn is drawn by the learner it sums up",
    "own-steps": "all that is drawn is drawn by the user's own training",
    "summary": "all that is drawn is drawn by the user's function",
    "function": "all that is drawn is drawn by the user's function",
    "generator": "all that is drawn is drawn by the user's generator",
    "fine-tuning": "all that is drawn is drawn by its trainer: `test_text_fine_tuning.py` checks the noise",
    "gaussian-copula": "claims nothing",
    "copy-with-jitter": "claims nothing",
    "opacus": "the noise is that of the user's own PrivacyEngine; its accountant is asked after each training",
}
"""Mechanisms that draw no noise themselves, and the reason."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_have_the_law_of_the_claim(case: Case) -> None:
    skip_without(case.name)
    assert departures(case.cells(case.mechanism), case.chances) == []


@pytest.mark.parametrize(
    ("case", "quieter"), DEFECTS, ids=lambda part: part.what if isinstance(part, Quieter) else str(part)
)
def test_ten_percent_less_noise_fails_the_same_check(case: Case, quieter: Quieter) -> None:
    """The most sensitive count misses the defect with probability < 1e-6."""
    skip_without(case.name)
    cells = case.cells(quieter.mechanism)
    assert departures(cells, case.chances)
    assert departures(cells, quieter.chances) == []  # the defect is what it is said to be
    assert miss(cells.size, case.chances, quieter.chances) < FALSE_FAILURE


def skip_without(name: str) -> None:
    if name == "opacus-dp-sgd":
        pytest.importorskip("opacus")


def test_every_mechanism_has_its_law_or_draws_nothing() -> None:
    registered = {
        entry.name
        for entry in catalogue("mechanism").values()
        if re.match(r"dpaudit\.(\w+\.)?mechanisms\.", entry.module) and ".planted." not in entry.module
    }
    checked = {case.name for case in CASES}
    assert not checked & SILENT.keys()
    assert checked | SILENT.keys() == registered


def test_renyi_accounting_asks_for_no_less_noise_than_the_claim_needs() -> None:
    """The noise of DP-SGD above is at least the Gaussian's own, sqrt(steps) / mu."""
    assert math.sqrt(20) / gaussian_mu(1.0, DELTA) <= STEP_NOISE
    pytest.importorskip("opacus")
    assert opacus_multiplier() >= 1 / gaussian_mu(1.0, DELTA)
