"""Many answers as an epsilon, as published: converted divergences, of which only those from above are bounds."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, INK, MEMBER, OTHER, canvas
from dpaudit.estimators.private_prediction.conversion import rdp_to_epsilon
from dpaudit.estimators.series import TotalLeaks


@draw.register
def _(series: TotalLeaks, context: Context) -> Drawing:
    figure, axes = canvas()
    claimed = series.answers * np.array([context.claim.curve.renyi(float(order)) for order in series.order])
    columns = [("claim", np.broadcast_to(claimed, series.bound.shape), CLAIM)]
    columns += [
        ("data-dependent", series.dependent, OTHER),
        ("exact", series.exact, INK),
        ("observed*", series.bound, MEMBER),
    ]
    known = [column for column in columns if np.isfinite(column[1]).any()]
    width = 0.8 / len(known)
    for place, (label, rows, colour) in enumerate(known):
        epsilon = [float(rdp_to_epsilon(series.order, row, delta=series.delta)) for row in rows]
        at = np.arange(len(series.names)) + (place - (len(known) - 1) / 2) * width
        bars = axes.bar(at, epsilon, width, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.2f}" for value in epsilon], fontsize=7.5, padding=1)
    axes.set_xticks(range(len(series.names)), series.names)
    axes.set_ylabel(f"ε at δ = {series.delta:g}")
    axes.margins(y=0.3)
    axes.set_title(f"{series.answers:,} answers; * converted as published, not a bound", fontsize=9)
    axes.legend(fontsize=8, ncols=2, loc="upper right")
    return Drawing("epsilon", "Totals as epsilon, as published (what is observed is not a bound there)", figure)
