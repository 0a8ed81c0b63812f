"""What an estimate leaves behind: plain values for other programs, and one small page for people."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.engine.report.templates import escaping
from dpaudit.errors import DataError
from dpaudit.estimators.counts import Reading

NOT_SHOWN = "A low bound is no evidence of privacy: it speaks of these scores only."


def to_json(source: str, readings: Sequence[Reading]) -> str:
    """All readings in JSON; infinite numbers are the strings "inf" and "-inf"."""
    content = {"source": source, "readings": [_finite(plain(reading)) for reading in readings]}
    return json.dumps(content, indent=1, allow_nan=False)


@singledispatch
def plain(reading: Reading) -> Mapping[str, Any]:
    """A reading that bounds no epsilon: its text, line by line, and its notes."""
    return {"text": str(reading).splitlines(), "notes": list(reading.notes)}


@plain.register
def _(reading: Estimate) -> Mapping[str, Any]:
    carried = ("lower", "upper", "delta", "confidence", "method", "selection")
    return {
        "verdict": reading.verdict.value,
        "claim": None
        if reading.claim is None
        else {"epsilon": reading.claim.epsilon, "delta": reading.claim.delta, "relation": reading.claim.relation.value},
        **{name: getattr(reading, name) for name in carried},
        "validity": reading.validity.value,
        "counts": dict(reading.counts),
        "notes": list(reading.notes),
        "measures": [dataclasses.asdict(measure) for measure in reading.measures],
    }


def write_page(path: Path, source: str, readings: Sequence[Reading]) -> None:
    """Writes the page whole or not at all.

    Raises: DataError where the file cannot be written.
    """
    estimates = [reading for reading in readings if isinstance(reading, Estimate)]
    others = [reading for reading in readings if not isinstance(reading, Estimate)]
    page = escaping("dpaudit.engine.estimate").get_template("estimate.html.j2")
    text = page.render(source=source, estimates=estimates, others=others, not_shown=NOT_SHOWN)
    begun = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        begun.write_text(text, encoding="utf-8")
        begun.replace(path)
    except OSError as err:
        raise DataError(f"{path} must be a file that can be written: {err.strerror or err}") from err


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
