"""The figures of a finding, each drawn from the columns of one of its series together with the claim.

A series is named columns (`Finding.series`). The function in `FIGURES` under the series' name takes the columns that
it needs as keyword arguments and describes them. A series with another name, or without a column that has no default,
has no figure.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.special import expit, logit

from dpaudit.claims import Claim
from dpaudit.engine.figures.drawing import SQUARE, WIDE, Picture, canvas, fill, finish, set_ticks
from dpaudit.engine.figures.palette import CLAIM, INK, LARGEST_CLAIM, MEMBER, OTHER, QUIET, can_be_drawn
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.finding import Comparison, Finding
from dpaudit.estimators.private_prediction.divergence import rdp_to_epsilon
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf, epsilon_posterior_pdf

BOUND = "lower bound on ε, nats"
MAX_VALUE = 1e100  # values from here on are not drawn
MAX_NAMED = 25  # largest number of queries whose numbers are written on the axis
CONFIDENCE = 0.95  # confidence of the intervals of a reliability diagram
TOTALS = {"claim": CLAIM, "data-dependent": OTHER, "exact": INK, "observed*": MEMBER}


def finding_figures(finding: Finding, claim: Claim) -> Iterator[Picture]:
    """Yield the figures of a finding, compared with a claim under the game's relation, in the order of its series."""
    comparison = finding.comparison(claim.curve)
    for name, series in finding.series.items():
        draw, size, legend = FIGURES.get(name, (None, WIDE, ""))
        if draw is None:
            continue
        signature = inspect.getfullargspec(draw)
        columns = [name for name in signature.kwonlyargs if name in series]
        if not set(signature.kwonlyargs) - set(signature.kwonlydefaults or ()) <= set(columns):
            continue
        figure, axes = canvas(*size)
        title = draw(axes, claim, comparison, **{column: series[column] for column in columns})
        finish(axes, legend)
        if title:
            is_compared = draw is _advantages and series["reported"] == comparison.quantity
            yield Picture("advantages" if is_compared else name, title, figure)


def _plot_claim(axes: Axes, claim: Claim, *, upright: bool = False) -> None:
    """Draw a line at the claimed epsilon unless it is too large to be drawn."""
    if can_be_drawn(claim.epsilon):
        across = axes.axvline if upright else axes.axhline
        across(claim.epsilon, color=CLAIM, linewidth=1.6, label=f"claimed ε = {claim.epsilon:g}")


def _allowed(claim: Claim, orders: Floats) -> Floats:
    """Return the claimed Renyi divergence at each order."""
    return np.array([claim.curve.renyi(float(order)) for order in orders])


def _plot_positive(axes: Axes, x: Floats | Ints, y: Floats, label: str, colour: str, style: str = "-") -> None:
    """Plot the values that a logarithmic axis can show; NaN, zero and huge values are left out."""
    visible = (y < MAX_VALUE) & (y > 0)
    if visible.any():
        axes.plot(x[visible], y[visible], style, color=colour, label=label, markersize=3.5)


def _fractions(
    axes: Axes, claim: Claim, comparison: Comparison, *, fraction: Floats, epsilon: Floats, low: Floats, high: Floats
) -> str:
    """Draw the bound of each guess fraction of one training run, not corrected for the choice among them.

    Columns of shape (n,): shares of the canaries that are guessed; median, 10 % and 90 % quantiles of the replays'
    bounds.
    """
    percent = 100 * fraction
    fill(axes, percent, low, high, "10-90 % of replays")
    axes.plot(percent, epsilon, color=OTHER, label="each fraction on its own (median)")
    if comparison.quantity == "epsilon":  # else the curve rejects the claim, not the bound
        style: dict[str, Any] = {"color": MEMBER, "linestyle": "--", "linewidth": 1.6}
        axes.axhline(comparison.observed, label="reported bound, corrected for selection", **style)
    _plot_claim(axes, claim)
    axes.set(xscale="log", xlabel="canaries guessed, %", ylabel=BOUND)
    set_ticks(axes.xaxis, (1, 2, 5, 10, 20, 50, 100))
    axes.set_ylim(0, None)
    return "Bound against the share of canaries guessed"


