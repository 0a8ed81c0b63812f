"""Results of an estimate for other programs (JSON) and for readers (a small page)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.engine.report.plain_values import attributes, in_json

if TYPE_CHECKING:
    from dpaudit.estimators.counts import Reading

NOT_SHOWN = "A low bound is not evidence of privacy: it measures these scores only."


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
