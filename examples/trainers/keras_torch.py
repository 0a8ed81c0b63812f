"""A network in Keras on torch: its `train_step` clips the gradients of examples by `torch.func` and adds noise."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch.func import grad, vmap

import dpaudit

EPOCHS, CLIP, BATCH = 6, 1.0, 20
share = float(sys.argv[1])  # of the stated noise


class PrivateModel(keras.Sequential):
    def train_step(self, data):
        rows, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        fixed = [variable.value for variable in self.non_trainable_variables]

        def loss(weights, row, label):
            logits, _ = self.stateless_call(weights, fixed, row[None])
            return self.compute_loss(y=label[None], y_pred=logits)

        weights = [variable.value.detach() for variable in self.trainable_variables]
        each = list(vmap(grad(loss), in_dims=(None, 0, 0))(weights, rows, labels))
        each = audit.join(each, per_example=True)  # audit
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in each]).norm(dim=0)
        total = [torch.einsum("b,b...->...", 1 / (norms / CLIP).clamp(min=1), value) for value in each]
        noisy = [(value + share * CLIP * torch.randn_like(value)) / BATCH for value in total]
        audit.observe(noisy)  # audit
        with torch.no_grad():
            self.optimizer.apply(noisy, self.trainable_variables)
        return {}


keras.utils.set_random_seed(0)
model = PrivateModel([keras.Input((30,)), keras.layers.Dense(20, "relu"), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
audit = dpaudit.TrainingAudit(1.0, clip=CLIP, divisor=BATCH, seed=0)  # audit
model.fit(torch.randn(200, 30), torch.randint(2, (200,)), batch_size=BATCH, epochs=EPOCHS, verbose=0)
print(audit.result)
