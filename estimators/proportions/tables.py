"""Tables of plain counts: how likely is an event, or each of several, and in what sense is the interval one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.counts import (
    MULTINOMIAL,
    PROPORTION,
    Column,
    CountEstimator,
    Table,
    TextTable,
    classes,
    count_columns,
    per_class,
)
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.proportions.binomial import clopper_pearson, goodman, jeffreys, sison_glaz
from dpaudit.registry import register


@register("estimator", "proportion", source="Clopper and Pearson (1934); Brown, Cai and DasGupta (2001)")
@dataclass(frozen=True)
class Proportion(CountEstimator):
    """Counts k of n: two-sided Clopper-Pearson and Jeffreys intervals for one proportion a row.

    Attributes:
        confidence: Of each interval by itself, in (0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = PROPORTION

    confidence: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)

    def read(self, table: Table) -> Sequence[TextTable]:
        """Both intervals of each row."""
        counts = count_columns(table, PROPORTION)
        exact = clopper_pearson(counts["k"], counts["n"], confidence=self.confidence)
        credible = jeffreys(counts["k"], counts["n"], confidence=self.confidence)
        lower, upper = np.stack([exact.lower, credible.lower]), np.stack([exact.upper, credible.upper])
        return [
            TextTable(
                f"proportion, {k} of {n} ({self.confidence:.6g} confidence)",
                (
                    Column("interval", ("clopper-pearson", "jeffreys")),
                    Column("lower", tuple(lower[:, row].tolist()), "down"),
                    Column("upper", tuple(upper[:, row].tolist()), "up"),
                    Column("validity", (Validity.FINITE_SAMPLE, Validity.ASYMPTOTIC)),
                ),
            )
            for row, (k, n) in enumerate(zip(counts["k"], counts["n"], strict=True))
        ]


@register("estimator", "multinomial", source="Goodman (1965); Sison and Glaz (1995)")
@dataclass(frozen=True)
class Multinomial(CountEstimator):
    """Counts c_* of every class: Goodman and Sison-Glaz intervals that hold for all classes of a row together.

    Attributes:
        confidence: Of all intervals of one kind and row together, in (0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = MULTINOMIAL

    confidence: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)

    def read(self, table: Table) -> Sequence[TextTable]:
        """Both kinds of intervals for the classes of each row."""
        named = classes(table, "c_")
        counts = per_class(table, "c_", named)
        score, common = goodman(counts, confidence=self.confidence), sison_glaz(counts, confidence=self.confidence)
        ends = [np.asarray(end) for end in (score.lower, score.upper, common.lower, common.upper)]
        titles = ("goodman lower", "goodman upper", "sison-glaz lower", "sison-glaz upper")
        return [
            TextTable(
                f"multinomial, {int(cells.sum())} trials ({self.confidence:.6g} confidence for all classes together, "
                f"{Validity.ASYMPTOTIC})",
                (
                    Column("class", named),
                    Column("count", tuple(str(cell) for cell in cells)),
                    *(
                        Column(title, tuple(end[row].tolist()), "up" if "upper" in title else "down")
                        for title, end in zip(titles, ends, strict=True)
                    ),
                ),
            )
            for row, cells in enumerate(counts)
        ]
