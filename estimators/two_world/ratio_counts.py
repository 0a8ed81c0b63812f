"""Tables of hits in two worlds: one bound on epsilon a row, with exact limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from dpaudit.errors import require
from dpaudit.estimators.arguments import require_one_of
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import RATIO, CountEstimator, Table, bound_rows, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.two_world.ratio import ratio_epsilon
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
        require_group(self.group, self.directions)

    def read(self, table: Table) -> Sequence[Bound]:
        """One bound a row."""
        counts = count_columns(table, RATIO)
        lower = ratio_epsilon(
            *counts.values(),
            delta=self.delta,
            confidence=self.confidence,
            group=self.group,
            directions=self.directions,
        )
        return bound_rows(
            lower,
            None,
            counts,
            delta=self.delta,
            confidence=self.confidence,
            method="ratio" + grouping(self.group, self.directions),
            validity=Validity.FINITE_SAMPLE,
        )


def require_group(group: int, directions: str) -> None:
    """Refuses fewer records than one, and unknown directions."""
    require(group >= 1, "group must be >= 1", group=group)
    require_one_of("directions", directions, get_args(Directions))


def grouping(group: int, directions: str) -> str:
    """What a bound's method says of these, where they are not the default."""
    words = [f"groups of {group}"] * (group > 1) + ["one direction"] * (directions == "one")
    return f" ({', '.join(words)})" if words else ""
