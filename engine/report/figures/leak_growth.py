"""What has been told after each answer."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, INK, MEMBER, canvas
from dpaudit.estimators.series import LeakGrowth


@draw.register
def _(series: LeakGrowth, context: Context) -> Drawing:
    figure, axes = canvas()
    claimed = series.answers * context.claim.curve.renyi(series.order)
    drawn = (
        (claimed, "-", CLAIM, "the claim allows"),
        (series.dependent, "--", CLAIM, "data-dependent accounting"),
        (series.exact, "-", INK, "exact, summed up"),
        (series.bound, "-", MEMBER, "at least, summed up"),
    )
    for values, line, colour, label in drawn:
        shown = np.isfinite(values) & (values > 0)
        if shown.any():
            axes.plot(series.answers[shown], values[shown], line, color=colour, label=label)
    axes.set_xlabel("answers")
    axes.set_ylabel(f"Rényi divergence of order {series.order:g}, nats")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=8)
    return Drawing("growth", f"The leak after each answer, at order {series.order:g}", figure)
