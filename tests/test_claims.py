"""Claims as curves: every face of a curve against the others, closed forms, dp_accounting and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from scipy.stats import norm

from dpaudit.actors.unit import fingerprint
from dpaudit.claims import (
    ApproximateDP,
    Claim,
    GaussianDP,
    PrivacyCurve,
    PureDP,
    Relation,
    RenyiDP,
    TwoSteps,
    claim_under,
    two_steps,
)
from dpaudit.claims.curve import DeltaCurve, delta_at
from dpaudit.engine.spec.audit_spec import AuditSpec, load_spec
from dpaudit.engine.spec.build import build, build_dataclass, describe
from dpaudit.errors import InputError, SpecError

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
CURVES: list[PrivacyCurve] = [*EXACT, *TWICE, *RENYI]
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
def test_the_trade_off_function_is_one(curve: PrivacyCurve) -> None:
    """Falling, convex, below 1 - alarm, and above every line that (epsilon, delta(epsilon)) draws."""
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
    """The search that serves curves without a formula finds what the formula says, and never more."""

    class ByDelta(DeltaCurve):
        def delta(self, epsilon: float, /) -> float:
            return curve.delta(epsilon)

    for alarm in ALARMS:
        found = ByDelta().miss_rate(alarm)
        assert found <= curve.miss_rate(alarm) + 1e-12
        assert found == pytest.approx(curve.miss_rate(alarm), abs=1e-7)


@pytest.mark.parametrize("curve", [*EXACT, *TWICE], ids=str)
def test_delta_is_the_conjugate_of_the_trade_off_function(curve: PrivacyCurve) -> None:
    """To the distance between a kink and the grid, steps of 0.7 %."""
    alarms = np.concatenate([np.geomspace(1e-12, 0.5, 4000), np.linspace(0.5, 1, 2000)])
    f = np.array([curve.miss_rate(float(alarm)) for alarm in alarms])
    for epsilon in EPSILONS:
        assert float((1 - math.exp(epsilon) * alarms - f).max()) == pytest.approx(curve.delta(epsilon), abs=1e-3)


def test_a_gaussian_in_closed_form() -> None:
    """Values of Balle and Wang (2018) by an independent formula; 4.377 at delta 1e-5 is FINDINGS' value for mu = 1."""
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
    """Total variation (e - 1) / (e + 1), the kink of the trade-off function, the Renyi divergence by its definition."""
    p, q = math.e / (1 + math.e), 1 / (1 + math.e)
    curve = PureDP(1.0)
    assert curve.delta(0.0) == pytest.approx(p - q, rel=1e-12)
    assert curve.miss_rate(q) == pytest.approx(q, rel=1e-12)
    assert curve.renyi(3.0) == pytest.approx(math.log(p**3 * q**-2 + q**3 * p**-2) / 2, rel=1e-12)
    assert ApproximateDP(1.0, 0.0).renyi(3.0) == curve.renyi(3.0)
    assert ApproximateDP(1.0, 1e-6).renyi(3.0) == math.inf


def test_nothing_promised_is_nothing() -> None:
    curve = PureDP(math.inf)
    assert (curve.epsilon(0.5), curve.delta(3.0), curve.miss_rate(0.5), curve.renyi(2.0)) == (math.inf, 1, 0, math.inf)


def test_renyi_of_a_gaussian_costs_little_more_than_the_gaussian() -> None:
    """mu-GDP as Renyi values at a fine grid of orders: above the truth in every face, and close to it."""
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
    """Above the Gaussian's own two steps, close to it, and no order claims what its largest order cannot show."""
    orders = tuple(float(a) for a in 1 + np.geomspace(1e-2, 1e3, 400))
    doubled = two_steps(RenyiDP(orders, tuple(a / 2 for a in orders)))
    assert isinstance(doubled, RenyiDP)
    for order in (1.5, 2.0, 8.0, 60.0):
        assert 1 <= doubled.renyi(order) / GaussianDP(2.0).renyi(order) <= 1.05
    assert doubled.renyi(700.0) == math.inf
    assert doubled.epsilon(1e-5) >= GaussianDP(2.0).epsilon(1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_no_chain_of_three_distributions_exceeds_two_steps(seed: int) -> None:
    """P, Q, R on five outcomes: what the pairs (P, Q) and (Q, R) need of each curve covers (P, R), twice."""
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


def test_two_steps_of_pure_dp_are_reached() -> None:
    """Randomised response twice in a row is as far apart as promised: e^-2b, 1, e^2b are its likelihood ratios."""
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
    with pytest.raises(InputError, match="must promise no less than its epsilon"):
        Claim(4.0, 1e-5, Relation.REPLACE, GaussianDP(1.0))
    with pytest.raises(InputError, match="must state epsilon, or a curve"):
        Claim()


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_claims_in_words_come_back(curve: PrivacyCurve) -> None:
    claim = Claim.of(curve, relation=Relation.REPLACE, delta=0.01)
    assert build_dataclass(Claim, describe(claim), at="claim") == claim
    assert build("curve", describe(curve)) == curve
    assert fingerprint(claim) == fingerprint(build_dataclass(Claim, describe(claim), at="claim"))
    assert fingerprint(claim) != fingerprint(Claim.of(curve, relation=Relation.REPLACE, delta=0.02))


def test_a_spec_says_each_kind_of_claim() -> None:
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
        again = load_spec(yaml.safe_load(spec.to_yaml()))
        assert again == spec
    with pytest.raises(SpecError, match=r"curve must be one of .*gaussian.*, got 'gausian'"):
        load_spec({**plain, "claim": {"curve": {"name": "gausian", "mu": 1}}})


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
    nothing = Claim(math.inf)
    assert claim_under(nothing, Relation.ADD_REMOVE).claim == nothing


def test_a_claim_about_other_neighbours_is_refused_in_a_sentence_that_says_what_to_write() -> None:
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
    ],
)
def test_what_is_no_curve_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        make()
