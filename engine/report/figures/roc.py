"""The attack's ROC curve on logarithmic axes, with the most that the claim lets any attack reach."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import CLAIM, MEMBER, canvas
from dpaudit.estimators.series import Roc


@draw.register
def _(series: Roc, context: Context) -> Drawing:
    figure, axes = canvas(4.6, 4.2)
    # The axes end where half a trial would be.
    ends = 0.5 / max(series.non_members, 1), 0.5 / max(series.members, 1)
    order = np.lexsort((series.true_positive_rate, series.false_positive_rate))
    alarm = np.maximum(np.append(series.false_positive_rate[order], 1.0), ends[0])
    hit = np.maximum(np.append(series.true_positive_rate[order], 1.0), ends[1])
    axes.step(alarm, hit, where="post", color=MEMBER, label="this attack")
    axes.plot([ends[0], 1.0], [ends[0], 1.0], color="#9aa5b1", linewidth=1, linestyle=":", label="guessing")
    rates = np.geomspace(ends[0], 1.0, 100)  # a composed claim searches for each
    allowed = np.array([1 - context.claim.curve.miss_rate(float(rate)) for rate in rates])
    if np.any(allowed[:-1] < 1):  # a claim of nothing allows every attack
        axes.plot(rates, allowed, color=CLAIM, linewidth=1.6, label="the most the claim allows")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(ends[0], 1)
    axes.set_ylim(ends[1], 1.05)
    axes.set_xlabel("false-alarm rate")
    axes.set_ylabel("hit rate")
    axes.legend(loc="lower right", fontsize=8.5)
    return Drawing("trade-off", "What the attack tells apart, beside what the claim allows", figure)
