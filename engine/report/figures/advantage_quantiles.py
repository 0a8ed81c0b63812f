"""How the examples' advantages are spread: the share of examples that stays within each."""

from __future__ import annotations

import math

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, MEMBER, OTHER, canvas
from dpaudit.estimators.label_reconstruction.advantage_distribution import QUANTITIES
from dpaudit.estimators.series import AdvantageQuantiles


@draw.register
def _(series: AdvantageQuantiles, context: Context) -> Drawing:
    figure, axes = canvas()
    finite = np.isfinite(series.advantage)
    advantage, share = np.append(0.0, series.advantage[finite]), np.append(0.0, series.share[finite])
    axes.step(advantage, 100 * share, where="post", color=MEMBER, label="examples")
    standing = context.standing
    reported = QUANTITIES[series.kind] == standing.quantity
    for value, colour, line, word in (
        (standing.observed, OTHER, "--", "observed"),
        (standing.claimed, CLAIM, "-", "the claim allows"),
    ):
        if reported and math.isfinite(value):
            axes.axvline(value, color=colour, linestyle=line, linewidth=1.6, label=f"{standing.quantity}, {word}")
    beyond = "" if finite.all() else f"; infinite for {1 - share[-1]:.3%} of the examples"
    axes.set_xlabel(series.quantity + beyond)
    axes.set_ylabel("share of examples within, %")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 102)
    axes.legend(loc="lower right", fontsize=8.5)
    stem = "advantages" if reported else f"advantages-{series.kind}"
    return Drawing(stem, f"How much better labels are guessed: {series.quantity}", figure)
