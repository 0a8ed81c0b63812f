"""Results of several estimates: slices of a table that hold together, JSON for programs, and a small page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.engine.estimate.estimating import Estimate, estimates
from dpaudit.engine.estimate.reading import Question
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.exits import attributes, in_json
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.extraction.shares import ExtractionTable

if TYPE_CHECKING:
    from dpaudit.estimators.counts import Reading

NOT_SHOWN = "A low bound is not evidence of privacy: it measures these scores only."


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


def to_json(source: str, readings: Sequence[Reading], slices: Mapping[str, Any]) -> str:
    """Return all readings in JSON, slices by name; infinite numbers are the strings "inf" and "-inf"."""
    slice_values = {
        name: {"error": reading} if isinstance(reading, str) else _values(reading) for name, reading in slices.items()
    }
    named = {"slices": slice_values} if slices else {"readings": [_values(reading) for reading in readings]}
    return in_json({"source": source, **named})


def _values(reading: Reading) -> dict[str, Any]:
    """Return the fields of an estimate; of other readings, the lines of their text and their notes."""
    if not isinstance(reading, Estimate):
        return {"text": str(reading).splitlines(), "notes": reading.notes}
    carried = ("lower", "upper", "delta", "confidence", "method", "selection", "validity")
    return {
        "verdict": reading.verdict,
        "answer": reading.answer.to_dict(),
        "claim": reading.claim and attributes(reading.claim, ("epsilon", "delta", "relation")),
        **attributes(reading, carried),
        "counts": dict(reading.counts),
        "notes": reading.notes,
        "under_family": reading.under_family,
        "mu": reading.mu,
        "measures": reading.measures,
    }


def write_page(path: Path, source: str, readings: Sequence[Reading], slices: Mapping[str, Any]) -> None:
    """Write the page; each result of a slice has the slice's name as its heading.

    Raises: DataError if the file cannot be written.
    """
    named = list(slices.items()) if slices else [("", reading) for reading in readings]
    estimates = [(name, reading) for name, reading in named if isinstance(reading, Estimate)]
    others = [(name, reading) for name, reading in named if not isinstance(reading, Estimate | str)]
    from dpaudit.engine.report.page import write_answer_page  # slow to import

    parts: dict[str, Any] = {"source": source, "estimates": estimates, "others": others, "not_shown": NOT_SHOWN}
    write_answer_page(path, "estimate.html.j2", "dpaudit.engine.estimate", title=source, **parts)
