"""Bounds for parts of a table, such as numbers of copies or kinds of secrets, that hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpaudit.engine.estimate.estimating import Estimate, Question, estimates
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.extraction.shares import ExtractionTable


def shared_error(question: Question, results: int) -> Question:
    """Return the question with the confidences of one of several results that have equal shares of the error."""

    def of_each(confidence: float) -> float:
        return 1 - (1 - confidence) / results

    return replace(
        question,
        confidence=of_each(0.95 if question.confidence is None else question.confidence),
        convicting=None if question.convicting is None else of_each(question.convicting),
    )


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
    question = shared_error(question, len(slices) + others)
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
