"""What an estimate leaves behind: plain values for other programs, and one small page for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.engine.report.plain_values import attributes, in_json
from dpaudit.engine.report.templates import escaping
from dpaudit.errors import DataError
from dpaudit.estimators.counts import Reading
from dpaudit.plain_files import write_whole

NOT_SHOWN = "A low bound is no evidence of privacy: it speaks of these scores only."


def to_json(source: str, readings: Sequence[Reading]) -> str:
    """All readings in JSON; infinite numbers are the strings "inf" and "-inf"."""
    return in_json({"source": source, "readings": [_values(reading) for reading in readings]})


def _values(reading: Reading) -> dict[str, Any]:
    """An estimate by its fields; a reading that bounds no epsilon by its text, line by line, and its notes."""
    if not isinstance(reading, Estimate):
        return {"text": str(reading).splitlines(), "notes": reading.notes}
    carried = ("lower", "upper", "delta", "confidence", "method", "selection", "validity")
    return {
        "verdict": reading.verdict,
        "claim": reading.claim and attributes(reading.claim, ("epsilon", "delta", "relation")),
        **attributes(reading, carried),
        "counts": dict(reading.counts),
        "notes": reading.notes,
        "measures": reading.measures,
    }


def write_page(path: Path, source: str, readings: Sequence[Reading]) -> None:
    """Writes the page whole or not at all."""
    estimates = [reading for reading in readings if isinstance(reading, Estimate)]
    others = [reading for reading in readings if not isinstance(reading, Estimate)]
    page = escaping("dpaudit.engine.estimate").get_template("estimate.html.j2")
    text = page.render(source=source, estimates=estimates, others=others, not_shown=NOT_SHOWN)
    try:
        write_whole(path, lambda file: file.write(text.encode()))
    except OSError as err:
        raise DataError(f"{path} must be a file that can be written: {err.strerror or err}") from err
