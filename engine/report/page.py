"""Files of a finished run: `report.html`, a self-contained page, and `bounds.json` for other programs."""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from numpy.typing import NDArray

from dpaudit.actors.values import arrow_array, numpy_array
from dpaudit.claims import Scope
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import COLOURS, Verdict
from dpaudit.engine.exits import attributes, in_json
from dpaudit.engine.request.audit_spec import slug
from dpaudit.errors import DataError, RunError, printable_lines
from dpaudit.estimators.bound import format_lower, format_upper
from dpaudit.plain_files import write_atomically, write_user_file

if TYPE_CHECKING:
    from dpaudit.engine.figures.drawing import Picture
    from dpaudit.estimators.arguments import Interval

MAX_SCORES_DRAWN = 400_000
METHODS = ("clopper-pearson", "jeffreys", "bayesian")
"""Methods of the intervals that are compared."""
MIN_AUDITS = 3
"""Smallest number of audits in a line of detected epsilons."""


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
        plain = (bool, int, float, str, type(None))
        rows = [
            {name: value if isinstance(value, plain) else json.dumps(value, default=str) for name, value in row.items()}
            for row in (each.to_dict() for each in summary.rows)
        ]
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
        "mu": result.mu,
        "units": dict(zip(("finished", "planned"), result.units, strict=True)),
        "ceiling": ceiling,
        "detectable_factor": result.sensitivity.factor,
        "whole": result.meaning_for_whole,
        **attributes(result, ("chosen", "stopped", "control", "failures")),
        "series": {
            series: {name: np.asarray(values).tolist() for name, values in columns.items()}
            for series, columns in result.series.items()
        },
    }


def bounds_table(report: Report) -> pa.Table:
    """Return one row for each audit: verdict, observed and claimed value, validity, counts."""
    rows = [result.row() for result in report.results]
    return pa.table({name: arrow_array([row[name] for row in rows]) for name in rows[0]} if rows else {})


def write_page(report: Report, folder: Path, *, draw: bool = True) -> None:
    """Write `report.html` of a run folder, and figures (PNG and SVG).

    Of several tests of one claim, only the deciding ones have figures. Without `draw`, only grids and sweeps have
    figures.
    """
    target, joint, deciding = folder / "figures", report.joint, list(report.results)
    if joint is not None:  # the deciding test and its confirmatory run
        names = () if joint.deciding is None else (joint.deciding.name,)
        again = [joint.confirmations[name] for name in names if name in joint.confirmations]
        deciding = [*([] if joint.deciding is None else [joint.deciding]), *again]
    audits = [
        {
            "result": result,
            "figures": _figures(result, folder, target) if draw and result in deciding else [],
            "intervals": intervals(result),
        }
        for result in report.results
    ]
    figures = {chart.stem: _save_figure(chart, target, chart.stem) for chart in _run_figures(report, draw=draw)}
    text = template("report.html.j2").render(
        title=report.name,
        report=report,
        audits=audits,
        colours={verdict.value: COLOURS[verdict] for verdict in Verdict},
        not_shown=NOT_SHOWN,
        status=status,
        figures=figures,
    )
    write_atomically(folder / "report.html", lambda file: file.write(text.encode()))


def status(result: AuditResult) -> str:
    """Return the relation of one test of several to the claim, in a few words."""
    if result.finding is None:
        return "no result"
    words = "exceeds the claim" if result.exceeds else "does not exceed the claim"
    if result.scope is Scope.AVERAGE_RECORD:
        return f"{words} (average record)"
    return words if result.scope is Scope.CLAIM else f"{words} (side finding: {result.scope})"


def _run_figures(report: Report, *, draw: bool) -> list[Picture]:
    """Return the figures of all audits together; without `draw`, only those of a grid of claims or a sweep."""
    if not draw and report.sweep is None and len(report.results) < MIN_AUDITS:
        return []
    from dpaudit.engine.report import charts

    pictures = [charts.detected(report.results) if report.sweep is None else charts.frontier(report.sweep)]
    if draw:
        pictures += [charts.overview(report.results), charts.predictors_compared(report.results)]
    return [chart for chart in pictures if chart is not None]


