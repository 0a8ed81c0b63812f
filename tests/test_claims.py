"""Privacy curves: consistency of their representations, closed forms, dp_accounting and brute force."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import yaml
from scipy.stats import norm

from benchmarks.accountant_orders import divergence
from dpaudit.actors.unit import fingerprint
from dpaudit.claims import (
    AccountedEvent,
    ApproximateDP,
    Claim,
    ComposedLaplace,
    GaussianDP,
    PrivacyCurve,
    PrivacyProfile,
    PureDP,
    Relation,
    RenyiDP,
    SubsampledGaussian,
    TwoSteps,
    claim_under,
    two_steps,
)
from dpaudit.claims.curve import DeltaCurve, delta_at
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.games.steps.dp_sgd_steps import DpSgdSteps
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.build import build, build_dataclass, describe
from dpaudit.engine.request.loading import load_spec
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.pate import PATE, PateFm
from tests.nightly import too

ORDERS = (1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
EXACT = [
    PureDP(1.0),
    PureDP(0.01),
    PureDP(6.0),
    ApproximateDP(1.0, 1e-3),
    GaussianDP(1.0),
    GaussianDP(0.05),
    GaussianDP(5.0),
]
TWICE = [TwoSteps(curve) for curve in (PureDP(1.0), ApproximateDP(0.5, 1e-3), GaussianDP(0.7))]
RENYI = [RenyiDP(ORDERS, tuple(order / 2 for order in ORDERS)), RenyiDP((2.0,), (0.3,))]
SAMPLED = SubsampledGaussian(1.0, 0.01, 10)
LAPLACE = [ComposedLaplace(2.0, 6), ComposedLaplace(74.2, 400)]
CURVES: list[PrivacyCurve] = [*EXACT, *TWICE, *RENYI, *LAPLACE]
EPSILONS = (0.0, 0.01, 0.3, 1.0, 1.7, 4.0, 9.0)
ALARMS = (0.0, 1e-9, 1e-4, 0.01, 0.2, 0.4, 0.5, 0.8, 0.99, 1.0)


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_epsilon_is_the_inverse_of_delta(curve: PrivacyCurve) -> None:
    for epsilon in EPSILONS:
        delta = curve.delta(epsilon)
        assert 0 <= delta <= 1
        if delta > 1e-12:
            back = curve.epsilon(delta)
            assert back <= epsilon + 1e-9
            assert curve.delta(back) <= delta * (1 + 1e-6)
    deltas = [curve.delta(epsilon) for epsilon in EPSILONS]
    assert deltas == sorted(deltas, reverse=True)


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_miss_rate_is_a_trade_off_function(curve: PrivacyCurve) -> None:
    """Decreasing, convex, at most 1 - alarm, and above every line implied by (epsilon, delta(epsilon))."""
    grid = np.linspace(0, 1, 201)
    f = np.array([curve.miss_rate(float(alarm)) for alarm in grid])
    assert (np.diff(f) <= 1e-9).all()
    assert (np.diff(f, 2) >= -1e-8).all()
    assert (f <= 1 - grid + 1e-12).all()
    for epsilon in EPSILONS:
        assert (f >= 1 - curve.delta(epsilon) - math.exp(epsilon) * grid - 1e-7).all()
        assert (f >= math.exp(-epsilon) * (1 - curve.delta(epsilon) - grid) - 1e-7).all()


@pytest.mark.parametrize("curve", [*EXACT, *TWICE], ids=str)
def test_the_trade_off_function_is_its_own_inverse(curve: PrivacyCurve) -> None:
    for alarm in ALARMS[1:-1]:
        miss = curve.miss_rate(alarm)
        if miss > 1e-12:
            assert curve.miss_rate(miss) == pytest.approx(alarm, abs=1e-8, rel=1e-5)


@pytest.mark.parametrize("curve", [*EXACT, *TWICE], ids=str)
def test_the_envelope_of_delta_is_the_trade_off_function(curve: PrivacyCurve) -> None:
    """The generic search over epsilon agrees with the formulas, and never exceeds them."""

    class ByDelta(DeltaCurve):
        def delta(self, epsilon: float, /) -> float:
            return curve.delta(epsilon)

    for alarm in ALARMS:
        searched = ByDelta().miss_rate(alarm)
        assert searched <= curve.miss_rate(alarm) + 1e-12
        assert searched == pytest.approx(curve.miss_rate(alarm), abs=1e-7)


@pytest.mark.parametrize("curve", [*EXACT, *TWICE], ids=str)
def test_delta_is_the_conjugate_of_the_trade_off_function(curve: PrivacyCurve) -> None:
    """Tolerance: distance between a kink and the grid, whose steps are 0.7 %."""
    alarms = np.concatenate([np.geomspace(1e-12, 0.5, 4000), np.linspace(0.5, 1, 2000)])
    f = np.array([curve.miss_rate(float(alarm)) for alarm in alarms])
    for epsilon in EPSILONS:
        assert float((1 - math.exp(epsilon) * alarms - f).max()) == pytest.approx(curve.delta(epsilon), abs=1e-3)


def test_a_gaussian_in_closed_form() -> None:
    """Formula of Balle and Wang (2018)."""
    assert GaussianDP(1.0).epsilon(1e-5) == pytest.approx(4.3772, abs=1e-3)
    for mu in (1e-6, 1e-4, 0.1, 1.0, 10.0):
        assert GaussianDP(mu).delta(0.0) == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9, abs=1e-16)
        for epsilon in (mu / 10, mu, mu + mu * mu):
            direct = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            assert GaussianDP(mu).delta(epsilon) == pytest.approx(direct, rel=1e-6, abs=1e-15)
    assert GaussianDP(1e-5).epsilon(1e-5) == 0
    assert GaussianDP(1.0).epsilon(0.0) == math.inf
    assert GaussianDP(2.0).renyi(3.0) == 6.0


def test_randomised_response_is_pure_dp() -> None:
    """Total variation (e - 1) / (e + 1), kink of the trade-off function, Renyi divergence by definition."""
    p, q = math.e / (1 + math.e), 1 / (1 + math.e)
    curve = PureDP(1.0)
    assert curve.delta(0.0) == pytest.approx(p - q, rel=1e-12)
    assert curve.miss_rate(q) == pytest.approx(q, rel=1e-12)
    assert curve.renyi(3.0) == pytest.approx(math.log(p**3 * q**-2 + q**3 * p**-2) / 2, rel=1e-12)
    assert ApproximateDP(1.0, 0.0).renyi(3.0) == curve.renyi(3.0)
    assert ApproximateDP(1.0, 1e-6).renyi(3.0) == math.inf
    curve = PureDP(math.inf)
    assert (curve.epsilon(0.5), curve.delta(3.0), curve.miss_rate(0.5), curve.renyi(2.0)) == (math.inf, 1, 0, math.inf)


def test_renyi_curve_of_a_gaussian_is_close_to_it() -> None:
    """Renyi values of mu-GDP at a fine grid of orders give more pessimistic, but close values."""
    orders = tuple(float(a) for a in 1 + np.geomspace(1e-2, 1e3, 600))
    renyi, gaussian = RenyiDP(orders, tuple(a / 2 for a in orders)), GaussianDP(1.0)
    for epsilon in EPSILONS:
        assert gaussian.delta(epsilon) <= renyi.delta(epsilon)
    for delta in (1e-8, 1e-5, 1e-2):
        assert gaussian.epsilon(delta) <= renyi.epsilon(delta) <= 1.15 * gaussian.epsilon(delta) + 0.1
    for alarm in ALARMS:
        assert gaussian.miss_rate(alarm) >= renyi.miss_rate(alarm)
    assert renyi.miss_rate(1e-4) >= gaussian.miss_rate(1e-4) - 0.01
    assert renyi.renyi(7.3) == pytest.approx(gaussian.renyi(7.3), rel=1e-3)
    assert renyi.renyi(7.3) >= gaussian.renyi(7.3)
    assert renyi.renyi(2000.0) == math.inf


# Two steps


def test_two_steps_of_a_gaussian_are_a_gaussian() -> None:
    assert two_steps(GaussianDP(0.7)) == GaussianDP(1.4)
    by_search, exact = TwoSteps(GaussianDP(0.7)), GaussianDP(1.4)
    for epsilon in EPSILONS:
        assert exact.delta(epsilon) * (1 - 1e-9) <= by_search.delta(epsilon)
        assert by_search.delta(epsilon) == pytest.approx(exact.delta(epsilon), rel=1e-6, abs=1e-12)
    for alarm in ALARMS:
        assert by_search.miss_rate(alarm) == pytest.approx(exact.miss_rate(alarm), rel=1e-9, abs=1e-14)
    for order in (1.01, 2.0, 50.0):
        assert by_search.renyi(order) == pytest.approx(exact.renyi(order), rel=1e-9)


def test_two_steps_of_a_renyi_curve() -> None:
    """At least the two steps of the Gaussian, close to it, and infinite above the largest order implied."""
    orders = tuple(float(a) for a in 1 + np.geomspace(1e-2, 1e3, 400))
    doubled = two_steps(RenyiDP(orders, tuple(a / 2 for a in orders)))
    assert isinstance(doubled, RenyiDP)
    for order in (1.5, 2.0, 8.0, 60.0):
        assert 1 <= doubled.renyi(order) / GaussianDP(2.0).renyi(order) <= 1.05
    assert doubled.renyi(700.0) == math.inf
    assert doubled.epsilon(1e-5) >= GaussianDP(2.0).epsilon(1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_no_chain_of_three_distributions_exceeds_two_steps(seed: int) -> None:
    """P, Q, R on five outcomes: curves that cover (P, Q) and (Q, R) cover (P, R) in two steps."""
    rng = np.random.default_rng(seed)
    p, q, r = rng.dirichlet(np.full(5, 2.0), 3)
    epsilon, missed = 0.4, max(hockey_stick(0.4, *pair) for pair in ((p, q), (q, p), (q, r), (r, q)))
    bound = max(float(np.abs(np.log(p / q)).max()), float(np.abs(np.log(q / r)).max()))
    orders = (1.5, 2.0, 4.0, 9.0)
    values = tuple(max(renyi(a, *pair) for pair in ((p, q), (q, p), (q, r), (r, q))) for a in orders)
    for curve in (PureDP(bound), ApproximateDP(epsilon, missed), RenyiDP(orders, values)):
        twice = two_steps(curve)
        for at in (0.0, 0.2, 0.8, 1.5):
            assert hockey_stick(at, p, r) <= twice.delta(at) + 1e-12
            assert hockey_stick(at, r, p) <= twice.delta(at) + 1e-12
        for order in (1.2, 2.0, 4.0):
            assert renyi(order, p, r) <= twice.renyi(order) + 1e-12
        for event in range(32):
            chosen = np.array([event >> i & 1 for i in range(5)], dtype=bool)
            assert 1 - p[chosen].sum() >= twice.miss_rate(min(1.0, float(r[chosen].sum()))) - 1e-12


def test_two_steps_of_pure_dp_are_tight() -> None:
    """Three distributions with likelihood ratios e^-2b, 1 and e^2b attain the curve."""
    b = 1.0
    a = 1 / (1 + math.exp(b))
    p = np.array([1 - a, a - a * math.exp(-b), a * math.exp(-b)])
    r = p[::-1]
    curve = TwoSteps(PureDP(b))
    for epsilon in (0.0, 0.5, 1.0, 1.9):
        assert hockey_stick(epsilon, p, r) == pytest.approx(curve.delta(epsilon), rel=1e-12)
    assert curve.epsilon(0.0) == pytest.approx(2 * b, rel=1e-11)
    assert curve.delta(0.0) == pytest.approx(1 - math.exp(-b), rel=1e-12)
    assert curve.delta(0.0) < PureDP(2 * b).delta(0.0)


def hockey_stick(epsilon: float, p: np.ndarray, q: np.ndarray) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def renyi(order: float, p: np.ndarray, q: np.ndarray) -> float:
    return math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)


def test_delta_below_zero_is_the_other_direction() -> None:
    p, q = np.array([0.7, 0.3]), np.array([0.3, 0.7])
    curve = PureDP(math.log(7 / 3))
    assert delta_at(curve, -0.5) == pytest.approx(hockey_stick(-0.5, p, q), rel=1e-12)


# Claims


def test_a_claim_of_one_point() -> None:
    assert Claim(1.0).curve == PureDP(1.0)
    assert Claim(1.0, 1e-5).curve == ApproximateDP(1.0, 1e-5)
    assert Claim(1.0) == Claim.of(PureDP(1.0), relation=Relation.LABEL)
    assert hash(Claim(1.0)) == hash(Claim(1.0))
    assert str(Claim(1.0, 1e-5)) == "epsilon <= 1 at delta=1e-05 (label)"
    assert str(Claim(math.inf)) == "no privacy claimed (epsilon = inf, label)"


def test_a_claim_of_a_curve() -> None:
    claim = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
    assert claim.epsilon == GaussianDP(1.0).epsilon(1e-5)
    assert str(claim) == "epsilon <= 4.37718 at delta=1e-05 (1-GDP; add-remove)"
    assert claim.to_dict() == {"epsilon": claim.epsilon, "delta": 1e-5, "relation": "add-remove", "curve": "1-GDP"}
    assert Claim(4.5, 1e-5, Relation.REPLACE, GaussianDP(1.0)).epsilon == 4.5


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_claims_are_rebuilt_from_their_descriptions(curve: PrivacyCurve) -> None:
    claim = Claim.of(curve, relation=Relation.REPLACE, delta=0.01)
    assert build_dataclass(Claim, describe(claim), location="claim") == claim
    assert build("curve", describe(curve)) == curve
    assert fingerprint(claim) == fingerprint(build_dataclass(Claim, describe(claim), location="claim"))
    assert fingerprint(claim) != fingerprint(Claim.of(curve, relation=Relation.REPLACE, delta=0.02))


def test_a_spec_may_state_each_kind_of_claim() -> None:
    plain = {"data": "iris", "mechanism": {"name": "randomized-response", "epsilon": 1.0}}
    for words, claim in (
        ({"epsilon": 1.0, "delta": 1e-5}, Claim(1.0, 1e-5)),
        (
            {"curve": {"name": "gaussian", "mu": 1.0}, "relation": "add-remove", "delta": 1e-5},
            Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5),
        ),
        (
            {"curve": {"name": "renyi", "orders": [2, 4], "values": [0.1, 0.2]}, "delta": 1e-5},
            Claim.of(RenyiDP((2, 4), (0.1, 0.2)), relation=Relation.LABEL, delta=1e-5),
        ),
    ):
        spec: AuditSpec = load_spec({**plain, "claim": words})
        assert spec.audits[0].claim == claim
        assert load_spec(yaml.safe_load(spec.to_yaml())) == spec
    with pytest.raises(SpecError, match=r"curve must be one of .*gaussian.*, got 'gausian'"):
        load_spec({**plain, "claim": {"curve": {"name": "gausian", "mu": 1}}})


@pytest.mark.parametrize(
    ("claimed", "game"),
    [
        (Relation.ZERO_OUT, Relation.ADD_REMOVE),
        (Relation.ADD_REMOVE, Relation.ZERO_OUT),
        (Relation.REPLACE, Relation.ZERO_OUT),
    ],
)
def test_zero_out_is_no_other_relation(claimed: Relation, game: Relation) -> None:
    """A mean over the number of records shows why: removing a record changes its divisor, zeroing one does not."""
    with pytest.raises(SpecError, match="Zero-out keeps the number of records"):
        claim_under(Claim(1.0, relation=claimed), game)


def test_a_game_in_which_a_contribution_is_zero_tests_zero_out_claims_unchanged() -> None:
    claim = Claim.of(GaussianDP(1.0), relation=Relation.ZERO_OUT, delta=1e-5)
    converted = claim_under(claim, Relation.ADD_REMOVE, zeroes_out=True)
    assert converted.claim == Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
    assert converted.steps == 1
    assert "covers the game unchanged" in converted.note
    assert DpSgdSteps.traits.compared(claim).claim.curve == GaussianDP(1.0)
    with pytest.raises(SpecError, match="zero-out neighbours"):
        RowFunctionGame.traits.compared(claim)
    assert RowFunctionGame().for_claim(claim).traits.compared(claim).claim.curve == GaussianDP(2.0)


def test_two_zeroed_contributions_bound_a_replaced_one() -> None:
    """A slow twin: over all pairs of three outputs, P and R within e^eps of Q are within e^(2 eps) of each other."""
    rng = np.random.default_rng(0)
    largest = math.exp(claim_under(Claim(0.7, relation=Relation.ZERO_OUT), Relation.REPLACE).claim.epsilon)
    for _ in range(200):
        zero = rng.dirichlet(np.ones(3))
        with_one, with_other = (zero * np.exp(rng.uniform(-0.7, 0.7, 3)) for _ in range(2))
        sides = [side / side.sum() for side in (with_one, with_other)]
        if all((np.abs(np.log(side / zero)) <= 0.7).all() for side in sides):
            assert (sides[0] <= largest * sides[1] * (1 + 1e-12)).all()


def test_claims_are_compared_under_the_games_relation() -> None:
    same = claim_under(Claim(1.0, 1e-5, Relation.LABEL), Relation.LABEL)
    assert (same.claim, same.note) == (Claim(1.0, 1e-5, Relation.LABEL), "")
    doubled = claim_under(Claim(1.0, 1e-5, Relation.ADD_REMOVE), Relation.LABEL)
    assert doubled.claim.epsilon == 2.0
    assert doubled.claim.delta == pytest.approx((1 + 2.718281828459045) * 1e-5)
    assert doubled.claim.curve == TwoSteps(ApproximateDP(1.0, 1e-5))
    assert "two steps" in doubled.note
    gaussian = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
    assert claim_under(gaussian, Relation.REPLACE).claim == Claim.of(
        GaussianDP(2.0), relation=Relation.REPLACE, delta=1e-5
    )
    covered = claim_under(Claim.of(GaussianDP(1.0), relation=Relation.REPLACE, delta=1e-5), Relation.LABEL)
    assert covered.claim.curve == GaussianDP(1.0)
    zeroed = Claim(1.0, 1e-5, Relation.ZERO_OUT)
    assert (
        claim_under(zeroed, Relation.REPLACE).claim
        == claim_under(Claim(1.0, 1e-5, Relation.ADD_REMOVE), Relation.REPLACE).claim
    )
    assert "to zero and from zero" in claim_under(zeroed, Relation.LABEL).note
    nothing = Claim(math.inf)
    assert claim_under(nothing, Relation.ADD_REMOVE).claim == Claim(math.inf, relation=Relation.ADD_REMOVE)


def test_refusal_of_a_claim_about_other_neighbours_shows_the_claim_to_write() -> None:
    with pytest.raises(SpecError, match="says nothing about") as caught:
        load_spec(
            {
                "name": "x",
                "data": "iris",
                "game": "membership",
                "audits": [{"name": "mine", "mechanism": {"name": "randomized-response", "epsilon": 1.0}}],
            }
        )
    assert "(mine)" in str(caught.value)
    assert "Claim(1, 0, Relation.ADD_REMOVE)" in str(caught.value)
    assert "relation: add-remove" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PureDP(0.0), "a claimed epsilon must be > 0, got 0.0"),
        (lambda: ApproximateDP(1.0, 1.0), r"a claimed delta must be in \[0, 1\), got 1.0"),
        (lambda: GaussianDP(math.inf), "mu must be > 0 and finite, got inf"),
        (lambda: RenyiDP((2.0, 2.0), (0.1, 0.1)), "orders must be > 1, finite and rising"),
        (lambda: RenyiDP((2.0,), (0.1, 0.1)), "one value for each order"),
        (lambda: RenyiDP((2.0,), (-0.1,)), "values must be >= 0"),
        (lambda: RenyiDP((2.0,), (math.inf,)), "values must hold a finite one"),
        (lambda: GaussianDP(1.0).epsilon(1.5), r"delta must be in \[0, 1\], got 1.5"),
        (lambda: PureDP(1.0).delta(-0.5), "epsilon must be >= 0, got -0.5"),
        (lambda: GaussianDP(1.0).miss_rate(-0.5), r"false alarms must be in \[0, 1\], got -0.5"),
        (lambda: GaussianDP(1.0).renyi(1.0), "the order must be > 1 and finite, got 1.0"),
        (lambda: Claim(4.0, 1e-5, Relation.REPLACE, GaussianDP(1.0)), "curve must not exceed the claim"),
        (lambda: Claim(), "must state epsilon, or a curve"),
        (lambda: Claim.of(SAMPLED, relation=Relation.LABEL, delta=1e-5), r"must have Relation\.ADD_REMOVE"),
        (lambda: AccountedEvent({"name": "GausianDpEvent"}), "with its class as `name`"),
        (lambda: AccountedEvent({"name": "GaussianDpEvent", "sigma": 1.0}), "GaussianDpEvent cannot be made from"),
        (lambda: AccountedEvent({"name": "UnsupportedDpEvent"}), "that the PLDAccountant of dp_accounting supports"),
    ],
)
def test_invalid_curves_and_claims_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# Numerical composition


SETTINGS = [(1.0, 0.01, 1000), (0.99, 0.1, 100), (10.0, 0.3, 50), (1.0, 0.9, 2), (0.6, 0.02, 500)]


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.5), (3.0, 0.01), (0.5, 0.99)])
def test_one_step_agrees_with_quadrature(noise: float, rate: float) -> None:
    """The curve is at least the larger direction, and within 1e-4 of it."""
    curve = SubsampledGaussian(noise, rate, 1)
    for epsilon in (0.0, 0.05, 0.5, 1.5):
        exact = max(_one_step_delta(noise, rate, epsilon))
        assert exact <= curve.delta(epsilon) + 1e-12
        assert curve.delta(epsilon) == pytest.approx(exact, rel=1e-4, abs=1e-12)


def _one_step_delta(noise: float, rate: float, epsilon: float) -> tuple[float, float]:
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    q = norm.pdf(x, scale=noise)
    p = (1 - rate) * q + rate * norm.pdf(x, loc=1, scale=noise)
    step = x[1] - x[0]
    return tuple(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * step) for a, b in ((p, q), (q, p)))  # type: ignore[return-value]


def test_two_steps_of_sampling_agree_with_quadrature() -> None:
    """On a grid of both noises, in both directions; the error is the squared cell width."""
    noise, rate = 1.0, 0.3
    x = np.linspace(-7, 8, 3001)
    q = norm.pdf(x, scale=noise) * (x[1] - x[0])
    p = (1 - rate) * q + rate * norm.pdf(x, loc=1, scale=noise) * (x[1] - x[0])
    curve = SubsampledGaussian(noise, rate, 2)
    for epsilon in (0.0, 0.4, 1.2):
        scale = math.exp(epsilon)
        exact = max(float(np.maximum(np.outer(a, a) - scale * np.outer(b, b), 0).sum()) for a, b in ((p, q), (q, p)))
        assert exact <= curve.delta(epsilon) * (1 + 1e-6)
        assert curve.delta(epsilon) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("setting", [*SETTINGS[1:2], *too((SETTINGS[0],), (SETTINGS[2],))], ids=str)
def test_the_composed_curve_agrees_with_dp_accounting(setting: tuple[float, float, int]) -> None:
    """At least its optimistic estimate, and within 1e-4 of the pessimistic one."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    noise, rate, steps = setting
    curve = SubsampledGaussian(noise, rate, steps)
    above, below = (
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            pessimistic_estimate=sign,
            use_connect_dots=sign,
            value_discretization_interval=1e-4,
        ).self_compose(steps)
        for sign in (True, False)
    )
    for epsilon in (0.0, 0.5, 2.0):
        assert curve.delta(epsilon) >= below.get_delta_for_epsilon(epsilon)
        assert curve.delta(epsilon) == pytest.approx(above.get_delta_for_epsilon(epsilon), rel=1e-4, abs=1e-11)
    for delta in (1e-8, 1e-5, 1e-2):
        assert curve.epsilon(delta) == pytest.approx(above.get_epsilon_for_delta(delta), rel=1e-4)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_composed_curves_are_consistent(setting: tuple[float, float, int]) -> None:
    curve = SubsampledGaussian(*setting)
    test_epsilon_is_the_inverse_of_delta(curve)
    test_miss_rate_is_a_trade_off_function(curve)
    renyi = RenyiDP(ORDERS, tuple(curve.renyi(order) for order in ORDERS))
    for delta in (1e-8, 1e-5, 1e-2):
        assert curve.epsilon(delta) <= renyi.epsilon(delta)


