"""Bounds for parts of a table, such as numbers of copies or kinds of secrets, that hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpaudit.engine.estimate.estimating import Estimate, Question, estimates
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.extraction.shares import ExtractionTable


def estimates_by(
    table: SourceTable, question: Question, columns: Sequence[str], *, others: int = 0
) -> dict[str, Estimate | ExtractionTable | str]:
    """Return the result of each combination of values in some columns, or the reason why it has none.

    All results hold together with the stated confidence: each has an equal share of the error. The columns must be
    chosen without looking at the scores.

    Args:
        others: Number of other results that have an equal share of the same error.
    """
    slices = table.slices(columns)
    confidence = 0.95 if question.confidence is None else question.confidence
    question = replace(question, confidence=1 - (1 - confidence) / (len(slices) + others))
    outcomes: dict[str, Estimate | ExtractionTable | str] = {}
    for name, rows in slices.items():
        try:
            slice_readings = estimates(rows, question)
        except (DataError, InputError) as err:  # for example too few rows in this slice
            outcomes[name] = str(err)
            continue
        if len(slice_readings) != 1 or not isinstance(slice_readings[0], Estimate | ExtractionTable):
            raise SpecError("--by needs a table of scores, or one row of counts in each slice")
        outcomes[name] = slice_readings[0]
    return outcomes