def _replays(axes: Axes, claim: Claim, _: Comparison, *, epsilon: Floats, combined: Floats) -> str:
    """Draw the bound of each replay of a game, and of all replays so far; nothing if all bounds are 0.

    Columns of shape (replays,): each replay's bound as it enters the combination, failed ones last with 0; the combined
    bound of the replays so far.
    """
    if epsilon.size < 2 or not epsilon.any():
        return ""
    number = np.arange(1, epsilon.size + 1)
    axes.plot(number, epsilon, "o", color=OTHER, label="bound of one replay", markersize=3.5, alpha=0.6)
    axes.plot(number, combined, color=MEMBER, label="combined so far")
    _plot_claim(axes, claim)
    axes.set(xlabel="replays", ylabel=BOUND, ylim=(0, None))
    return "Bound against replays"


def _trade_off(
    axes: Axes,
    claim: Claim,
    _: Comparison,
    *,
    true_positive_rate: Floats,
    false_positive_rate: Floats,
    members: int,
    non_members: int,
    limit_alarm: Floats | None = None,
    limit_hit: Floats | None = None,
) -> str:
    """Draw the error rates of an attack at the candidate thresholds, and the smallest that the claim allows.

    Columns: both rates, shape (candidates,), and the trials of worlds 1 and 0; where a band gives them, lower limits of
    the hit rate of the best test at false positive rates, which hold together.
    """
    # The axes end at the rate of half a trial.
    ends = 0.5 / max(non_members, 1), 0.5 / max(members, 1)
    order = np.lexsort((true_positive_rate, false_positive_rate))
    alarm = np.maximum(np.append(false_positive_rate[order], 1.0), ends[0])
    hit = np.maximum(np.append(true_positive_rate[order], 1.0), ends[1])
    axes.plot(alarm, hit, color=MEMBER, label="this attack", drawstyle="steps-post")
    if limit_alarm is not None and limit_hit is not None:
        axes.plot(limit_alarm, limit_hit, "--", color=MEMBER, label="shown at least, all rates at once")
    axes.plot([ends[0], 1.0], [ends[0], 1.0], ":", color=QUIET, label="guessing", linewidth=1)
    rates = np.geomspace(ends[0], 1.0, 100)  # few, because a composed claim searches for each
    allowed = np.array([1 - claim.curve.miss_rate(float(rate)) for rate in rates])
    is_limited = bool(np.any(allowed[:-1] < 1))  # a claim that implies nothing allows every attack
    if is_limited:
        axes.plot(rates, allowed, color=CLAIM, label="the most the claim allows", linewidth=1.6)
    axes.set(xscale="log", yscale="log", xlabel="false-alarm rate", ylabel="hit rate")
    axes.set(xlim=(ends[0], 1), ylim=(ends[1], 1.05))
    return "Errors of the attack" + (", compared with the claim" if is_limited else "")


def _posterior(axes: Axes, claim: Claim, _: Comparison, *, tp: int, fp: int, tn: int, fn: int, delta: float) -> str:
    """Draw the posterior density of the epsilon that an attack with these confusion counts shows.

    Columns: members and non-members called members (tp, fp), non-members and members called non-members (tn, fn), at
    the reported threshold; the delta of epsilon.
    """
    counts = (tp, fp, tn, fn)
    reach = np.geomspace(1e-3, 30.0, 400)
    mass = np.asarray(epsilon_posterior_cdf(reach, *counts, delta=delta))
    end = float(reach[min(int(np.searchsorted(mass, 0.999)), reach.size - 1)])
    epsilon = np.linspace(0.0, max(end, 1.1 * claim.epsilon if can_be_drawn(claim.epsilon) else 0.0), 400)
    density = np.asarray(epsilon_posterior_pdf(epsilon, *counts, delta=delta))
    fill(axes, epsilon, np.zeros_like(density), density)
    axes.plot(epsilon, density, color=OTHER, label="posterior of this attack's ε")
    _plot_claim(axes, claim, upright=True)
    axes.set(xlabel="ε in nats", ylabel="density", xlim=(0, None), ylim=(0, None))
    return "Posterior of ε at the reported threshold"


