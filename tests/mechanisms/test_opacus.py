"""Opacus as an external mechanism: what it promises, that it trains, that it is decided by its seed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.random import SeedSequence
from sklearn.datasets import load_digits

from dpaudit.claims import Relation
from dpaudit.engine.games.steps.dp_sgd_steps import StepMidpoint
from dpaudit.engine.games.steps.step_probes import StepProber
from dpaudit.engine.games.two_world.canaries import RandomGradient
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.opacus_dp_sgd import ACCOUNTANTS, OpacusDpSgd, _noise_multiplier
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import dp_sgd_epsilon
from dpaudit.mechanisms.models.networks import BagOfEmbeddings, Mlp, Network, SmallCnn, SmallTransformer
from dpaudit.mechanisms.protocols import Learner
from dpaudit.mechanisms.training.private.private_steps import StepCanary

CPU = Compute()
RAW = load_digits()
DIGITS = Examples((RAW.data / 16).astype(np.float32), RAW.target.astype(np.int64), 10, "digits")
LEARNER = OpacusDpSgd(
    8.0, accountant="rdp", model=Mlp(hidden=(16,), epochs=8, batch_size=100, learning_rate=2.0, momentum=0.0)
)


def test_it_claims_what_its_accountant_is_asked_for() -> None:
    assert isinstance(LEARNER, Learner)
    assert (LEARNER.claim().epsilon, LEARNER.claim().delta) == (8.0, 1e-5)
    assert LEARNER.claim().relation is Relation.ADD_REMOVE


def test_without_opacus_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(InputError, match=r"pip install dpaudit\[opacus\]"):
        LEARNER.fit(DIGITS, seed=SeedSequence(0), compute=CPU)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match="epsilon must be > 0 and finite"):
        OpacusDpSgd(np.inf)
    with pytest.raises(InputError, match="accountant must be one of prv, rdp"):
        OpacusDpSgd(1.0, accountant="gdp")
    with pytest.raises(InputError, match="keeps its learning rate"):
        OpacusDpSgd(1.0, model=Mlp(schedule="cosine"))
    with pytest.raises(InputError, match="several examples at once"):
        OpacusDpSgd(1.0, model=Mlp(standardise=True))


def test_it_trains_and_is_decided_by_its_seed() -> None:
    pytest.importorskip("opacus")
    train, test = DIGITS.take(np.arange(1200)), DIGITS.take(np.arange(1200, 1797))
    first, again, other = (
        LEARNER.fit(train, seed=SeedSequence(seed), compute=CPU).probabilities(test.features) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert (first.argmax(1) == test.labels).mean() > 0.6


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_noise_costs_what_is_claimed(accountant: str) -> None:
    """By its own accountant at most epsilon, and by ours within the slack of its search and of Renyi bounds."""
    pytest.importorskip("opacus")
    noise = _noise_multiplier(8.0, 1e-5, 0.1, 5, accountant)
    ours = dp_sgd_epsilon(noise_multiplier=noise, sample_rate=0.1, steps=50, delta=1e-5)
    assert 7.9 <= ours <= 8.01 if accountant == "rdp" else 8.0 < ours < 9.5


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (SmallCnn(epochs=1, batch_size=20), (1, 8, 8)),
        (BagOfEmbeddings(vocabulary=20, epochs=1, batch_size=20), (64,)),
        (SmallTransformer(vocabulary=20, width=8, layers=1, epochs=1, batch_size=20), (64,)),
    ],
)
def test_it_takes_every_network(network: Network, shape: tuple[int, ...]) -> None:
    pytest.importorskip("opacus")
    some = DIGITS.take(np.arange(60))
    assert isinstance(some.features, np.ndarray)
    data = some.with_(features=np.round(some.features * 16).reshape(-1, *shape).astype(np.float32))
    model = OpacusDpSgd(8.0, accountant="rdp", model=network).fit(data, seed=SeedSequence(0), compute=CPU)
    np.testing.assert_allclose(model.probabilities(data.features).sum(1), 1)


@pytest.mark.parametrize(
    ("clipping", "grad_sample_mode"),
    [("per_layer", "hooks"), ("adaptive", "hooks"), ("flat", "ew"), ("flat", "functorch"), ("flat", "ghost")],
)
def test_every_way_of_clipping_trains_and_lets_the_canary_in(clipping: str, grad_sample_mode: str) -> None:
    """The canary's steps are about one clip apart where noise is small; half as much where layers are clipped alone."""
    pytest.importorskip("opacus")
    model = Mlp(hidden=(8,), epochs=4, batch_size=100, learning_rate=0.5, momentum=0.0)
    learner = OpacusDpSgd(2_000.0, accountant="rdp", clipping=clipping, grad_sample_mode=grad_sample_mode, model=model)
    train = DIGITS.take(np.arange(400))

    probe = StepProber(StepMidpoint(), 1.0, np.random.default_rng(3), only=RandomGradient())
    canary = StepCanary(probe, np.random.default_rng(0), clip=1.0, divisor=100)
    learner.show_steps(train, canary, seed=SeedSequence(1), compute=CPU)
    coins, products = probe.shown().coin, probe.shown().features[:, 0]
    assert len(coins) == 16
    apart = products[coins].mean() - products[~coins].mean()
    assert 0.4 < apart < 1.6


def test_ways_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InputError, match="ghost clips flat"):
        OpacusDpSgd(1.0, clipping="per_layer", grad_sample_mode="ghost")
    with pytest.raises(InputError, match="clipping must be one of flat, per_layer, adaptive"):
        OpacusDpSgd(1.0, clipping="round")
