"""Posterior density of the epsilon that an attack with these counts shows, beside the claim."""

from __future__ import annotations

import math

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, OTHER, canvas
from dpaudit.estimators.series import ConfusionCounts
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf, epsilon_posterior_pdf


@draw.register
def _(series: ConfusionCounts, context: Context) -> Drawing:
    figure, axes = canvas()
    claimed = context.claim.epsilon
    counts = (series.tp, series.fp, series.tn, series.fn)
    reach = np.geomspace(1e-3, 30.0, 400)
    mass = np.asarray(epsilon_posterior_cdf(reach, *counts, delta=series.delta))
    end = float(reach[min(int(np.searchsorted(mass, 0.999)), reach.size - 1)])
    epsilon = np.linspace(0.0, max(end, 1.1 * claimed if math.isfinite(claimed) else 0.0), 400)
    density = np.asarray(epsilon_posterior_pdf(epsilon, *counts, delta=series.delta))
    axes.fill_between(epsilon, density, color=OTHER, alpha=0.2, linewidth=0)
    axes.plot(epsilon, density, color=OTHER, label="posterior of this attack's ε")
    if math.isfinite(claimed):
        axes.axvline(claimed, color=CLAIM, linewidth=1.6, label=f"claimed ε = {claimed:g}")
    axes.set_xlabel("ε in nats")
    axes.set_ylabel("density")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8.5)
    return Drawing("posterior", "Posterior of ε at the reported threshold", figure)
