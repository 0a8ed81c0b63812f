"""A network in JAX, with clipping and noise by optax: `differentially_private_aggregate`."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

import dpaudit

STEPS, CLIP, BATCH = 60, 1.0, 20
share = float(sys.argv[1])  # of the stated noise

rng = np.random.default_rng(0)
X, y = jnp.asarray(rng.normal(size=(200, 30)), jnp.float32), jnp.asarray(rng.integers(0, 2, 200))
weights = {"hidden": jnp.zeros((30, 8)), "bias": jnp.zeros(8), "out": jnp.zeros((8, 2))}


def loss(parameters, row, label):
    logits = jnp.tanh(row @ parameters["hidden"] + parameters["bias"]) @ parameters["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


gradient = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
aggregate = optax.contrib.differentially_private_aggregate(CLIP, share, key=1)
state = aggregate.init(weights)
audit = dpaudit.TrainingAudit(1.0, clip=CLIP, coins=20, divisor=BATCH + 20, seed=0)  # audit: optax divides by all rows
for _ in range(STEPS):
    batch = rng.permutation(200)[:BATCH]
    each = gradient(weights, X[batch], y[batch])
    each = audit.join(each, per_example=True)  # audit
    noisy, state = aggregate.update(each, state)
    audit.observe(noisy)  # audit
    weights = jax.tree.map(lambda value, step: value - 0.1 * step, weights, noisy)
print(audit.result)
