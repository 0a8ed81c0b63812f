"""Share of texts that a language model gives away to n samples, with that of texts that it was never trained on.

A text is (n, p)-discoverable if n samples, drawn after its prefix, contain it with probability >= p (Hayes et al.
2024). Its probability is computed exactly (`sampling`), so nothing is sampled but the texts. For a bound on epsilon
give the log probabilities as scores to `rare-canaries`, `random-subset` or `simultaneous-guess-count`.

Source: Hayes et al. (2024), "Measuring memorization through probabilistic discoverable extraction", arXiv:2410.19482.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, as_reals
from dpaudit.estimators.counts import TEXTS, Column, CountEstimator, Table
from dpaudit.estimators.extraction.sampling import queries_needed
from dpaudit.estimators.extraction.shares import ExtractionTable, planted_column
from dpaudit.registry import register


@register("estimator", "discoverable-extraction", source="Hayes et al. (2024), arXiv:2410.19482")
@dataclass(frozen=True)
class DiscoverableExtraction(CountEstimator):
    """Log probabilities of texts: shares that n samples extract, planted and never trained on, with exact limits.

    Attributes:
        queries: Numbers n of samples.
        probability: Probability p with which the samples must contain a text, in (0, 1).
        confidence: Two-sided confidence of all limits together, in (0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = TEXTS

    queries: tuple[int, ...] = (1, 100, 10_000)
    probability: float = 0.5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        allowed = len(self.queries) > 0 and min(self.queries) >= 1
        require(allowed, "queries must be numbers >= 1", queries=self.queries)
        require(0 < self.probability < 1, "probability must be in (0, 1)", probability=self.probability)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)

    def read(self, table: Table) -> Sequence[ExtractionTable]:
        """Return one table with a row for each number of samples."""
        missing = [name for name in TEXTS if name not in table]
        require(not missing, f"the table must have the columns {', '.join(TEXTS)}", columns=", ".join(table))
        logs = as_reals("log_probability", table["log_probability"])  # -inf for texts that a filter excludes
        planted = planted_column(table)
        require(logs.shape == planted.shape, "columns must have one length", shapes=[logs.shape, planted.shape])
        return [self.shares(logs, planted)]

    def shares(self, log_probability: Floats, planted: NDArray[np.bool_]) -> ExtractionTable:
        """Return the shares of planted texts and of the control.

        Args:
            log_probability: Logarithm of the exact probability of each text after its prefix, <= 0; shape (texts,).
            planted: True for texts that were trained on, shape (texts,); the others are the control.
        """
        needed = np.atleast_1d(np.asarray(queries_needed(log_probability, self.probability)))
        medians = [f"{np.median(needed[group]):.3g}" for group in (planted, ~planted) if group.any()]
        return ExtractionTable.of(
            f"texts in n samples with probability >= {self.probability:g}",
            Column("samples", tuple(float(n) for n in self.queries)),
            [needed <= n for n in self.queries],
            planted,
            confidence=self.confidence,
            notes=(
                f"median samples needed: {' and '.join(medians)}",
                "exact for samples drawn token by token by the rule that gave the probabilities, not for beam search",
            ),
        )
