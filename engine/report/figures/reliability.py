"""Whether priors mean what they say: what was believed against what was so, group by group."""

from __future__ import annotations

import numpy as np

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.engine.report.figures.style import INK, OTHER, canvas
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.series import Reliability

CONFIDENCE = 0.95


@draw.register
def _(series: Reliability, context: Context) -> Drawing:
    figure, axes = canvas(4.6, 4.2)
    positives = np.rint(series.observed * series.examples).astype(np.int64)
    ends = clopper_pearson(positives, series.examples, confidence=CONFIDENCE)
    away = np.abs(np.stack([np.asarray(ends.lower), np.asarray(ends.upper)]) - series.observed)
    top = 1.05 * float(max(series.believed.max(), np.max(ends.upper)))
    axes.plot([0, top], [0, top], color=INK, linewidth=0.8, linestyle=":", label="calibrated")
    label = f"groups of {int(series.examples.min()):,} examples, {CONFIDENCE:.0%} intervals"
    axes.errorbar(series.believed, series.observed, yerr=away, fmt="o", color=OTHER, markersize=4, label=label)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_xlabel("mean prior P[label = 1]")
    axes.set_ylabel("share with label 1")
    axes.legend(loc="upper left", fontsize=8.5)
    return Drawing("reliability", "Whether the priors mean what they say", figure)
