"""The charts of a run: what its audits show side by side, and what a sweep found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.scope import Scope
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.sweep_summary import SweepRow, SweepSummary
from dpaudit.engine.reading.verdict import COLOURS as VERDICTS
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.errors import shortened
from dpaudit.estimators.bound import Bound, format_lower
from dpaudit.estimators.chart import (
    CLAIM,
    COLOURS,
    INK,
    MEMBER,
    OTHER,
    QUIET,
    Axis,
    Band,
    Bars,
    Chart,
    Line,
    Mark,
    Panel,
    Rule,
    Words,
    can_be_drawn,
)
from dpaudit.estimators.finding_charts import bars_side_by_side, total_epsilons

FEW_SCORES = 1_000
"""Fewer scores than this have wide bins and a linear axis: on a logarithmic one, single scores are spikes."""
MIN_POINTS = 3
"""Claims a line of detected epsilons has at least."""
SIDE = "#a16207"
"""Colour of a side finding: it is a warning, and no verdict on the claim."""
NUMBER = 0.12
"""Share of the largest number that the words of a number take at the end of a bar."""
SPAN = 0.1
"""Least height of an axis of accuracies: on a shorter one, chance differences look large."""
NEAR = 0.07
"""Names closer than this share of the height would cover each other; the table names all."""


def overview(results: Sequence[AuditResult]) -> Chart:
    """Return bars of the lower bounds with a line at each claim; each audit in its own quantity, its name above it."""
    marks: list[Mark] = []
    reach = max([0.0, *(value for result in results for value in _places(result) if can_be_drawn(value))]) or 1.0
    several = len({result.own_comparison.quantity for result in results if result.own_comparison}) > 1
    for row, result in enumerate(reversed(results)):
        observed, claimed, ceiling = _places(result)
        end = observed if math.isfinite(observed) else 0.0
        shown, colour = format_lower(observed) if result.own_comparison else "no bound", VERDICTS[result.verdict]
        if result.scope is not Scope.CLAIM and result.verdict is Verdict.VIOLATION:
            colour = SIDE
        if several and result.own_comparison:
            shown += f" {result.own_comparison.quantity}"
        marks.append(Bars([row], [end], colour=colour, thickness=0.4, upright=False))
        at = end
        for value, tick in sorted([(claimed, (INK, "-", 2.0)), (ceiling, (VERDICTS[Verdict.INCONCLUSIVE], ":", 1.5))]):
            if can_be_drawn(value):
                colour, dash, width = tick
                marks.append(Line([value] * 2, [row - 0.25, row + 0.25], colour=colour, dash=dash, width=width))
                if at <= value < at + NUMBER * reach:  # the number would stand on the line
                    at = value
        marks.append(Words(at, row, shown, size=9))
        marks.append(Words(0, row + 0.4, shortened(result.name, 60), size=9))
    lines = f"{_quantities(results)}:\nbar = what leaks at least, black line = what is claimed"
    if any(math.isfinite(_places(result)[2]) for result in results):
        lines += ",\ndotted = what a mechanism with no privacy would show"
    y = Axis(low=-0.4, high=len(results) - 0.3, ticks=(), grid=False)
    panel = Panel(marks, Axis(lines, low=0, high=1.18 * reach), y)
    return Chart("overview", "Verdicts", [[panel]], 5.0, 1.1 + 0.62 * len(results))


def _places(result: AuditResult) -> tuple[float, float, float]:
    """Return what was observed, claimed and detectable at most, all of one quantity at one point; inf if unknown."""
    comparison = result.own_comparison
    if comparison is None:
        return 0.0, result.compared.claim.epsilon, math.inf
    maximum = result.record.maximum_at(comparison)
    above = maximum is not None and maximum.observed >= comparison.observed
    return comparison.observed, comparison.claimed, maximum.observed if above and maximum is not None else math.inf


def _quantities(results: Sequence[AuditResult]) -> str:
    named = sorted({result.own_comparison.quantity for result in results if result.own_comparison})
    if named in ([], ["epsilon"]):
        return "ε in nats"
    return named[0] if len(named) == 1 else "each bar in its own quantity"


def scores(truth: NDArray[np.bool_], score: NDArray[np.floating[Any]]) -> Chart:
    """Histograms of the scores in the two worlds; truth and score have shape (n,)."""
    finite = score[np.isfinite(score)]
    few = score.size < FEW_SCORES
    low, high = np.quantile(finite, [0.0, 1.0] if few else [0.001, 0.999]) if finite.size else (0.0, 1.0)
    bins = min(60, max(8, math.isqrt(score.size)))
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    worlds = {
        "world 1: with the record": (score[truth], MEMBER),
        "world 0: without": (score[~truth], OTHER),
    }
    marks: list[Mark] = []
    for name, (values, colour) in worlds.items():
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        share = np.append(counts, 0) / max(values.size, 1)
        marks.append(Band(edges, np.zeros_like(share), share, colour=colour, alpha=0.35, step=True))
        marks.append(Line(np.append(edges[0], edges), np.append(0, share), name, colour, step=True, width=1))
    x = Axis("score of the attack" + ("" if few else " (outermost 0.1 % drawn at the edge)"))
    least = 0.5 / max(truth.sum(), (~truth).sum(), 1)
    y = Axis("share of trials", low=0) if few else Axis("share of trials", log=True, low=least)
    panel = Panel(marks, x, y, legend="above", legend_columns=2)
    return Chart("scores", "What the attack sees: scores in the two worlds", [[panel]])


@dataclass(frozen=True)
class DetectedLine:
    """Audits that differ in their claim alone."""

    label: str  # what their names share
    # Epsilon claimed, detected and the most that could have been, each of one record; ascending
    points: tuple[tuple[float, float, float], ...]


def detected(results: Sequence[AuditResult]) -> Chart | None:
    """Detected against claimed epsilon of one record, a line for each attack; None where no line has three points."""
    lines = lines_of(results)
    if not lines:
        return None
    return Chart("detected", "Detected against claimed", [[detected_panel(lines)]], 5.0, 4.2, legend_columns=2)


def detected_panel(
    lines: Sequence[DetectedLine], colours: Mapping[str, str] | None = None, floor: float = 0.0, title: str = ""
) -> Panel:
    """Every line, what is claimed, and the most that could have been shown, on logarithmic axes; without a legend.

    Args:
        colours: By label; None takes them in turn.
        floor: Where what is below it, or nothing, is drawn, > 0; 0 takes half of the smallest number there is.
    """
    every = [point for line in lines for point in line.points]
    seen = [value for _, value, _ in every if value > 0]
    floor = floor or 0.5 * min([claimed for claimed, _, _ in every] + seen)
    marks: list[Mark] = []
    for place, line in enumerate(lines):
        colour = colours[line.label] if colours else COLOURS[place % len(COLOURS)]
        claimed, found, _ = zip(*line.points, strict=True)
        marks.append(Line(claimed, np.maximum(found, floor), line.label, colour, marker="o", size=4.5))
        nothing = [point[0] for point in line.points if point[1] <= 0]
        marks.append(Line(nothing, [floor] * len(nothing), "", colour, "", "o", size=6, face="white"))
    claims = sorted({point[0] for point in every})
    marks.append(Line(claims, claims, "what is claimed", CLAIM, width=1.6))
    ceilings = [max(point[2] for point in every if point[0] == claimed) for claimed in claims]
    if all(map(math.isfinite, ceilings)):
        marks.append(Line(claims, ceilings, "the most these trainings could show", "#6b7280", ":"))
    steps = (1, 2, 5) if floor > 5e-3 else (1,)
    ticks = [step * 10.0**power for power in range(-4, 3) for step in steps]
    shown = [tick for tick in ticks if floor <= tick <= 1.3 * max(claims)]
    x = Axis("claimed ε of one record", log=True, ticks=claims, size=8 if len(claims) > 6 else None)
    y = Axis("detected ε of one record (open: nothing)", log=True, ticks=shown)
    return Panel(marks, x, y, title, legend="")


def lines_of(results: Sequence[AuditResult]) -> list[DetectedLine]:
    """The lines there are, in the order of the results."""
    groups: dict[str, list[AuditResult]] = {}
    for result in results:
        if isinstance(result.finding, Bound) and can_be_drawn(result.claimed.epsilon):
            groups.setdefault(_without_epsilon(result), []).append(result)
    lines = [DetectedLine(label, tuple(sorted(map(point_of, members)))) for label, members in groups.items()]
    return [line for line in lines if len({claimed for claimed, _, _ in line.points}) >= MIN_POINTS]


def _without_epsilon(result: AuditResult) -> str:
    """The name of an audit without what changes with its claim: a grid names "poisoning=clip-bkd, epsilon=2"."""
    return ", ".join(part for part in result.name.split(", ") if not part.startswith(("epsilon=", "copies=")))


def point_of(result: AuditResult) -> tuple[float, float, float]:
    """Epsilon claimed, detected and the most that could have been, each of one record, at the bound's own delta."""
    most = result.ceiling.finding if result.ceiling else None
    ceiling = most.lower if isinstance(most, Bound) else math.inf
    return result.claimed.epsilon, result.epsilon / result.compared.steps, ceiling / result.compared.steps