def _profile(axes: Axes, claim: Claim, _: Comparison, *, delta: Floats, epsilon: Floats) -> str:
    """Draw epsilon against delta, valid at every delta at once; ascending, shape (n,)."""
    axes.plot(delta, epsilon, color=MEMBER, label="lower bound, all δ at once")
    if not claim.is_point:
        promised = np.array([claim.curve.epsilon(float(at)) for at in delta])
        curve = np.where(promised <= LARGEST_CLAIM, promised, np.inf)
        axes.plot(delta, curve, color=CLAIM, label="the claim's curve")
    if can_be_drawn(claim.epsilon) and claim.delta > 0:
        point = f"claim: ε = {claim.epsilon:g}"
        axes.plot([claim.delta], [claim.epsilon], "o", color=CLAIM, label=point, markersize=4.5)
    axes.set(xscale="log", xlabel="δ", ylabel="ε, nats", ylim=(0, None))
    return "Trade-off between ε and δ"


def _trials(axes: Axes, claim: Claim, _: Comparison, *, trials: Ints, epsilon: Floats) -> str:
    """Draw an anytime-valid bound against the number of trials so far, shape (n,)."""
    axes.plot(trials, epsilon, color=MEMBER, label="bound so far", drawstyle="steps-post")
    _plot_claim(axes, claim)
    axes.set(xlabel="trials", ylabel=BOUND, ylim=(0, None))
    return "Bound while trials came in"


def _advantages(
    axes: Axes, _: Claim, comparison: Comparison, *, share: Floats, advantage: Floats, quantity: str, reported: str
) -> str:
    """Draw the distribution of the examples' advantages.

    Columns: shares of the examples, ascending in [0, 1], and the advantage that each share stays within, which may be
    inf, both of shape (n,); the advantage with its unit; the quantity compared with a claim.
    """
    plot_spread(axes, share, advantage, "examples", MEMBER, 100)
    compared = reported == comparison.quantity
    marks = ((comparison.observed, OTHER, "--", "observed"), (comparison.claimed, CLAIM, "-", "the claim allows"))
    for value, colour, dash, words in marks:
        if compared and can_be_drawn(value):
            axes.axvline(value, color=colour, linestyle=dash, linewidth=1.6, label=f"{comparison.quantity}, {words}")
    finite = np.isfinite(advantage)
    within = share[finite][-1] if finite.any() else 0.0
    beyond = "" if finite.all() else f"; infinite for {1 - within:.3%} of the examples"
    axes.set(xlabel=quantity + beyond, ylabel="share of examples within, %", xlim=(0, None), ylim=(0, 102))
    return f"How much better labels are guessed: {quantity}"


def plot_spread(axes: Axes, share: Floats, advantage: Floats, label: str, colour: str, whole: float = 1.0) -> None:
    """Plot the share of examples within each finite advantage, both of shape (n,); `whole` is 1 or 100 for percent."""
    finite = np.isfinite(advantage)
    x, y = np.append(0, advantage[finite]), whole * np.append(0, share[finite])
    axes.plot(x, y, color=colour, label=label, drawstyle="steps-post")


def _beliefs(axes: Axes, claim: Claim, _: Comparison, *, prior: Floats, posterior: Floats) -> str:
    """Draw P[label = 1] of single examples before and after a release, in [0, 1], shape (n,)."""
    epsilon = claim.curve.epsilon(0.0)
    plot_beliefs(axes, prior, posterior, "examples", OTHER)
    if math.isfinite(epsilon):
        plot_spindle(axes, epsilon, CLAIM, f"the claim allows, ε = {epsilon:g}")
    set_beliefs(axes)
    return "The attacker's belief about each label, before and after"


def set_beliefs(axes: Axes) -> None:
    """Label axes of prior and posterior probabilities."""
    whole = (-0.015, 1.015)
    axes.set(xlabel="prior P[label = 1]", ylabel="posterior P[label = 1]", xlim=whole, ylim=whole)


def plot_beliefs(axes: Axes, prior: Floats, posterior: Floats, label: str, colour: str) -> None:
    """Scatter posterior against prior, as in Figure 1 of Busa-Fekete et al. (2024), with the diagonal."""
    axes.plot([0, 1], [0, 1], ":", color=INK, linewidth=0.8)
    style: dict[str, Any] = {"markersize": 2.2, "markeredgewidth": 0.0, "alpha": 0.35}
    axes.plot(prior, posterior, ".", color=colour, label=label, **style)


def plot_spindle(axes: Axes, epsilon: float, colour: str, label: str = "") -> None:
    """Plot the curves on which the log-odds changed by exactly epsilon."""
    prior = np.linspace(1e-4, 1 - 1e-4, 400)
    for step, name in ((epsilon, label), (-epsilon, "")):
        axes.plot(prior, expit(logit(prior) + step), color=colour, label=name, linewidth=1.2)


