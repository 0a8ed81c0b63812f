"""Data-dependent accounting of GNMax straight from Papernot et al. (2018), Theorem 6 with Propositions 7, 8 and 10."""

from __future__ import annotations

from collections.abc import Sequence

from mpmath import erfc, exp, inf, log, mpf, sqrt

from tests.twins.answers import recorded


def flip(votes: Sequence[int], sigma: mpf) -> mpf:
    """Proposition 7: half the complementary error function of each gap over 2 sigma, summed, at most 1 - 1 / K."""
    winner = max(range(len(votes)), key=lambda c: votes[c])
    total = sum(erfc((votes[winner] - votes[c]) / (2 * sigma)) / 2 for c in range(len(votes)) if c != winner)
    return min(mpf(total), 1 - mpf(1) / len(votes))


@recorded
def rdp(votes: Sequence[int], sigma: mpf, order: mpf) -> mpf:
    """The smaller of the data-independent cost and of Theorem 6 at the orders of Proposition 10."""
    return rdp_of(flip(votes, sigma), sigma, order)


def rdp_of(q: mpf, sigma: mpf, order: mpf) -> mpf:
    """RDP of any answer of order / sigma^2-RDP that differs from the likeliest answer with probability q."""
    mu2 = sigma * sqrt(log(1 / q))
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    independent = order / sigma**2
    if not (mu1 > order and mu2 > 1):
        return independent
    limit = exp((mu2 - 1) * eps2) / ((mu1 / (mu1 - 1)) * (mu2 / (mu2 - 1))) ** mu2
    if not (q <= limit and log(1 / q) > eps2):
        return independent
    a = (1 - q) / (1 - (q * exp(eps2)) ** ((mu2 - 1) / mu2))
    b = exp(eps1) / q ** (1 / (mu1 - 1))
    bound = log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    return min(independent, bound if bound > 0 else mpf(inf))
