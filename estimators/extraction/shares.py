"""Shares of planted texts and of texts that were never trained on, with exact limits and a comparison.

Texts that were never trained on have a share as well: common phrases, or texts that another source gave away.

* **Limits.** Clopper-Pearson limits of a share hold if the texts are a random sample of the texts that the statement is
  about, for example of the training data.
* **Comparison.** Fisher's exact test is exact if planted and never-planted texts come from one law and chance decided
  which were planted. It then needs no independence between the texts of one training.

`discoverable-extraction` counts (n, p)-discoverable texts: n samples, drawn after the prefix of a text, contain it with
probability >= p (Hayes et al. 2024). Its probability is computed exactly (`sampling`), so nothing is sampled but the
texts. For a bound on epsilon give the log probabilities as scores to `rare-canaries`, `random-subset` or
`simultaneous-guess-count`. `verbatim-extraction` counts texts whose longest span in generated texts has at least so
many tokens, and texts whose edit distance to what was generated in their place is at most so large (`spans`).

Source: Hayes et al. (2024), arXiv:2410.19482; Carlini et al. (2021), arXiv:2012.07805; Ippolito et al. (2023),
    arXiv:2210.17546.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_reals
from dpaudit.estimators.counts import (
    SPANS,
    TEXTS,
    Column,
    CountEstimator,
    Table,
    TextTable,
    count_columns,
    number_columns,
)
from dpaudit.estimators.extraction.random_subset import random_subset_p_value
from dpaudit.estimators.extraction.sampling import queries_needed
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.registry import register


@dataclass(frozen=True)
class Share:
    """Share of texts of which something holds, with Clopper-Pearson limits.

    Attributes:
        hits: Texts of which it holds.
        texts: All texts, >= 1.
        lower, upper: Limits at the stated confidence.
    """

    hits: int
    texts: int
    lower: float
    upper: float

    @classmethod
    def of(cls, holds: NDArray[np.bool_], *, confidence: float) -> Share:
        """Return the share of True, for at least one text."""
        require(holds.size >= 1, "a share needs at least one text", texts=holds.size)
        hits = int(np.count_nonzero(holds))
        lower, upper = clopper_pearson(hits, holds.size, confidence=confidence)
        return cls(hits, holds.size, float(lower), float(upper))


def larger_share_p_value(planted: Share, control: Share) -> float:
    """Return the one-sided p-value of Fisher's exact test that planted texts have no larger share than the control."""
    hits = planted.hits + control.hits
    return random_subset_p_value(planted.hits, hits, members=planted.texts, others=control.texts, epsilon=0.0)


@dataclass(frozen=True)
class ExtractionTable(TextTable):
    """Printed table of shares; all its limits hold together."""

    @classmethod
    def of(
        cls,
        title: str,
        cases: Column,
        holds: Sequence[NDArray[np.bool_]],
        planted: NDArray[np.bool_],
        *,
        confidence: float,
        notes: tuple[str, ...],
    ) -> ExtractionTable:
        """Return the shares of planted texts and of the control, one row a case.

        Args:
            title: What holds of the texts that are counted.
            cases: Column that names the cases.
            holds: For each case, True for texts of which it holds, shape (texts,).
            planted: True for texts that were trained on, shape (texts,); the others are the control.
            confidence: Two-sided confidence of all limits together, in (0, 1).
            notes: Sentences to print with the table.
        """
        require(bool(planted.any() and not planted.all()), "there must be planted texts and others as control")
        each = 1 - (1 - confidence) / (2 * len(holds))
        of_planted = [Share.of(case[planted], confidence=each) for case in holds]
        of_control = [Share.of(case[~planted], confidence=each) for case in holds]
        p_values = tuple(map(larger_share_p_value, of_planted, of_control))
        columns = (*_limits("planted", of_planted), *_limits("control", of_control), Column("p", p_values))
        counts = f"{int(planted.sum())} planted texts, {int((~planted).sum())} never trained on"
        assumed = "limits assume that texts are a random sample; p is exact if chance decided which texts were planted"
        return cls(f"{title} (all limits: confidence {confidence:g})", (cases, *columns), (counts, *notes, assumed))


def planted_column(table: Table) -> NDArray[np.bool_]:
    """Return the column `planted` as bits. Raises: InputError for other values than 0 and 1."""
    planted = number_columns(table, ("planted",))["planted"]
    require(bool(np.isin(planted, (0, 1)).all()), "column planted must be 0 or 1", given=planted.max())
    return np.asarray(planted == 1)


def _limits(name: str, shares: Sequence[Share]) -> tuple[Column, ...]:
    return (
        Column(name, tuple(share.hits / share.texts for share in shares)),
        Column("lower", tuple(share.lower for share in shares), "down"),
        Column("upper", tuple(share.upper for share in shares), "up"),
    )


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
