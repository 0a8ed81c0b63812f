"""Share of texts of which generated text holds long spans or near copies, with that of texts never trained on.

`spans` measures one text: its longest span in generated texts, and its edit distance to what was generated in its
place. The shares count texts whose span has at least so many tokens, and texts whose distance is at most so large.

Source: Carlini et al. (2021), arXiv:2012.07805; Ippolito et al. (2023), arXiv:2210.17546.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.counts import SPANS, Column, CountEstimator, Table, count_columns, number_columns
from dpaudit.estimators.extraction.shares import ExtractionTable, planted_column
from dpaudit.registry import register


@register("estimator", "verbatim-extraction", source="Carlini et al. (2021); Ippolito et al. (2023), arXiv:2210.17546")
@dataclass(frozen=True)
class VerbatimExtraction(CountEstimator):
    """Longest spans of texts in generated ones: shares of verbatim and near copies, planted and never trained on.

    Attributes:
        lengths: Numbers of tokens; a text counts if its longest span has at least so many.
        distance: A text is a near copy if its edit distance is at most this, in [0, 1).
        confidence: Two-sided confidence of all limits together, in (0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = SPANS
    optional_columns: ClassVar[tuple[str, ...]] = ("edit_distance",)

    lengths: tuple[int, ...] = (8, 16, 32)
    distance: float = 0.1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        allowed = len(self.lengths) > 0 and min(self.lengths) >= 1
        require(allowed, "lengths must be numbers >= 1", lengths=self.lengths)
        require(0 <= self.distance < 1, "distance must be in [0, 1)", distance=self.distance)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)

    def read(self, table: Table) -> Sequence[ExtractionTable]:
        """Return one table with a row for each length, and one for near copies if there are distances."""
        span, planted = count_columns(table, SPANS)["longest_span"], planted_column(table)
        has_distances = "edit_distance" in table
        distance = number_columns(table, ("edit_distance", *SPANS))["edit_distance"] if has_distances else None
        return [self.shares(span, planted, distance)]

    def shares(self, longest_span: Ints, planted: NDArray[np.bool_], edit_distance: Floats | None) -> ExtractionTable:
        """Return the shares of planted texts and of the control.

        Args:
            longest_span: Length of the longest span of each text in generated ones (`longest_spans`), shape (texts,).
            planted: True for texts that were trained on, shape (texts,); the others are the control.
            edit_distance: Distance of each text to what was generated in its place (`edit_distances`), or None.
        """
        names = [f"span >= {length}" for length in self.lengths]
        holds = [longest_span >= length for length in self.lengths]
        if edit_distance is not None:
            names.append(f"distance <= {self.distance:g}")
            holds.append(edit_distance <= self.distance)
        return ExtractionTable.of(
            "texts with copies in generated text",
            Column("copy", tuple(names)),
            holds,
            planted,
            confidence=self.confidence,
            notes=("counts the generated texts alone: more samples find more copies",),
        )
