"""Each learner's bound at its claim stays below the claim as often as stated, on data with an exact proxy.

The proxy is the true law of the labels, so only the learner can make a bound too large. If the learner allows it,
models recall their training rows. Images are noise with random labels, which can only be remembered.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.attacks import LabelInferenceScore
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.learners.lp_mst import (
    LP1ST,
    LP2ST,
    LP1STDomainPrior,
    LP1STNoiseCorrection,
    LP1STOutOfDomainPrior,
)
from dpaudit.mechanisms.learners.pate import PATE, PateFm
from dpaudit.mechanisms.learners.recalled_labels import NoisyOneHotLabels, Recall
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.mechanisms.planted.learners import LP1STDrawnAgain
from dpaudit.registry import load
from tests.bank.planted_learners import PATEWithoutNoise
from tests.nightly import by_day, too

ROWS, IMAGES = 2000, 200
HERE = Compute(threads=1, device="cpu")


@cache
def table() -> tuple[Examples, NDArray[np.float32]]:
    """Return a mixture of two Gaussians and the true law of its labels."""
    data = GaussianMixture(classes=2, rows=ROWS)
    examples = data.load(seed=7)
    return examples, data.posterior(examples.features).astype(np.float32)


@cache
def noise_images() -> tuple[Examples, NDArray[np.float32]]:
    """Return images of noise with uniform labels of four classes, and the law of the labels."""
    rng = np.random.default_rng(8)
    images = rng.random((IMAGES, 1, 8, 8), dtype=np.float32)
    return Examples(images, rng.integers(0, 4, IMAGES), 4), np.full((IMAGES, 4), 0.25, np.float32)


def bound_of_a_run(mechanism: Any, examples: Examples, law: NDArray[np.float32], seed: int) -> float:
    """Train once, play one replay of the label game, and return the default bound at the claim's delta."""
    training, playing = np.random.SeedSequence(seed).spawn(2)
    model = mechanism.fit(examples, seed=training, compute=HERE)
    rng = np.random.default_rng(playing)
    bits = rng.random(len(examples)) < 0.5
    proxied = (rng.random(len(examples))[:, None] >= np.cumsum(law, axis=1)[:, :-1]).sum(axis=1)
    labels = np.where(bits, examples.labels, proxied)
    view = CanaryView(model.probabilities(examples.features).astype(np.float32), law, labels)
    scores = Scores(score=LabelInferenceScore().score(view), truth=bits, replay=0, canary=np.arange(len(examples)))
    estimator = OneRun(delta=mechanism.claim().delta)
    return estimator.bound([estimator.tally(scores)]).lower


def runs_above_claim(mechanism: Any, data: tuple[Examples, NDArray[np.float32]], runs: int) -> int:
    """Return the number of runs whose bound exceeds the claim."""
    claim = mechanism.claim().epsilon
    return sum(bound_of_a_run(mechanism, *data, seed) > claim for seed in range(runs))


RECALL = Recall()
ON_TABLES = {
    "lp-1st": LP1ST(1.0, RECALL),
    "domain prior": LP1STDomainPrior(1.0, prior_epsilon=0.5, clusters=ROWS, model=RECALL),
    "noise correction": LP1STNoiseCorrection(1.0, RECALL),
    "lp-2st": LP2ST(1.0, model=RECALL),
    "pate": PATE(1.0, teachers=4, queries=50, model=RECALL),
    "noisy one-hot labels": NoisyOneHotLabels(OneHotLaplace(1.0)),
}
ON_IMAGES = {
    "out-of-domain prior": LP1STOutOfDomainPrior(1.0, prior_epsilon=0.5, clusters=IMAGES, model=RECALL),
    "alibi": Alibi(1.0, Mlp(epochs=40, learning_rate=0.05)),
    "pate-fm": PateFm(
        1.0, teachers=3, queries=20, answers=10, threshold=1.0, threshold_noise=1.0, vote_noise=1.0,
        teacher_steps=4, student_steps=20, ratio=1, model=SmallCnn(batch_size=8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("learner", ON_TABLES)
def test_the_bound_stays_below_the_claim_on_tables(learner: str) -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(40, 0.05), 11."""
    assert runs_above_claim(ON_TABLES[learner], table(), runs=40) <= binom.ppf(1 - 1e-6, 40, 0.05)


@pytest.mark.parametrize("learner", ["out-of-domain prior", "alibi", *too("pate-fm")])
def test_the_bound_stays_below_the_claim_on_images(learner: str) -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(20, 0.05), 8."""
    assert runs_above_claim(ON_IMAGES[learner], noise_images(), runs=20) <= binom.ppf(1 - 1e-6, 20, 0.05)


@pytest.mark.parametrize(
    "planted",
    [LP1STDrawnAgain(0.5, RECALL, draws=30), PATEWithoutNoise(0.5, teachers=1, queries=ROWS, model=RECALL)],
    ids=["drawn again", "votes without noise"],
)
def test_the_limit_can_be_exceeded(planted: Any) -> None:
    """Two planted defects exceed it."""
    runs = by_day(20, by_night=40)
    assert runs_above_claim(planted, table(), runs=runs) > binom.ppf(1 - 1e-6, runs, 0.05)


def test_every_documented_learner_is_tested() -> None:
    tested = {type(mechanism) for mechanism in (*ON_TABLES.values(), *ON_IMAGES.values())}
    names = (
        "lp-1st", "lp-1st-domain-prior", "lp-1st-out-of-domain-prior", "lp-1st-noise-correction", "lp-2st", "pate",
        "pate-fm", "alibi",
    )  # fmt: skip
    assert {load("mechanism", name) for name in names} <= tested
