"""The charts of findings: each is made of the columns of one series, beside the claim.

A series is named columns (`Finding.series`). The function of its name takes them as arguments, and says what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from dpaudit.claims import Claim
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.chart import (
    CLAIM,
    INK,
    LARGEST_CLAIM,
    MEMBER,
    OTHER,
    QUIET,
    Axis,
    Band,
    Bars,
    Chart,
    Heat,
    Line,
    Mark,
    Panel,
    Rule,
    can_be_drawn,
)
from dpaudit.estimators.finding import Comparison, Series
from dpaudit.estimators.private_prediction.conversion import rdp_to_epsilon
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf, epsilon_posterior_pdf

BOUND = Axis("lower bound on ε, nats", low=0)
_LARGEST = 1e100  # a number that no axis reaches: none is drawn from here on
MAX_NAMED = 25  # queries whose numbers are written
CONFIDENCE = 0.95  # of the intervals of a reliability diagram


def charts(series: Mapping[str, Series], claim: Claim, comparison: Comparison) -> list[Chart]:
    """What there is to see beside a claim under the game's relation, in the order of the series (columns by name)."""
    made = (_MADE_BY[name](claim, comparison, **columns) for name, columns in series.items())
    return [chart for chart in made if chart is not None]


def _one(stem: str, title: str, x: Axis, y: Axis, marks: Sequence[Mark], square: bool = False, **panel: Any) -> Chart:
    width, height = (4.2, 4.0) if square else (5.0, 3.2)
    return Chart(stem, title, [[Panel(marks, x, y, **panel)]], width, height)


def _claimed(claim: Claim, *, upright: bool = False) -> list[Mark]:
    """A rule at the epsilon that is claimed; none where nothing is."""
    if not can_be_drawn(claim.epsilon):
        return []
    return [Rule(claim.epsilon, f"claimed ε = {claim.epsilon:g}", CLAIM, upright=upright)]


def _allowed(claim: Claim, orders: Floats) -> Floats:
    """The Renyi divergence that is claimed at each order."""
    return np.array([claim.curve.renyi(float(order)) for order in orders])


def _above_zero(x: Floats | Ints, y: Floats, label: str, colour: str, dash: str = "-", marker: str = "") -> list[Mark]:
    """What a logarithmic axis can show of a line; nothing where nothing is known."""
    shown = (y < _LARGEST) & (y > 0)
    return [Line(x[shown], y[shown], label, colour, dash, marker)] if shown.any() else []


def fractions(
    claim: Claim, comparison: Comparison, *, fraction: Floats, epsilon: Floats, low: Floats, high: Floats
) -> Chart:
    """One training run: the bound of each guess fraction on its own, not corrected for having looked at all.

    Columns of shape (n,): shares of the canaries that are guessed; median, 10 % and 90 % quantiles of the replays'
    bounds.
    """
    percent = 100 * fraction
    marks: list[Mark] = [
        Band(percent, low, high, "10-90 % of replays"),
        Line(percent, epsilon, "each fraction on its own (median)", OTHER),
    ]
    if comparison.quantity == "epsilon":  # else the claim broke as a curve, not at the bound
        marks.append(Rule(comparison.observed, "reported bound, corrected for selection", MEMBER, "--"))
    x = Axis("canaries guessed, %", log=True, ticks=(1, 2, 5, 10, 20, 50, 100))
    return _one("fractions", "Bound against the share of canaries guessed", x, BOUND, marks + _claimed(claim))


def replays(
    claim: Claim, _: Comparison, *, replay: Ints, epsilon: Floats, alone: Floats, combined: Floats
) -> Chart | None:
    """What each replay of a game shows, and all of them together.

    Columns: numbers of the replays that were played, shape (played,); each replay's bound as it enters the combination,
    lost ones last with 0, shape (replays,); what each would report if it were the only one, shape (played,); the
    combined bound of the replays so far, shape (replays,). Nothing is drawn if all bounds are 0.
    """
    if epsilon.size < 2 or not epsilon.any():
        return None
    number = np.arange(1, epsilon.size + 1)
    marks = [
        Line(number, epsilon, "bound of one replay", OTHER, "", "o", alpha=0.6),
        Line(number, combined, "combined so far", MEMBER),
    ]
    return _one("replays", "Bound against replays", Axis("replays"), BOUND, marks + _claimed(claim))


