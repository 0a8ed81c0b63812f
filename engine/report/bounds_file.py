"""`bounds.json` and `bounds.parquet`: all results for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpaudit.actors.values import arrow_array
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.report.plain_values import attributes, in_json
from dpaudit.estimators.finding import Series
from dpaudit.plain_files import write_atomically


def write_bounds(report: Report, folder: Path) -> bytes:
    """Write `bounds.json`, `bounds.parquet`, and for a sweep `sweep.json` and `sweep.parquet`, each atomically.

    Returns: The content of `bounds.json`, which another process may replace a moment later.
    """
    content = bounds_json(report).encode()
    write_atomically(folder / "bounds.json", lambda file: file.write(content))
    write_atomically(folder / "bounds.parquet", lambda file: pq.write_table(bounds_table(report), file))
    if (summary := report.sweep) is not None:
        write_atomically(folder / "sweep.json", lambda file: file.write(in_json(summary).encode()))
        # Values other than numbers, booleans and text are in JSON.
        rows = [{name: _cell(value) for name, value in row.to_dict().items()} for row in summary.rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: _column([row.get(name) for row in rows]) for name in names})
        write_atomically(folder / "sweep.parquet", lambda file: pq.write_table(table, file))
    return content


def bounds_json(report: Report) -> str:
    """Return the report in JSON."""
    content = {
        **attributes(report, ("name", "seed", "confidence")),
        "seconds": round(report.seconds, 3),
        "joint": report.joint,
        "results": [_result_values(result) for result in report.results],
        **attributes(report, ("reused", "damaged", "unseen", "remarks", "repeated")),
        "together": report.joint_confidence_note,
        "not_shown": NOT_SHOWN,
        **attributes(report, ("versions", "events")),
    }
    return in_json(content)


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _column(values: list[Any]) -> pa.Array:
    """Return a column of one type: numbers or booleans if all values are, else text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return arrow_array(values)
    return arrow_array([None if value is None else str(value) for value in values])


def _result_values(result: AuditResult) -> dict[str, Any]:
    """Return the fields of one audit; series are columns by name."""
    maximum, ceiling = result.sensitivity.maximum, None
    if maximum is not None:  # the finding for a mechanism with no privacy, and how it was measured
        ceiling = {**maximum.to_dict(), **attributes(result.sensitivity, ("played", "noiseless", "helps"))}
    return {
        **attributes(
            result, ("name", "scope", "verdict", "headline", "answer", "p_value", "mechanism", "game", "data")
        ),
        "rows": result.rows,
        "claim": result.claimed,
        "compared_with": result.compared.claim,
        "conversion": result.compared.note,
        **attributes(
            result, ("observational", "assumes", "finding", "comparison", "violation_point", "metrics", "measures")
        ),
        "under_family": result.family_bound,
        "units": dict(zip(("finished", "planned"), result.units, strict=True)),
        "ceiling": ceiling,
        "detectable_factor": result.sensitivity.factor,
        "whole": result.meaning_for_whole,
        **attributes(result, ("chosen", "stopped", "control", "failures")),
        "series": {name: _columns(series) for name, series in result.series.items()},
    }


def bounds_table(report: Report) -> pa.Table:
    """Return one row for each audit: verdict, observed and claimed value, validity, counts."""
    rows = [result.row() for result in report.results]
    return pa.table({name: arrow_array([row[name] for row in rows]) for name in rows[0]} if rows else {})


def _columns(series: Series) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in series.items()}