def test_sample_rate_one_is_the_gaussian() -> None:
    curve, gaussian = SubsampledGaussian(2.0, 1.0, 16), GaussianDP(2.0)
    for epsilon in EPSILONS:
        assert gaussian.delta(epsilon) <= curve.delta(epsilon) * (1 + 1e-12)
        assert curve.delta(epsilon) == pytest.approx(gaussian.delta(epsilon), rel=1e-6, abs=1e-14)
    assert curve.renyi(3.0) == pytest.approx(gaussian.renyi(3.0))


def test_less_noise_is_another_curve() -> None:
    """10 % less noise changes every delta by far more than the error of the composition."""
    for epsilon in (0.0, 0.5, 2.0):
        correct, less_noise = (SubsampledGaussian(noise, 0.1, 100).delta(epsilon) for noise in (1.0, 0.9))
        assert less_noise > 1.05 * correct


def test_a_replaced_record_is_two_steps_of_sampling() -> None:
    """The divergence of the exact pair, one record replaced by its opposite, is below the curve."""
    noise, rate = 1.0, 0.3
    x = np.linspace(-10, 10, 20_001)
    base = norm.pdf(x, scale=noise)
    p = (1 - rate) * base + rate * norm.pdf(x, loc=1, scale=noise)
    r = (1 - rate) * base + rate * norm.pdf(x, loc=-1, scale=noise)
    curve = two_steps(SubsampledGaussian(noise, rate, 1))
    for epsilon in (0.0, 0.3, 1.0):
        exact = float(np.maximum(p - math.exp(epsilon) * r, 0).sum() * (x[1] - x[0]))
        assert exact <= curve.delta(epsilon)