def trade_off(
    claim: Claim,
    _: Comparison,
    *,
    threshold: Floats,
    true_positive_rate: Floats,
    false_positive_rate: Floats,
    epsilon: Floats,
    members: int,
    non_members: int,
) -> Chart:
    """An attack's errors at the candidate thresholds.

    Columns of shape (candidates,): member at or above this score; both rates; each one's bound at the error it has. And
    the trials of worlds 1 and 0.
    """
    # The axes end where half a trial would be.
    ends = 0.5 / max(non_members, 1), 0.5 / max(members, 1)
    order = np.lexsort((true_positive_rate, false_positive_rate))
    alarm = np.maximum(np.append(false_positive_rate[order], 1.0), ends[0])
    hit = np.maximum(np.append(true_positive_rate[order], 1.0), ends[1])
    marks = [
        Line(alarm, hit, "this attack", MEMBER, step=True),
        Line([ends[0], 1.0], [ends[0], 1.0], "guessing", QUIET, ":", width=1),
    ]
    rates = np.geomspace(ends[0], 1.0, 100)  # a composed claim searches for each
    allowed = np.array([1 - claim.curve.miss_rate(float(rate)) for rate in rates])
    if np.any(allowed[:-1] < 1):  # a claim of nothing allows every attack
        marks.append(Line(rates, allowed, "the most the claim allows", CLAIM, width=1.6))
    x, y = Axis("false-alarm rate", log=True, low=ends[0], high=1), Axis("hit rate", log=True, low=ends[1], high=1.05)
    title = "What the attack tells apart, beside what the claim allows"
    return _one("trade-off", title, x, y, marks, square=True, legend="lower right")


def posterior(
    claim: Claim, _: Comparison, *, tp: int, fp: int, tn: int, fn: int, delta: float, confidence: float
) -> Chart:
    """Posterior density of the epsilon that an attack with these counts shows.

    Columns: members and non-members called members (tp, fp), non-members and members called non-members (tn, fn), at
    the reported threshold; where epsilon is stated; the confidence of an interval that is made of them.
    """
    counts = (tp, fp, tn, fn)
    reach = np.geomspace(1e-3, 30.0, 400)
    mass = np.asarray(epsilon_posterior_cdf(reach, *counts, delta=delta))
    end = float(reach[min(int(np.searchsorted(mass, 0.999)), reach.size - 1)])
    epsilon = np.linspace(0.0, max(end, 1.1 * claim.epsilon if can_be_drawn(claim.epsilon) else 0.0), 400)
    density = np.asarray(epsilon_posterior_pdf(epsilon, *counts, delta=delta))
    marks = [
        Band(epsilon, np.zeros_like(density), density),
        Line(epsilon, density, "posterior of this attack's ε", OTHER),
        *_claimed(claim, upright=True),
    ]
    title = "Posterior of ε at the reported threshold"
    return _one("posterior", title, Axis("ε in nats", low=0), Axis("density", low=0), marks)


def profile(claim: Claim, _: Comparison, *, delta: Floats, epsilon: Floats) -> Chart:
    """Epsilon against delta, at every delta at once; ascending, shape (n,)."""
    marks = [Line(delta, epsilon, "lower bound, all δ at once", MEMBER)]
    if not claim.is_point:
        promised = np.array([claim.curve.epsilon(float(at)) for at in delta])
        marks.append(Line(delta, np.where(promised <= LARGEST_CLAIM, promised, np.inf), "the claim's curve", CLAIM))
    if can_be_drawn(claim.epsilon) and claim.delta > 0:
        point = f"claim: ε = {claim.epsilon:g}"
        marks.append(Line([claim.delta], [claim.epsilon], point, CLAIM, "", "o", size=4.5))
    return _one("delta", "Trade-off between ε and δ", Axis("δ", log=True), Axis("ε, nats", low=0), marks)


