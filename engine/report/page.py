"""`report.html`: one page that stands alone, for the manager who reads it and the engineer who checks it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, select_autoescape
from numpy.typing import NDArray

from dpaudit.engine.findings.verdict import Verdict, caution
from dpaudit.engine.report import figures
from dpaudit.engine.report.report import CONTROL_LOST, NOT_SHOWN, AuditResult, Report
from dpaudit.engine.spec.audit_spec import slug
from dpaudit.estimators.bound import rounded_down, rounded_up
from dpaudit.estimators.two_world.confusion import epsilon_interval

MOST_SCORES_DRAWN = 400_000


def write_page(report: Report, folder: Path, *, draw: bool = True) -> None:
    """Figures (PNG and SVG; those of each audit only if `draw`), `bounds.parquet` and `report.html` of a run folder."""
    drawn = folder / "figures"
    audits = [
        {
            "result": result,
            "figures": _audit_figures(result, folder, drawn) if draw else [],
            "caution": caution(result.bound) if result.bound else "",
            "intervals": intervals(result),
        }
        for result in report.results
    ]
    environment = Environment(loader=PackageLoader("dpaudit.engine.report", "."), autoescape=select_autoescape())
    environment.globals.update(rounded_down=rounded_down, rounded_up=rounded_up, isfinite=math.isfinite, slug=slug)
    text = environment.get_template("report.html.j2").render(
        report=report,
        audits=audits,
        overview=figures.save(figures.overview(report.results), drawn, "overview"),
        colours={verdict.value: figures.COLOURS[verdict] for verdict in Verdict},
        not_shown=NOT_SHOWN,
        control_lost=CONTROL_LOST,
    )
    (folder / "report.html").write_text(text, encoding="utf-8")
    pq.write_table(bounds_table(report), folder / "bounds.parquet")


def bounds_table(report: Report) -> pa.Table:
    """One row an audit: verdict, claim, bound, validity, counts."""
    rows = []
    for result in report.results:
        bound = result.bound
        rows.append(
            {
                "audit": result.name,
                "verdict": result.verdict.value,
                "claimed_epsilon": result.compared.claim.epsilon,
                "lower": bound.lower if bound else math.nan,
                "upper": bound.upper if bound and bound.upper is not None else math.nan,
                "delta": bound.delta if bound else math.nan,
                "confidence": bound.confidence if bound else math.nan,
                "method": bound.method if bound else "",
                "selection": bound.selection if bound else "",
                "validity": bound.validity.value if bound else "",
                "counts": "; ".join(f"{name} {value}" for name, value in bound.counts) if bound else "",
            }
        )
    return pa.Table.from_pylist(rows)


def _audit_figures(result: AuditResult, folder: Path, drawn: Path) -> list[dict[str, str]]:
    name, claim, made = slug(result.name), result.compared.claim.epsilon, []

    def add(what: str, title: str, figure: Any) -> None:
        made.append({"title": title, "svg": figures.save(figure, drawn, f"{name}-{what}")})

    scores = _some_scores(folder / "scores" / name)
    if scores is not None:
        add("scores", "What the attack sees: scores in the two worlds", figures.score_distributions(*scores))
    if "fraction" in result.curve and result.bound is not None:
        figure = figures.bound_against_fraction(result.curve, claim, result.bound.lower)
        add("fractions", "Bound against the share of canaries guessed", figure)
    if len(result.curve.get("replay_epsilon", ())) > 1:
        add("replays", "Bound against replays", figures.bound_against_replays(result.curve, claim))
    if "epsilon_so_far" in result.curve:
        add("trials", "Bound while trials came in", figures.bound_against_trials(result.curve, claim))
    if "epsilon_at_delta" in result.curve:
        figure = figures.bound_against_delta(result.curve, result.compared.claim)
        add("delta", "Trade-off between ε and δ", figure)
    counts = confusion(result)
    if counts and "true_positive_rate" in result.curve and result.bound is not None:
        members, others = counts["tp"] + counts["fn"], counts["fp"] + counts["tn"]
        add("roc", "What the attack tells apart", figures.roc(result.curve, result.compared.claim, members, others))
        figure = figures.posterior(counts, result.bound.delta, claim)
        add("posterior", "Posterior of ε at the reported threshold", figure)
    return made


def confusion(result: AuditResult) -> dict[str, int]:
    """Hits, false alarms and so on at the reported threshold; empty when the estimator counts something else."""
    counts = dict(result.bound.counts) if result.bound else {}
    wanted = ("tp", "fp", "tn", "fn")
    return {name: counts[name] for name in wanted} if counts.keys() >= set(wanted) else {}


def intervals(result: AuditResult) -> list[tuple[str, float, float]]:
    """Method, lower and upper end of its two-sided interval at the reported threshold; empty without counts.

    Source: Zanella-Beguelin et al. (2022), Table 2.
    """
    counts = confusion(result)
    if not counts or result.bound is None:
        return []
    made = []
    for method in ("clopper-pearson", "jeffreys", "bayesian"):
        table = (counts["tp"], counts["fp"], counts["tn"], counts["fn"])
        found = epsilon_interval(*table, delta=result.bound.delta, confidence=result.bound.confidence, method=method)
        made.append((method, float(found.lower), float(found.upper)))
    return made


def _some_scores(folder: Path) -> tuple[NDArray[np.bool_], NDArray[np.float32]] | None:
    """Truth and score of the first replays, as many as a histogram needs."""
    if not folder.is_dir():
        return None
    head = pads.dataset(folder, format="parquet").head(MOST_SCORES_DRAWN, columns=["truth", "score"])
    return head.column("truth").to_numpy(), head.column("score").to_numpy()
