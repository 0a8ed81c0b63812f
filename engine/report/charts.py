"""Figures of a run: its audits side by side, and the results of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from dpaudit.claims import Relation, Scope
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.sweep_summary import SweepRow, SweepSummary
from dpaudit.engine.answer.verdict import COLOURS as VERDICTS
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.figures.drawing import WIDE, Picture, annotate_right, canvas, fill, finish, legend_below, set_ticks
from dpaudit.engine.figures.finding_figures import draw_totals, total_epsilons
from dpaudit.engine.figures.palette import CLAIM, COLOURS, INK, MEMBER, OTHER, QUIET, can_be_drawn
from dpaudit.errors import shortened
from dpaudit.estimators.bound import Bound, format_lower

FEW_SCORES = 1_000
"""Fewer scores than this have wide bins and a linear axis: on a logarithmic one, single scores are spikes."""
MIN_POINTS = 3
"""Smallest number of claims in a line of detected epsilons."""
WORLDS = {
    Relation.ADD_REMOVE: ("with the record", "without"),
    Relation.REPLACE: ("with the record", "another in its place"),
    Relation.LABEL: ("the record's label", "another label"),
}
"""Difference between the two worlds of a game in words, by neighbouring relation."""
SIDE = "#a16207"
"""Colour of a side finding, which is a warning and not a verdict on the claim."""
NUMBER = 0.12
"""Share of the largest number that a number's text takes at the end of a bar."""
SPAN = 0.1
"""Smallest height of an axis of accuracies; on a smaller one, chance differences look large."""
NEAR = 7
"""Distance in points (1/72 inch) that names keep from the marks of a sweep."""


def overview(results: Sequence[AuditResult]) -> Picture:
    """Draw bars of the lower bounds with a line at each claim; each audit in its own quantity, its name above it."""
    figure, axes = canvas(WIDE[0], 1.1 + 0.62 * len(results))
    reach = max([0.0, *(value for result in results for value in _places(result) if can_be_drawn(value))]) or 1.0
    quantities = sorted({result.own_comparison.quantity for result in results if result.own_comparison})
    several = len(quantities) > 1
    for row, result in enumerate(reversed(results)):
        observed, claimed, ceiling = _places(result)
        end = observed if math.isfinite(observed) else 0.0
        number, colour = format_lower(observed) if result.own_comparison else "no bound", VERDICTS[result.verdict]
        if result.scope is not Scope.CLAIM and result.verdict is Verdict.VIOLATION:
            colour = SIDE
        if several and result.own_comparison:
            number += f" {result.own_comparison.quantity}"
        axes.barh([row], [end], 0.4, color=colour)
        at = end
        for value, tick in sorted([(claimed, (INK, "-", 2.0)), (ceiling, (VERDICTS[Verdict.INCONCLUSIVE], ":", 1.5))]):
            if can_be_drawn(value):
                colour, dash, width = tick
                axes.plot([value] * 2, [row - 0.25, row + 0.25], color=colour, linestyle=dash, linewidth=width)
                if at <= value < at + NUMBER * reach:  # the number would overlap the line
                    at = value
        annotate_right(axes, at, row, number)
        annotate_right(axes, 0, row + 0.4, shortened(result.name, 60))
    quantity = "each bar in its own quantity" if several else next(iter(quantities), "epsilon")
    lines = f"{'ε in nats' if quantity == 'epsilon' else quantity}:\nbar = lower bound, black line = claim"
    if any(math.isfinite(_places(result)[2]) for result in results):
        lines += ",\ndotted = bound for a mechanism with no privacy"
    axes.set(xlabel=lines, xlim=(0, 1.18 * reach), yticks=(), ylim=(-0.4, len(results) - 0.3))
    axes.grid(visible=False, axis="y")
    finish(axes)
    return Picture("overview", "Verdicts", figure)