# Accountants


def test_an_event_agrees_with_its_accountant() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5))
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(step, 100), dp_accounting.LaplaceDpEvent(3.0)]
    )
    curve, accountant = AccountedEvent(event), PLDAccountant().compose(event)
    for epsilon in (0.0, 0.5, 2.0):
        assert curve.delta(epsilon) == pytest.approx(accountant.get_delta(epsilon), rel=1e-5, abs=1e-12)
    for delta in (1e-6, 1e-3):
        assert curve.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-4)
        assert curve.epsilon(delta) >= accountant.get_epsilon(delta) - 1e-9
    test_miss_rate_is_a_trade_off_function(curve)
    assert curve == AccountedEvent(curve.event)
    assert hash(curve) == hash(AccountedEvent(event))
    claim = Claim.of(curve, relation=Relation.ADD_REMOVE, delta=1e-5)
    assert build_dataclass(Claim, yaml.safe_load(yaml.safe_dump(describe(claim))), location="claim") == claim
    assert fingerprint(claim) == fingerprint(Claim.of(AccountedEvent(event), relation=Relation.ADD_REMOVE, delta=1e-5))


def test_renyi_curve_of_an_event() -> None:
    import dp_accounting

    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5))
    curve = AccountedEvent(dp_accounting.SelfComposedDpEvent(step, 100))
    for order in (2.0, 8.0):
        assert curve.renyi(order) == pytest.approx(SubsampledGaussian(1.5, 0.05, 100).renyi(order), rel=1e-6)
    # At fractional orders dp_accounting is too high: it adds an alternating series as if all terms were positive.
    x = np.linspace(-20, 20, 100_001)
    q = norm.pdf(x, scale=1.5)
    p = 0.95 * q + 0.05 * norm.pdf(x, loc=1, scale=1.5)
    exact = 100 * math.log(float((p**1.5 * q**-0.5).sum() * (x[1] - x[0]))) / 0.5
    assert SubsampledGaussian(1.5, 0.05, 100).renyi(1.5) == pytest.approx(exact, rel=1e-8)
    assert curve.renyi(1.5) >= exact


