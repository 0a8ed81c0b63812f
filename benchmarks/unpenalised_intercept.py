"""Test of diffprivlib's logistic regression with its unpenalised intercept: does its noise suffice?

    python -m benchmarks.unpenalised_intercept [--trainings 8000] [--seed 7]

The data are five amounts: two of either class at 0, and one that is 0 in world 0 and `NORM`, the library's data norm,
in world 1. The density of the release (w and the intercept v) is the density of the noise b that leads to it, times the
curvature. Both are known, so each training has an exact log-likelihood ratio as its score. The threshold is the claim,
fixed beforehand. Prints the counts and a Clopper-Pearson bound, each side at half of 5 %. Needs
DPAUDIT_DIFFPRIVLIB_PYTHON.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import beta

from dpaudit.mechanisms.adapters.diffprivlib import Diffprivlib
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples

EPSILON = 2.0
NORM = 0.5
C = 3.07
LABELS = np.array([1, 0, 1, 0, 1])
HELD = 4
"""Records in both worlds: two of either class, at 0."""

Floats = NDArray[np.float64]


def main() -> None:
    """Train, score and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trainings", type=int, default=8000, help="of both worlds together")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    learner = Diffprivlib("logistic-regression", EPSILON, norm=NORM, settings={"C": C})
    counts = []
    for world, seed in enumerate(np.random.SeedSequence(options.seed).spawn(2)):
        features = np.zeros((HELD + 1, 1), np.float32)
        features[-1] = world  # the adapter scales vectors of length at most 1 to the norm
        released = learner.sample_summaries(
            Examples(features, LABELS, 2), features[-1:], options.trainings // 2, seed=seed, compute=Compute()
        )
        ratio = log_density(released, NORM) - log_density(released, 0.0)
        counts.append((int((ratio > EPSILON).sum()), len(ratio)))
    (zeros, of_zero), (ones, of_one) = counts
    lower = beta.ppf(0.025, ones, of_one - ones + 1) if ones else 0.0
    upper = beta.ppf(0.975, zeros + 1, of_zero - zeros)
    bound = max(0.0, math.log(lower / upper)) if lower > 0 else 0.0
    print(f"beyond the claim {ones} of {of_one} in world 1, {zeros} of {of_zero} in world 0")
    print(f"claimed epsilon {EPSILON:g}, observed epsilon >= {math.floor(1000 * bound) / 1000} (95 %)")


def log_density(released: Floats, place: float) -> Floats:
    """Return the log-density of `released` (n, 2) up to a constant, with the fifth record at `place`."""
    w, v = released.T
    reach = math.hypot(NORM, 1.0)
    scale = 2 * reach / (EPSILON - 2 * math.log1p(0.25 * reach * C))
    common, canary = expit(v), expit(v + place * w)
    curve, canary_curve = common * (1 - common), canary * (1 - canary)
    tilt_v = HELD * common - HELD / 2 + canary - 1
    tilt_w = (canary - 1) * place + w / C
    jacobian = (HELD * curve + canary_curve) * (canary_curve * place**2 + 1 / C) - (canary_curve * place) ** 2
    density: Floats = np.log(np.maximum(jacobian, 1e-300)) - np.hypot(tilt_v, tilt_w) / scale
    return density


if __name__ == "__main__":
    main()