def _places(result: AuditResult) -> tuple[float, float, float]:
    """Return the observed, claimed and largest detectable value of one quantity at one point; inf if unknown."""
    comparison = result.own_comparison
    if comparison is None:
        return 0.0, result.compared.claim.epsilon, math.inf
    maximum = result.maximum_at(comparison)
    above = maximum is not None and maximum.observed >= comparison.observed
    return comparison.observed, comparison.claimed, maximum.observed if above and maximum is not None else math.inf


def scores(
    truth: NDArray[np.bool_], score: NDArray[np.floating[Any]], relation: Relation = Relation.ADD_REMOVE
) -> Picture:
    """Draw histograms of the scores in the two worlds, which differ by `relation`; truth and score have shape (n,)."""
    figure, axes = canvas(*WIDE)
    finite = score[np.isfinite(score)]
    few = score.size < FEW_SCORES
    low, high = np.quantile(finite, [0.0, 1.0] if few else [0.001, 0.999]) if finite.size else (0.0, 1.0)
    bins = min(60, max(8, math.isqrt(score.size)))
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    with_record, without = WORLDS[relation]
    worlds = {f"world 1: {with_record}": (score[truth], MEMBER), f"world 0: {without}": (score[~truth], OTHER)}
    for name, (values, colour) in worlds.items():
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        share = np.append(counts, 0) / max(values.size, 1)
        fill(axes, edges, np.zeros_like(share), share, color=colour, alpha=0.35, step="post")
        x, y = np.append(edges[0], edges), np.append(0, share)
        axes.plot(x, y, color=colour, label=name, drawstyle="steps-post", linewidth=1)
    if not few:
        axes.set_yscale("log")
    least = 0 if few else 0.5 / max(truth.sum(), (~truth).sum(), 1)
    label = "score of the attack" + ("" if few else " (outermost 0.1 % drawn at the edge)")
    axes.set(xlabel=label, ylabel="share of trials", ylim=(least, None))
    finish(axes, "above", ncols=2)
    return Picture("scores", "Scores of the attack in the two worlds", figure)


@dataclass(frozen=True)
class DetectedLine:
    """Audits that differ only in their claim."""

    label: str  # common part of their names
    # claimed, detected and largest detectable epsilon of one record; ascending
    points: tuple[tuple[float, float, float], ...]


def detected(results: Sequence[AuditResult]) -> Picture | None:
    """Draw detected against claimed epsilon, a line for each attack; None if no line has three points."""
    lines = lines_of(results)
    if not lines:
        return None
    figure, axes = canvas(WIDE[0], 4.2)
    draw_detected(axes, lines)
    legend_below(figure)
    return Picture("detected", "Detected against claimed", figure)


def draw_detected(
    axes: Axes, lines: Sequence[DetectedLine], colours: Mapping[str, str] | None = None, floor: float = 0.0
) -> None:
    """Draw each line, the claims, and the largest detectable epsilons on logarithmic axes; without a legend.

    Args:
        axes: Axes to draw on.
        lines: One line for each attack.
        colours: Colours by label; None takes `COLOURS` in turn.
        floor: Position of smaller values, > 0; 0 takes half of the smallest positive number.
    """
    points = [point for line in lines for point in line.points]
    positive = [value for _, value, _ in points if value > 0]
    floor = floor or 0.5 * min([claimed for claimed, _, _ in points] + positive)
    for place, line in enumerate(lines):
        colour = colours[line.label] if colours else COLOURS[place % len(COLOURS)]
        claimed, measured, _ = zip(*line.points, strict=True)
        axes.plot(claimed, np.maximum(measured, floor), "o-", color=colour, label=line.label, markersize=4.5)
        nothing = [point[0] for point in line.points if point[1] <= 0]
        axes.plot(nothing, [floor] * len(nothing), "o", color=colour, markersize=6, markerfacecolor="white")
    claims = sorted({point[0] for point in points})
    axes.plot(claims, claims, color=CLAIM, label="claim", linewidth=1.6)
    ceilings = [max(point[2] for point in points if point[0] == claimed) for claimed in claims]
    most_detected = [max(point[1] for point in points if point[0] == claimed) for claimed in claims]
    # A ceiling comes from few trainings; audits that show more have left it behind.
    if all(detected <= ceiling < math.inf for detected, ceiling in zip(most_detected, ceilings, strict=True)):
        axes.plot(claims, ceilings, ":", color="#6b7280", label="maximum detectable")
    steps = (1, 2, 5) if floor > 5e-3 else (1,)
    ticks = [step * 10.0**power for power in range(-4, 3) for step in steps]
    axes.set(xscale="log", yscale="log", xlabel="claimed ε of one record")
    set_ticks(axes.xaxis, claims, fontsize=8 if len(claims) > 6 else 9.5)
    set_ticks(axes.yaxis, [tick for tick in ticks if floor <= tick <= 1.3 * max(claims)])
    axes.set_ylabel("detected ε of one record (open: nothing)")