def intervals(result: AuditResult) -> dict[str, Interval]:
    """Return the two-sided intervals at the reported threshold, by method; none without a confusion table.

    Source: Zanella-Beguelin et al. (2022), Table 2.
    """
    series = result.series.get("posterior")
    if series is None:
        return {}
    from dpaudit.estimators.two_world.confusion import epsilon_interval

    return {method: epsilon_interval(**series, method=method) for method in METHODS}


def _figures(result: AuditResult, folder: Path, target: Path) -> list[tuple[str, Markup]]:
    """Return titles and figures of one audit."""
    from dpaudit.engine.figures.finding_figures import finding_figures
    from dpaudit.engine.report import charts

    name = slug(result.name)
    scores = _sampled_scores(folder / "scores" / name)
    pictures = [] if scores is None else [charts.scores(*scores, result.compared.claim.relation)]
    if result.finding is not None:
        pictures += finding_figures(result.finding, result.compared.claim)
    return [(picture.title, _save_figure(picture, target, f"{name}-{picture.stem}")) for picture in pictures]


def _save_figure(picture: Picture, target: Path, name: str) -> Markup:
    from dpaudit.engine.figures.drawing import save  # slow to import, because it loads Matplotlib

    return figure_markup(save(picture.figure, target, name))


def _sampled_scores(folder: Path) -> tuple[NDArray[np.bool_], NDArray[np.float32]] | None:
    """Return truth and score of the first replays, as many as a histogram needs."""
    if not folder.is_dir():
        return None
    truths, scores = [np.zeros(0, np.bool_)], [np.zeros(0, np.float32)]
    for path in sorted(folder.glob("*.parquet")):
        file = pq.ParquetFile(path)
        if not {"truth", "score"} <= set(file.schema_arrow.names):  # other evidence has no two worlds
            return None
        for batch in file.iter_batches(MAX_SCORES_DRAWN - sum(map(len, truths)), columns=["truth", "score"]):
            truths.append(numpy_array(batch.column("truth")))
            scores.append(numpy_array(batch.column("score")))
            break
        if sum(map(len, truths)) == MAX_SCORES_DRAWN:
            break
    return np.concatenate(truths), np.concatenate(scores)


def escaping(package: str) -> Environment:
    """Return templates of a package that treat every value as untrusted: no markup and no bidirectional controls.

    They may include the parts that all pages share, which are templates of this package.
    """
    # By default Jinja escapes only files that end in .html, and ours end in .html.j2.
    # A name that no value has is an error, not an empty place on the page.
    loader = ChoiceLoader([PackageLoader(each, ".") for each in dict.fromkeys((package, __package__))])
    return Environment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable_lines(str(value)),
        undefined=StrictUndefined,
    )


@cache
def template(name: str, package: str = "dpaudit.engine.report") -> Template:
    """Return a template of a package."""
    environment = escaping(package)
    environment.globals.update(format_lower=format_lower, format_upper=format_upper, isfinite=math.isfinite, slug=slug)
    environment.globals.update(power_of_e=power_of_e)
    return environment.get_template(name)


def write_answer_page(path: str | Path, name: str, package: str, **values: object) -> None:
    """Write a page of answers from the template `name` of a package, which extends `layout.html.j2`.

    Raises: DataError if the file cannot be written.
    """
    colours = {verdict.value: COLOURS[verdict] for verdict in Verdict}
    text = template(name, package).render(colours=colours, **values)
    try:
        write_user_file(Path(path), text.encode())
    except RunError as err:  # the option is wrong: no run has failed
        raise DataError(str(err)) from err


def power_of_e(exponent: float) -> str:
    """Return e to a finite power >= 0 in three digits, as a power of ten if it overflows a float."""
    if exponent <= math.log(sys.float_info.max):
        return f"{math.exp(exponent):.3g}"
    return f"10^{exponent / math.log(10):.6g}"


def figure_markup(svg: str) -> Markup:
    """Return a figure as markup, the only unescaped content of a page; Matplotlib escapes the words in it."""
    return Markup(svg)
