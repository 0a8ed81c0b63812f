"""Figures of a report: drawn from plain columns, saved as PNG and SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen is needed, wherever the driver runs

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.engine.findings.verdict import Verdict
from dpaudit.engine.report.report import AuditResult
from dpaudit.estimators.bound import rounded_down
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf, epsilon_posterior_pdf

INK, MEMBER, OTHER, CLAIM, GRID = "#1f2933", "#c2410c", "#2563a8", "#15803d", "#d9dee4"
COLOURS = {
    Verdict.VIOLATION: "#b91c1c",
    Verdict.NO_VIOLATION: "#15803d",
    Verdict.NO_CLAIM: "#475569",
    Verdict.NOT_TRUSTWORTHY: "#a16207",
    Verdict.FAILED: "#a16207",
}
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": "#52606d",
    "ytick.color": "#52606d",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "dpaudit",  # the same figure is the same file
    "svg.fonttype": "none",
}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes `<name>.png` and `<name>.svg`; returns the SVG's text for a page that stands alone."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=160)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    return text[text.index("<svg") :]


def canvas(width: float = 6.4, height: float = 3.4) -> tuple[Figure, Axes]:
    """One pair of axes in the house style; sizes in inches."""
    figure, (axes,) = canvases(1, width=width, height=height)
    return figure, axes


def canvases(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Pairs of axes side by side that share their y-axis, in the house style; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.set_axisbelow(True)
    return figure, panels


def overview(results: Sequence[AuditResult]) -> Figure:
    """Every audit's bound beside its claim."""
    figure, axes = canvas(7.2, 1.0 + 0.55 * len(results))
    for row, result in enumerate(reversed(results)):
        lower = result.bound.lower if result.bound else 0.0
        axes.barh(row, lower, height=0.55, color=COLOURS[result.verdict])
        axes.text(lower, row, f"  {rounded_down(lower) if result.bound else 'no bound'}", va="center", fontsize=9)
        if math.isfinite(result.compared.claim.epsilon):
            axes.plot([result.compared.claim.epsilon] * 2, [row - 0.4, row + 0.4], color=INK, linewidth=2)
    axes.set_yticks(range(len(results)), [result.name for result in reversed(results)])
    axes.set_xlabel("ε in nats: bar = what leaks at least, black line = what is claimed")
    axes.set_xlim(0, 1.18 * max(0.5, *(_reach(result) for result in results)))
    axes.grid(visible=False, axis="y")
    return figure


def _reach(result: AuditResult) -> float:
    claim = result.compared.claim.epsilon
    return max(result.bound.lower if result.bound else 0.0, claim if math.isfinite(claim) else 0.0)