def trials(claim: Claim, _: Comparison, *, trials: Ints, epsilon: Floats) -> Chart:
    """An anytime-valid bound while trials came in: how many had been seen, and the bound then, shape (n,)."""
    marks = [Line(trials, epsilon, "bound so far", MEMBER, step=True), *_claimed(claim)]
    return _one("trials", "Bound while trials came in", Axis("trials"), BOUND, marks)


def renyi(claim: Claim, _: Comparison, *, order: Floats, forward: Floats, backward: Floats) -> Chart:
    """Lower bounds on D(world 1 || world 0) and D(world 0 || world 1) in nats at every order > 1, shape (n,)."""
    marks = [
        Line(order, forward, "D(world 1 ‖ world 0) at least", MEMBER, marker="o"),
        Line(order, backward, "D(world 0 ‖ world 1) at least", OTHER, marker="s"),
    ]
    promised = _allowed(claim, order)
    implied = promised <= LARGEST_CLAIM
    if implied.any():
        marks.append(Line(order[implied], promised[implied], "the claim allows", CLAIM, width=1.6))
    title = "Rényi divergence at every order, from below"
    return _one("renyi", title, Axis("order", log=True, ticks=order), Axis("Rényi divergence, nats", low=0), marks)


def advantages(
    _: Claim,
    comparison: Comparison,
    *,
    share: Floats,
    advantage: Floats,
    kind: str,
    quantity: str,
    reported: str,
    mean: float,
    largest: float,
) -> Chart:
    """How the examples' advantages are spread.

    Columns: shares of the examples, ascending in [0, 1], and what that share stays within, which may end in inf, of
    shape (n,); the kind of the advantage; what it is, with its unit; what of it is compared with a claim; mean and
    largest over the examples.
    """
    marks: list[Mark] = [spread(share, advantage, "examples", MEMBER, 100)]
    compared = reported == comparison.quantity
    words = ((comparison.observed, OTHER, "--", "observed"), (comparison.claimed, CLAIM, "-", "the claim allows"))
    marks += [
        Rule(value, f"{comparison.quantity}, {word}", colour, dash, upright=True)
        for value, colour, dash, word in words
        if compared and can_be_drawn(value)
    ]
    finite = np.isfinite(advantage)
    within = share[finite][-1] if finite.any() else 0.0
    beyond = "" if finite.all() else f"; infinite for {1 - within:.3%} of the examples"
    x, y = Axis(quantity + beyond, low=0), Axis("share of examples within, %", low=0, high=102)
    stem = "advantages" if compared else f"advantages-{kind}"
    return _one(stem, f"How much better labels are guessed: {quantity}", x, y, marks, legend="lower right")


def spread(share: Floats, advantage: Floats, label: str, colour: str, whole: float = 1.0) -> Line:
    """The share of examples that stays within each finite advantage, of a whole of 1 or 100; both of shape (n,)."""
    finite = np.isfinite(advantage)
    return Line(np.append(0, advantage[finite]), whole * np.append(0, share[finite]), label, colour, step=True)


def beliefs(claim: Claim, _: Comparison, *, prior: Floats, posterior: Floats) -> Chart:
    """P[label = 1] of single examples before a release and after it, in [0, 1], shape (n,)."""
    epsilon = claim.curve.epsilon(0.0)
    allowed = spindle(epsilon, CLAIM, f"the claim allows, ε = {epsilon:g}") if math.isfinite(epsilon) else []
    panel = beliefs_panel([*scatter(prior, posterior, "examples", OTHER), *allowed])
    title = "What the attacker believes of each label, before and after"
    return Chart("beliefs", title, [[panel]], 4.2, 4.0)


def beliefs_panel(marks: Sequence[Mark], **panel: Any) -> Panel:
    """Beliefs before and after, both from 0 to 1."""
    x, y = (Axis(f"{when} P[label = 1]", low=-0.015, high=1.015) for when in ("prior", "posterior"))
    return Panel(marks, x, y, **({"legend": "upper left"} | panel))


