"""Lower bounds on epsilon from the guesses of one run of the game (`guessing_game`).

(epsilon, delta)-DP limits the probability of a large number of right guesses. The bound is the largest epsilon that the
observed number rejects. Assumptions: the bits are independent and fair, and the number of guesses was fixed before the
output was seen. The last assumption is not needed at delta = 0.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorems 16 and 17, and section 9, Algorithm 3; Steinke,
    Nasr and Jagielski (2023), arXiv:2305.08846; Mahloujifar et al. (2025).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_confidence, as_delta, elementwise, require_one_of
from dpaudit.estimators.one_run.guessing_game import (
    binomial_epsilon,
    checked_counts,
    theorem_16_epsilon,
)

Method: TypeAlias = Literal["auto", "binomial", "theorem-16", "f-dp"]


def one_run_epsilon(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    delta: ArrayLike,
    confidence: ArrayLike,
    method: Method = "auto",
) -> float | Floats:
    """Return a lower bound on epsilon from the number of right guesses; all arguments but `method` broadcast.

    Args:
        guesses, correct, canaries, confidence: As in `guessing_game`. Only bounds at delta > 0 depend on `canaries`:
            any canary may leak.
        delta: Delta of the claim, in [0, 1).
        method: "binomial": exact, delta = 0 only (Theorem 17 with as many trials as guesses). "f-dp": Algorithm 3 with
            the two-sided (epsilon, delta) trade-off functions, proved and nearly optimal. "theorem-16": the published
            bound for delta > 0, usually weaker; it is false for confidence <= 0.5, which is refused. "auto": "binomial"
            if delta is 0 everywhere, else the larger of "f-dp" and "theorem-16". At one number of guesses both limit
            the probability of the same event, so the larger bound is valid.
    Returns: Epsilon in nats, >= 0 and finite, rounded down; 0 if the counts reject nothing.
    Raises: InputError for counts, delta or confidence out of range, and for a method that does not hold for them.
    Source: Theorems 16 and 17 and Algorithm 3 (see the module), with `guesses` trials; the bound is the infimum of the
        epsilons whose limit is at least 1 - confidence.
    Slow twin: `binomial_epsilon` and `theorem_16_epsilon` of tests/twins/one_run_twin.py.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    d, level = as_delta(delta), as_confidence(confidence)
    chosen = _method(method, d)
    if chosen == "theorem-16":
        require(
            bool(np.all(level > 0.5)),
            "Theorem 16 holds for confidence > 0.5 only",
            do='use method "f-dp"',
            confidence=level.min(),
        )
    return elementwise(partial(_epsilon, chosen), n, k, m, d, 1 - level)


def _method(method: str, delta: Floats) -> str:
    require_one_of("method", method, get_args(Method))
    if method == "auto":
        method = "larger" if np.any(delta > 0) else "binomial"
    if method == "binomial":
        require(
            not np.any(delta > 0),
            'method "binomial" holds at delta = 0 only',
            do='use method "f-dp"',
            delta=delta.max(),
        )
    return method


def _epsilon(method: str, n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats) -> Floats:
    """Return the bounds for flat arrays: guesses, correct, canaries, delta and error."""
    if method == "binomial":
        return binomial_epsilon(n, k, alpha)
    bound = np.zeros(n.shape)
    if method != "f-dp":
        bound = np.where(alpha < 0.5, theorem_16_epsilon(n, k, m, delta, np.minimum(alpha, 0.5)), 0.0)
    if method != "theorem-16":
        from dpaudit.estimators.one_run.f_dp import f_dp_parameter  # only needed at delta > 0

        proved = f_dp_parameter(n, k, canaries=m, confidence=1 - alpha, family="approx-dp", delta=delta)
        bound = np.maximum(proved, bound)
    return bound
