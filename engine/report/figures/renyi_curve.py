"""The Renyi divergence of the two worlds against the order, from below, and what the claim allows."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, MEMBER, OTHER, canvas
from dpaudit.estimators.series import RenyiCurve


@draw.register
def _(series: RenyiCurve, context: Context) -> Drawing:
    figure, axes = canvas()
    axes.plot(series.order, series.forward, "o-", color=MEMBER, markersize=3.5, label="D(world 1 ‖ world 0) at least")
    axes.plot(series.order, series.backward, "s-", color=OTHER, markersize=3.5, label="D(world 0 ‖ world 1) at least")
    promised = np.array([context.claim.curve.renyi(float(order)) for order in series.order])
    implied = np.isfinite(promised)
    if implied.any():
        axes.plot(series.order[implied], promised[implied], "-", color=CLAIM, linewidth=1.6, label="the claim allows")
    axes.set_xscale("log")
    axes.set_xticks(series.order, [f"{order:g}" for order in series.order])
    axes.minorticks_off()
    axes.set_xlabel("order")
    axes.set_ylabel("Rényi divergence, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return Drawing("renyi", "Rényi divergence at every order, from below", figure)
