"""Reconstruction advantage: limits against linear programs, error rates at the truth, planted defects, five mechanisms.

Games are seeded; "false failure" is the probability that a correct bound would have failed with a random seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, Verdict, audit
from dpaudit.actors.seed import Seed
from dpaudit.claims import ApproximateDP, GaussianDP, PureDP
from dpaudit.engine.data.bundled import BreastCancer, Iris
from dpaudit.engine.games.labels.label_secrets import LabelSecrets, LikeliestSecret, SecretView, release_secrets
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.label_reconstruction.secrets import (
    Reconstruction,
    SecretGuesses,
    largest_success,
    success_epsilon,
)
from dpaudit.estimators.two_world.fair_coins import GuessAccuracy
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse, RRWithPrior
from tests.nightly import by_day
from tests.twins import secrets_twin

POINTS = [(epsilon, delta, values) for epsilon in (0.3, 1.0, 3.0) for delta in (0.0, 0.01, 0.2) for values in (2, 3, 4)]


@pytest.mark.parametrize(("epsilon", "delta", "values"), POINTS)
def test_the_limit_is_the_optimum_of_a_linear_program(epsilon: float, delta: float, values: int) -> None:
    """No (epsilon, delta)-DP mechanism guesses better, and at delta = 0 or for two values one guesses as well."""
    limit, exact = (
        largest_success(ApproximateDP(epsilon, delta), values),
        secrets_twin.largest_success(epsilon, delta, values),
    )
    assert limit >= exact - 1e-9
    if delta == 0 or values == 2:
        assert limit == pytest.approx(exact, abs=1e-7)
    assert success_epsilon(limit, values, delta) == pytest.approx(epsilon, abs=1e-6)
    assert success_epsilon(exact, values, delta) <= epsilon + 1e-6


@pytest.mark.parametrize("values", [2, 3, 10, 100])
def test_gaussian_mechanisms_stay_within_the_limit_of_their_curve(values: int) -> None:
    """For two values the limit is attained: it is the accuracy of a test between two normal laws."""
    limit, exact = largest_success(GaussianDP(1.0), values), secrets_twin.gaussian_success(1.0, values)
    assert exact <= limit + 1e-9
    assert limit <= (exact + 1e-9 if values == 2 else 2 * exact)
    assert success_epsilon(exact, values, 1e-3) <= GaussianDP(1.0).epsilon(1e-3)


def test_two_values_give_the_limit_of_total_variation() -> None:
    bound = Reconstruction().bound([SecretGuesses(700, 1_000, 2)])
    (success,) = bound.evidence
    accuracy = GuessAccuracy(np.array([700]), np.array([1_000]), 0.05)
    assert success.success == accuracy.success  # type: ignore[attr-defined]
    assert bound.mu == pytest.approx(accuracy.mu, abs=1e-6)
    distance = 2 * accuracy.success - 1
    assert bound.lower == pytest.approx(math.log((1 + distance) / (1 - distance)), abs=1e-9)


@pytest.mark.parametrize("values", [2, 3, 20])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_bounds_exceed_the_truth_no_more_often_than_stated(epsilon: float, values: int) -> None:
    """Randomised response attains the limit, so that nothing hides an error: 5 % of bounds may exceed the truth."""
    games = by_day(4_000, by_night=40_000)
    keep = 1 / (1 + (values - 1) * math.exp(-epsilon))
    right = np.random.default_rng(values).binomial(1_000, keep, games)
    bounds = {count: Reconstruction().bound([SecretGuesses(count, 1_000, values)]) for count in set(right.tolist())}
    wrong = sum(bounds[count].lower > epsilon for count in right.tolist())
    assert wrong <= stats.binom.ppf(1 - 1e-6, games, 0.05)
    rejected = sum(bounds[count].violation_point(PureDP(epsilon)) is not None for count in right.tolist())
    assert rejected <= stats.binom.ppf(1 - 1e-6, games, 0.05)
    assert wrong >= 0.02 * games, "the bound is tight, so that this test could find an error"


def test_a_rate_without_its_limit_exceeds_the_truth_in_half_of_the_games() -> None:
    """Plant the defect that the share of right guesses is taken for its lower limit."""
    right = np.random.default_rng(0).binomial(1_000, special.expit(1.0), 200)
    assert sum(success_epsilon(count / 1_000, 2, 0.0) > 1.0 for count in right.tolist()) > 70


def test_a_curve_is_rejected_where_its_epsilon_is_not() -> None:
    """Ten values, half the noise of 1-GDP: the advantage exceeds that of the curve, the bound at 1e-5 does not."""
    claim, success = GaussianDP(1.0), secrets_twin.gaussian_success(2.0, 10)
    guesses = SecretGuesses(int(20_000 * success), 20_000, 10)
    bound = Reconstruction(delta=1e-5).bound([guesses])
    assert bound.lower < claim.epsilon(1e-5)
    point = bound.violation_point(claim)
    assert point is not None
    assert point.quantity == "reconstruction advantage"
    assert bound.violation_point(GaussianDP(2.0)) is None
    assert 1.0 < bound.mu <= 2.0
    of_three = Reconstruction(delta=1e-5).bound([guesses], failed_replays=2)
    assert of_three.violation_point(claim) is None


def right_guesses(mechanism: Any, game: LabelSecrets, data: Any, *, in_bags: bool, seed: int) -> SecretGuesses:
    """Play the game without the engine."""
    target, seeds = data.load(seed=0), Seed(seed)
    options: dict[str, Any] = {"in_bags": in_bags, "pair_seed": seeds}
    runs = [
        release_secrets(game, mechanism, target, first=0, last=count, seed=seeds.child(part), **options).value
        for part, count in (("search", game.search), ("fresh", game.trials))
    ]
    values = game.values(target.classes, seeds)
    view = SecretView(runs[0], runs[1].released, values.sum(axis=1, keepdims=True) if in_bags else values)
    right = LikeliestSecret().score(view) == runs[1].secret
    return SecretGuesses(int(right.sum()), right.size, len(values))


HONEST: dict[str, tuple[Any, Any, bool, float]] = {
    "randomized-response": (RandomizedResponse(1.0), Iris(), False, 0.8),
    "rr-with-prior": (RRWithPrior(1.0, (0.4, 0.3, 0.3)), Iris(), False, 0.8),
    "one-hot-laplace": (OneHotLaplace(1.0), Iris(), False, 0.3),
    "llp-laplace": (LaplaceProportions(epsilon=1.0), BreastCancer(), True, 0.6),
    "llp-geometric": (GeometricProportions(epsilon=1.0), BreastCancer(), True, 0.8),
}
"""The five label mechanisms with a claim, here epsilon 1, and a bound that 3,000 guesses of an attribute reach."""


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("secret", ["membership", "attribute", "reconstruction"])
def test_bounds_of_honest_mechanisms_exceed_their_claim_no_more_often_than_stated(name: str, secret: Any) -> None:
    """Small games, whose bounds vary most; the claim of two labels is epsilon 2. False failure < 1e-6."""
    mechanism, data, in_bags, _ = HONEST[name]
    game, games = LabelSecrets(secret, trials=200, search=100), by_day(8, by_night=400)
    counts = [right_guesses(mechanism, game, data, in_bags=in_bags, seed=seed) for seed in range(games)]
    wrong = sum(Reconstruction().bound([count]).lower > game.secret_rows for count in counts)
    assert wrong <= stats.binom.ppf(1 - 1e-6, games, 0.05)


@pytest.mark.parametrize("name", HONEST)
def test_each_mechanism_shows_most_of_what_it_leaks_and_more_with_a_third_of_the_noise(name: str) -> None:
    mechanism, data, in_bags, reached = HONEST[name]
    estimator, game = Reconstruction(confidence=0.999), LabelSecrets(trials=3_000, search=500)
    bound = estimator.bound([right_guesses(mechanism, game, data, in_bags=in_bags, seed=1)])
    assert reached < bound.lower < 1.0
    planted = {field: getattr(mechanism, field) for field in ("prior",) if hasattr(mechanism, field)}
    weaker = type(mechanism)(epsilon=3.0, **planted)
    bound = estimator.bound([right_guesses(weaker, game, data, in_bags=in_bags, seed=1)])
    assert bound.violation_point(PureDP(1.0)) is not None
    assert bound.violation_point(PureDP(3.0)) is None


def test_proportions_without_noise_reveal_every_secret() -> None:
    game = LabelSecrets(trials=500, search=100)
    assert right_guesses(LabelProportions(), game, BreastCancer(), in_bags=True, seed=0).right == 500
    both = LabelSecrets("reconstruction", trials=500, search=200)  # a sum of 1 leaves two values
    assert 300 < right_guesses(LabelProportions(), both, BreastCancer(), in_bags=True, seed=0).right < 450


@dataclass(frozen=True)
class RaisesOnOne:
    """Raises if the first label is 1, else randomised response."""

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.LABEL)

    def release(self, labels: Any, *, classes: int, rng: np.random.Generator) -> Any:
        if labels[0] == 1:
            raise ValueError("no")
        return RandomizedResponse(1.0).release(labels, classes=classes, rng=rng)


def result_of(mechanism: Any, folder: Path, **fields: Any) -> Any:
    game = LabelSecrets(**{"trials": 3_000, "search": 500, **fields})
    entry = Audit(mechanism, Iris(), game=game, claim=Claim(1.0, relation=Relation.LABEL))
    run = RunOptions(runner="in-process", figures=False, repeats=0)
    return audit(AuditSpec((entry,), seed=2, confidence=0.9999, run=run), output=folder, quiet=True).results[0]


@pytest.mark.parametrize("secret", ["membership", "attribute", "reconstruction"])
def test_twice_the_claim_is_rejected_and_the_claim_is_not(secret: str, tmp_path: Path) -> None:
    """One risk for three attacks: the advantage over chance is printed and compared with what the claim allows."""
    honest = result_of(RandomizedResponse(1.0), tmp_path / "honest", secret=secret)
    assert honest.verdict is Verdict.NO_VIOLATION
    assert honest.compared.steps == (2 if secret == "reconstruction" else 1)
    weak = result_of(RandomizedResponse(2.0), tmp_path / "weak", secret=secret)
    assert weak.verdict is Verdict.VIOLATION
    assert "reconstruction advantage >= 0." in weak.text(verbose=True)
    assert weak.sensitivity.maximum.lower > 5
    for success in (*honest.finding.evidence, *weak.finding.evidence):
        assert success.comparison(honest.compared.claim.curve).exceeds == (success in weak.finding.evidence)


def test_a_failure_is_an_outcome(tmp_path: Path) -> None:
    result = result_of(RaisesOnOne(), tmp_path, trials=1_000)
    assert result.verdict is Verdict.VIOLATION
    assert result.failed_trials


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"secret": "all"}, "secret must be one of"),
        ({"labels": 3}, "2, 4 or 8"),
        ({"trials": 0}, "trials must be in 1"),
        ({"rows": 0}, "rows must be >= 1"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        LabelSecrets(**fields)


def test_secrets_that_cannot_be_played_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="values, got 6561"):
        result_of(RandomizedResponse(1.0), tmp_path, secret="reconstruction", labels=8)
    with pytest.raises(SpecError, match="two classes"):
        result_of(LaplaceProportions(), tmp_path)
    with pytest.raises(SpecError, match="must hold all secret labels"):
        result_of(RandomizedResponse(1.0), tmp_path, secret="reconstruction", labels=4, rows=2)
