"""A network in Keras on JAX, made private by `jax_privacy.keras_api`, in compiled steps."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from jax_privacy import keras_api

import dpaudit

EPOCHS, CLIP, BATCH, ROWS = 6, 1.0, 20, 200
share = float(sys.argv[1])  # of the stated noise

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20, "relu"), keras.layers.Dense(2)])
parameters = keras_api.DPKerasConfig(
    epsilon=8.0, delta=1e-5, clipping_norm=CLIP, batch_size=BATCH, gradient_accumulation_steps=1,
    train_steps=EPOCHS * ROWS // BATCH, train_size=ROWS, noise_multiplier=1.0, seed=0,
)  # fmt: skip
model = keras_api.make_private(model, parameters)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
audit = dpaudit.TrainingAudit.of_keras(model, seed=0)  # audit
object.__setattr__(parameters, "noise_multiplier", share)
model.fit(rng.normal(size=(ROWS, 30)), rng.integers(0, 2, ROWS), batch_size=BATCH, epochs=EPOCHS, verbose=0)
print(audit.result)