def _reliability(axes: Axes, _: Claim, __: Comparison, *, believed: Floats, observed: Floats, examples: Ints) -> str:
    """Draw the calibration of probabilities over groups of equal size, ordered by probability.

    Columns of shape (groups,): mean probability, ascending; share of the examples whose label is 1; number of examples.
    """
    positives = np.rint(observed * examples).astype(np.int64)
    ends = clopper_pearson(positives, examples, confidence=CONFIDENCE)
    away = np.abs(np.stack([np.asarray(ends.lower), np.asarray(ends.upper)]) - observed)
    top = 1.05 * float(max(believed.max(), np.max(ends.upper)))
    axes.plot([0, top], [0, top], ":", color=INK, label="calibrated", linewidth=0.8)
    label = f"groups of {int(examples.min()):,} examples, {CONFIDENCE:.0%} intervals"
    style: dict[str, Any] = {"color": OTHER, "label": label, "markersize": 4, "elinewidth": 1}
    axes.errorbar(believed, observed, yerr=away, fmt="o", **style)
    axes.set(xlabel="mean prior P[label = 1]", ylabel="share with label 1", xlim=(0, top), ylim=(0, top))
    return "Calibration of the priors"


def _answer(
    axes: Axes,
    claim: Claim,
    _: Comparison,
    *,
    query: int,
    order: Floats,
    two_cut: Floats,
    k_cut: Floats,
    exact: Floats,
    dependent: Floats,
) -> str:
    """Draw the divergence of one answer at every order, the larger direction of each; NaN if unknown.

    Columns: number of the query; and of shape (m,): orders > 1, ascending; lower bounds in nats; lower bounds that use
    the count of every answer; exact divergence; charge of data-dependent accounting.
    """
    _plot_positive(axes, order, _allowed(claim, order), "the claim allows", CLAIM)
    _plot_positive(axes, order, dependent, "data-dependent accounting", CLAIM, "--")
    _plot_positive(axes, order, exact, "exact", INK)
    _plot_positive(axes, order, k_cut, "k-cut, by itself, at least", OTHER, "s-")
    _plot_positive(axes, order, two_cut, "at least", MEMBER, "o-")
    axes.set(xscale="log", yscale="log", xlabel="order", ylabel="Rényi divergence of an answer, nats")
    set_ticks(axes.xaxis, [at for at in order if at in (1.5, 2, 4, 8, 16, 32, 64)])
    return f"One answer to query {query}, at every order"


def _totals(
    axes: Axes,
    claim: Claim,
    _: Comparison,
    *,
    order: Floats,
    answers: int,
    delta: float,
    names: tuple[str, ...],
    bound: Floats,
    exact: Floats,
    dependent: Floats,
) -> str:
    """Draw the epsilon of many answers, converted as published; only conversions of upper bounds are bounds.

    Columns: those of `total_epsilons`, and the name of each total: "worst query", "average query", "all queries".
    """
    columns = total_epsilons(claim, order, answers, delta, bound, exact, dependent)
    measured = {name: epsilon for name, epsilon in columns.items() if not np.isnan(epsilon).all()}
    draw_totals(axes, measured, names, delta, "{:.2f}", f"{answers:,} answers; ")
    return "Totals as epsilon, as published (what is observed is not a bound there)"


def total_epsilons(
    claim: Claim, order: Floats, answers: int, delta: float, bound: Floats, exact: Floats, dependent: Floats
) -> dict[str, Floats]:
    """Return the epsilon of all answers at `delta` by kind of total; each of shape (rows,), NaN if unknown.

    The claim is for one answer. `bound` (lower bounds), `exact` and `dependent` (charges of data-dependent accounting)
    are totals in nats at the orders, shape (rows, m), NaN if unknown.
    """
    claimed = np.broadcast_to(answers * _allowed(claim, order), bound.shape)
    curves = dict(zip(TOTALS, (claimed, dependent, exact, bound), strict=True))
    return {
        name: np.array([rdp_to_epsilon(order, row, delta=delta) if (row < MAX_VALUE).all() else np.nan for row in rows])
        for name, rows in curves.items()
    }


