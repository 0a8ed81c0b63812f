"""Shares of planted texts and of texts that were never trained on, with exact limits and a comparison.

Texts that were never trained on have a share as well: common phrases, or texts that another source gave away.

* **Limits.** Clopper-Pearson limits of a share hold if the texts are a random sample of the texts that the statement is
  about, for example of the training data.
* **Comparison.** Fisher's exact test is exact if planted and never-planted texts come from one law and chance decided
  which were planted. It then needs no independence between the texts of one training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.counts import Column, Table, TextTable, number_columns
from dpaudit.estimators.extraction.random_subset import random_subset_p_value
from dpaudit.estimators.proportions.binomial import clopper_pearson


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
