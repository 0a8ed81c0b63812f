"""Posteriors under any law of a bag's sum: properties of every mechanism, and realised gains of beliefs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.estimators.label_reconstruction.advantage import (
    bag_log_ratio,
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_laplace_additive_advantage,
    release_gain,
    rr_additive_advantage,
)
from dpaudit.estimators.label_reconstruction.bags import LabelAdvantage, Posteriors
from papers.label_inference import product_advantage
from tests.estimators.releases import llp_posterior, noisy_posterior, rr_posterior

Floats = NDArray[np.float64]
HARD = np.array([1e-9, 0.5, 1 - 1e-9, 0.5, 1e-12, 0.25, 0.5])
"""Priors near 0, 1/2 and 1 in one bag."""


def exactly(released: int, k: int) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log((np.arange(k + 1) == released).astype(float))


def geometric(released: int, k: int, epsilon: float) -> Floats:
    """log P[released | s], normalised, with the clipped mass at both ends."""
    a, s = math.exp(-epsilon), np.arange(k + 1)
    ends = {0: s, k: k - s}
    return np.log((1 / (1 + a) if released in ends else (1 - a) / (1 + a)) * a ** ends.get(released, abs(s - released)))


@pytest.mark.parametrize("k", [1, 3, 7, 12])
def test_log_ratios_are_those_of_all_labellings(k: int) -> None:
    """Against enumeration, to 1e-10, for priors near 0, 1/2 and 1."""
    eta = np.resize(HARD, k)
    labels = np.array(list(product([0, 1], repeat=k)))
    chance = np.prod(np.where(labels == 1, eta, 1 - eta), axis=1)
    for released, epsilon in product(range(k + 1), (0.1, 2.0)):
        law = geometric(released, k, epsilon)
        joint = chance * np.exp(law)[labels.sum(axis=1)]
        if_one = (joint[:, None] * labels).sum(axis=0) / eta
        zero = (joint[:, None] * (1 - labels)).sum(axis=0) / (1 - eta)
        assert bag_log_ratio(eta[None], law[None])[0] == pytest.approx(np.log(if_one / zero), abs=1e-10)


@pytest.mark.parametrize("k", [2, 7, 12])
def test_the_mean_posterior_is_the_prior_and_releases_sum_to_one(k: int) -> None:
    eta = np.resize(HARD, k)[None]
    law_of_sum = np.array([1.0])
    for p in eta[0]:
        law_of_sum = np.convolve(law_of_sum, [1 - p, p])
    for laws in ([exactly(z, k) for z in range(k + 1)], [geometric(z, k, 0.7) for z in range(k + 1)]):
        chances = np.array([law_of_sum @ np.exp(law) for law in laws])
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        odds = np.log(eta) - np.log1p(-eta)
        posteriors = [1 / (1 + np.exp(-odds - bag_log_ratio(eta, law[None]))) for law in laws]
        mean = sum(chance * posterior for chance, posterior in zip(chances, posteriors, strict=True))
        assert mean == pytest.approx(eta, abs=1e-12)


def test_a_geometric_bag_of_one_is_randomised_response_and_a_large_epsilon_is_the_exact_count() -> None:
    rng = np.random.default_rng(0)
    eta = rng.random((50, 1))
    for epsilon in (0.2, 1.0, 4.0):
        same = np.asarray(rr_additive_advantage(eta, epsilon=epsilon))
        assert llp_geometric_additive_advantage(eta, epsilon=epsilon) == pytest.approx(same, abs=1e-14)
        for label in (0, 1):
            flat = noisy_posterior(eta, np.full(50, label), epsilon=epsilon)
            assert flat[:, 0] == pytest.approx(np.asarray(rr_posterior(eta[:, 0], label, epsilon=epsilon)))
    bags = rng.random((20, 8))
    sums = (rng.random(bags.shape) < bags).sum(axis=1)
    assert noisy_posterior(bags, sums, epsilon=60.0) == pytest.approx(llp_posterior(bags, sums), abs=1e-12)
    assert llp_geometric_additive_advantage(bags, epsilon=60.0) == pytest.approx(
        llp_additive_advantage(bags), abs=1e-12
    )


def test_additive_advantages_stay_between_0_and_the_rarer_label() -> None:
    bags = np.random.default_rng(1).beta(0.3, 0.3, (40, 9))
    for advantage in (
        llp_additive_advantage(bags),
        llp_laplace_additive_advantage(bags, epsilon=1.0),
        llp_geometric_additive_advantage(bags, epsilon=1.0),
        np.asarray(rr_additive_advantage(bags, epsilon=1.0)),
    ):
        assert (advantage >= 0).all()
        assert (advantage <= np.minimum(bags, 1 - bags) + 1e-15).all()


def test_private_releases_move_log_odds_by_epsilon_at_most() -> None:
    """Also if posteriors round to 1: the shift itself does not."""
    eta = np.array([[1 - 1e-16, 0.9, 1e-15, 0.5], [0.3, 0.6, 0.9, 0.1]])
    for released in range(5):
        shifts = bag_log_ratio(eta, np.tile(geometric(released, 4, 30.0), (2, 1)))
        assert (np.abs(shifts) <= 30.0 * (1 + 1e-12)).all()
    assert np.isposinf(bag_log_ratio(eta[1:], exactly(4, 4)[None])).all()
    certain = bag_log_ratio(np.array([[0.0, 0.5, 0.5]]), exactly(1, 3)[None])
    assert certain[0, 0] == 0


def test_theorem_3_2_is_the_advantage_of_bags_of_one_kind() -> None:
    for share, size in product((0.02, 0.3, 0.5), (1, 2, 9)):
        bag = llp_additive_advantage(np.full((1, size), share))
        assert product_advantage(share, size) == pytest.approx(float(bag.mean()), abs=1e-14)
    assert np.shape(product_advantage(0.1, [1, 8, 64])) == (3,)


def played(prior: Floats, truth: Floats, seed: int) -> Posteriors:
    """Return one release of bags of 5, with labels drawn from `truth` and an attacker who believes `prior`."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(prior.size) < truth).astype(np.int64)
    bags = prior.reshape(-1, 5)
    sums = labels.reshape(-1, 5).sum(axis=1)
    return Posteriors(prior, llp_posterior(bags, sums).ravel(), np.arange(prior.size) // 5, labels=labels)


def test_computed_and_realised_gains_agree_only_for_calibrated_priors() -> None:
    """False failure < 0.003 by the normal law of 4,000 bags; the seed is fixed, so it fails always or never."""
    truth = np.random.default_rng(3).uniform(0.05, 0.95, 20_000)
    honest = LabelAdvantage().find([LabelAdvantage().tally(played(truth, truth, 4))])
    assert honest.realised is not None
    assert not honest.realised.differs
    assert honest.realised.error < 0.01
    reliability = honest.series["reliability"]
    assert reliability["examples"].tolist() == [2_000] * 10
    # Binomial(2,000, p): beyond 5 deviations with probability < 1e-6 a group.
    assert np.abs(reliability["observed"] - reliability["believed"]) == pytest.approx(
        0, abs=5 * math.sqrt(0.25 / 2_000)
    )
    off = np.clip(truth + 0.3, 0.05, 0.95)
    blind = LabelAdvantage().find([LabelAdvantage().tally(played(off, truth, 4))])
    assert blind.realised is not None
    assert blind.realised.differs
    assert any("not calibrated" in note for note in blind.notes)


def test_a_figure_of_many_releases_shows_all_examples() -> None:
    """Releases have the same examples; 4,000 of 400 releases are ten of each, and 300 examples are shown in turn."""
    prior = np.random.default_rng(5).uniform(0.05, 0.95, 300)
    tallies = [LabelAdvantage().tally(played(prior, prior, seed)) for seed in range(400)]
    beliefs = LabelAdvantage().find(tallies).series["beliefs"]
    assert len(beliefs["prior"]) == len(beliefs["posterior"]) == 4_000
    assert set(beliefs["prior"]) == set(prior)
    first = dict(zip(tallies[0].prior, tallies[0].posterior, strict=True))
    pairs = zip(beliefs["prior"][:10], beliefs["posterior"][:10], strict=True)
    assert all(first[before] == after for before, after in pairs)


def test_left_out_and_infinite_examples_are_counted_separately() -> None:
    evidence = Posteriors(
        np.array([0.5, 0.5, 0.2]), np.array([1.0, 0.5, 0.2]), np.array([0, 0, -1]), shift=np.array([math.inf, 0.0, 0.0])
    )
    finding = LabelAdvantage().find([LabelAdvantage().tally(evidence)])
    assert dict(finding.counts) == {"examples": 2, "bags": 1, "releases": 1, "left out": 1, "infinite": 1}
    assert finding.largest == math.inf
    tail = LabelAdvantage(kind="tail")
    assert tail.find([tail.tally(evidence)]).largest == 0.5
    assert release_gain(0.5, [1.0, 0.5]) == pytest.approx([0.5, 0.0])
    with pytest.raises(InputError, match="additive advantages are read off posteriors that come with them"):
        LabelAdvantage(kind="additive").find([LabelAdvantage().tally(evidence)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior": np.array([0.2, 1.2])}, "prior must hold probabilities in [0, 1]"),
        ({"labels": np.array([0, 2])}, "labels must be 0 or 1"),
        ({"prior": np.full((2, 2), 0.5)}, "prior must be one column, got (2, 2)"),
        ({"bag": np.array([-1, -1])}, "something must be released about at least one example"),
        ({"expected": np.array([0.1])}, "expected must be as long as prior"),
    ],
)
def test_invalid_posteriors_are_refused(change: dict[str, Floats], message: str) -> None:
    settings = {"prior": np.array([0.2, 0.3]), "posterior": np.array([0.2, 0.3]), "bag": np.array([0, 0])} | change
    with pytest.raises(InputError) as caught:
        Posteriors(**settings)  # type: ignore[arg-type]
    assert message in str(caught.value)