def lines_of(results: Sequence[AuditResult]) -> list[DetectedLine]:
    """Return the lines of at least `MIN_POINTS` claims, in the order of the results."""
    groups: dict[str, list[AuditResult]] = {}
    for result in results:
        if isinstance(result.finding, Bound) and can_be_drawn(result.claimed.epsilon):
            parts = result.name.split(", ")  # as in "poisoning=clip-bkd, epsilon=2"
            unchanging = [part for part in parts if not part.startswith(("epsilon=", "copies="))]
            groups.setdefault(", ".join(unchanging), []).append(result)
    lines = [DetectedLine(label, tuple(sorted(map(point_of, members)))) for label, members in groups.items()]
    return [line for line in lines if len({claimed for claimed, _, _ in line.points}) >= MIN_POINTS]


def point_of(result: AuditResult) -> tuple[float, float, float]:
    """Return the claimed, detected and largest detectable epsilon of one record, at the bound's delta."""
    most = result.sensitivity.maximum
    ceiling = most.lower if isinstance(most, Bound) else math.inf
    return result.claimed.epsilon, result.epsilon / result.compared.steps, ceiling / result.compared.steps


def predictors_compared(results: Sequence[AuditResult]) -> Picture | None:
    """Draw the largest total of each audit of a private predictor as bars; None for fewer than two such audits."""
    audits = [(result, dict(result.series["epsilon"])) for result in results if "epsilon" in result.series]
    if len(audits) < 2:
        return None
    totals = []
    for result, series in audits:
        del series["names"]
        totals.append(total_epsilons(result.compared.claim, **series))
    bars = {name: np.array([total[name][0] for total in totals]) for name in totals[0]}
    names = [f"{result.name}\n{series['answers']:,} answers" for result, series in audits]
    figure, axes = canvas(max(WIDE[0], 1.1 * len(audits) + 2.4), WIDE[1])
    draw_totals(axes, bars, names, audits[0][1]["delta"], "{:.3g}")
    return Picture("predictors", "Private predictors compared", figure)


