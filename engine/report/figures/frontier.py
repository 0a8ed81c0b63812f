"""Utility against epsilon, a line for each configuration of a sweep: from what was shown to what is claimed."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpaudit.engine.reading.sweep_summary import SweepRow, SweepSummary
from dpaudit.engine.report.figures.style import CLAIM, INK, OTHER, canvas

DOMINATED = "#9aa5b1"
NEAR = 0.05
"""Names closer than this share of the height would cover each other; the table names all."""


def frontier(summary: SweepSummary) -> Figure:
    """What was shown as a dot, what is claimed as a tick; dominated configurations in grey, the best one ringed."""
    figure, axes = canvas(7.6, 4.6)
    rows = [row for row in summary.rows if row.is_audited and not math.isnan(row.utility)]
    reach = max([1e-9, *(value for row in rows for value in (row.audited, row.claimed) if math.isfinite(value))])
    labels: set[str] = set()
    for row in rows:
        dominated = row.dominated_claim and row.dominated_audit
        colour = DOMINATED if dominated else OTHER
        label = "dominated" if dominated else "audited epsilon, a lower bound"
        shown = min(row.audited, 1.12 * reach)
        if math.isfinite(row.claimed):
            axes.plot([shown, row.claimed], [row.utility] * 2, color=colour, linewidth=1, alpha=0.6, zorder=1)
            named = _once(labels, "claimed epsilon")
            axes.plot(row.claimed, row.utility, "|", color=CLAIM, markersize=11, markeredgewidth=2, **named)  # type: ignore[arg-type]
        axes.plot(shown, row.utility, "o", color=colour, markersize=6, zorder=2, **_once(labels, label))  # type: ignore[arg-type]
    _write_names(axes, rows, summary.best, reach)
    _draw_steps(axes, rows)
    best = summary.best
    if best is not None:
        axes.plot(best.audited, best.utility, "o", color="none", markeredgecolor=INK, markersize=13, label="best")
    limit = summary.sweep.subject_to.epsilon
    if limit is not None:
        axes.axvline(limit, color=INK, linestyle=(0, (2, 2)), linewidth=1, label=f"limit ε = {limit:g}")
    axes.set_xlabel("ε of one record in nats")
    axes.set_ylabel(summary.metric)
    axes.set_xlim(-0.03 * reach, 1.35 * reach)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    return figure


def _write_names(axes: Axes, rows: list[SweepRow], best: SweepRow | None, reach: float) -> None:
    """The names of configurations beside what they claim, where there is room: the best one's, then the frontier's."""
    height = max((row.utility for row in rows), default=0.0) - min((row.utility for row in rows), default=0.0)
    placed: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: (row is not best, row.dominated_claim, row.dominated_audit)):
        at = min(row.claimed if math.isfinite(row.claimed) else row.audited, 1.12 * reach), row.utility
        if any(abs(at[0] - x) < 0.3 * reach and abs(at[1] - y) < NEAR * height for x, y in placed):
            continue
        placed.append(at)
        axes.annotate(
            row.name,
            at,
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
            color=DOMINATED if row.dominated_claim and row.dominated_audit else INK,
        )


def _draw_steps(axes: Axes, rows: list[SweepRow]) -> None:
    """The frontier by claim, as a staircase: the most useful one for each epsilon that is claimed."""
    leading = [row for row in rows if math.isfinite(row.claimed) and not row.dominated_claim]
    points = sorted({(row.claimed, row.utility) for row in leading})
    if len(points) > 1:
        claimed, utility = zip(*points, strict=True)
        line = (0, (4, 2))
        axes.step(claimed, utility, where="post", color=CLAIM, linewidth=1.2, linestyle=line, label="frontier by claim")


def _once(labels: set[str], label: str) -> dict[str, str]:
    """A label for the first mark of its kind."""
    if label in labels:
        return {}
    labels.add(label)
    return {"label": label}
