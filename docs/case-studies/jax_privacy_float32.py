"""JAX Privacy 2.0.0, the Gaussian privatizer: in single precision low bits tell what the noise was added to."""

import itertools

import jax
import numpy as np
from jax_privacy import clipping, noise_addition
from two_tables import compare

clipped = clipping.clipped_grad(lambda weights, row: jax.numpy.vdot(weights, row), l2_clip_norm=1.0, batch_argnums=1)
keys, start = itertools.count(), jax.numpy.zeros(2)


def noisy_sum(rows):
    """The sum of clipped gradients, with noise of 1 times its sensitivity: mu = 1, or (1.569, 0.05)-DP."""
    stddev = float(clipped.sensitivity())
    adder = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(next(keys)))
    total, _ = adder.update(clipped(start, jax.numpy.asarray(rows, np.float32)), adder.init(start))
    return np.asarray(total, np.float64)


def fine_bits(total):
    """How many numbers below 0.35 have a bit below 2**-25."""
    return int(np.sum((np.abs(total) < 0.35) & (total * 2**25 % 1 != 0)))


zeros = np.zeros((50, 2))
with_one = np.vstack([zeros, [[1.0, 1.0]]])
about = {"claim": 1.569, "runs": 4_000, "delta": 0.05}
compare("noisy sum, its low bits", lambda rows: fine_bits(noisy_sum(rows)), zeros, with_one, **about)
compare("noisy sum, rounded", lambda rows: tuple(np.round(noisy_sum(rows) * 2**10)), zeros, with_one, **about)
