"""Numbers released with Laplace noise: their composed curve against closed forms, a slow twin and dp_accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import comb
from scipy.stats import binom

from dpaudit.claims import ComposedLaplace, PureDP
from dpaudit.errors import InputError


def one_delta(e: float, epsilon: float) -> float:
    """Laplace at 0 against Laplace at e, scale 1: 1 - exp((epsilon - e) / 2)."""
    return max(0.0, -math.expm1((epsilon - e) / 2))


def twin_delta(curve: ComposedLaplace, epsilon: float) -> float:
    """Return the exact delta by conditioning on the number of the n losses inside (-e, e), where they are uniform.

    Under the geometric mean of both distributions a loss is e or -e with mass e^(-e/2) / 2 each and inside with mass
    e^(-e/2) e / 2. With j inside, the sum is e (B + U): B a sum of n - j fair signs, U of j uniforms on (-1, 1).
    """
    e, n, total = 1 / curve.scale, curve.releases, 0.0
    for j in range(n + 1):
        weight = comb(n, j) * (e / 2) ** j * math.exp(-n * e / 2)
        if weight < 1e-15 and j > n * e:
            break
        signs = 2 * np.arange(n - j + 1) - (n - j)
        chances = binom.pmf(np.arange(n - j + 1), n - j, 0.5)
        u, density = uniform_sum(j, kink=(epsilon / e - (n - j)) % 1)
        losses = e * (signs[:, None] + u)
        excess = np.exp(losses / 2) - np.exp(epsilon - losses / 2)
        total += weight * float(chances @ np.where(losses > epsilon, excess, 0) @ density)
    return total


def uniform_sum(j: int, kink: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights of exact integrals for functions smooth between integers, and integers plus `kink`."""
    if j == 0:
        return np.zeros(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    ends = np.unique(np.concatenate([np.arange(-j, j + 1), np.arange(-j, j) + kink]))
    width = np.diff(ends)[:, None]
    u = (ends[:-1, None] + width * (nodes + 1) / 2).ravel()
    x = (u + j) / 2
    k = np.arange(j + 1)
    hall = ((-1.0) ** k * comb(j, k) * np.maximum(x[:, None] - k, 0) ** (j - 1) * (x[:, None] > k)).sum(axis=1)
    return u, (width * weights / 2).ravel() * hall / math.factorial(j - 1) / 2


@pytest.mark.parametrize("scale", [0.1, 0.5, 3.0, 200.0])
def test_one_number_has_its_closed_form(scale: float) -> None:
    curve, e = ComposedLaplace(scale, 1), 1 / scale
    assert curve.bound == e
    for share in (0.0, 0.2, 0.5, 0.9, 0.999):
        exact = one_delta(e, share * e)
        assert twin_delta(curve, share * e) == pytest.approx(exact, rel=1e-9)
        # A chord over a cell of width w lies above exp((epsilon - e) / 2) by w^2 / 32 at most; 1e-12 for rounding.
        width = e / (32 * math.ceil(e))  # cells a nat begun
        assert exact * (1 - 1e-12) <= curve.delta(share * e) <= exact + width**2 / 32 + 1e-12
    assert curve.delta(e) == curve.delta(math.inf) == 0
    assert curve.epsilon(0.0) == e


@pytest.mark.parametrize(("scale", "releases"), [(0.5, 2), (2.0, 6), (10.0, 12), (74.2, 400)])
def test_the_curve_is_the_slow_twin_s_never_below(scale: float, releases: int) -> None:
    curve = ComposedLaplace(scale, releases)
    spread = math.sqrt(releases) / scale
    for epsilon in (0.0, 0.3 * spread, spread, 2.5 * spread, 4 * spread):
        exact = twin_delta(curve, epsilon)
        if epsilon < curve.bound:
            assert exact * (1 - 1e-9) <= curve.delta(epsilon) <= exact * (1 + 5e-4) + 1e-10


def test_the_curve_is_dp_accounting_s() -> None:
    """Both err upwards; theirs on a grid of 1e-4 nats for each of 400 losses of 0.0135."""
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = library.from_laplace_mechanism(74.2, value_discretization_interval=1e-4).self_compose(400)
    for delta in (1e-2, 1e-5, 1e-8):
        assert ComposedLaplace(74.2, 400).epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-4)


@pytest.mark.parametrize("order", [1.5, 2.0, 30.0])
def test_renyi_is_the_integral_it_stands_for(order: float) -> None:
    e, x = 0.7, np.linspace(-60, 60, 2_000_001)
    density = np.exp(-order * np.abs(x) - (1 - order) * np.abs(x - e)) / 2
    exact = math.log(np.trapezoid(density, x)) / (order - 1)
    assert ComposedLaplace(1 / e, 5).renyi(order) == pytest.approx(5 * exact, rel=1e-6)
    assert ComposedLaplace(1 / e, 5).renyi(order) < PureDP(5 * e).renyi(order)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="scale must be > 0"):
        ComposedLaplace(0.0, 1)
    with pytest.raises(InputError, match="releases must be >= 1"):
        ComposedLaplace(1.0, 0)
