"""A small HTML page with the bounds of a table and of its slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpaudit.engine.estimate.estimating import Estimate
from dpaudit.engine.report.page import escaping
from dpaudit.errors import DataError, RunError
from dpaudit.estimators.counts import Reading
from dpaudit.plain_files import write_user_file

NOT_SHOWN = "A low bound is not evidence of privacy: it measures these scores only."


def write_page(path: Path, source: str, readings: Sequence[Reading], slices: Mapping[str, Any]) -> None:
    """Write the page; each result of a slice has the slice's name as its heading."""
    named = list(slices.items()) if slices else [("", reading) for reading in readings]
    estimates = [(name, reading) for name, reading in named if isinstance(reading, Estimate)]
    others = [(name, reading) for name, reading in named if not isinstance(reading, Estimate | str)]
    page = escaping("dpaudit.engine.estimate").get_template("estimate.html.j2")
    text = page.render(source=source, estimates=estimates, others=others, not_shown=NOT_SHOWN)
    try:
        write_user_file(path, text.encode())
    except RunError as err:  # the option is wrong: no run has failed
        raise DataError(str(err)) from err