def frontier(summary: SweepSummary) -> Picture:
    """Draw audited epsilons as dots, claims as ticks; dominated configurations in grey, the best one ringed."""
    figure, axes = canvas(WIDE[0], 4.4)
    rows = [row for row in summary.rows if row.is_audited and not math.isnan(row.utility)]
    reach = max([1e-9, *(value for row in rows for value in (row.audited, row.claimed) if can_be_drawn(value))])
    for row in rows:
        dominated = row.dominated_claim and row.dominated_audit
        colour, label = (QUIET, "dominated") if dominated else (OTHER, "audited epsilon, a lower bound")
        place = min(row.audited, 1.12 * reach)
        if can_be_drawn(row.claimed):
            axes.plot([place, row.claimed], [row.utility] * 2, color=colour, linewidth=1, alpha=0.6)
            style: dict[str, Any] = {"label": "claimed epsilon", "markersize": 11, "markeredgewidth": 2}
            axes.plot([row.claimed], [row.utility], "|", color=CLAIM, **style)
        error = summary.error(row)
        bar = None if math.isnan(error) else [error]
        style = {"color": colour, "label": label, "markersize": 6, "elinewidth": 1}
        axes.errorbar([place], [row.utility], yerr=bar, fmt="o", **style)
    leading = [row for row in rows if can_be_drawn(row.claimed) and not row.dominated_claim]
    points = sorted({(row.claimed, row.utility) for row in leading})
    if len(points) > 1:  # a staircase of the most useful configuration for each claimed epsilon
        claimed, utility = zip(*points, strict=True)
        style = {"color": CLAIM, "label": "frontier by claim", "drawstyle": "steps-post", "linewidth": 1.2}
        axes.plot(claimed, utility, "--", **style)
    best, limit = summary.best, summary.sweep.subject_to.epsilon
    if best is not None:
        style = {"color": INK, "label": "best", "markersize": 13, "markerfacecolor": "none"}
        axes.plot([best.audited], [best.utility], "o", **style)
    if limit is not None:
        axes.axvline(limit, color=INK, linestyle=":", linewidth=1, label=f"limit ε = {limit:g}")
    if not math.isnan(summary.majority):
        style = {"color": QUIET, "linestyle": "--", "linewidth": 1}
        axes.axhline(summary.majority, label="always the most frequent label", **style)
    axes.set(xlabel="ε of one record in nats", xlim=(-0.03 * reach, 1.35 * reach))
    _set_utility(axes, summary, rows)
    finish(axes, "")
    legend_below(figure)
    figure.draw_without_rendering()  # places all marks, which names must not cover
    _write_names(axes, rows, summary.best, reach)
    return Picture("frontier", "Sweep", figure)


def _set_utility(axes: Axes, summary: SweepSummary, rows: Sequence[SweepRow]) -> None:
    """Fit the y-axis to every error bar and the majority's accuracy; an axis of accuracies is `SPAN` high at least."""
    ends = [row.utility + sign * np.nan_to_num(summary.error(row)) for row in rows for sign in (-1, 1)]
    ends += [] if math.isnan(summary.majority) else [summary.majority]
    bars = "; bars: one standard error" if any(not math.isnan(summary.error(row)) for row in rows) else ""
    axes.set_ylabel(f"{summary.metric}{bars}")
    if not ends:
        return
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low)
    if "accuracy" in summary.metric:
        margin = max(margin, (SPAN - (high - low)) / 2)
        axes.set_ylim(max(0.0, low - margin), min(1.02, high + margin))
    elif high > low:
        axes.set_ylim(low - margin, high + margin)


def _write_names(axes: Axes, rows: Sequence[SweepRow], best: SweepRow | None, reach: float) -> None:
    """Write names where they cover no mark: the best configuration's first, then the frontier's; the table has all.

    The figure must have been drawn with all its other marks, since places on it are measured.
    """
    spans = {}  # audited and claimed epsilon of each row, as drawn
    for row in rows:
        place = min(row.audited, 1.12 * reach)
        spans[row.name] = sorted((place, row.claimed if can_be_drawn(row.claimed) else place))
    pixels = [axes.transData.transform([(x, row.utility) for x in spans[row.name]]) for row in rows]
    margin = NEAR * axes.figure.dpi / 72
    occupied = [Bbox([points.min(axis=0) - margin, points.max(axis=0) + margin]) for points in pixels]
    for row in sorted(rows, key=lambda row: (row is not best, row.dominated_claim, row.dominated_audit)):
        colour = QUIET if row.dominated_claim and row.dominated_audit else INK
        for x, shift in zip(reversed(spans[row.name]), (NEAR, -NEAR - 4), strict=True):  # 4: the ring of the best one
            name = annotate_right(axes, x, row.utility, shortened(row.name, 40), colour, 8, shift)
            box = name.get_window_extent()

            if (
                axes.bbox.x0 <= box.x0
                and box.x1 <= axes.bbox.x1
                and not box.shrunk(0.97, 0.97).count_overlaps(occupied)
            ):
                occupied.append(box)
                break
            name.remove()