def scatter(prior: Floats, posterior: Floats, label: str, colour: str) -> list[Mark]:
    """The scatter of Figure 1 of Busa-Fekete et al. (2024): on the diagonal nothing was learned."""
    diagonal = Line([0, 1], [0, 1], colour=INK, dash=":", width=0.8)
    return [diagonal, Line(prior, posterior, label, colour, "", ".", size=2.2, alpha=0.35)]


def spindle(epsilon: float, colour: str, label: str = "") -> list[Mark]:
    """Where the log-odds have moved by exactly epsilon, up or down."""
    prior = np.linspace(1e-4, 1 - 1e-4, 400)
    moved = (expit(logit(prior) + step) for step in (epsilon, -epsilon))
    return [Line(prior, after, name, colour, width=1.2) for after, name in zip(moved, (label, ""), strict=True)]


def reliability(_: Claim, __: Comparison, *, believed: Floats, observed: Floats, examples: Ints) -> Chart:
    """Whether probabilities mean what they say: examples in groups of equal size, by what was believed of them.

    Columns of shape (groups,): mean probability, ascending; share of the examples whose label is 1; how many they are.
    """
    positives = np.rint(observed * examples).astype(np.int64)
    ends = clopper_pearson(positives, examples, confidence=CONFIDENCE)
    away = np.abs(np.stack([np.asarray(ends.lower), np.asarray(ends.upper)]) - observed)
    top = 1.05 * float(max(believed.max(), np.max(ends.upper)))
    label = f"groups of {int(examples.min()):,} examples, {CONFIDENCE:.0%} intervals"
    marks = [
        Line([0, top], [0, top], "calibrated", INK, ":", width=0.8),
        Line(believed, observed, label, OTHER, "", "o", size=4, error=away),
    ]
    x, y = (Axis(words, low=0, high=top) for words in ("mean prior P[label = 1]", "share with label 1"))
    return _one("reliability", "Whether the priors mean what they say", x, y, marks, square=True, legend="upper left")


def answer(
    claim: Claim,
    _: Comparison,
    *,
    query: int,
    order: Floats,
    two_cut: Floats,
    k_cut: Floats,
    exact: Floats,
    dependent: Floats,
) -> Chart:
    """What one answer tells at every order, the larger direction of each; NaN where a quantity is not known.

    Columns: which query it is about; and of shape (m,): orders > 1, ascending; lower bounds in nats; lower bounds that
    look at every answer by itself; the divergence of the two laws of answers; what data-dependent accounting charges.
    """
    marks = [
        *_above_zero(order, _allowed(claim, order), "the claim allows", CLAIM),
        *_above_zero(order, dependent, "data-dependent accounting", CLAIM, "--"),
        *_above_zero(order, exact, "exact", INK),
        *_above_zero(order, k_cut, "k-cut, by itself, at least", OTHER, marker="s"),
        *_above_zero(order, two_cut, "at least", MEMBER, marker="o"),
    ]
    x = Axis("order", log=True, ticks=[at for at in order if at in (1.5, 2, 4, 8, 16, 32, 64)])
    y = Axis("Rényi divergence of an answer, nats", log=True)
    return _one("answer", f"One answer to query {query}, at every order", x, y, marks)


def totals(
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
) -> Chart:
    """Many answers as an epsilon, as published: converted divergences, of which only those from above are bounds.

    Columns: as of `total_epsilons`, and the name of each total: "worst query", "average query", "all queries".
    """
    columns = total_epsilons(claim, order, answers, delta, bound, exact, dependent)
    known = {name: epsilon for name, epsilon in columns.items() if not np.isnan(epsilon).all()}
    title = "Totals as epsilon, as published (what is observed is not a bound there)"
    panel = bars_side_by_side(known, names, delta, "{:.2f}", f"{answers:,} answers; ")
    return Chart("epsilon", title, [[panel]])


COLUMNS = {"claim": CLAIM, "data-dependent": OTHER, "exact": INK, "observed*": MEMBER}


