"""The units that count evidence, replay by replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Kind, Work, inlined, unit
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.right_guesses import GuessRule
from dpaudit.estimators.one_run.signed_scores import OneRun, Shiftable


def counting(estimator: Any, evidence: Unit, *, kept: bool) -> Unit:
    """The unit that counts what another one gives.

    Args:
        estimator: Whose counts they are.
        evidence: The unit that gives the evidence.
        kept: Whether the evidence is kept; else the unit plays it as well, a replay in memory at a time.
    """
    return Work().add(
        count,
        estimator,
        evidence if kept else inlined(evidence),
        label=f"counting {evidence.label}" if kept else f"{evidence.label}, counted",
        resources=evidence.resources.on_cpus if kept else evidence.resources,
        gives=Kind(estimator.tally_type, many=True),
    )


def control_estimator(estimator: Any, distinguishers: int) -> OneRun:
    """Reads the control's scores: exact at delta = 0, with the guesses of the audit's estimator, error shared."""
    error = (1 - estimator.confidence) / max(distinguishers, 1)
    guess: GuessRule = estimator.guess if isinstance(estimator, Shiftable) else "signed"
    return OneRun(confidence=1 - error, guess=guess)


@unit
def count(estimator: Estimator[Any, Any], evidence: Iterable[Any]) -> Iterator[Any]:
    """What an estimator counts of each piece of evidence: replay, query or release."""
    return (estimator.tally(piece) for piece in evidence)
