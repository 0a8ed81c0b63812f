"""What one answer tells at every order: from below, exactly, and as accounting charges it."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, INK, MEMBER, OTHER, canvas
from dpaudit.estimators.series import AnswerCurves


@draw.register
def _(series: AnswerCurves, context: Context) -> Drawing:
    figure, axes = canvas()
    claimed = np.array([context.claim.curve.renyi(float(order)) for order in series.order])
    drawn = (
        (claimed, "-", CLAIM, "the claim allows"),
        (series.dependent, "--", CLAIM, "data-dependent accounting"),
        (series.exact, "-", INK, "exact"),
        (series.k_cut, "s-", OTHER, "k-cut, by itself, at least"),
        (series.two_cut, "o-", MEMBER, "at least"),
    )
    for values, line, colour, label in drawn:
        shown = np.isfinite(values) & (values > 0)
        if shown.any():
            axes.plot(series.order[shown], values[shown], line, color=colour, markersize=3.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [order for order in series.order if order in (1.5, 2, 4, 8, 16, 32, 64)]
    axes.set_xticks(ticks, [f"{order:g}" for order in ticks])
    axes.minorticks_off()
    axes.set_xlabel("order")
    axes.set_ylabel("Rényi divergence of an answer, nats")
    axes.legend(fontsize=8)
    return Drawing("answer", f"One answer to query {series.query}, at every order", figure)
