"""A network summed up as its weights and its answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import SeedSequence

from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip, InsertRecords
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.opacus_dp_sgd import OpacusDpSgd
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd, ReleasedModel
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.protocols import Learner, SummarisedLearner

CPU = Compute()
ROWS = np.random.default_rng(0).random((40, 3)).astype(np.float32)
DATA = Examples(ROWS, (ROWS[:, 0] > 0.5).astype(np.int64), 2)
LOGISTIC = Mlp(hidden=(), epochs=2, batch_size=20, learning_rate=0.5, momentum=0.0)


def test_the_vector_is_the_weights_and_the_logits_of_the_points() -> None:
    released = ReleasedModel(NonPrivate(model=LOGISTIC))
    assert isinstance(released, SummarisedLearner)
    points = np.stack([np.zeros(3), np.ones(3)]).astype(np.float32)
    vector = released.summarise(DATA, points, seed=SeedSequence(1), compute=CPU)
    weights, bias, logits = vector[:6].reshape(2, 3), vector[6:8], vector[8:].reshape(2, 2)
    assert logits == pytest.approx(points @ weights.T + bias, abs=1e-5)
    model = released.fit(DATA, seed=SeedSequence(1), compute=CPU)
    assert model.logits(points) == pytest.approx(logits)  # type: ignore[attr-defined]


def test_learners_without_a_network_are_refused() -> None:
    with pytest.raises(InputError, match="must train a network"):
        ReleasedModel(GaussianNaiveBayes(1.0)).summarise(DATA, ROWS[:1], seed=SeedSequence(1), compute=CPU)


ALIKE = Examples(np.ones((100, 1), np.float32), np.zeros(100, np.int64), 2)
ONE_STEP = Mlp(hidden=(), epochs=1, batch_size=100, learning_rate=30_000.0, momentum=0.0)


@pytest.mark.parametrize("theirs", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_dividing_by_the_number_of_records_shows_twice_what_the_noise_is_for(theirs: bool) -> None:
    """One step on 99 equal records, and one of the opposite gradient or not: 1 / noise apart, by Opacus 2 / noise.

    600 trainings tell distance times noise with a deviation of 0.12, the noise being 1.4 to 1.5.
    """
    learner: Learner = DpSgd(3.0, clip=0.01, sample_rate=1.0, model=ONE_STEP)
    noise = learner.noise_multiplier()  # type: ignore[attr-defined]
    if theirs:
        pytest.importorskip("opacus")
        learner = OpacusDpSgd(3.0, clip=0.01, accountant="rdp", model=replace(ONE_STEP, batch_size=1_000))
        noise = learner.claimed_steps(100).private.noise_multiplier
    worlds = InsertRecords(ClassFlip()).worlds(ALIKE, 1, np.random.default_rng(0))
    ahead = np.empty((2, 300))
    for world, trial in np.ndindex(ahead.shape):
        weights = ReleasedModel(learner).summarise(
            worlds.world(bool(world)), worlds.points, seed=SeedSequence((world, trial)), compute=CPU
        )
        ahead[world, trial] = weights[:4] @ [1, -1, 1, -1]
    separation = np.abs(np.subtract(*ahead.mean(1))) / np.sqrt(ahead.var(1).mean())
    assert separation * noise == pytest.approx(2.0 if theirs else 1.0, abs=0.35)
