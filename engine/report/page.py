"""`report.html`: a self-contained page for managers and engineers."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from numpy.typing import NDArray

from dpaudit.actors.values import numpy_array
from dpaudit.claims import Scope
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import COLOURS, Verdict
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


def write_page(report: Report, folder: Path, *, draw: bool = True) -> None:
    """Write `report.html` of a run folder, and figures (PNG and SVG).

    Of several tests of one claim, only the deciding ones have figures. Without `draw`, only grids and sweeps have
    figures.
    """
    target, deciding = folder / "figures", _deciding(report)
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


def _deciding(report: Report) -> Sequence[AuditResult]:
    """Return the results that a verdict rests on: of several tests the deciding one and its confirmatory run."""
    if report.joint is None:
        return report.results
    deciding = report.joint.deciding
    if deciding is None:
        return ()
    again = report.joint.confirmations.get(deciding.name)
    return (deciding,) if again is None else (deciding, again)


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
    return Environment(loader=loader, autoescape=True, finalize=_escaped_text, undefined=StrictUndefined)


def _escaped_text(value: object) -> str:
    return value if isinstance(value, Markup) else printable_lines(str(value))


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