@pytest.mark.parametrize(
    ("rate", "noise", "order"), [(0.1, 4.0, 1.25), (0.05, 0.8, 1.5), (0.5, 0.5, 2.5), (0.5, 2.0, 3.0)]
)
def test_the_renyi_curve_of_a_subsampled_gaussian_at_50_digits(rate: float, noise: float, order: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    exact, q, s = divergence(rate, noise, order), mpmath.mpf(rate), mpmath.mpf(noise)
    assert SubsampledGaussian(noise, rate, 1).renyi(order) == pytest.approx(float(exact), rel=1e-9)
    assert divergence(rate, noise, order, removed=True) < exact
    moment = mpmath.quad(
        lambda z: mpmath.npdf(z, 0, s) * (1 - q + q * mpmath.exp((2 * z - 1) / (2 * s * s))) ** order,
        mpmath.linspace(-12 * s, order + 12 * s, 20),
    )
    assert float(exact) == pytest.approx(float(mpmath.log(moment)) / (order - 1), rel=1e-10)


def test_a_privacy_loss_distribution_is_a_profile() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    distribution = pld.from_laplace_mechanism(1.0)
    profile = PrivacyProfile.of_pld(distribution)
    for epsilon in (0.0, 0.3, 0.9):
        exact = max(0.0, 1 - math.exp((epsilon - 1) / 2))  # Laplace of scale 1 and sensitivity 1
        assert exact <= profile.delta(epsilon) + 1e-12
        assert profile.delta(epsilon) == pytest.approx(exact, abs=1e-4)
    test_epsilon_is_the_inverse_of_delta(profile)
    test_miss_rate_is_a_trade_off_function(profile)


def test_a_profile_between_its_points_is_a_chord() -> None:
    """The delta of pure DP is linear in e^epsilon, so chords between its points lie on it."""
    pure = PureDP(1.0)
    profile = PrivacyProfile((0.0, 1.0), (pure.delta(0.0), 0.0))
    for epsilon in (0.0, 0.2, 0.7, 1.0, 3.0):
        assert profile.delta(epsilon) == pytest.approx(pure.delta(epsilon), abs=1e-15)
    for alarm in ALARMS:
        assert profile.miss_rate(alarm) == pytest.approx(pure.miss_rate(alarm), abs=1e-15)
    assert profile.epsilon(0.1) == pytest.approx(pure.epsilon(0.1))
    assert profile.renyi(2.0) == pure.renyi(2.0)
    assert PrivacyProfile((0.0, 1.0), (0.5, 1e-6)).renyi(2.0) == math.inf
    assert PrivacyProfile((0.0, 1.0), (0.5, 1e-6)).epsilon(1e-7) == math.inf


def test_missing_dp_accounting_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r'pip install "dpaudit\[accounting\]"'):
        AccountedEvent({"name": "GaussianDpEvent", "noise_multiplier": 1.0})


