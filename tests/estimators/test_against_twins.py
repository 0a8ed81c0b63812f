"""The estimators against slow twins, which were written from the papers' definitions independently of the estimators.

Slow values are listed in this file; the comment above each table names the twin and the call. Answers of faster twins
are recorded (`tests/twins/answers.py`): quick tests read them, nightly tests recompute them.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from mpmath import mp, mpf

from dpaudit.estimators.label_reconstruction import advantage
from dpaudit.estimators.one_run import f_dp
from dpaudit.estimators.one_run import guesses as one_run
from dpaudit.estimators.private_prediction import divergence, k_cut, noisy_argmax, two_cut
from dpaudit.estimators.private_prediction.divergence import rdp_to_epsilon
from dpaudit.estimators.proportions import binomial, multinomial
from dpaudit.estimators.two_world import confusion, ratio
from tests.estimators import releases
from tests.nightly import too
from tests.twins import advantage_twin, binomial_twin, confusion_twin, f_dp_twin, one_run_twin, ratio_twin, renyi_twin

CLOSED_FORM = 1e-9
BAYESIAN = 1e-6
ROOT = 1e-6
ADVANTAGE = 1e-10
# The Bayesian twin returns F as a double: 1e-16 over a slope of 2e-7, in the flattest case in reach (epsilon 40).
BAYESIAN_TWIN = 1e-9
# The twins of roots stop at an accepted parameter this far above the first one.
ROOT_TWIN = 1e-12


def is_lower_bound(bound: float, exact: float | mpf, *, within: float, twin_error: float = 0.0) -> bool:
    """True if the bound is below the exact value, and close to it."""
    return bool(mpf(exact) - within <= bound <= mpf(exact) + twin_error)


# ---------------------------------------------------------------------------------------------------------- binomial

_draw = random.Random(20_240_601)
SMALL_SAMPLES = [(0, 1), (1, 1), (0, 50), (50, 50), (1, 2)] + [
    (_draw.randint(0, n), n) for n in [_draw.randint(2, 2000) for _ in range(12)]
]

# (k, n, confidence, then clopper_pearson_lower, _upper, jeffreys_lower and _upper at (k, n, (1 - confidence) / 2)).
LARGE_SAMPLES = [
    (0, 10000000, 0.95, 0.0, 3.6888787737224376e-07, 0.0, 2.511942715366003e-07),
    (1, 10000000, 0.95, 2.531780795224033e-09, 5.57164211736073e-07, 1.0789764342729509e-08, 4.674200826695119e-07),
    (37, 10000000, 0.99, 2.3208494884348572e-06, 5.574763914101673e-06, 2.360303908096924e-06, 5.514274028099777e-06),
    (123456, 10000000, 0.95, 0.01227725172178698, 0.01241423083597978, 0.012277301584914116, 0.012414180699136147),
    (5000000, 10000000, 0.9, 0.4997398758301658, 0.5002601241698342, 0.49973992583015514, 0.5002600741698449),
    (9999997, 10000000, 0.95, 0.9999991232729458, 0.9999999381327834, 0.9999991993620067, 0.999999915506534),
    (999999, 1000000, 0.999, 0.9999900013674897, 0.999999999499875, 0.9999911350389633, 0.9999999923605145),
    (31415, 100000, 0.95, 0.31127348077573413, 0.3170373019972312, 0.3112784682232726, 0.3170322897345826),
    (1000000, 3000000, 0.95, 0.3327998930982745, 0.3338670952911172, 0.3328000596981011, 0.3338669285579321),
]


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
@pytest.mark.parametrize(("k", "n"), SMALL_SAMPLES)
def test_clopper_pearson(k: int, n: int, confidence: float) -> None:
    error = 1 - mpf(confidence)
    two_sided = binomial.clopper_pearson(k, n, confidence=confidence)
    assert is_lower_bound(two_sided.lower, binomial_twin.clopper_pearson_lower(k, n, error / 2), within=CLOSED_FORM)
    assert is_lower_bound(-two_sided.upper, -binomial_twin.clopper_pearson_upper(k, n, error / 2), within=CLOSED_FORM)
    lower = binomial.clopper_pearson(k, n, confidence=confidence, side="lower")
    assert is_lower_bound(lower.lower, binomial_twin.clopper_pearson_lower(k, n, error), within=CLOSED_FORM)
    assert lower.upper == math.inf


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
@pytest.mark.parametrize(("k", "n"), SMALL_SAMPLES)
def test_jeffreys(k: int, n: int, confidence: float) -> None:
    error = 1 - mpf(confidence)
    interval = binomial.jeffreys(k, n, confidence=confidence)
    assert abs(interval.lower - binomial_twin.jeffreys_lower(k, n, error / 2)) < CLOSED_FORM
    assert abs(interval.upper - binomial_twin.jeffreys_upper(k, n, error / 2)) < CLOSED_FORM


@pytest.mark.parametrize(
    ("k", "n", "confidence", "exact_low", "exact_high", "jeffreys_low", "jeffreys_high"), LARGE_SAMPLES
)
def test_proportions_of_large_samples(
    k: int,
    n: int,
    confidence: float,
    exact_low: float,
    exact_high: float,
    jeffreys_low: float,
    jeffreys_high: float,
) -> None:
    """Relative error 1e-9 as well, because epsilon is a log ratio of proportions."""
    for computed, expected in (
        (binomial.clopper_pearson(k, n, confidence=confidence), (exact_low, exact_high)),
        (binomial.jeffreys(k, n, confidence=confidence), (jeffreys_low, jeffreys_high)),
    ):
        for end, value in zip(computed, expected, strict=True):
            assert abs(end - value) <= CLOSED_FORM * value


@pytest.mark.parametrize("table", [(10, 100, 3, 100), (1, 10**6, 1, 10**6), (999, 1000, 1, 50), (7, 7, 7, 7)])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_katz_log(table: tuple[int, int, int, int], confidence: float) -> None:
    interval = binomial.katz_log(*table, confidence=confidence)
    exact = binomial_twin.katz_log(*table, (1 - mpf(confidence)) / 2)
    assert max(abs(a - b) for a, b in zip(interval, exact, strict=True)) < CLOSED_FORM


def test_katz_log_claims_nothing_without_an_event() -> None:
    assert binomial.katz_log(5, 10, 0, 10, confidence=0.95) == (-math.inf, math.inf)
    assert binomial.katz_log(0, 10, 5, 10, confidence=0.95) == (-math.inf, math.inf)


CELLS = [[56, 72, 73, 59, 62, 87, 58], [91, 49, 37, 43], [500, 3, 0, 1], [12, 7], [400, 350, 250, 0, 0, 10]]


@pytest.mark.parametrize("confidence", [0.9, 0.975])
@pytest.mark.parametrize("counts", CELLS)
def test_simultaneous_intervals(counts: list[int], confidence: float) -> None:
    for fast, twin in (
        (multinomial.goodman, binomial_twin.goodman),
        (multinomial.sison_glaz, binomial_twin.sison_glaz),
    ):
        interval = np.column_stack(fast(counts, confidence=confidence))
        exact = np.array(twin(counts, confidence), dtype=float)
        assert np.max(np.abs(interval - exact)) < CLOSED_FORM, fast.__name__


# --------------------------------------------------------------------------------------------------------- confusion

# (tp, fp, tn, fn, delta, confidence, *bayesian_interval(...), bayesian_interval(..., side="lower")[0]).
CREDIBLE = [
    (1, 0, 1, 0, 0.0, 0.95, 0.12333465223823734, 8.90178498878623, 0.2464611838718537),
    (1, 1, 0, 0, 1e-05, 0.99, 0.013630650019402075, 10.75178290917257, 0.027553325678843936),
    (1, 0, 1, 0, 0.1, 0.9, 0.0, 7.3297113382157875, 0.10773431478595914),
    (1, 1, 0, 1, 0.0, 0.95, 0.06170191368345709, 7.089614586444679, 0.12350532284808463),
    (0, 1, 0, 2, 1e-05, 0.99, 0.0369661859757632, 12.4996634537284, 0.07393906764101175),
    (1, 1, 0, 1, 0.1, 0.99, 0.0, 10.01241162945058, 0.0),
    (0, 0, 1, 10, 0.0, 0.95, 0.11952495031905766, 8.499500385110629, 0.2388161483899126),
    (10, 0, 1, 0, 1e-05, 0.95, 0.8771769133298454, 10.28708938696099, 1.2992222427908113),
    (8, 0, 1, 2, 0.1, 0.99, 0.0, 10.67435429537444, 0.0),
    (100, 14, 0, 0, 0.0, 0.9, 0.23678835949879717, 7.271529026224421, 0.47311654081723886),
    (100, 0, 100, 0, 1e-05, 0.9, 4.896376982040248, 12.19606336933019, 5.286195246967276),
    (48, 88, 12, 52, 0.1, 0.95, 0.7013911039239975, 1.8639433222823918, 0.7835826615476195),
    (996, 2, 140, 4, 0.0, 0.99, 4.469173110753997, 7.106027715911358, 4.552621265169986),
    (1000, 142, 0, 0, 1e-05, 0.95, 0.048606606451470566, 8.668610434734322, 0.1710256636659367),
    (553, 2, 140, 447, 0.1, 0.9, 2.464457982666181, 4.718452971121069, 2.6429385529440066),
    (0, 5446, 4554, 10000, 0.0, 0.99, 7.231555308832655, 19.44081869940609, 7.403463805041447),
    (4224, 0, 1428, 5776, 1e-05, 0.99, 5.032362987390082, 17.240549302525782, 5.204101451924419),
    (9652, 611, 817, 348, 0.1, 0.9, 2.509777162129202, 2.7055928096814816, 2.531107053236617),
    (52296, 13825, 460, 47704, 0.0, 0.95, 2.6065373102718685, 2.7868033836977912, 2.620611054276903),
    (100000, 100000, 0, 0, 1e-05, 0.99, 0.0, 8.06928130481039, 0.0),
    (64693, 0, 100000, 35307, 0.1, 0.9, 10.25678616930548, 17.141207569014437, 10.607334894331105),
    (370096, 0, 1000000, 629904, 0.0, 0.95, 11.900460409679287, 20.440513934312108, 12.168812196630393),
    (992856, 0, 142857, 7144, 1e-05, 0.99, 10.491325248795127, 22.700607066469836, 10.66323664401344),
    (0, 0, 142857, 1000000, 0.1, 0.99, 0.0, 0.0, 0.0),
    (0, 612248, 816323, 10000000, 0.0, 0.95, 14.349745424372955, 22.889799113909397, 14.618097250142531),
    (9833754, 18623, 1409948, 166246, 1e-05, 0.9, 4.311299252173742, 4.3352483483162665, 4.313934470525322),
    (0, 163226, 9836774, 10000000, 0.1, 0.99, 0.0, 0.0, 0.0),
    (10000000, 0, 10000000, 0, 0.0, 0.95, 16.1220168401069, 25.111011670930328, 16.418476263952602),
    (10000000, 0, 10000000, 0, 1e-05, 0.9999, 14.829565524999936, 37.55289456657413, 14.918889516085576),
    (0, 10000000, 0, 10000000, 0.0, 0.95, 16.1220168401069, 25.111011670930328, 16.418476263952602),
    (0, 10000000, 0, 10000000, 1e-09, 0.95, 16.1220168391069, 25.11101166993033, 16.418476262952602),
    (10000000, 10000000, 0, 0, 0.0, 0.95, 0.07856000853599687, 7.860630764732492, 0.157241369262332),
    (0, 0, 10000000, 10000000, 0.1, 0.95, 0.0, 0.0, 0.0),
    (
        5000000,
        5000000,
        5000000,
        5000000,
        0.0,
        0.95,
        1.4017271594981307e-05,
        0.0010025646468007155,
        2.804832604056029e-05,
    ),
    (1, 0, 1, 0, 0.0, 0.95, 0.12333465223823734, 8.90178498878623, 0.2464611838718537),
    (1, 0, 1, 0, 0.1, 0.95, 0.0, 8.73528706505404, 0.0),
    (0, 1, 0, 1, 0.1, 0.95, 0.0, 8.73528706505404, 0.0),
    (10000000, 0, 1, 0, 0.0, 0.95, 14.495377567593156, 23.410070613607097, 14.902620864039077),
    (1, 0, 10000000, 0, 1e-05, 0.95, 14.495334521092571, 23.410055613909133, 14.902591654357215),
    (731059, 268941, 731059, 268941, 0.0, 0.95, 0.9973593006391326, 1.003853279841134, 0.9978754575887342),
    (982014, 17986, 982014, 17986, 1e-05, 0.95, 3.9923881879837473, 4.016581413670199, 3.9941995310640386),
]


@pytest.mark.parametrize(("tp", "fp", "tn", "fn", "delta", "confidence", "lower", "upper", "one_sided"), CREDIBLE)
def test_bayesian_interval(
    tp: int,
    fp: int,
    tn: int,
    fn: int,
    delta: float,
    confidence: float,
    lower: float,
    upper: float,
    one_sided: float,
) -> None:
    settings = {"delta": delta, "confidence": confidence}
    interval = confusion.epsilon_interval(tp, fp, tn, fn, **settings)
    assert is_lower_bound(interval.lower, lower, within=BAYESIAN, twin_error=BAYESIAN_TWIN)
    assert is_lower_bound(-interval.upper, -upper, within=BAYESIAN, twin_error=BAYESIAN_TWIN)
    interval = confusion.epsilon_interval(tp, fp, tn, fn, side="lower", **settings)
    assert is_lower_bound(interval.lower, one_sided, within=BAYESIAN, twin_error=BAYESIAN_TWIN)
    assert interval.upper == math.inf


def _random_tables(count: int, seed: int) -> list[tuple[int, int, int, int, float]]:
    draw = random.Random(seed)
    tables = []
    for _ in range(count):
        n1, n0 = (int(10 ** draw.uniform(0, 7)) for _ in range(2))
        fn = draw.choice([0, n1, draw.randint(0, n1), int(n1 * 10 ** draw.uniform(-6, 0))])
        fp = draw.choice([0, n0, draw.randint(0, n0), int(n0 * 10 ** draw.uniform(-6, 0))])
        tables.append((n1 - fn, fp, n0 - fp, fn, draw.choice([0.0, 1e-9, 1e-5, 1e-2, 0.1])))
    return tables


@pytest.mark.parametrize(("tp", "fp", "tn", "fn", "delta"), _random_tables(6, seed=5))
def test_posterior_by_integration(tp: int, fp: int, tn: int, fn: int, delta: float) -> None:
    """Distribution, density and both ends."""
    (low, high), (*mass, density) = confusion_twin.posterior_at_its_ends(tp, fp, tn, fn, delta, confidence=0.9)
    interval = confusion.epsilon_interval(tp, fp, tn, fn, delta=delta, confidence=0.9)
    assert is_lower_bound(interval.lower, low, within=BAYESIAN, twin_error=BAYESIAN_TWIN)
    assert is_lower_bound(-interval.upper, -high, within=BAYESIAN, twin_error=BAYESIAN_TWIN)
    middle = (low + high) / 2
    for epsilon, exact in zip((0.0, low, middle, high, high + 1), mass, strict=True):
        cdf = confusion.epsilon_posterior_cdf(epsilon, tp, fp, tn, fn, delta=delta)
        assert abs(cdf - exact) < CLOSED_FORM
    if high > low:
        assert confusion.epsilon_posterior_pdf(middle, tp, fp, tn, fn, delta=delta) == pytest.approx(density, rel=1e-6)


RECTANGLES = [
    (65, 25, 75, 35, 0.05, 0.95),
    (1000, 0, 1000, 0, 1e-5, 0.9),
    (90, 0, 100, 10, 1e-5, 0.9),
    (0, 100, 0, 100, 0.0, 0.95),
    (1, 0, 1, 0, 0.0, 0.5),
    (5, 0, 300, 195, 1e-3, 0.99),
    (900, 200, 800, 100, 0.1, 0.95),
    (300, 1, 20, 3, 0.01, 0.95),
    (0, 100, 0, 100, 1e-5, 0.95),
    (3, 180, 20, 97, 0.05, 0.9),
    (40, 70, 30, 60, 0.0, 0.9),
]


@pytest.mark.parametrize("side", ["two-sided", "lower"])
@pytest.mark.parametrize("method", ["clopper-pearson", "jeffreys"])
@pytest.mark.parametrize(("tp", "fp", "tn", "fn", "delta", "confidence"), RECTANGLES)
def test_rectangle_interval(
    tp: int, fp: int, tn: int, fn: int, delta: float, confidence: float, method: str, side: str
) -> None:
    settings = {"delta": delta, "confidence": confidence, "method": method, "side": side}
    interval = confusion.epsilon_interval(tp, fp, tn, fn, **settings)
    lower, upper = confusion_twin.rectangle_interval(tp, fp, tn, fn, **settings)
    assert is_lower_bound(interval.lower, lower, within=CLOSED_FORM)
    assert interval.upper == upper if mp.isinf(upper) else is_lower_bound(-interval.upper, -upper, within=CLOSED_FORM)


# ----------------------------------------------------------------------------------------------------------- one run

_draw = random.Random(11)
GUESSES = [(20, 20), (20, 3), (1, 1), (1000, 600)] + [
    (r, _draw.randint(r // 2, r)) for r in [_draw.randint(5, 3000) for _ in range(8)]
]


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
@pytest.mark.parametrize(("guesses", "correct"), GUESSES)
def test_one_run_binomial(guesses: int, correct: int, confidence: float) -> None:
    exact = one_run_twin.binomial_epsilon(guesses, correct, confidence=confidence)
    settings = {"canaries": 5000, "delta": 0.0, "confidence": confidence}
    for method in ("binomial", "auto"):
        bound = one_run.one_run_epsilon(guesses, correct, method=method, **settings)
        assert is_lower_bound(bound, exact, within=ROOT, twin_error=ROOT_TWIN)


def test_one_run_at_a_million() -> None:
    """Twins: binomial_epsilon(731059 and 10**6 of 10**6), theorem_16_epsilon(..., canaries=10**6, delta=1e-5)."""
    settings = {"canaries": 10**6, "confidence": 0.95}
    bound = one_run.one_run_epsilon(10**6, 731_059, delta=0.0, **settings)
    assert bound == pytest.approx(0.99629071, abs=1e-8)
    bound = one_run.one_run_epsilon(10**6, 731_059, delta=1e-5, method="theorem-16", **settings)
    assert bound == pytest.approx(0.99613624, abs=1e-8)
    bound = one_run.one_run_epsilon(10**6, 10**6, delta=0.0, **settings)
    assert is_lower_bound(bound, one_run_twin.binomial_epsilon(10**6, 10**6, confidence=0.95), within=ROOT)


WITH_DELTA = [
    (200, 200, 200, 1e-2, 0.95),
    (200, 190, 200, 1e-2, 0.95),
    (100, 95, 1000, 1e-3, 0.95),
    (20, 20, 200, 1e-4, 0.95),
    (200, 160, 2000, 1e-4, 0.99),
    (40, 24, 40, 1e-5, 0.9),
]


@pytest.mark.parametrize(("guesses", "correct", "canaries", "delta", "confidence"), WITH_DELTA)
def test_one_run_with_delta(guesses: int, correct: int, canaries: int, delta: float, confidence: float) -> None:
    """Equal to the twins, and never above the optimum over every mechanism (a linear program solved to about 1e-7)."""
    settings = {"canaries": canaries, "delta": delta, "confidence": confidence}
    by_algorithm_3 = one_run.one_run_epsilon(guesses, correct, method="f-dp", **settings)
    exact = f_dp_twin.f_dp_parameter_in_doubles(guesses, correct, family="approx-dp", **settings)
    assert is_lower_bound(by_algorithm_3, exact, within=ROOT, twin_error=1e-9)
    assert one_run.one_run_epsilon(guesses, correct, **settings) == by_algorithm_3
    by_theorem_16 = one_run.one_run_epsilon(guesses, correct, method="theorem-16", **settings)
    exact = one_run_twin.theorem_16_epsilon(guesses, correct, **settings)
    assert is_lower_bound(by_theorem_16, exact, within=ROOT, twin_error=ROOT_TWIN)
    for bound in (by_algorithm_3, by_theorem_16):
        if bound > 1e-3:  # the optimum at the bound cannot exceed the error
            optimum = one_run_twin.largest_tail(guesses, correct, canaries, bound, delta)
            assert optimum <= (1 - confidence) * (1 + 1e-5)


# -------------------------------------------------------------------------------------------------------------- f-DP

# (family, guesses, correct, canaries, confidence, tau, f_dp_parameter(...)).
PARAMETERS = [
    ("gaussian", 100, 90, 1000, 0.95, 0.0, 0.6025036074397576),
    ("laplace", 100, 90, 1000, 0.95, 0.0, 1.6149327402599738),
    ("gaussian", 200, 160, 2000, 0.95, 0.0, 0.4042448906420759),
    ("laplace", 200, 160, 2000, 0.95, 0.0, 1.0745653570129434),
    ("gaussian", 50, 50, 50, 0.99, 0.0, 1.0941474160690632),
    ("laplace", 50, 50, 50, 0.99, 0.0, 2.4222101190680405),
    ("gaussian", 400, 260, 400, 0.95, 0.0, 0.24602615901221725),
    ("laplace", 400, 260, 400, 0.95, 0.0, 0.4390881460121818),
    ("gaussian", 100, 90, 150, 0.95, 0.02, 0.10851938273208361),
    ("laplace", 100, 90, 150, 0.95, 0.02, 0.25131442827841965),
    ("gaussian", 1000, 650, 1000, 0.95, 0.0, 0.26011083019420767),
    ("laplace", 1000, 650, 1000, 0.95, 0.0, 0.5074049477416338),
]
# (family, guesses, correct, canaries, confidence, tau, delta, f_dp_parameter(...)).
APPROXIMATE = [
    ("approx-dp", 100, 90, 1000, 0.95, 0.0, 0.0, 1.6149327402599738),
    ("approx-dp", 100, 90, 1000, 0.95, 0.0, 0.001, 1.5423134993716303),
    ("approx-dp", 200, 160, 2000, 0.95, 0.0, 0.0, 1.0745653570129434),
    ("approx-dp", 200, 160, 2000, 0.95, 0.0, 0.001, 0.9833280828815987),
    ("approx-dp", 50, 50, 50, 0.99, 0.0, 0.0, 2.3384382428703248),
    ("approx-dp", 50, 50, 50, 0.99, 0.0, 0.001, 2.3149699113873794),
    ("approx-dp", 400, 260, 400, 0.95, 0.0, 0.0, 0.4337465154421807),
    ("approx-dp", 400, 260, 400, 0.95, 0.0, 0.001, 0.42550725265937217),
    ("approx-dp", 100, 90, 150, 0.95, 0.02, 0.0, 0.25131442827841965),
    ("approx-dp", 100, 90, 150, 0.95, 0.02, 0.001, 0.2174128766046124),
    ("approx-dp", 1000, 650, 1000, 0.95, 0.0, 0.0, 0.5025221726600648),
    ("approx-dp", 1000, 650, 1000, 0.95, 0.0, 0.001, 0.4942941325589345),
]


@pytest.mark.parametrize(("family", "guesses", "correct", "canaries", "confidence", "tau", "exact"), PARAMETERS)
def test_f_dp_parameter(
    family: str, guesses: int, correct: int, canaries: int, confidence: float, tau: float, exact: float
) -> None:
    settings = {"canaries": canaries, "confidence": confidence, "family": family, "tau": tau}
    parameter = f_dp.f_dp_parameter(guesses, correct, **settings)
    assert is_lower_bound(parameter, exact, within=ROOT, twin_error=ROOT_TWIN)
    for delta in (1e-5, 1e-2):
        parameter = f_dp.f_dp_epsilon(guesses, correct, delta=delta, **settings)
        # The parameter may be ROOT too low, and epsilon moves a few times faster than mu.
        assert is_lower_bound(
            parameter, f_dp_twin.family_epsilon(family, exact, delta), within=10 * ROOT, twin_error=1e-10
        )


@pytest.mark.parametrize(
    ("family", "guesses", "correct", "canaries", "confidence", "tau", "delta", "exact"), APPROXIMATE
)
def test_f_dp_parameter_of_approximate_dp(
    family: str, guesses: int, correct: int, canaries: int, confidence: float, tau: float, delta: float, exact: float
) -> None:
    settings = {"canaries": canaries, "confidence": confidence, "family": family, "tau": tau, "delta": delta}
    for function in (f_dp.f_dp_parameter, f_dp.f_dp_epsilon):
        assert is_lower_bound(function(guesses, correct, **settings), exact, within=ROOT, twin_error=ROOT_TWIN)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("guesses", "correct", "canaries", "tau"), [(12, 12, 30, 0.0), (25, 22, 25, 0.01), (9, 4, 90, 0.0)]
)
def test_f_dp_parameter_of_few_guesses(family: str, guesses: int, correct: int, canaries: int, tau: float) -> None:
    settings = {"canaries": canaries, "confidence": 0.9, "family": family, "tau": tau}
    exact = f_dp_twin.f_dp_parameter(guesses, correct, **settings)
    parameter = f_dp.f_dp_parameter(guesses, correct, **settings)
    assert is_lower_bound(parameter, exact, within=ROOT, twin_error=ROOT_TWIN)


def test_f_dp_at_ten_thousand_of_a_million() -> None:
    """Twin: f_dp_parameter_in_doubles(10000, 9584, canaries=10**6, confidence=0.95), 10,000 steps a candidate."""
    parameter = f_dp.f_dp_parameter(10_000, 9_584, canaries=10**6, confidence=0.95)
    assert parameter == pytest.approx(0.7959461148, abs=ROOT)


# ------------------------------------------------------------------------------------------------------------- ratio

_draw = random.Random(7)
HITS = [(500, 500, 3, 500), (40, 50, 0, 90), (10, 10, 10, 10), (2, 60, 50, 60), (700, 1000, 300, 900)] + [
    (_draw.randint(0, n1), n1, _draw.randint(0, n0), n0)
    for n1, n0 in [(_draw.randint(1, 800), _draw.randint(1, 800)) for _ in range(5)]
]
GROUPS = [(0.0, 1), (1e-3, 1), (1e-2, 3), *too((0.0, 4), (0.1, 16))]


@pytest.mark.parametrize(("delta", "group"), GROUPS)
@pytest.mark.parametrize("directions", ["one", "best"])
@pytest.mark.parametrize(("n1", "trials1", "n0", "trials0"), HITS)
def test_ratio_by_exact_limits(
    n1: int, trials1: int, n0: int, trials0: int, delta: float, group: int, directions: str
) -> None:
    settings = {"delta": delta, "confidence": 0.95, "group": group}
    bound = ratio.ratio_epsilon(n1, n0, trials1, trials0, directions=directions, **settings)
    exact = ratio_twin.clopper_pearson_epsilon(n1, n0, trials1, trials0, best=directions == "best", **settings)
    assert is_lower_bound(bound, exact, within=CLOSED_FORM)


@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize("directions", ["one", "best"])
@pytest.mark.parametrize(("n1", "trials1", "n0", "trials0"), HITS)
def test_ratio_by_katz(n1: int, trials1: int, n0: int, trials0: int, group: int, directions: str) -> None:
    settings = {"confidence": 0.95, "group": group}
    bound = ratio.ratio_epsilon(
        n1, n0, trials1, trials0, delta=0.0, method="katz-log", directions=directions, **settings
    )
    exact = ratio_twin.katz_epsilon(n1, n0, trials1, trials0, best=directions == "best", **settings)
    assert is_lower_bound(bound, exact, within=CLOSED_FORM)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("trials", [1, 2, 7, 20])
def test_the_ceiling_over_every_table(trials: int, confidence: float) -> None:
    exact, *_ = ratio_twin.katz_ceiling(trials, confidence=confidence)
    assert abs(ratio.detectable_ceiling(trials, confidence=confidence) - max(exact, 0)) < CLOSED_FORM


@pytest.mark.parametrize(("trials", "confidence"), [(10_000, 0.99), (10_000, 0.95), (10**6, 0.9999)])
def test_the_ceiling_of_many_trials(trials: int, confidence: float) -> None:
    exact, _ = ratio_twin.katz_ceiling_at_all_hits(trials, confidence=confidence)
    assert abs(ratio.detectable_ceiling(trials, confidence=confidence) - exact) < CLOSED_FORM


# ------------------------------------------------------------------------------------------------------------- Renyi

ORDERS = [1.25, 2.0, 5.0, 32.0]
LAWS = [
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([1.0, 0.0], [0.25, 0.75]),
    ([0.9, 0.1 - 1e-9, 1e-9], [0.1, 0.9 - 1e-7, 1e-7]),
    ([0.4, 0.6], [0.4, 0.6]),
    ([0.5, 0.5], [1.0, 0.0]),
]


@pytest.mark.parametrize("order", [0.5, 1.0, 1.5, 2.0, 64.0, math.inf])
@pytest.mark.parametrize(("p", "q"), LAWS)
def test_renyi_divergence(p: list[float], q: list[float], order: float) -> None:
    exact = renyi_twin.divergence(p, q, order)
    computed = divergence.renyi_divergence(p, q, order)
    assert computed == exact if mp.isinf(exact) else abs(computed - exact) < CLOSED_FORM


@pytest.mark.parametrize(
    ("k1", "n1", "k2", "n2"),
    [
        (725, 1000, 469, 1000),
        (469, 1000, 725, 1000),
        (50, 100, 52, 100),
        (100, 100, 0, 90),
        (0, 300, 40, 200),
        (0, 5, 0, 5),
    ],
)
def test_two_cut_bound(k1: int, n1: int, k2: int, n2: int) -> None:
    settings = {"confidence": 0.95}
    corner = two_cut.two_cut_bound(k1, n1, k2, n2, ORDERS, method="corner", **settings)
    termwise = two_cut.two_cut_bound(k1, n1, k2, n2, ORDERS, method="termwise", **settings)
    for i, order in enumerate(ORDERS):
        exact = renyi_twin.two_cut_minimum(k1, n1, k2, n2, order, **settings)
        # A limit rounded outwards by 1e-13 of itself moves the divergence by order times that.
        assert is_lower_bound(corner[i], exact, within=CLOSED_FORM)
        exact = max(mpf(0), renyi_twin.two_cut_termwise(k1, n1, k2, n2, order, **settings))
        assert is_lower_bound(termwise[i], exact, within=CLOSED_FORM)


K_CUTS = [
    ([725, 222, 46, 6, 1], [463, 463, 65, 8, 1]),
    ([100, 200, 300], [300, 200, 100]),
    ([50, 50, 50, 50], [52, 48, 51, 49]),
    ([900, 100, 0], [100, 850, 50]),
]


@pytest.mark.parametrize("method", ["goodman", "sison-glaz"])
@pytest.mark.parametrize(("counts1", "counts2"), K_CUTS)
def test_k_cut_as_published(counts1: list[int], counts2: list[int], method: str) -> None:
    bound = k_cut.k_cut_bound(counts1, counts2, ORDERS, confidence=0.95, method=method)
    of_each = 1 - (1 - 0.95) / 2
    limits1, limits2 = (renyi_twin.k_cut_limits(c, method, confidence=of_each) for c in (counts1, counts2))
    for i, order in enumerate(ORDERS):
        exact = max(mpf(0), renyi_twin.k_cut_termwise(limits1, limits2, order))
        assert abs(bound[i] - exact) < CLOSED_FORM


@pytest.mark.parametrize(("counts1", "counts2"), K_CUTS)
def test_k_cut_of_finite_samples(counts1: list[int], counts2: list[int]) -> None:
    """The twin minimises over both boxes of laws; its general-purpose minimiser is accurate to about 1e-7."""
    bound = k_cut.k_cut_bound(counts1, counts2, ORDERS, confidence=0.95, method="clopper-pearson")
    error = (1 - 0.95) / (2 * len(counts1)) / 2
    limits1, limits2 = (
        renyi_twin.k_cut_limits(c, "clopper-pearson", confidence=0.95, error_of_a_limit=error)
        for c in (counts1, counts2)
    )
    for i, order in enumerate(ORDERS):
        exact = renyi_twin.k_cut_minimum(limits1, limits2, order)
        assert is_lower_bound(bound[i], exact, within=1e-6, twin_error=1e-10)


# (histogram, sigma, noisy_argmax(histogram, sigma)).
VOTES = [
    (
        [14, 12, 10, 8, 6],
        2.0,
        [0.7250726243327035, 0.22215551507369466, 0.0463940302708682, 0.005950120121957274, 0.00042771020077644656],
    ),
    (
        [250, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        40.0,
        [
            0.9999567087213153,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
            4.810142076086095e-06,
        ],
    ),
    ([101, 99], 20.0, [0.5281859888985083, 0.4718140111014917]),
    (
        [30, 29, 28, 5, 5, 5, 4, 3, 2, 1],
        3.0,
        [
            0.47802871165741284,
            0.31843477468446096,
            0.20353651365780587,
            1.0231925712795998e-13,
            1.0231925712795998e-13,
            1.0231925712795998e-13,
            1.1958260477783262e-14,
            1.2899759073005036e-15,
            1.284165690888299e-16,
            1.1795469536792966e-17,
        ],
    ),
    ([60, 20, 10], 2.0, [1.0, 1.0442437918812724e-45, 3.1159713898078004e-70]),
    ([10.0, 10.0, 10.0], 1.0, [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]),
]


@pytest.mark.parametrize(("histogram", "sigma", "exact"), VOTES)
def test_noisy_argmax(histogram: list[float], sigma: float, exact: list[float]) -> None:
    assert noisy_argmax.noisy_argmax_probabilities(histogram, sigma) == pytest.approx(exact, rel=CLOSED_FORM, abs=0)
    logarithms = noisy_argmax.noisy_argmax_probabilities(histogram, sigma, log=True)
    assert logarithms == pytest.approx(np.log(exact), rel=0, abs=CLOSED_FORM)


@pytest.mark.parametrize("conversion", ["improved", "classical"])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
def test_rdp_to_epsilon(conversion: str, delta: float) -> None:
    orders = np.array([1.1, 1.5, 2, 3, 5, 8, 16, 32, 64, 256])
    for sigma in (0.7, 5.0):
        rdp = orders / (2 * sigma**2)
        exact = renyi_twin.rdp_to_epsilon(orders, rdp, delta=delta, conversion=conversion)
        converted = rdp_to_epsilon(orders, rdp, delta=delta, conversion=conversion)
        assert abs(converted - max(exact, 0)) < CLOSED_FORM


# --------------------------------------------------------------------------------------------------------- advantage

_draw = random.Random(3)
BAGS = [[0.3], [0.5, 0.5, 0.5], [0.1, 0.5, 0.3, 0.8], [0.0, 0.4, 1.0], [1e-9, 1e-3, 0.999, 0.5]] + [
    [round(_draw.random(), 6) for _ in range(_draw.randint(2, 5))] for _ in range(4)
]
EPSILONS = [0.05, 1.0, 6.0]


def _close(computed: object, exact: list[mpf]) -> bool:
    return np.allclose(np.asarray(computed, dtype=float), np.array(exact, dtype=float), rtol=0, atol=ADVANTAGE)


@pytest.mark.parametrize("bag", BAGS)
def test_label_proportions(bag: list[float]) -> None:
    assert _close(advantage.llp_additive_advantage(bag), advantage_twin.llp_additive(bag))
    certain = sum(eta == 1 for eta in bag)
    possible = range(certain, len(bag) - sum(eta == 0 for eta in bag) + 1)
    for positives in possible:
        exact = advantage_twin.posterior(bag, advantage_twin.exactly(positives))
        assert _close(releases.llp_posterior(bag, positives), exact)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("bag", BAGS)
def test_label_proportions_with_geometric_noise(bag: list[float], epsilon: float) -> None:
    computed = advantage.llp_geometric_additive_advantage(bag, epsilon=epsilon)
    assert _close(computed, advantage_twin.llp_geometric_additive(bag, epsilon))
    for count in range(len(bag) + 1):
        exact = advantage_twin.llp_geometric_posterior(bag, count, epsilon)
        assert _close(releases.noisy_posterior(bag, count, epsilon=epsilon), exact)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("bag", BAGS)
def test_label_proportions_with_laplace_noise(bag: list[float], epsilon: float) -> None:
    for count in (-30.0, -0.2, 0.0, 0.5, 1.7, len(bag) + 12.3):
        exact = advantage_twin.posterior(bag, advantage_twin.laplace(count, epsilon))
        assert _close(releases.noisy_posterior(bag, count, epsilon=epsilon), exact)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("bag", BAGS[:5])
def test_laplace_additive_advantage(bag: list[float], epsilon: float) -> None:
    computed = advantage.llp_laplace_additive_advantage(bag, epsilon=epsilon)
    assert _close(computed, advantage_twin.llp_laplace_additive(bag, epsilon))


def test_bags_keep_their_places() -> None:
    """Shape (bags, k) to (bags, k), each bag independent of the others."""
    bags, counts = [[0.1, 0.5, 0.3], [0.9, 0.2, 0.6]], [1, 3]
    exact = [
        advantage_twin.posterior(b, advantage_twin.geometric(c, 3, 1.0)) for b, c in zip(bags, counts, strict=True)
    ]
    for row, expected in zip(releases.noisy_posterior(bags, counts, epsilon=1.0), exact, strict=True):
        assert _close(row, expected)


def test_a_bag_of_four_hundred() -> None:
    prior = np.random.default_rng(0).beta(2, 30, size=400)
    prior[:3] = 0.5, 1e-12, 1 - 1e-12
    exact = advantage_twin.llp_posterior_by_convolution(list(prior), 0, 26)
    assert abs(releases.llp_posterior(prior, 26)[0] - exact) < ADVANTAGE


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("prior", [0.0, 1e-9, 0.2, 0.5, 0.9, 1.0])
def test_randomized_response(prior: float, epsilon: float) -> None:
    exact = advantage_twin.rr_additive(prior, epsilon)
    assert abs(advantage.rr_additive_advantage(prior, epsilon=epsilon) - exact) < ADVANTAGE


@pytest.mark.parametrize(
    ("prior", "posterior"), [(0.3, 0.8), (0.5, 0.0), (0.5, 1.0), (0.0, 0.0), (1.0, 1.0), (1e-12, 1e-9), (0.25, 0.25)]
)
def test_multiplicative_advantage(prior: float, posterior: float) -> None:
    exact = advantage_twin.multiplicative(prior, posterior)
    computed = advantage.multiplicative_advantage(prior, posterior)
    assert computed == exact if mp.isinf(exact) else abs(computed - exact) < ADVANTAGE
