"""Hits of one output set in two worlds, or scores: bounds by the ratio of both rates (`ratio`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_one_of
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import RATIO, CountEstimator, Table, bound_rows, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.proportions.binomial import katz_log
from dpaudit.estimators.two_world.ratio import detectable_ceiling, ratio_epsilon
from dpaudit.estimators.two_world.two_sample import TwoSampleEstimator, TwoSampleTally
from dpaudit.registry import register

Directions = Literal["best", "one"]


@register("estimator", "ratio", source="Lu et al. (2022), Eq. 1 with exact limits")
@dataclass(frozen=True)
class Ratio(CountEstimator):
    """Hits n1, n0 of one fixed output set in two worlds, exact limits of both rates; group privacy included.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1).
        confidence: Of each row by itself, in (0, 1).
        group: Records in which the data sets differ, >= 1; epsilon is for one record.
        directions: "best" of both ratios of the set and of its complement, or "one": world 1 over world 0.
    """

    columns: ClassVar[tuple[str, ...]] = RATIO

    delta: float = 0.0
    confidence: float = 0.95
    group: int = 1
    directions: Directions = "best"

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        _require_group(self.group, self.directions)

    def read(self, table: Table) -> Sequence[Bound]:
        counts = count_columns(table, RATIO)
        lower = ratio_epsilon(
            *counts.values(), delta=self.delta, confidence=self.confidence, group=self.group, directions=self.directions
        )
        return bound_rows(self, lower, counts)

    def method(self) -> str:
        return "ratio" + _grouping(self.group, self.directions)

    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE


@register("estimator", "katz-log", source="Katz et al. (1978)")
@dataclass(frozen=True)
class KatzLog(TwoSampleEstimator, CountEstimator):
    """Two-sample scores or hits n1, n0: normal limits for the logarithm of the rates' ratio.

    Attributes:
        group: Records in which the data sets of the two worlds differ, >= 1; epsilon is for one record.
        directions: For counts: "best" of both ratios of the set and of its complement, or "one": world 1 over world 0.
            Scores are read one way only, members above: a failed trial is scored as the attack's worst guess, which the
            other way would count as its best.
    """

    columns: ClassVar[tuple[str, ...]] = RATIO

    group: int = 1
    directions: Directions = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_group(self.group, self.directions)

    def method(self) -> str:
        return super().method() + _grouping(self.group, self.directions)

    def validity(self) -> Validity:
        return Validity.ASYMPTOTIC

    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        hits, alarms = tally.true_positives, tally.false_positives
        members, others = np.asarray(tally.members), np.asarray(tally.non_members)
        above = self._epsilon(hits, alarms, members, others, error / 2, "one")
        below = self._epsilon(others - alarms, members - hits, others, members, error / 2, "one")
        return np.maximum(above, below)

    def read(self, table: Table) -> Sequence[Bound]:
        """One bound a row, with the interval of ln(p1 / p0) beside it and what so many runs can show at most."""
        counts = count_columns(table, RATIO)
        n1, n0, trials1, trials0 = counts.values()
        bounds = self._epsilon(n1, n0, trials1, trials0, 1 - self.confidence, self.directions)
        ratio = katz_log(n1, trials1, n0, trials0, confidence=self.confidence)
        lower, upper = np.asarray(ratio.lower), np.asarray(ratio.upper)
        notes = [
            (f"ln(p1/p0) in [{lower[row]:.6f}, {upper[row]:.6f}]", *self._ceiling(int(trials1[row]), int(trials0[row])))
            for row in range(n1.size)
        ]
        return bound_rows(self, bounds, counts, notes=notes)

    def _epsilon(
        self, n1: Ints, n0: Ints, trials1: Ints, trials0: Ints, error: float, directions: Directions
    ) -> Floats:
        bounds = ratio_epsilon(
            n1,
            n0,
            trials1,
            trials0,
            delta=self.delta,
            confidence=1 - error,
            group=self.group,
            method="katz-log",
            directions=directions,
        )
        return np.asarray(bounds, dtype=np.float64)

    def _ceiling(self, trials1: int, trials0: int) -> tuple[str, ...]:
        if self.delta or trials1 != trials0:
            return ()
        error = (1 - self.confidence) / (1 if self.directions == "one" else 2)
        most = detectable_ceiling(trials1, confidence=1 - error)
        return (f"{trials1} runs a world can show at most {float(most) / self.group:.6f}",)


def _require_group(group: int, directions: str) -> None:
    """Refuses fewer records than one, and unknown directions."""
    require(group >= 1, "group must be >= 1", group=group)
    require_one_of("directions", directions, get_args(Directions))


def _grouping(group: int, directions: str) -> str:
    """What a bound's method says of these, where they are not the default."""
    words = [f"groups of {group}"] * (group > 1) + ["one direction"] * (directions == "one")
    return f" ({', '.join(words)})" if words else ""
