"""What was detected against what was claimed, over audits of one kind with several claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.report.figures.style import CLAIM, canvas
from dpaudit.estimators.bound import Bound

COLOURS = ("#2563a8", "#c2410c", "#7c3aed", "#111827", "#0e7490", "#be185d", "#a16207", "#65a30d")
CLAIMED, DETECTED = "claimed ε of one record", "detected ε of one record (open: nothing)"
FEWEST = 3
"""Claims a line has at least."""


@dataclass(frozen=True)
class Line:
    """Audits that differ in their claim alone.

    Attributes:
        label: What their names share.
        points: Epsilon claimed, detected and the most that could have been, each of one record; ascending.
    """

    label: str
    points: tuple[tuple[float, float, float], ...]


def detected(results: Sequence[AuditResult]) -> Figure | None:
    """Detected against claimed epsilon of one record, a line for each attack; None where no line has three points."""
    lines = lines_of(results)
    if not lines:
        return None
    figure, axes = canvas(6.4, 4.6)
    draw_lines(axes, lines)
    explain(axes)
    return figure


def draw_lines(axes: Axes, lines: Sequence[Line], colours: Mapping[str, str] | None = None, floor: float = 0.0) -> None:
    """Every line, what is claimed, and the most that could have been shown, on logarithmic axes.

    Args:
        axes: Where.
        lines: At least one.
        colours: By label; None takes them in turn.
        floor: Where what is below it, or nothing, is drawn, > 0; 0 takes half of the smallest number there is.
    """
    every = [point for line in lines for point in line.points]
    seen = [value for _, value, _ in every if value > 0]
    floor = floor or 0.5 * min([claimed for claimed, _, _ in every] + seen)
    for place, line in enumerate(lines):
        colour = colours[line.label] if colours else COLOURS[place % len(COLOURS)]
        claimed = [point[0] for point in line.points]
        axes.plot(
            claimed,
            [max(point[1], floor) for point in line.points],
            "o-",
            color=colour,
            markersize=4.5,
            label=line.label,
        )
        nothing = [point[0] for point in line.points if point[1] <= 0]
        axes.plot(nothing, [floor] * len(nothing), "o", color=colour, markerfacecolor="white", markersize=6)
    claims = sorted({point[0] for point in every})
    axes.plot(claims, claims, color=CLAIM, linewidth=1.6, label="what is claimed")
    ceilings = {claimed: max(point[2] for point in every if point[0] == claimed) for claimed in claims}
    if all(math.isfinite(value) for value in ceilings.values()):
        axes.plot(
            claims, list(ceilings.values()), color="#6b7280", linestyle=":", label="the most these trainings could show"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(claims, [f"{claimed:g}" for claimed in claims], fontsize=8 if len(claims) > 6 else None)
    axes.minorticks_off()
    steps = (1, 2, 5) if floor > 5e-3 else (1,)
    every_tick = [step * 10.0**power for power in range(-4, 3) for step in steps]
    ticks = [tick for tick in every_tick if floor <= tick <= 1.3 * max(claims)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def explain(axes: Axes) -> None:
    """What the axes and the lines are."""
    axes.set_xlabel(CLAIMED)
    axes.set_ylabel(DETECTED)
    # Below the axes: lines of an audit may run anywhere within them.
    axes.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def lines_of(results: Sequence[AuditResult]) -> list[Line]:
    """The lines there are, in the order of the results."""
    groups: dict[str, list[AuditResult]] = {}
    for result in results:
        if isinstance(result.finding, Bound) and math.isfinite(result.claimed.epsilon):
            groups.setdefault(_without_epsilon(result), []).append(result)
    lines = []
    for label, members in groups.items():
        points = sorted(point_of(result) for result in members)
        if len({claimed for claimed, _, _ in points}) >= FEWEST:
            lines.append(Line(label, tuple(points)))
    return lines


def _without_epsilon(result: AuditResult) -> str:
    """The name of an audit without what changes with its claim: a grid names "poisoning=clip-bkd, epsilon=2"."""
    return ", ".join(part for part in result.name.split(", ") if not part.startswith(("epsilon=", "copies=")))


def point_of(result: AuditResult) -> tuple[float, float, float]:
    """Epsilon claimed, detected and the most that could have been, each of one record, at the bound's own delta."""
    most = result.ceiling.finding if result.ceiling else None
    ceiling = most.lower if isinstance(most, Bound) else math.inf
    return result.claimed.epsilon, result.epsilon / result.compared.steps, ceiling / result.compared.steps
