"""Count the pairs after which betting tests reject the claim of a Laplace mechanism with too little noise.

    python -m benchmarks.betting_pairs [--number STREAMS] [--write]

The last claim is true: a test may reject it in one stream of twenty. `kernel_pairs` is a bet on a kernel distance as in
González et al. (2025), arXiv:2509.07055, by its abstract.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.campaign import measurement
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.betting import EPSILONS, Betting
from tools.rows import Row, setting

CLAIMS = ((0.1, 10), (0.5, 2), (1.0, 2), (3.0, 2), (1.0, 1))
"""Claims of a Laplace mechanism, and the factor by which its noise is too small."""
MOST_PAIRS = 1_000
Floats = NDArray[np.float64]


def betting_pairs(members: Floats, others: Floats, epsilon: float) -> int | None:
    """Return the number of pairs after which `betting` rejects (epsilon, 0)-DP; None if it never does."""
    scores = np.stack([members, others], axis=1).ravel()
    estimator = Betting()
    state = estimator.update(estimator.start(), Scores(scores, np.tile([True, False], members.size)))
    reached = np.flatnonzero(state.rejected >= np.count_nonzero(epsilon >= EPSILONS) + 1)
    return int(reached[0]) + 1 if reached.size else None


def kernel_pairs(members: Floats, others: Floats, epsilon: float, *, width: float = 1.0) -> int | None:
    """Return the number of pairs after which a kernel bet rejects (epsilon, 0)-DP; None if it never does.

    The bettor's payoff is f(x) - f(y) - tau, with f the witness function of past pairs in the unit ball of a Gaussian
    kernel, and tau = sqrt(2) (e^epsilon - 1) / (e^epsilon + 1), which bounds the kernel distance under epsilon-DP. The
    wealth averages fixed stakes.
    """
    tau = math.sqrt(2) * math.tanh(epsilon / 2)
    stakes = np.array([0.05, 0.1, 0.2, 0.4, 0.8]) / (math.sqrt(2) + tau)  # of the largest loss of a unit stake
    log_wealth = np.zeros(stakes.size)
    norm_squared = 0.0  # squared norm of the sum of k(x, .) - k(y, .) over past pairs

    def witness(at: float, past: int) -> float:
        ones, zeros = (np.exp(-0.5 * ((side[:past] - at) / width) ** 2).sum() for side in (members, others))
        return float(ones - zeros)

    for pair, (x, y) in enumerate(zip(members, others, strict=True)):
        difference = witness(x, pair) - witness(y, pair)
        if norm_squared > 0:
            log_wealth += np.log1p(stakes * (difference / math.sqrt(norm_squared) - tau))
            if special.logsumexp(log_wealth) - math.log(stakes.size) >= math.log(20):
                return pair + 1
        norm_squared += 2 * difference + 2 - 2 * math.exp(-0.5 * ((x - y) / width) ** 2)
    return None


def rows(streams: int) -> Iterator[Row]:
    """Yield the median number of pairs until each test rejects a claim at 95 %, and the number of streams that do."""
    tests = {"betting": betting_pairs, "kernel bet": kernel_pairs}
    for claim, factor in CLAIMS:
        for name, test in tests.items():
            pairs = []
            for stream in range(streams):
                rng = np.random.default_rng([1, stream])
                members, others = (rng.laplace(center, 1 / (factor * claim), MOST_PAIRS) for center in (1.0, 0.0))
                pairs.append(test(members, others, claim) or math.inf)
            conditions = setting({"claim": f"ε = {claim:g}", "noise": f"1/{factor} of it", "test": name})
            middle = float(np.median(pairs))
            yield Row(conditions, "pairs to reject", f"over {MOST_PAIRS:,}" if math.isinf(middle) else f"{middle:,.0f}")
            yield Row(conditions, "rejected", f"{np.isfinite(pairs).sum()}", "", f"{streams}")


if __name__ == "__main__":
    measurement(rows, number=20)
