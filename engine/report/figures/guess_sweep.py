"""The bound of each guess fraction on its own, the claim, and what is reported."""

from __future__ import annotations

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import MEMBER, OTHER, canvas, draw_claim
from dpaudit.estimators.series import GuessSweep


@draw.register
def _(series: GuessSweep, context: Context) -> Drawing:
    figure, axes = canvas()
    percent = 100 * series.fraction
    axes.fill_between(
        percent, series.low, series.high, color=OTHER, alpha=0.18, linewidth=0, label="10-90 % of replays"
    )
    axes.plot(percent, series.epsilon, color=OTHER, label="each fraction on its own (median)")
    if context.standing.quantity == "epsilon":  # else the claim broke as a curve, not at the bound
        label = "reported bound, choice paid for"
        axes.axhline(context.standing.observed, color=MEMBER, linewidth=1.4, linestyle="--", label=label)
    draw_claim(axes, context.claim.epsilon)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.set_xlabel("canaries guessed, %")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return Drawing("fractions", "Bound against the share of canaries guessed", figure)
