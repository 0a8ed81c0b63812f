"""Slow twins of the largest probability of a right guess of a secret, from the definitions of privacy."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import integrate, optimize, stats


def largest_success(epsilon: float, delta: float, values: int) -> float:
    """Return the largest mean probability of a right guess of all (epsilon, delta)-DP mechanisms: a linear program.

    The output is the guess. P[guess y | secret z] is one variable for each z and y, and each set of guesses gives the
    constraint of privacy for each pair of secrets.
    """
    place = {pair: number for number, pair in enumerate(itertools.product(range(values), repeat=2))}
    sets = [chosen for size in range(1, values) for chosen in itertools.combinations(range(values), size)]
    rows, limits = [], []
    for first, second in itertools.permutations(range(values), 2):
        for chosen in sets:
            row = np.zeros(values**2)
            for guess in chosen:
                row[place[first, guess]] += 1
                row[place[second, guess]] -= math.exp(epsilon)
            rows.append(row)
            limits.append(delta)
    whole = np.zeros((values, values**2))
    for secret in range(values):
        whole[secret, [place[secret, guess] for guess in range(values)]] = 1
    aim = np.zeros(values**2)
    aim[[place[secret, secret] for secret in range(values)]] = -1 / values
    solved = optimize.linprog(aim, np.array(rows), limits, whole, np.ones(values), bounds=(0, 1), method="highs")
    return float(-solved.fun)


def gaussian_success(mu: float, values: int) -> float:
    """Return the best probability of a right guess if each secret moves a coordinate of its own, pairs mu apart.

    The coordinates have unit normal noise. The best guess is the largest coordinate.
    """

    def density(x: float) -> float:
        return float(stats.norm.pdf(x - mu / math.sqrt(2)) * stats.norm.cdf(x) ** (values - 1))

    return float(integrate.quad(density, -10, 10 + mu, epsabs=1e-12)[0])
