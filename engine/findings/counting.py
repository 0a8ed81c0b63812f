"""The units that count evidence, replay by replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Kind, Work, unit
from dpaudit.estimators.estimator import Estimator


def counting(estimator: Any, evidence: Any, label: str, resources: Resources) -> Unit:
    """The unit that counts what another one gives, or what a call gives that is made in it."""
    tallies = Kind(estimator.tally_type, many=True)
    return Work().add(count, estimator, evidence, label=label, resources=resources, gives=tallies)


@unit
def count(estimator: Estimator[Any, Any], evidence: Iterable[Any]) -> Iterator[Any]:
    """What an estimator counts of each piece of evidence: replay, query or release."""
    return (estimator.tally(piece) for piece in evidence)
