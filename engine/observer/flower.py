"""A strategy of Flower that clips the updates of clients, whose rounds an audit joins and observes by itself.

Canaries are further clients: their replies reach the strategy with the others. Each has as much weight as the client
with the most.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np

from dpaudit.engine.observer.protocol import Audit
from dpaudit.errors import InputError, require

ABSENT = 1e-3
"""Norm of the update of an absent client, in clips."""


def stated_by(strategy: Any) -> dict[str, Any]:
    """Return the arguments of an audit that a strategy states: noise and clip of its rounds.

    Raises: InputError for a strategy that does not clip updates at the server, or adds no noise.
    """
    clips = all(hasattr(strategy, name) for name in ("clipping_norm", "noise_multiplier", "current_arrays"))
    require(clips, "strategy must clip at the server with differential privacy", given=type(strategy).__name__)
    if strategy.noise_multiplier <= 0:
        raise InputError("the strategy adds no noise, so nothing finite is claimed of its rounds")
    return {"noise": float(strategy.noise_multiplier), "clip": float(strategy.clipping_norm)}


def attach(audit: Audit, strategy: Any) -> None:
    """Let clients of the audit join each round, and let it observe the aggregated update."""
    aggregate_train = strategy.aggregate_train

    def weight(reply: Any) -> float:
        records = list(reply.content.metric_records.values())
        return float(records[0].get(getattr(strategy.strategy, "weighted_by_key", ""), 1)) if records else 1.0

    def aggregate(server_round: int, replies: Iterable[Any]) -> Any:
        replies = list(replies)
        answers = [reply for reply in replies if not reply.has_error()]
        if not answers:
            return aggregate_train(server_round, replies)
        start, heaviest = strategy.current_arrays, max(answers, key=weight)
        updates = {
            name: np.stack([_arrays(reply)[name].numpy() - start[name].numpy() for reply in answers]) for name in start
        }
        audit.skip()  # a round that failed
        audit.clip = float(strategy.clipping_norm)  # adaptive clipping changes it
        joined = audit.join(updates, per_example=True)
        first = joined[next(iter(start))]
        total = len(first)
        # Flower divides by the norm of an update, so that of an absent client is small but not zero.
        first[len(answers) :].reshape(total - len(answers), -1)[:, 0] += ABSENT * audit.clip
        sent = [
            _reply(heaviest, {name: start[name].numpy() + joined[name][row] for name in start})
            for row in range(len(answers), total)
        ]
        strategy.num_sampled_clients += len(sent)  # so the noise is that of the mean over all of them
        try:
            arrays, metrics = aggregate_train(server_round, [*replies, *sent])
        finally:
            strategy.num_sampled_clients -= len(sent)
        if arrays:
            audit.observe([arrays[name].numpy() - start[name].numpy() for name in start], divisor=total)
        return arrays, metrics

    strategy.aggregate_train = aggregate


def _arrays(reply: Any) -> Any:
    return next(iter(reply.content.array_records.values()))


def _reply(reply: Any, arrays: dict[str, Any]) -> Any:
    """Return a reply with other arrays."""
    from flwr.app import Array, ArrayRecord, RecordDict

    name = next(iter(reply.content.array_records))
    changed, record = copy(reply), ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()})
    changed.content = RecordDict(
        {name: record, **{key: copy(each) for key, each in reply.content.metric_records.items()}}
    )
    return changed
