"""The learner `dp-sgd` of dpaudit, whose sums of clipped gradients and noisy gradients are open to subclasses."""

import sys

import numpy as np

import dpaudit
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.private.private_stack import PrivateStack
from dpaudit.mechanisms.training.recipe import TrainingTask

ROWS, BATCH, RATE, EPOCHS = 200, 20, 0.1, 6
share = float(sys.argv[1])  # of the stated noise


class AuditedStack(PrivateStack):
    def sum_gradients(self, batch, canaries):
        super().sum_gradients(batch, canaries)
        audit.join(self.gradient[0], in_place=True)  # audit

    def noise_deviation(self, *, last):
        return share * super().noise_deviation(last=last)


class AuditedDpSgd(DpSgd):
    def stack_type(self):
        return AuditedStack


rng = np.random.default_rng(0)
features, labels = rng.normal(size=(ROWS, 20)).astype(np.float32), rng.integers(0, 2, ROWS)
model = Mlp(hidden=(30,), epochs=EPOCHS, batch_size=BATCH, learning_rate=0.5, momentum=0.0)
learner = AuditedDpSgd(epsilon=8.0, sample_rate=RATE, model=model)
audit = dpaudit.TrainingAudit(
    learner.noise_multiplier(), clip=learner.clip, divisor=BATCH, claim=(8, 1e-5), seed=0
)  # audit
task = TrainingTask(np.arange(ROWS), labels, np.random.SeedSequence(0))
observer = lambda places, step, weights, gradient: audit.observe(gradient[0])  # audit  # noqa: E731
learner.watch(features, [task], classes=2, compute=Compute(), observer=observer)
print(audit.result)
