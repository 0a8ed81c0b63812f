"""What was believed of single labels before and after a release, with the curves of equal multiplicative advantage."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from scipy.special import expit, logit

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, GRID, INK, OTHER, canvas
from dpaudit.estimators.series import PriorPosterior


@draw.register
def _(series: PriorPosterior, context: Context) -> Drawing:
    figure, axes = canvas(4.6, 4.2)
    draw_beliefs(axes, series, colour=OTHER, label="examples")
    epsilon = context.claim.curve.epsilon(0.0)
    if math.isfinite(epsilon):
        draw_spindle(axes, epsilon, colour=CLAIM, label=f"the claim allows, ε = {epsilon:g}")
    axes.legend(loc="upper left", fontsize=8.5)
    return Drawing("beliefs", "What the attacker believes of each label, before and after", figure)


def draw_beliefs(axes: Axes, series: PriorPosterior, *, colour: str, label: str) -> None:
    """The scatter of Figure 1 of Busa-Fekete et al. (2024): on the diagonal nothing was learned."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    axes.plot(
        series.prior, series.posterior, ".", markersize=2.2, alpha=0.35, color=colour, label=label, markeredgewidth=0
    )
    axes.set_xlim(-0.015, 1.015)
    axes.set_ylim(-0.015, 1.015)
    axes.set_xlabel("prior P[label = 1]")
    axes.set_ylabel("posterior P[label = 1]")


def draw_spindle(axes: Axes, epsilon: float, *, colour: str = GRID, label: str | None = None) -> None:
    """Where the log-odds have moved by exactly epsilon, up or down."""
    prior = np.linspace(1e-4, 1 - 1e-4, 400)
    for sign in (1, -1):
        moved = expit(logit(prior) + sign * epsilon)
        axes.plot(prior, moved, color=colour, linewidth=1.2, label=label if sign > 0 else None)
