"""The anytime-valid bound while trials came in."""

from __future__ import annotations

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import MEMBER, canvas, draw_claim
from dpaudit.estimators.series import TrialPath


@draw.register
def _(series: TrialPath, context: Context) -> Drawing:
    figure, axes = canvas()
    axes.step(series.trials, series.epsilon, where="post", color=MEMBER, label="bound so far")
    draw_claim(axes, context.claim.epsilon)
    axes.set_xlabel("trials")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return Drawing("trials", "Bound while trials came in", figure)