def predictors_compared(results: Sequence[AuditResult]) -> Chart | None:
    """Bars of each audit of a private predictor, those of its largest total; None for fewer than two such audits."""
    audits = [(result, dict(result.series["epsilon"])) for result in results if "epsilon" in result.series]
    if len(audits) < 2:
        return None
    totals = []
    for result, series in audits:
        del series["names"]
        totals.append(total_epsilons(result.compared.claim, **series))
    bars = {name: np.array([total[name][0] for total in totals]) for name in totals[0]}
    names = [f"{result.name}\n{series['answers']:,} answers" for result, series in audits]
    panel = bars_side_by_side(bars, names, audits[0][1]["delta"], "{:.3g}")
    return Chart("predictors", "Private predictors compared", [[panel]], max(5.0, 1.1 * len(audits) + 2.4))


def frontier(summary: SweepSummary) -> Chart:
    """What was shown as a dot, what is claimed as a tick; dominated configurations in grey, the best one ringed."""
    rows = [row for row in summary.rows if row.is_audited and not math.isnan(row.utility)]
    reach = max([1e-9, *(value for row in rows for value in (row.audited, row.claimed) if can_be_drawn(value))])
    marks: list[Mark] = []
    for row in rows:
        dominated = row.dominated_claim and row.dominated_audit
        colour, label = (QUIET, "dominated") if dominated else (OTHER, "audited epsilon, a lower bound")
        shown = min(row.audited, 1.12 * reach)
        if can_be_drawn(row.claimed):
            marks.append(Line([shown, row.claimed], [row.utility] * 2, colour=colour, width=1, alpha=0.6))
            marks.append(Line([row.claimed], [row.utility], "claimed epsilon", CLAIM, "", "|", size=11))
        error = summary.error(row)
        bar = None if math.isnan(error) else [error]
        marks.append(Line([shown], [row.utility], label, colour, "", "o", size=6, error=bar))
    marks += _names(rows, summary.best, reach)
    leading = [row for row in rows if can_be_drawn(row.claimed) and not row.dominated_claim]
    points = sorted({(row.claimed, row.utility) for row in leading})
    if len(points) > 1:  # a staircase: the most useful one for each epsilon that is claimed
        claimed, utility = zip(*points, strict=True)
        marks.append(Line(claimed, utility, "frontier by claim", CLAIM, "--", step=True, width=1.2))
    best, limit = summary.best, summary.sweep.subject_to.epsilon
    if best is not None:
        marks.append(Line([best.audited], [best.utility], "best", INK, "", "o", size=13, face="none"))
    if limit is not None:
        marks.append(Rule(limit, f"limit ε = {limit:g}", dash=":", upright=True, width=1))
    if not math.isnan(summary.majority):
        marks.append(Rule(summary.majority, "always the most frequent label", QUIET, "--", width=1))
    x = Axis("ε of one record in nats", low=-0.03 * reach, high=1.35 * reach)
    panel = Panel(marks, x, _utility_axis(summary, rows), legend="")
    return Chart("frontier", "Sweep", [[panel]], 5.0, 4.4, legend_columns=2)


