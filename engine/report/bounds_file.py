"""`bounds.json` and `bounds.parquet`: everything that was found, for machines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import NOT_SHOWN, Report
from dpaudit.estimators.finding import Series
from dpaudit.plain_files import write_whole

if TYPE_CHECKING:
    from dpaudit.engine.reading.sweep_summary import SweepSummary


def write_bounds(report: Report, folder: Path) -> None:
    """`bounds.json`, `bounds.parquet`, and `sweep.json` and `sweep.parquet` of a sweep, each written whole."""
    write_whole(folder / "bounds.json", lambda file: file.write(bounds_json(report).encode()))
    write_whole(folder / "bounds.parquet", lambda file: pq.write_table(bounds_table(report), file))
    if (summary := report.sweep) is not None:
        write_whole(folder / "sweep.json", lambda file: file.write(_sweep_json(summary).encode()))
        write_whole(folder / "sweep.parquet", lambda file: pq.write_table(_sweep_table(summary), file))


def bounds_json(report: Report) -> str:
    """The report in JSON."""
    content = {
        "name": report.name,
        "seed": report.seed,
        "confidence": report.confidence,
        "seconds": round(report.seconds, 3),
        "joint": None if report.joint is None else report.joint.to_dict(),
        "results": [result_values(result) for result in report.results],
        "reused": report.reused.to_dict(),
        "damaged": list(report.damaged),
        "unseen": list(report.unseen),
        "remarks": list(report.remarks),
        "repeated": [dataclasses.asdict(unit) for unit in report.repeated],
        "together": report.joint_confidence_note,
        "not_shown": list(NOT_SHOWN),
        "versions": dict(report.versions),
        "events": dict(report.events),
    }
    return json.dumps(content, indent=1, allow_nan=False)


def _sweep_json(summary: SweepSummary) -> str:
    """A sweep's configurations and what may be said of them together, in JSON; NaN and inf are strings."""
    return json.dumps(_plain(summary.to_dict()), indent=1, allow_nan=False)


def _sweep_table(summary: SweepSummary) -> pa.Table:
    """One row a configuration; values that are no numbers, truths or text are in JSON."""
    rows = [{name: _cell(value) for name, value in row.to_dict().items()} for row in summary.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _column(values: list[Any]) -> pa.Array:
    """Of one type: numbers where all are, truths where all are, else text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return pa.array([float(value) if kinds == {int, float} and value is not None else value for value in values])
    return pa.array([None if value is None else str(value) for value in values])


def result_values(result: AuditResult) -> dict[str, Any]:
    """One audit as plain values: series are columns by name, `inf` is a string."""
    values: dict[str, Any] = _plain(
        {
            "name": result.name,
            "verdict": result.verdict.value,
            "headline": result.headline,
            "mechanism": result.mechanism,
            "game": result.game,
            "data": result.data,
            "observational": result.observational,
            "assumes": result.assumes,
            "rows": dict(result.rows),
            "claim": result.claimed.to_dict(),
            "compared_with": result.compared.claim.to_dict(),
            "conversion": result.compared.note,
            "finding": None if result.finding is None else dict(result.finding.to_dict()),
            "comparison": None if result.comparison is None else dataclasses.asdict(result.comparison),
            "violation_point": None if result.violation_point is None else dataclasses.asdict(result.violation_point),
            "metrics": dict(result.metrics),
            "units": {"finished": result.units[0], "planned": result.units[1]},
            "ceiling": None if result.ceiling is None else result.ceiling.to_dict(),
            "whole": list(result.whole),
            "chosen": list(result.chosen),
            "stopped": None if result.stopped is None else dataclasses.asdict(result.stopped),
            "control": None if result.control is None else result.control.to_dict(),
            "failures": [dataclasses.asdict(failure) for failure in result.failures],
            "series": {name: _columns(series) for name, series in result.series.items()},
        }
    )
    return values


def bounds_table(report: Report) -> pa.Table:
    """One row an audit: verdict, what was observed and claimed, validity, counts."""
    return pa.Table.from_pylist([result.row() for result in report.results])


def _columns(series: Series) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in series.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
