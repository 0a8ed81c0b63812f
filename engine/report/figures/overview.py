"""Every audit beside its claim, one bar each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.report.figures.style import INK, canvas
from dpaudit.estimators.bound import format_lower

COLOURS = {
    Verdict.VIOLATION: "#b91c1c",
    Verdict.NO_VIOLATION: "#15803d",
    Verdict.INCONCLUSIVE: "#6b7280",
    Verdict.NO_CLAIM: "#475569",
    Verdict.UNDECIDED: "#a16207",
    Verdict.FAILED: "#a16207",
}


def overview(results: Sequence[AuditResult]) -> Figure:
    """What was observed as a bar, what is claimed as a line; each audit in its own quantity."""
    figure, axes = canvas(7.2, 1.0 + 0.55 * len(results))
    reach = 0.5
    for row, result in enumerate(reversed(results)):
        observed = result.standing.observed if result.standing else 0.0
        claimed = result.standing.claimed if result.standing else result.compared.claim.epsilon
        axes.barh(row, observed if math.isfinite(observed) else 0.0, height=0.55, color=COLOURS[result.verdict])
        shown = format_lower(observed) if result.standing else "no bound"
        axes.text(observed if math.isfinite(observed) else 0.0, row, f"  {shown}", va="center", fontsize=9)
        if math.isfinite(claimed):
            axes.plot([claimed] * 2, [row - 0.4, row + 0.4], color=INK, linewidth=2)
        ceiling = _ceiling(result)
        if math.isfinite(ceiling):
            axes.plot(
                [ceiling] * 2,
                [row - 0.4, row + 0.4],
                color=COLOURS[Verdict.INCONCLUSIVE],
                linewidth=1.5,
                linestyle=(0, (2, 2)),
            )
        reach = max(reach, *(value for value in (observed, claimed, ceiling) if math.isfinite(value)), 0.0)
    axes.set_yticks(range(len(results)), [result.name for result in reversed(results)])
    lines = "bar = what leaks at least, black line = what is claimed"
    if any(math.isfinite(_ceiling(result)) for result in results):
        lines += ",\ndotted = what a mechanism with no privacy would show"
    axes.set_xlabel(f"{_quantities(results)}: {lines}")
    axes.set_xlim(0, 1.18 * reach)
    axes.grid(visible=False, axis="y")
    return figure


def _ceiling(result: AuditResult) -> float:
    """What a mechanism with no privacy would show; inf where that is not known."""
    if result.ceiling is None:
        return math.inf
    return result.ceiling.finding.standing(result.compared.claim.curve).observed


def _quantities(results: Sequence[AuditResult]) -> str:
    named = sorted({result.standing.quantity for result in results if result.standing})
    return "ε in nats" if named in ([], ["epsilon"]) else ", ".join(named)
