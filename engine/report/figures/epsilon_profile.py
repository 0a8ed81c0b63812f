"""The bound at every delta, and the claim's curve."""

from __future__ import annotations

import math

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, MEMBER, canvas
from dpaudit.estimators.series import EpsilonProfile


@draw.register
def _(series: EpsilonProfile, context: Context) -> Drawing:
    figure, axes = canvas()
    axes.plot(series.delta, series.epsilon, color=MEMBER, label="lower bound, all δ at once")
    claim = context.claim
    if not claim.is_point:
        promised = [claim.curve.epsilon(float(delta)) for delta in series.delta]
        axes.plot(series.delta, promised, color=CLAIM, label="the claim's curve")
    if math.isfinite(claim.epsilon) and claim.delta > 0:
        axes.plot(
            [claim.delta], [claim.epsilon], "o", color=CLAIM, markersize=4.5, label=f"claim: ε = {claim.epsilon:g}"
        )
    axes.set_xscale("log")
    axes.set_xlabel("δ")
    axes.set_ylabel("ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return Drawing("delta", "Trade-off between ε and δ", figure)
