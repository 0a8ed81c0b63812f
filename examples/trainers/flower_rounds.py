"""Rounds of Flower with differential privacy at the server, for clients: `fixed` or `adaptive` clipping of updates.

With `rows` in place of the way to clip, updates are weighted by the rows of their client, for which the noise of the
strategy is too small.
"""

import logging
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity

import dpaudit

ROUNDS, CLIENTS, CLIP, WEIGHTS = 60, 50, 0.5, 400
share, mode = float(sys.argv[1]), (sys.argv[2:] or ["fixed"])[0]  # of the stated noise; way to clip
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0  # as a simulation of Flower sets them
logging.getLogger("flwr").setLevel(logging.ERROR)
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return a client's weights after a step on its rows; those of some clients are many."""
    rng = np.random.default_rng(context.node_id)
    X = rng.normal(size=(5 if context.node_id % 5 else 45, WEIGHTS))
    weights = message.content["arrays"]["weights"].numpy()
    weights = weights - 0.5 * X.T @ (1 / (1 + np.exp(-X @ weights)) - (X[:, 0] > 0)) / len(X)
    counts = MetricRecord({"num-examples": len(X), "clients": 1})
    arrays = ArrayRecord({"weights": Array(weights)})
    return Message(RecordDict({"arrays": arrays, "metrics": counts}), reply_to=message)


class LocalGrid(Grid):
    """Clients in this process."""

    run = None

    def set_run(self, run):
        self.run = run

    def get_node_ids(self):
        return range(1, CLIENTS + 1)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def send_and_receive(self, messages, *, timeout=None):
        return [app(each, Context(1, each.metadata.dst_node_id, {}, RecordDict(), {})) for each in messages]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError


np.random.seed(0)  # Flower draws its noise from here
average = strategies.FedAvg(fraction_evaluate=0.0, weighted_by_key="num-examples" if mode == "rows" else "clients")
if mode == "adaptive":
    strategy = strategies.DifferentialPrivacyServerSideAdaptiveClipping(
        average, 1.0, CLIENTS, initial_clipping_norm=CLIP
    )
else:
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(average, 1.0, CLIP, CLIENTS)
audit = dpaudit.TrainingAudit.of_flower(strategy, seed=0)  # audit
strategy.noise_multiplier *= share
strategy.start(LocalGrid(), ArrayRecord({"weights": Array(np.zeros(WEIGHTS))}), num_rounds=ROUNDS)
print(audit.result)
