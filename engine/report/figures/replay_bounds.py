"""Each replay's bound, and the combined bound of the replays so far."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import MEMBER, OTHER, canvas, draw_claim
from dpaudit.estimators.series import ReplayBounds


@draw.register
def _(series: ReplayBounds, context: Context) -> Drawing | None:
    if series.epsilon.size < 2:
        return None
    figure, axes = canvas()
    replays = np.arange(1, series.epsilon.size + 1)
    axes.plot(replays, series.epsilon, ".", color=OTHER, alpha=0.6, label="bound of one replay")
    axes.plot(replays, series.combined, color=MEMBER, label="combined so far")
    draw_claim(axes, context.claim.epsilon)
    axes.set_xlabel("replays")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return Drawing("replays", "Bound against replays", figure)
