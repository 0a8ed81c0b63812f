"""Share of texts that a language model gives away, with the same share of texts that it was never trained on.

A text is (n, p)-discoverable if n samples, drawn after its prefix, contain it with probability >= p (Hayes et al.
2024). Its probability is computed exactly (`sampling`), so nothing is sampled but the texts. Clopper-Pearson limits of
the share hold if the texts are a random sample of the texts that the statement is about, for example of the training
data.

Texts that were never trained on have a share as well: common phrases, or texts that another source gave away. Fisher's
exact test compares the two shares. It is exact if planted and never-planted texts come from one law and chance decided
which were planted; it then needs no independence between the texts of one training. For a bound on epsilon give the log
probabilities as scores to `rare-canaries`, `random-subset` or `simultaneous-guess-count`.

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
from dpaudit.estimators.counts import Column, CountEstimator, Table, TextTable, number_columns
from dpaudit.estimators.extraction.random_subset import random_subset_p_value
from dpaudit.estimators.extraction.sampling import queries_needed
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.registry import register

TEXTS = ("log_probability", "planted")
"""Names of the columns of a table of texts."""


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
        planted = number_columns(table, ("planted",))["planted"]
        require(logs.shape == planted.shape, "columns must have one length", shapes=[logs.shape, planted.shape])
        require(bool(np.isin(planted, (0, 1)).all()), "column planted must be 0 or 1", given=planted.max())
        return [self.shares(logs, planted == 1)]

    def shares(self, log_probability: Floats, planted: NDArray[np.bool_]) -> ExtractionTable:
        """Return the shares of planted texts and of the control.

        Args:
            log_probability: Logarithm of the exact probability of each text after its prefix, <= 0; shape (texts,).
            planted: True for texts that were trained on, shape (texts,); the others are the control.
        """
        needed = np.atleast_1d(np.asarray(queries_needed(log_probability, self.probability)))
        require(bool(planted.any() and not planted.all()), "there must be planted texts and others as control")
        each = 1 - (1 - self.confidence) / (2 * len(self.queries))  # all pairs of limits hold together
        pairs = [
            tuple(Share.of(needed[group] <= n, confidence=each) for group in (planted, ~planted)) for n in self.queries
        ]
        of_planted, of_control = (tuple(pair[index] for pair in pairs) for index in (0, 1))
        return ExtractionTable(
            f"texts in n samples with probability >= {self.probability:g} (all limits: confidence {self.confidence:g})",
            (
                Column("samples", tuple(float(n) for n in self.queries)),
                *_share_columns("planted", of_planted),
                *_share_columns("control", of_control),
                Column("p", tuple(larger_share_p_value(*pair) for pair in pairs)),
            ),
            notes=(
                f"{int(planted.sum())} planted texts, {int((~planted).sum())} never trained on; median samples needed "
                f"{np.median(needed[planted]):.3g} and {np.median(needed[~planted]):.3g}",
                "exact for samples drawn token by token by the rule that gave the probabilities, not for beam search",
                "limits assume that texts are a random sample; p is exact if chance decided which texts were planted",
            ),
        )


def _share_columns(name: str, shares: Sequence[Share]) -> tuple[Column, ...]:
    return (
        Column(name, tuple(share.hits / share.texts for share in shares)),
        Column("lower", tuple(share.lower for share in shares), "down"),
        Column("upper", tuple(share.upper for share in shares), "up"),
    )
