"""Private predictors and adversaries side by side: what many answers tell, as an epsilon, as published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.report.figures.style import CLAIM, INK, MEMBER, OTHER, canvas
from dpaudit.estimators.private_prediction.conversion import rdp_to_epsilon
from dpaudit.estimators.series import TotalLeaks

COLUMNS = (("claim", CLAIM), ("data-dependent", OTHER), ("exact", INK), ("observed*", MEMBER))


def predictors_compared(results: Sequence[AuditResult]) -> Figure | None:
    """Bars of each audit of a private predictor, those of its largest total; None for fewer than two such audits."""
    audits = [(result, series) for result in results if (series := result.series(TotalLeaks)) is not None]
    if len(audits) < 2:
        return None
    bars = np.array([_bars(result, series) for result, series in audits])
    figure, axes = canvas(width=max(6.4, 1.1 * len(audits) + 2.4))
    width = 0.8 / len(COLUMNS)
    for place, (label, colour) in enumerate(COLUMNS):
        at = np.arange(len(audits)) + (place - (len(COLUMNS) - 1) / 2) * width
        drawn = axes.bar(at, bars[:, place], width, color=colour, label=label)
        axes.bar_label(drawn, ["" if np.isnan(value) else f"{value:.3g}" for value in bars[:, place]], fontsize=7)
    names = [f"{result.name}\n{series.answers:,} answers" for result, series in audits]
    axes.set_xticks(range(len(audits)), names, fontsize=8)
    axes.set_ylabel(f"ε at δ = {audits[0][1].delta:g}")
    axes.margins(y=0.3)
    axes.set_title("* converted as published, not a bound", fontsize=9)
    axes.legend(fontsize=8, ncols=len(COLUMNS), loc="upper right")
    return figure


def _bars(result: AuditResult, series: TotalLeaks) -> list[float]:
    """Claim, data-dependent, exact, observed; NaN where a quantity is not known."""
    curve = result.compared.claim.curve
    claimed = series.answers * np.array([curve.renyi(float(order)) for order in series.order])
    rows = (claimed, series.dependent[0], series.exact[0], series.bound[0])
    return [
        float(rdp_to_epsilon(series.order, row, delta=series.delta)) if np.isfinite(row).all() else float("nan")
        for row in rows
    ]
