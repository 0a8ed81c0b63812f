"""Slow twin of the (epsilon, delta) bounds from one run, and the exact optimum over every mechanism."""

from __future__ import annotations

import numpy as np
from mpmath import mp, mpf
from scipy.optimize import linprog
from scipy.sparse import coo_array

from tests.twins.answers import recorded
from tests.twins.binomial_twin import DIGITS, Number, binomial_pmf, binomial_tail, logistic
from tests.twins.f_dp_twin import smallest_accepted


def binomial_p_value(guesses: int, correct: int, epsilon: Number) -> mpf:
    """Theorem 17 with `guesses` trials: Pr[Bin(guesses, e^eps/(e^eps + 1)) >= correct]."""
    return binomial_tail(correct, guesses, logistic(mpf(epsilon)))


def theorem_16_p_value(guesses: int, correct: int, canaries: int, delta: Number, epsilon: Number) -> mpf:
    """Pr[Bin >= correct] + canaries delta max_j Pr[correct - j <= Bin <= correct - 1] / j, capped at 1."""
    with mp.workdps(DIGITS):
        beta = logistic(mpf(epsilon))
        window, steepest = mpf(0), mpf(0)
        term = binomial_pmf(correct - 1, guesses, beta)
        for j in range(1, correct + 1):
            window += term
            steepest = max(steepest, window / j)
            # Pr[Bin = i - 1] / Pr[Bin = i] = i / (guesses - i + 1) (1 - beta) / beta, at i = correct - j
            i = correct - j
            term *= mpf(i) / (guesses - i + 1) * (1 - beta) / beta
            if term * guesses < mpf(10) ** -DIGITS and term < window / j:
                break  # the terms left add less than the last digit, and the mean only falls
        return min(mpf(1), binomial_tail(correct, guesses, beta) + canaries * mpf(delta) * steepest)


@recorded
def binomial_epsilon(guesses: int, correct: int, *, confidence: float) -> mpf:
    """inf of the epsilon whose p-value is at least 1 - confidence."""
    error = 1 - mpf(confidence)
    return smallest_accepted(lambda e: binomial_p_value(guesses, correct, e) >= error)


@recorded
def theorem_16_epsilon(guesses: int, correct: int, *, canaries: int, delta: float, confidence: float) -> mpf:
    """inf of the epsilon whose Theorem 16 p-value is at least 1 - confidence, searched upwards in steps of 1/64."""
    error = 1 - mpf(confidence)

    def accepted(epsilon: Number) -> bool:
        return theorem_16_p_value(guesses, correct, canaries, delta, epsilon) >= error

    step, start = mpf(1) / 64, mpf(0)
    while not accepted(start):
        start += step
    if start == 0:
        return mpf(0)
    return start - step + smallest_accepted(lambda e: accepted(start - step + e))


def largest_tail(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    """sup Pr[C >= correct] over every (epsilon, delta)-DP mechanism on `canaries` uniform bits, as a linear program.

    Averaged over permutations and sign flips, the probability of an answer depends only on its k correct guesses.
    With p_k = Pr[C = k], flipping one bit moves mass k p_k / m to where p_(k-1) puts (r - k + 1) p_(k-1) / m, and back.
    The excess over e^epsilon times the other side may sum to delta at most.
    """
    r, m, growth = guesses, canaries, np.exp(epsilon)
    # Unknowns: p_0..p_r, then the excesses up_1..up_r and down_0..down_(r-1).
    rows, columns, values = [], [], []

    def add(row: int, column: int, value: float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(value)

    for k in range(1, r + 1):
        add(k - 1, k, k / m)
        add(k - 1, k - 1, -growth * (r - k + 1) / m)
        add(k - 1, r + k, -1)
        add(r + k - 1, k - 1, (r - k + 1) / m)
        add(r + k - 1, k, -growth * k / m)
        add(r + k - 1, 2 * r + k, -1)
    for excess in range(r + 1, 3 * r + 1):
        add(2 * r, excess, 1)
    limits = np.zeros(2 * r + 1)
    limits[-1] = delta
    unknowns = 3 * r + 1
    whole = np.zeros((1, unknowns))
    whole[0, : r + 1] = 1
    gain = np.zeros(unknowns)
    gain[correct : r + 1] = -1
    solution = linprog(
        gain,
        A_ub=coo_array((values, (rows, columns)), (2 * r + 1, unknowns)),
        b_ub=limits,
        A_eq=whole,
        b_eq=[1.0],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert solution.success, solution.message
    return float(-solution.fun)


@recorded
def exact_epsilon(guesses: int, correct: int, *, canaries: int, delta: float, confidence: float) -> float:
    """inf of the epsilon for which some (epsilon, delta)-DP mechanism is right this often with 1 - confidence."""
    error = 1 - confidence
    return float(
        smallest_accepted(lambda e: largest_tail(guesses, correct, canaries, float(e), delta) >= error, mpf(10) ** -5)
    )