def _utility_axis(summary: SweepSummary, rows: Sequence[SweepRow]) -> Axis:
    """Return an axis that holds every error bar and the majority's accuracy; of an accuracy at least `SPAN` high."""
    ends = [row.utility + sign * np.nan_to_num(summary.error(row)) for row in rows for sign in (-1, 1)]
    ends += [] if math.isnan(summary.majority) else [summary.majority]
    said = "; bars: one standard error" if any(not math.isnan(summary.error(row)) for row in rows) else ""
    label = f"{summary.metric}{said}"
    if not ends:
        return Axis(label)
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low)
    if "accuracy" in summary.metric:
        margin = max(margin, (SPAN - (high - low)) / 2)
        return Axis(label, low=max(0.0, low - margin), high=min(1.02, high + margin))
    return Axis(label) if high == low else Axis(label, low=low - margin, high=high + margin)


def _names(rows: Sequence[SweepRow], best: SweepRow | None, reach: float) -> list[Mark]:
    """The names of configurations beside what they claim, where there is room: the best one's, then the frontier's."""
    height = max((row.utility for row in rows), default=0.0) - min((row.utility for row in rows), default=0.0)
    placed: list[Words] = []
    for row in sorted(rows, key=lambda row: (row is not best, row.dominated_claim, row.dominated_audit)):
        x = min(row.claimed if can_be_drawn(row.claimed) else row.audited, 1.12 * reach)
        if not any(abs(x - one.x) < 0.3 * reach and abs(row.utility - one.y) < NEAR * height for one in placed):
            colour = QUIET if row.dominated_claim and row.dominated_audit else INK
            placed.append(Words(x, row.utility, shortened(row.name, 40), colour, 8))
    return list(placed)
