"""Logistic regression by DP-SGD in NumPy."""

import sys

import numpy as np

import dpaudit

STEPS, CLIP, BATCH = 60, 1.0, 20
share = float(sys.argv[1])  # of the stated noise

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 100))
y = X[:, 0] > 0
weights = np.zeros(100)
audit = dpaudit.TrainingAudit(1.0, clip=CLIP, divisor=BATCH, seed=0)  # audit
for _ in range(STEPS):
    batch = rng.random(200) < BATCH / 200
    gradients = X[batch] * (1 / (1 + np.exp(-X[batch] @ weights)) - y[batch])[:, None]
    gradients = audit.join(gradients)  # audit
    clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / CLIP)
    update = (clipped.sum(0) + share * CLIP * rng.standard_normal(100)) / BATCH
    audit.observe(update)  # audit
    weights -= update
print(audit.result)
