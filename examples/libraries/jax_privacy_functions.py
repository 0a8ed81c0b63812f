"""JAX Privacy, tested with 2.0.0. Rows: "array"."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax_privacy import clipping, noise_addition


def gradient_step(rows: Any, rng: Any, noise: float = 1.0, clip: float = 1.0, digits: int | None = None) -> Any:
    """The noisy sum of clipped gradients of the inner product with each row: noise of `noise` times the sensitivity.

    In single precision, or rounded to `digits` decimals.
    """
    clipped = clipping.clipped_grad(
        lambda weights, row: jax.numpy.vdot(weights, row), l2_clip_norm=clip, batch_argnums=1
    )
    start = jax.numpy.zeros(rows.shape[1])
    # A row of zeros adds nothing: so that there is one.
    with np.errstate(over="ignore"):  # a number beyond single precision is infinite to the library; no warning of ours
        single = np.vstack([np.zeros((1, rows.shape[1])), rows]).astype(np.float32)
    total = clipped(start, jax.numpy.asarray(single))
    adder = noise_addition.gaussian_privatizer(
        stddev=noise * float(clipped.sensitivity()), prng_key=jax.random.key(int(rng.integers(2**31)))
    )
    noisy = np.asarray(adder.update(total, adder.init(start))[0])
    return noisy if digits is None else np.round(noisy.astype(np.float64), digits)
