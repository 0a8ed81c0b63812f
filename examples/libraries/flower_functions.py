"""Flower's `LocalDpMod`, tested with 1.42.0. Rows: "array"; the update that a client sends is the sum of its rows."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod

logging.disable(logging.CRITICAL)


class _Sent:
    """As much of a message as the modifier looks at."""

    def __init__(self, values: Any) -> None:
        self.content = RecordDict({"arrays": ArrayRecord([values])})

    def has_error(self) -> bool:
        return False


def local_update(
    rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-5, clip: float = 1.0, sensitivity: float = 1.0
) -> Any:
    """What the server receives of a client whose model started at zero."""
    return _received(rows.sum(0), rng, LocalDpMod(clip, sensitivity, epsilon, delta))


def local_update_mended(rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-5, digits: int = 6) -> Any:
    """Updates have a length between 1e-9 and about 1e9; the noise is for two on opposite sides of the ball."""
    update = np.clip(np.nan_to_num(rows.sum(0)), -1e9, 1e9)
    update[0] += 2e-9 * (np.linalg.norm(update) < 1e-9)
    return np.round(_received(update, rng, LocalDpMod(1.0, 2.0, epsilon, delta)), digits)


def _received(update: Any, rng: Any, modifier: Any) -> Any:
    np.random.seed(int(rng.integers(2**31)))
    reply = modifier(_Sent(np.zeros_like(update)), None, lambda message, context: _Sent(update))
    return reply.content["arrays"].to_numpy_ndarrays()[0]