def score_distributions(truth: NDArray[np.bool_], score: NDArray[np.floating[Any]]) -> Figure:
    """Histograms of the scores in the two worlds; truth and score have shape (n,)."""
    figure, axes = canvas()
    finite = score[np.isfinite(score)]
    low, high = np.quantile(finite, [0.001, 0.999]) if finite.size else (0.0, 1.0)
    bins = [float(edge) for edge in np.linspace(low, high if high > low else low + 1, 61)]
    for world, colour, name in (
        (True, MEMBER, "world 1: training label or member shown"),
        (False, OTHER, "world 0: not"),
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
    axes.legend(loc="upper right", fontsize=8.5)
    return figure


def bound_against_fraction(curve: Mapping[str, NDArray[Any]], claim: float, reported: float) -> Figure:
    """The bound of each guess fraction on its own, the claim, and what is reported."""
    figure, axes = canvas()
    percent = 100 * curve["fraction"]
    axes.fill_between(
        percent, curve["low"], curve["high"], color=OTHER, alpha=0.18, linewidth=0, label="10-90 % of replays"
    )
    axes.plot(percent, curve["epsilon"], color=OTHER, label="each fraction on its own (median)")
    axes.axhline(reported, color=MEMBER, linewidth=1.4, linestyle="--", label="reported bound, choice paid for")
    _draw_claim(axes, claim)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.set_xlabel("canaries guessed, %")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return figure


def bound_against_replays(curve: Mapping[str, NDArray[Any]], claim: float) -> Figure:
    """Each replay's bound, and the combined bound of the replays so far."""
    figure, axes = canvas()
    replays = np.arange(1, len(curve["replay_epsilon"]) + 1)
    axes.plot(replays, curve["replay_epsilon"], ".", color=OTHER, alpha=0.6, label="bound of one replay")
    axes.plot(replays, curve["combined_epsilon"], color=MEMBER, label="combined so far")
    _draw_claim(axes, claim)
    axes.set_xlabel("replays")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return figure


def roc(curve: Mapping[str, NDArray[Any]], claim: Claim, members: int, others: int) -> Figure:
    """The attack's ROC curve on logarithmic axes, with the most that the claim lets any attack reach.

    Args:
        curve: Columns `true_positive_rate` and `false_positive_rate`, one row a threshold.
        claim: Under the game's relation.
        members: Trials of world 1.
        others: Trials of world 0; the axes end where one trial would be.
    """
    figure, axes = canvas(4.6, 4.2)
    ends = 0.5 / max(others, 1), 0.5 / max(members, 1)
    order = np.lexsort((curve["true_positive_rate"], curve["false_positive_rate"]))
    alarm = np.maximum(np.append(curve["false_positive_rate"][order], 1.0), ends[0])
    hit = np.maximum(np.append(curve["true_positive_rate"][order], 1.0), ends[1])
    axes.step(alarm, hit, where="post", color=MEMBER, label="this attack")
    line = np.geomspace(ends[0], 1.0, 300)
    axes.plot(line, line, color="#9aa5b1", linewidth=1, linestyle=":", label="guessing")
    if math.isfinite(claim.epsilon):
        most = np.minimum(
            np.exp(claim.epsilon) * line + claim.delta, 1 - np.exp(-claim.epsilon) * (1 - claim.delta - line)
        )
        axes.plot(
            line,
            np.clip(most, 0, 1),
            color=CLAIM,
            linewidth=1.6,
            label=f"claimed ε = {claim.epsilon:g}: the most it allows",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(ends[0], 1)
    axes.set_ylim(ends[1], 1.05)
    axes.set_xlabel("false-alarm rate")
    axes.set_ylabel("hit rate")
    axes.legend(loc="lower right", fontsize=8.5)
    return figure


def posterior(counts: Mapping[str, int], delta: float, claim: float) -> Figure:
    """Posterior density of the epsilon an attack with these counts shows, beside the claim.

    Args:
        counts: tp, fp, tn, fn.
        delta: In [0, 1).
        claim: Claimed epsilon, may be inf.
    """
    figure, axes = canvas()
    table = (counts["tp"], counts["fp"], counts["tn"], counts["fn"])
    reach = np.geomspace(1e-3, 30.0, 400)
    mass = np.asarray(epsilon_posterior_cdf(reach, *table, delta=delta))
    end = float(reach[min(int(np.searchsorted(mass, 0.999)), reach.size - 1)])
    epsilon = np.linspace(0.0, max(end, 1.1 * claim if math.isfinite(claim) else 0.0), 400)
    density = np.asarray(epsilon_posterior_pdf(epsilon, *table, delta=delta))
    axes.fill_between(epsilon, density, color=OTHER, alpha=0.2, linewidth=0)
    axes.plot(epsilon, density, color=OTHER, label="posterior of this attack's ε")
    if math.isfinite(claim):
        axes.axvline(claim, color=CLAIM, linewidth=1.6, label=f"claimed ε = {claim:g}")
    axes.set_xlabel("ε in nats")
    axes.set_ylabel("density")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8.5)
    return figure


def bound_against_delta(curve: Mapping[str, NDArray[Any]], claim: Claim) -> Figure:
    """The bound at every delta, and the accountant's line above it; columns `delta`, `epsilon_at_delta`."""
    figure, axes = canvas()
    axes.plot(curve["delta"], curve["epsilon_at_delta"], color=MEMBER, label="lower bound, all δ at once")
    if "promised_at_delta" in curve:
        axes.plot(curve["delta"], curve["promised_at_delta"], color=CLAIM, label="the claim's curve")
    if math.isfinite(claim.epsilon) and claim.delta > 0:
        axes.plot(
            [claim.delta], [claim.epsilon], "o", color=CLAIM, markersize=4.5, label=f"claim: ε = {claim.epsilon:g}"
        )
    axes.set_xscale("log")
    axes.set_xlabel("δ")
    axes.set_ylabel("ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return figure


def bound_against_trials(curve: Mapping[str, NDArray[Any]], claim: float) -> Figure:
    """The anytime-valid bound while trials came in; columns `trials` and `epsilon_so_far`."""
    figure, axes = canvas()
    axes.step(curve["trials"], curve["epsilon_so_far"], where="post", color=MEMBER, label="bound so far")
    _draw_claim(axes, claim)
    axes.set_xlabel("trials")
    axes.set_ylabel("lower bound on ε, nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)
    return figure


def _draw_claim(axes: Axes, claim: float) -> None:
    if math.isfinite(claim):
        axes.axhline(claim, color=CLAIM, linewidth=1.6, label=f"claimed ε = {claim:g}")