def total_epsilons(
    claim: Claim, order: Floats, answers: int, delta: float, bound: Floats, exact: Floats, dependent: Floats
) -> dict[str, Floats]:
    """What many answers tell in all, converted to epsilon at `delta`; each of shape (rows,), NaN where it is not known.

    The claim is of one answer; `bound` (from below), `exact` and `dependent` (what data-dependent accounting charges)
    are totals in nats at the orders, shape (rows, m), NaN where they are not known.
    """
    claimed = np.broadcast_to(answers * _allowed(claim, order), bound.shape)
    curves = dict(zip(COLUMNS, (claimed, dependent, exact, bound), strict=True))
    return {
        name: np.array([rdp_to_epsilon(order, row, delta=delta) if (row < _LARGEST).all() else np.nan for row in rows])
        for name, rows in curves.items()
    }


def bars_side_by_side(
    columns: Mapping[str, Floats], names: Sequence[str], delta: float, digits: str, said: str = ""
) -> Panel:
    """Epsilon at delta: a group of bars a name, a bar a column, each with its number; columns of shape (names,)."""
    width, marks = 0.8 / len(columns), []
    for place, (name, values) in enumerate(columns.items()):
        at = np.arange(len(names)) + (place - (len(columns) - 1) / 2) * width
        texts = ["" if np.isnan(value) else digits.format(value) for value in values]
        marks.append(Bars(at, values, name, COLUMNS[name], thickness=width, values=texts))
    top = max((float(np.nanmax(values)) for values in columns.values() if not np.isnan(values).all()), default=1.0)
    x = Axis(ticks=np.arange(len(names)), words=names, low=-0.6, high=len(names) - 0.4)
    y = Axis(f"ε at δ = {delta:g}", low=0, high=1.35 * top or 1.0)
    title = f"{said}* converted as published, not a bound"
    return Panel(marks, x, y, title, legend="upper right", legend_size=8, legend_columns=len(columns))


def growth(
    claim: Claim, _: Comparison, *, order: float, answers: Ints, bound: Floats, exact: Floats, dependent: Floats
) -> Chart:
    """What was told after each answer, at one order.

    Columns: the order, > 1; and of shape (n,): answers so far, ascending; lower bounds in nats; what is exact, and what
    data-dependent accounting charges, NaN where it is not known.
    """
    marks = [
        *_above_zero(
            answers, np.multiply(answers, claim.curve.renyi(order), dtype=np.float64), "the claim allows", CLAIM
        ),
        *_above_zero(answers, dependent, "data-dependent accounting", CLAIM, "--"),
        *_above_zero(answers, exact, "exact, summed up", INK),
        *_above_zero(answers, bound, "at least, summed up", MEMBER),
    ]
    y = Axis(f"Rényi divergence of order {order:g}, nats", log=True)
    return _one("growth", f"The leak after each answer, at order {order:g}", Axis("answers", log=True), y, marks)


def queries(claim: Claim, _: Comparison, *, order: Floats, query: Ints, bound: Floats, exact: Floats) -> Chart:
    """What an answer to each query tells, at every order, as found from below.

    Columns: orders > 1, ascending, shape (m,); numbers of the queries, shape (n,); lower bounds in nats, shape (n, m);
    what is exact, NaN where it is not known, shape (n, m).
    """
    share = bound / _allowed(claim, order)
    ranked = np.argsort(-share.max(axis=1), kind="stable")
    x = Axis("order", ticks=range(len(order)), words=[f"{at:g}" for at in order], size=8, grid=False)
    few = len(ranked) <= MAX_NAMED
    numbers: dict[str, Any] = {"ticks": range(len(ranked)), "words": [str(query[at]) for at in ranked]} if few else {}
    y = Axis("query, most telling first", size=7, grid=False, **numbers)
    title = "Every query at every order: the bound as a share of the claim"
    return _one("queries", title, x, y, [Heat(share[ranked], "bound / claim")])


_MADE_BY: Mapping[str, Callable[..., Chart | None]] = {
    "fractions": fractions,
    "replays": replays,
    "trade-off": trade_off,
    "posterior": posterior,
    "delta": profile,
    "trials": trials,
    "renyi": renyi,
    "advantages-additive": advantages,
    "advantages-multiplicative": advantages,
    "advantages-tail": advantages,
    "beliefs": beliefs,
    "reliability": reliability,
    "answer": answer,
    "epsilon": totals,
    "growth": growth,
    "queries": queries,
}
