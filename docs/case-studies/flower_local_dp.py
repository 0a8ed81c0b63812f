"""Flower 1.42.0, LocalDpMod: an update of zero raises an error, and noise is for `sensitivity`, not for the clip."""

import logging

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from two_tables import compare

logging.disable(logging.CRITICAL)


class Sent:
    """As much of a message as the modifier looks at."""

    def __init__(self, values):
        self.content = RecordDict({"arrays": ArrayRecord([values])})

    def has_error(self):
        return False


def received(sensitivity, epsilon):
    def call(update):
        modifier = LocalDpMod(clipping_norm=1.0, sensitivity=sensitivity, epsilon=epsilon, delta=1e-5)
        reply = modifier(Sent(np.zeros(2)), None, lambda message, context: Sent(np.array(update)))
        return float(reply.content["arrays"].to_numpy_ndarrays()[0][0])

    return call


left, right, none = [-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]
compare("no update against one", received(1.0, 1.0), none, right, claim=1, runs=4_000, delta=1e-5)
compare("sensitivity 1 = clip, epsilon 5", received(1.0, 5.0), left, right, claim=5, runs=200_000, delta=1e-5)
compare("sensitivity 2 = 2 clip, epsilon 5", received(2.0, 5.0), left, right, claim=5, runs=40_000, delta=1e-5)
compare("sensitivity 0.1, epsilon 1", received(0.1, 1.0), left, right, claim=1, runs=4_000, delta=1e-5)
