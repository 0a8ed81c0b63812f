"""Flower's `LocalDpMod`, tested with 1.42.0. Rows: "array"; the update that a client sends is the sum of its rows."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod

logging.disable(logging.CRITICAL)


class Sent:
    """As much of a message as the modifier looks at."""

    def __init__(self, values: Any) -> None:
        self.content = RecordDict({"arrays": ArrayRecord([values])})

    def has_error(self) -> bool:
        return False


def local_update(
    rows: Any,
    rng: Any,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    clip: float = 1.0,
    sensitivity: float = 1.0,
    offset: float = 0.0,
) -> Any:
    """What the server receives from a client whose model started at zero; an `offset` keeps updates away from zero."""
    np.random.seed(int(rng.integers(2**31)))
    update = np.nan_to_num(rows.sum(0), nan=0.0, posinf=0.0, neginf=0.0) + offset if offset else rows.sum(0)
    modifier = LocalDpMod(clip, sensitivity, epsilon, delta)
    reply = modifier(Sent(np.zeros_like(update)), None, lambda message, context: Sent(update))  # type: ignore[arg-type]
    return reply.content["arrays"].to_numpy_ndarrays()[0]
