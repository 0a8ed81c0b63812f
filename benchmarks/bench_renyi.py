"""Duration of one query of private prediction, and of one bag and one sweep of label reconstruction.

python benchmarks/bench_renyi.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dpaudit.estimators.label_reconstruction.advantage import (
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_geometric_posterior,
    llp_laplace_additive_advantage,
    llp_laplace_posterior,
    llp_posterior,
)
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.k_cut import k_cut_bound
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_rdp_data_dependent, noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.rdp_bound import compose_bounds, query_confidence, two_cut_audit
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound

ORDERS = np.concatenate([np.arange(1.5, 10.5, 0.5), np.arange(11, 64)])


def run() -> list[tuple[str, float, str]]:
    """Return (name, seconds, note) of each measurement: the best of a few runs."""
    rng = np.random.default_rng(0)
    votes = rng.multinomial(250, rng.dirichlet(np.ones(10)), size=1000)
    p, q = noisy_argmax_probabilities([14, 12, 10, 8, 6], 2.0), noisy_argmax_probabilities([13, 13, 10, 8, 6], 2.0)
    first, second = rng.multinomial(10**8, p), rng.multinomial(10**8, q)
    k1, k2 = rng.binomial(10**8, 0.72, 1000), rng.binomial(10**8, 0.47, 1000)
    each = query_confidence(0.95, 1000)
    bag, count = rng.beta(2, 30, (1, 1000)), np.array([70])
    bags = rng.beta(2, 2, (10_000, 32))
    positives = rng.binomial(32, 0.5, 10_000)
    many = f"{len(ORDERS)} orders"
    return [
        _timed(
            "noisy argmax, 10 classes", lambda: noisy_argmax_probabilities(votes[0], 40.0), "exact to 1e-13, relative"
        ),
        _timed("noisy argmax, 1,000 histograms of 10", lambda: noisy_argmax_probabilities(votes, 40.0), "sigma 40"),
        _timed("noisy argmax, 1,000 classes", lambda: noisy_argmax_probabilities(rng.random(1000) * 250, 40.0), ""),
        _timed("exact divergence of two laws", lambda: renyi_divergence(p, q, ORDERS), many),
        _timed("GNMax data-dependent RDP", lambda: gnmax_rdp_data_dependent(votes[0], 40.0, ORDERS), many),
        _timed(
            "2-cut bound, 1,000 queries", lambda: two_cut_bound(k1, 10**8, k2, 10**8, ORDERS, confidence=each), many
        ),
        _timed(
            "2-cut audit of 100 queries, composed",
            lambda: compose_bounds(
                [
                    two_cut_audit(int(a), 10**8, int(b), 10**8, ORDERS, confidence=each)
                    for a, b in zip(k1[:100], k2, strict=False)
                ]
            ),
            many + ", both directions",
        ),
        *(
            _timed(
                f"k-cut bound, {method}",
                lambda m=method: k_cut_bound(first, second, ORDERS, confidence=0.95, method=m),
                "5 classes, n = 1e8",
            )
            for method in ("clopper-pearson", "goodman", "sison-glaz")
        ),
        _timed("posterior, bag of 1,000", lambda: llp_posterior(bag, count), "LLP"),
        _timed("posterior, bag of 1,000, Laplace", lambda: llp_laplace_posterior(bag, count, epsilon=1.0), ""),
        _timed("posterior, bag of 1,000, geometric", lambda: llp_geometric_posterior(bag, count, epsilon=1.0), ""),
        _timed("posterior, improbable bag of 1,000", lambda: llp_posterior(bag, [900]), "in logarithms"),
        _timed("posterior, 10,000 bags of 32", lambda: llp_posterior(bags, positives), "LLP"),
        _timed("additive advantage, bag of 1,000", lambda: llp_additive_advantage(bag), "LLP"),
        _timed(
            "additive advantage, bag of 1,000, Laplace", lambda: llp_laplace_additive_advantage(bag, epsilon=1.0), ""
        ),
        _timed(
            "additive advantage, bag of 1,000, geometric",
            lambda: llp_geometric_additive_advantage(bag, epsilon=1.0),
            "",
        ),
        _timed(
            "additive advantage, 10,000 bags of 32, Laplace",
            lambda: llp_laplace_additive_advantage(bags, epsilon=1.0),
            "",
        ),
    ]


def _timed(what: str, call: Callable[[], object], note: str) -> tuple[str, float, str]:
    call()  # compiles
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return what, min(seconds), note


if __name__ == "__main__":
    for what, seconds, note in run():
        print(f"{what:50} {seconds * 1e3:10.3f} ms  {note}")
