"""A network in JAX, with clipping and correlated noise by jax_privacy: a Toeplitz strategy of DP-FTRL."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import clipping, noise_addition
from jax_privacy.matrix_factorization import toeplitz

import dpaudit

STEPS, CLIP, BATCH = 150, 1.0, 20
share = float(sys.argv[1])  # of the stated noise

rng = np.random.default_rng(0)
X, y = jnp.asarray(rng.normal(size=(200, 30)), jnp.float32), jnp.asarray(rng.integers(0, 2, 200))
weights = {"hidden": jnp.zeros((30, 8)), "bias": jnp.zeros(8), "out": jnp.zeros((8, 2))}


def loss(parameters, rows, labels):
    logits = jnp.tanh(rows @ parameters["hidden"] + parameters["bias"]) @ parameters["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


strategy = toeplitz.optimal_max_error_strategy_coefs(STEPS)
sensitivity = float(toeplitz.sensitivity_squared(strategy)) ** 0.5
privatizer = noise_addition.matrix_factorization_privatizer(
    toeplitz.inverse_as_streaming_matrix(strategy), stddev=share * sensitivity * CLIP, prng_key=1
)
gradient = jax.jit(clipping.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2)))
update, state = jax.jit(privatizer.update), privatizer.init(weights)
audit = dpaudit.TrainingAudit(dpaudit.CorrelatedNoise(1.0, np.asarray(strategy), STEPS), clip=CLIP, seed=0)  # audit
for _ in range(STEPS):
    batch = rng.permutation(200)[:BATCH]
    total = gradient(weights, X[batch], y[batch])
    total = audit.join(total)  # audit
    noisy, state = update(total, state)
    audit.observe(noisy)  # audit
    weights = jax.tree.map(lambda value, step: value - 0.1 * step / BATCH, weights, noisy)
print(audit.result)
