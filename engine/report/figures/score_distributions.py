"""What the attack sees: histograms of its scores in the two worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.engine.report.figures.style import MEMBER, OTHER, canvas


def score_distributions(truth: NDArray[np.bool_], score: NDArray[np.floating[Any]]) -> Figure:
    """Histograms of the scores in the two worlds; truth and score have shape (n,)."""
    figure, axes = canvas()
    finite = score[np.isfinite(score)]
    low, high = np.quantile(finite, [0.001, 0.999]) if finite.size else (0.0, 1.0)
    bins = [float(edge) for edge in np.linspace(low, high if high > low else low + 1, 61)]
    for world, colour, name in (
        (True, MEMBER, "world 1: with the record, or its training label"),
        (False, OTHER, "world 0: without"),
    ):
        values = np.clip(score[truth == world], bins[0], bins[-1])
        if values.size:
            axes.hist(
                values,
                bins,
                weights=np.full(values.size, 1 / values.size),
                histtype="stepfilled",
                alpha=0.35,
                color=colour,
            )
            axes.hist(
                values, bins, weights=np.full(values.size, 1 / values.size), histtype="step", color=colour, label=name
            )
    axes.set_yscale("log")
    axes.set_xlabel("score of the attack (outermost 0.1 % drawn at the edge)")
    axes.set_ylabel("share of canaries")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8.5)
    return figure