def test_dp_sgd_claims_its_whole_curve() -> None:
    """Within its epsilon at its delta, by both accountants."""
    for accountant in ("rdp", "pld"):
        claim = DpSgd(4.0, sample_rate=0.1, accountant=accountant).claim()
        assert (claim.epsilon, claim.delta, claim.relation) == (4.0, 1e-5, Relation.ADD_REMOVE)
        assert 3.0 < claim.curve.epsilon(1e-5) <= 4.0
        assert isinstance(claim.curve, SubsampledGaussian)
    assert DpSgd(math.inf).claim() == Claim(math.inf, relation=Relation.ADD_REMOVE)


def test_a_stated_pair_is_converted_as_a_pair() -> None:
    """The curve, which is below the pair, is converted to its two steps."""
    claim = DpSgd(2.0, sample_rate=0.2).claim()
    converted = claim_under(claim, Relation.REPLACE).claim
    assert (converted.epsilon, converted.delta) == (4.0, pytest.approx((1 + math.exp(2.0)) * 1e-5))
    assert converted.curve == TwoSteps(claim.curve)
    assert converted.curve.epsilon(converted.delta) < 4.0


def test_pate_claims_the_curve_of_its_noise_and_uses_the_whole_budget() -> None:
    """Gaussian: mu^2 = asked / s1^2 + 2 answered / s2^2. Laplace: two counts on each query."""
    gaussian = PateFm(4.0)
    factor = gaussian.noise_factor()
    squared = gaussian.queries / gaussian.threshold_noise**2 + 2 * gaussian.answers / gaussian.vote_noise**2
    curve = gaussian.claim().curve
    assert isinstance(curve, GaussianDP)
    assert curve.mu == pytest.approx(math.sqrt(squared) / factor, rel=1e-12)
    laplace = PATE(4.0)
    assert laplace.claim().curve == ComposedLaplace(laplace.affordable_noise(), 2 * 200)
    for claim in (gaussian.claim(), laplace.claim()):
        assert 4.0 * (1 - 1e-6) < claim.curve.epsilon(1e-5) <= 4.0
    # The published closed form adds more noise than the claim needs.
    assert PATE(4.0, accounting="moments").claim().curve.epsilon(1e-5) < 0.6 * 4.0
