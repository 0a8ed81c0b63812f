"""The units that count evidence, replay by replay; and those that find bounds that take long, part by part.

The parts give the digits that the driver would find itself: what is missing is found there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from types import GenericAlias
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Work, inlined, unit
from dpaudit.engine.games.protocol import Played, Reading
from dpaudit.estimators.best_candidate import EachReplay, EachThreshold
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.right_guesses import GuessRule
from dpaudit.estimators.one_run.signed_scores import OneRun, Shiftable

WORTH_S = 1.0
"""Bounds that take less are found by the driver: a unit costs milliseconds there, and a second in the worst case."""
PART_S = 2.0  # how long one part should take
MAX_PARTS = 256


def counting(estimator: Any, evidence: Unit, *, kept: bool) -> Unit:
    """The unit that counts what another one gives."""
    return Work().add(
        count,
        estimator,
        evidence if kept else inlined(evidence),
        label=f"counting {evidence.label}" if kept else f"{evidence.label}, counted",
        resources=evidence.resources.on_cpus if kept else evidence.resources,
        gives=GenericAlias(list, estimator.tally_type),
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


@runtime_checkable
class _Divided(Protocol):
    """An estimator whose bounds can be found in parts."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds of so many replays of so many rows take on one core."""
        ...

    def find(self, tallies: Sequence[Any], *, lost: int = 0, parts: Sequence[Any] = ()) -> Finding:
        """One finding; what is in none of the parts is found now."""
        ...


@runtime_checkable
class _DividedByReplay(_Divided, Protocol):
    def bounds_of_replays(self, tallies: Sequence[Any], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers."""
        ...


@runtime_checkable
class _DividedByThreshold(_Divided, Protocol):
    def bounds_at(self, tally: Any, places: NDArray[np.int64]) -> EachThreshold:
        """At some of the thresholds of the only replay."""
        ...


@unit
def bound_replays(estimator: _DividedByReplay, tallies: tuple[list[Any], ...], *, replays: int) -> EachReplay:
    """The bounds of some of `replays` replays, in the order of their numbers."""
    return estimator.bounds_of_replays([tally for group in tallies for tally in group], replays)


@unit
def bound_thresholds(estimator: _DividedByThreshold, tallies: list[Any], *, part: int, parts: int) -> EachThreshold:
    """The bounds at one of several equal parts of the thresholds of the only replay."""
    (tally,) = tallies
    thresholds = tally.threshold.size
    return estimator.bounds_at(tally, np.arange(thresholds * part // parts, thresholds * (part + 1) // parts))


def bound_units(
    estimator: Any, game: Played, tallies: tuple[Unit, ...], reading: Reading, name: str, resources: Resources
) -> tuple[Unit, ...]:
    """The units that find an audit's bounds; none where the driver is as quick, or the game cannot say how much it is.

    `tallies` are the units that count, in the order of the evidence.
    """
    if game.reference is None or reading is Reading.IN_ORDER:
        return ()
    parts, work = min(MAX_PARTS, _parts(estimator, game.replays, game.reference.rows)), Work()
    if parts < 1:
        return ()
    by_threshold = isinstance(estimator, _DividedByThreshold)
    if by_threshold and (len(tallies) != 1 or game.replays != 1):
        return ()
    parts = parts if by_threshold else min(parts, len(tallies))
    for part in range(parts):
        label = f"bounds of {name}, {'thresholds' if by_threshold else 'replays'} {part + 1}/{parts}"
        if by_threshold:
            work.add(bound_thresholds, estimator, tallies[0], part=part, parts=parts, label=label, resources=resources)
        else:
            some = tallies[len(tallies) * part // parts : len(tallies) * (part + 1) // parts]
            work.add(bound_replays, estimator, some, replays=game.replays, label=label, resources=resources)
    return tuple(work.units.values())


def bound_seconds(estimator: Any, replays: int, rows: int) -> float:
    """About how long the bounds of so many replays of so many rows take on one core; 0 where nobody waits."""
    divided = isinstance(estimator, _DividedByReplay | _DividedByThreshold)
    return estimator.seconds(replays, rows) if divided else 0.0


def _parts(estimator: Any, replays: int, rows: int) -> int:
    seconds = bound_seconds(estimator, replays, rows)
    return math.ceil(seconds / PART_S) if seconds >= WORTH_S else 0
