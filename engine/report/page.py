"""`report.html`: one page that stands alone, for the manager who reads it and the engineer who checks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.dataset as pads
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.actors.events import read_events
from dpaudit.atomic_write import write_whole
from dpaudit.engine.reading.comparison import studies
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import NOT_SHOWN, Report
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.report.figures.advantages_compared import comparisons
from dpaudit.engine.report.figures.detected import detected
from dpaudit.engine.report.figures.draw import Context, Drawing
from dpaudit.engine.report.figures.frontier import frontier
from dpaudit.engine.report.figures.kinds import drawings
from dpaudit.engine.report.figures.overview import COLOURS, overview
from dpaudit.engine.report.figures.predictors_compared import predictors_compared
from dpaudit.engine.report.figures.score_distributions import score_distributions
from dpaudit.engine.report.figures.style import save
from dpaudit.engine.report.figures.timeline import timeline
from dpaudit.engine.report.templates import figure_markup, template
from dpaudit.engine.spec.audit_spec import slug
from dpaudit.estimators.series import ConfusionCounts
from dpaudit.estimators.two_world.confusion import epsilon_interval

MOST_SCORES_DRAWN = 400_000
METHODS = ("clopper-pearson", "jeffreys", "bayesian")
"""Of the intervals that are compared."""


@dataclass(frozen=True)
class PageFigure:
    """A figure in the page.

    Attributes:
        title: Its caption.
        svg: The drawing itself.
    """

    title: str
    svg: Markup


@dataclass(frozen=True)
class CountsInterval:
    """One way to read the counts at the reported threshold.

    Attributes:
        method: The interval's name.
        lower: Lower end, nats.
        upper: Upper end for this attack, nats; may be inf.
    """

    method: str
    lower: float
    upper: float


def write_page(report: Report, folder: Path, *, draw: bool = True) -> None:
    """Figures (PNG and SVG; those of each audit only if `draw`) and `report.html` of a run folder."""
    target = folder / "figures"
    audits = [
        {
            "result": result,
            "figures": _figures(result, folder, target) if draw else [],
            "intervals": intervals(result),
        }
        for result in report.results
    ]
    text = template("report.html.j2").render(
        report=report,
        audits=audits,
        overview=_saved(overview(report.results), target, "overview"),
        detected=_drawn(detected(report.results) if report.sweep is None else None, target, "detected"),
        frontier=_drawn(None if report.sweep is None else frontier(report.sweep), target, "frontier"),
        timeline=_drawn(timeline(read_events(folder / "events.jsonl")) if draw else None, target, "timeline"),
        predictors=_drawn(predictors_compared(report.results) if draw else None, target, "predictors"),
        compared=_compared(report, target) if draw else [],
        equal_utility=[line for study in studies(report.results) for line in study.lines],
        colours={verdict.value: COLOURS[verdict] for verdict in Verdict},
        not_shown=NOT_SHOWN,
    )
    write_whole(folder / "report.html", lambda file: file.write(text.encode()))


def _drawn(figure: Figure | None, target: Path, name: str) -> Markup | None:
    return None if figure is None else _saved(figure, target, name)


def intervals(result: AuditResult) -> list[CountsInterval]:
    """The two-sided intervals at the reported threshold; empty for findings without a confusion table.

    Source: Zanella-Beguelin et al. (2022), Table 2.
    """
    table = result.series(ConfusionCounts)
    return [] if table is None else [_interval(table, method) for method in METHODS]


def _interval(table: ConfusionCounts, method: str) -> CountsInterval:
    counts = (table.tp, table.fp, table.tn, table.fn)
    ends = epsilon_interval(*counts, delta=table.delta, confidence=table.confidence, method=method)
    return CountsInterval(method, float(ends.lower), float(ends.upper))


def _figures(result: AuditResult, folder: Path, target: Path) -> list[PageFigure]:
    name, drawn = slug(result.name), []
    scores = _sampled_scores(folder / "scores" / name)
    if scores is not None:
        title = "What the attack sees: scores in the two worlds"
        drawn.append(Drawing("scores", title, score_distributions(*scores)))
    if result.finding is not None:
        claim = result.compared.claim
        context = Context(claim, result.finding.standing(claim.curve))
        drawn += drawings(result.finding, context)
    return [PageFigure(each.title, _saved(each.figure, target, f"{name}-{each.stem}")) for each in drawn]


def _compared(report: Report, target: Path) -> list[PageFigure]:
    drawn = comparisons(studies(report.results))
    return [PageFigure(each.title, _saved(each.figure, target, f"compared-{each.stem}")) for each in drawn]


def _saved(figure: Figure, target: Path, name: str) -> Markup:
    return figure_markup(save(figure, target, name))


def _sampled_scores(folder: Path) -> tuple[NDArray[np.bool_], NDArray[np.float32]] | None:
    """Truth and score of the first replays, as many as a histogram needs."""
    if not folder.is_dir():
        return None
    evidence = pads.dataset(folder, format="parquet")
    if not {"truth", "score"} <= set(evidence.schema.names):  # other evidence than scores has no worlds to tell apart
        return None
    head = evidence.head(MOST_SCORES_DRAWN, columns=["truth", "score"])
    return head.column("truth").to_numpy(), head.column("score").to_numpy()
