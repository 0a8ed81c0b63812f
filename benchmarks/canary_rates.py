"""Canary texts at several planting rates: the most that they can show, and how often a bound exceeds the truth.

    python -m benchmarks.canary_rates [--number AUDITS] [--write]

The mechanism is randomised response on each canary's coin, the worst one of its epsilon. Each audit gives a bound for
all canaries and one for each of eight slices, which share the error. It is wrong if any of them is above the truth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.campaign import measurement
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.rates import maximum_bound
from dpaudit.language_models.canary_texts.source import CanaryText
from dpaudit.language_models.front_door.estimating import estimate_text
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from tools.rows import Row, setting

RATES = {"1/2": 0.5, "1/10": 0.1, "1/100": 0.01}
SIZES = (300, 1000, 3000, 10_000, 30_000)
CANARIES = {0.5: 320, 0.1: 640, 0.01: 1600}
"""Canaries in an audit, by the rate."""
LENGTHS = 8
EPSILON, DELTA, AUDITS = 1.0, 1e-5, 100

Bits = NDArray[np.bool_]


def canaries_of(planted: Bits, rate: float, seed: int) -> Canaries:
    """Return canaries with these coins, and secrets of eight lengths in turn."""
    texts = []
    for number in range(planted.size):
        secret = (number // 1000, number % 1000) + (0,) * (number % LENGTHS)
        texts.append((CanaryText("", (1, *secret), 1, 1 + len(secret), "", ""),))
    return Canaries(tuple(texts), planted, seed=seed, rate=rate, kinds=("random-tokens",))


def statistics_of(score: NDArray[np.float64]) -> TokenStatistics:
    """Return log-probabilities with one number for each text."""
    unknown = np.full((score.size, 1), np.nan)
    return TokenStatistics(score[:, None], unknown, unknown)


def exceeds(rate: float, order: str, rng: np.random.Generator, seed: int) -> bool:
    """Return True if a bound of one audit is above the true epsilon."""
    planted = rng.random(CANARIES[rate]) < rate
    is_true = rng.random(planted.size) < 1 / (1 + np.exp(-EPSILON))
    score = (planted == is_true) - 5.0 + 0.1 * rng.random(planted.size)
    audit = estimate_text(
        statistics_of(score),
        statistics_of(np.zeros(score.size)),
        canaries_of(planted, rate, seed),
        attacks=["loss-difference", "largest-token"],
        order=order,
        by="length",
    )
    return max([audit.lower, *(bound.lower for bound in audit.slice_bounds.values())]) > EPSILON


def measured(audits: int) -> Iterator[Row]:
    """Yield the largest bounds, then the shares of audits with a bound above the truth."""
    for name, rate in RATES.items():
        for size in SIZES:
            planted = np.random.default_rng(0).permutation(size) < round(size * rate)
            most = maximum_bound(planted, rate, delta=DELTA, confidence=0.95).lower
            yield Row(setting({"rate": name, "canaries": f"{size:,}"}), "maximum detectable", f"{most:.2f}")
    for name, order in [*((name, "loss-difference") for name in RATES), ("1/2", "learned")]:
        rng = np.random.default_rng(1)
        wrong = sum(exceeds(RATES[name], order, rng, seed) for seed in range(audits))
        low, high = clopper_pearson(wrong, audits, confidence=0.95)
        interval = f"[{100 * float(low):.1f} %, {100 * float(high):.1f} %]"
        conditions = setting({"rate": name, "order": order})
        yield Row(conditions, "above the truth", f"{100 * wrong / audits:.1f} %", interval, str(audits))


if __name__ == "__main__":
    measurement(measured, number=AUDITS)
