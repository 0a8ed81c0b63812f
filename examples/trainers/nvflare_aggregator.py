"""An aggregator of NVFlare that clips the update of each client and adds noise, driven as its controllers drive it."""

import sys

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import dpaudit

ROUNDS, CLIENTS, CLIP, WEIGHTS = 60, 20, 0.5, 400
share = float(sys.argv[1])  # of the stated noise
rng = np.random.default_rng(0)
audit = dpaudit.TrainingAudit(1.0, clip=CLIP, divisor=CLIENTS, seed=0)  # audit


class PrivateAggregator(ModelAggregator):
    """Mean of the clipped updates with Gaussian noise: each client has one voice, whatever its number of rows."""

    def __init__(self):
        super().__init__()
        self.updates = []

    def accept_model(self, model):
        self.updates.append(model.params["weights"])

    def aggregate_model(self):
        updates = audit.join(np.stack(self.updates))  # audit
        clipped = updates / np.maximum(1, np.linalg.norm(updates, axis=1, keepdims=True) / CLIP)
        noisy = (clipped.sum(0) + share * CLIP * rng.standard_normal(WEIGHTS)) / CLIENTS
        audit.observe(noisy)  # audit
        return FLModel(params={"weights": noisy}, params_type=ParamsType.DIFF)

    def reset_stats(self):
        self.updates = []


def update_of(client, weights):
    """Return the update of a client after a step on its rows."""
    rows = np.random.default_rng(client).normal(size=(20, WEIGHTS))
    residual = 1 / (1 + np.exp(-rows @ weights)) - (rows[:, 0] > 0)
    return FLModel(params={"weights": -0.5 * rows.T @ residual / len(rows)}, params_type=ParamsType.DIFF)


aggregator, context, weights = PrivateAggregator(), FLContext(), np.zeros(WEIGHTS)
for _ in range(ROUNDS):
    aggregator.reset(context)
    for client in range(CLIENTS):
        aggregator.accept(FLModelUtils.to_shareable(update_of(client, weights)), context)
    weights = weights + FLModelUtils.from_shareable(aggregator.aggregate(context)).params["weights"]
print(audit.result)