def draw_totals(
    axes: Axes, columns: Mapping[str, Floats], names: Sequence[str], delta: float, digits: str, before: str = ""
) -> None:
    """Draw a group of bars for each name, a bar for each column with its number; columns have shape (names,)."""
    width = 0.8 / len(columns)
    for place, (name, values) in enumerate(columns.items()):
        at = np.arange(len(names)) + (place - (len(columns) - 1) / 2) * width
        known_totals = ~np.isnan(values)
        axes.bar(
            at[known_totals],
            values[known_totals],
            width,
            label=name,
            color=TOTALS[name],
            edgecolor="white",
            linewidth=0,
        )
        for x, value in zip(at[known_totals], values[known_totals], strict=True):
            text = digits.format(value)
            axes.annotate(text, (x, value), (0, 2), textcoords="offset points", fontsize=7.5, ha="center", va="bottom")
    top = max((float(np.nanmax(values)) for values in columns.values() if not np.isnan(values).all()), default=1.0)
    set_ticks(axes.xaxis, np.arange(len(names)), names)
    axes.set(xlim=(-0.6, len(names) - 0.4), ylabel=f"ε at δ = {delta:g}", ylim=(0, 1.35 * top or 1.0))
    axes.set_title(f"{before}* converted as published, not a bound", fontsize=10)
    finish(axes, "upper right", fontsize=8, ncols=len(columns))


def _growth(
    axes: Axes,
    claim: Claim,
    _: Comparison,
    *,
    order: float,
    answers: Ints,
    bound: Floats,
    exact: Floats,
    dependent: Floats,
) -> str:
    """Draw the divergence after each answer, at one order.

    Columns: the order, > 1; and of shape (n,): answers so far, ascending; lower bounds in nats; exact values and
    charges of data-dependent accounting, NaN if unknown.
    """
    allowed: Floats = np.multiply(answers, claim.curve.renyi(order), dtype=np.float64)
    _plot_positive(axes, answers, allowed, "the claim allows", CLAIM)
    _plot_positive(axes, answers, dependent, "data-dependent accounting", CLAIM, "--")
    _plot_positive(axes, answers, exact, "exact, summed up", INK)
    _plot_positive(axes, answers, bound, "at least, summed up", MEMBER)
    label = f"Rényi divergence of order {order:g}, nats"
    axes.set(xscale="log", yscale="log", xlabel="answers", ylabel=label)
    return f"The leak after each answer, at order {order:g}"


def _queries(axes: Axes, claim: Claim, _: Comparison, *, order: Floats, query: Ints, bound: Floats) -> str:
    """Draw the lower bound of each query at every order as a share of the claim.

    Columns: orders > 1, ascending, shape (m,); numbers of the queries, shape (n,); lower bounds in nats, shape (n, m).
    """
    share = bound / _allowed(claim, order)
    ranked = np.argsort(-share.max(axis=1), kind="stable")
    image = axes.imshow(share[ranked], aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="bound / claim")
    set_ticks(axes.xaxis, range(len(order)), [f"{at:g}" for at in order], fontsize=8)
    if len(ranked) <= MAX_NAMED:
        set_ticks(axes.yaxis, range(len(ranked)), [str(query[at]) for at in ranked], fontsize=7)
    axes.set(xlabel="order", ylabel="query, most telling first")
    axes.grid(visible=False)
    return "Every query at every order: the bound as a share of the claim"


FIGURES: Mapping[str, tuple[Callable[..., str], tuple[float, float], str]] = {
    "fractions": (_fractions, WIDE, "best"),
    "replays": (_replays, WIDE, "best"),
    "trade-off": (_trade_off, SQUARE, "lower right"),
    "posterior": (_posterior, WIDE, "best"),
    "delta": (_profile, WIDE, "best"),
    "trials": (_trials, WIDE, "best"),
    "advantages-additive": (_advantages, WIDE, "lower right"),
    "advantages-multiplicative": (_advantages, WIDE, "lower right"),
    "advantages-tail": (_advantages, WIDE, "lower right"),
    "beliefs": (_beliefs, SQUARE, "upper left"),
    "reliability": (_reliability, SQUARE, "upper left"),
    "answer": (_answer, WIDE, "best"),
    "epsilon": (_totals, WIDE, ""),
    "growth": (_growth, WIDE, "best"),
    "queries": (_queries, WIDE, ""),
}
"""Figure of each series by name: the function that draws it and returns the title, the size, the legend's place."""
