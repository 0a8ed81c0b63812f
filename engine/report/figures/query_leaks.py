"""Every query at every order: its bound, as a share of what the claim allows."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import canvas
from dpaudit.estimators.series import QueryLeaks

MOST_NAMED = 25
"""Queries whose numbers are written."""


@draw.register
def _(series: QueryLeaks, context: Context) -> Drawing:
    figure, axes = canvas()
    claimed = np.array([context.claim.curve.renyi(float(order)) for order in series.order])
    share = series.bound / claimed
    ranked = np.argsort(-share.max(axis=1), kind="stable")
    image = axes.imshow(share[ranked], aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks(range(len(series.order)), [f"{order:g}" for order in series.order], fontsize=8)
    if len(ranked) <= MOST_NAMED:
        axes.set_yticks(range(len(ranked)), [str(series.query[place]) for place in ranked], fontsize=7)
    axes.set_xlabel("order")
    axes.set_ylabel("query, most telling first")
    figure.colorbar(image, ax=axes, label="bound / claim")
    return Drawing("queries", "Every query at every order: the bound as a share of the claim", figure)
