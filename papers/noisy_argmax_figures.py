"""The noisy argmax by itself: Figures 2 and 6 of Chadha et al. (2024), Auditing Private Prediction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.k_cut import bootstrap_bound, k_cut_bound
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_rdp_data_dependent, noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.registry import register
from papers.reproduction import Options, Reproduction

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ANSWERS = 10**8
"""Answers in each world, as in the paper, from one multinomial draw. As many others choose the output set."""
FEWER = 10**6
"""Answers in Figure 6: with more, its audits are indistinguishable."""
ORDERS = np.array([1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32])
CONFIDENCE = 0.95
AGREED, AGREED_SIGMA = np.array([190, 20, 12, 8, 6, 4, 4, 3, 2, 1]), 40.0
"""Our histogram of 250 teachers, since the paper does not print Figure 2's. Neighbours differ by one moved vote."""
TOY, TOY_NEXT, TOY_SIGMA = np.array([14, 12, 10, 8, 6]), np.array([13, 13, 10, 8, 6]), 2.0
TERMWISE = "2-cut, as published"
SIX = {
    "all tied": (np.array([10, 10, 10, 10, 10, 10]), 2.0),
    "falling": (np.array([20, 16, 14, 12, 10, 8]), 8.0),
}
"""Votes for six classes, and the noise scale; one vote moves from the first class to the second."""
VOTES = {**SIX, "as in Figure 2": (AGREED, AGREED_SIGMA), "as in Figure 6": (TOY, TOY_SIGMA)}


@register("reproduction", "private-prediction figure-2", source="Chadha et al. (2024), Figure 2")
def figure_2(options: Options) -> Reproduction:
    """One answer of a noisy argmax against the order: theory, exact divergence, and the 2-cut from below."""
    moved = AGREED.copy()
    moved[0] -= 1
    moved[1] += 1
    curves = _curves(AGREED, moved, AGREED_SIGMA, options, ("2-cut", TERMWISE), ANSWERS)
    return _write_figure(
        options, "figure-2", curves, ANSWERS, f"histogram {_words(AGREED)}, one vote moves, σ = {AGREED_SIGMA:g}"
    )


@register("reproduction", "private-prediction figure-6", source="Chadha et al. (2024), Figure 6 and Table 2")
def figure_6(options: Options) -> Reproduction:
    """All audits of one noisy argmax: 2-cut and k-cut, intervals and bootstrap, against the exact divergence."""
    methods = ("2-cut", TERMWISE, "k-cut", "k-cut, Goodman", "2-cut bootstrap", "k-cut bootstrap")
    curves = _curves(TOY, TOY_NEXT, TOY_SIGMA, options, methods, FEWER)
    return _write_figure(
        options, "figure-6", curves, FEWER, f"{_words(TOY)} against {_words(TOY_NEXT)}, σ = {TOY_SIGMA:g}"
    )


@register("reproduction", "private-prediction cuts", source="Chadha et al. (2024), section 4: what a 2-cut leaves out")
def cuts(options: Options) -> Reproduction:
    """Divergence in both directions from one set of answers and its complement, as published and here."""
    methods = (TERMWISE, "2-cut", "k-cut")
    rows = []
    for name, (votes, sigma) in VOTES.items():
        moved = votes.copy()
        moved[:2] += (-1, 1)
        for answers, (direction, (first, second)) in itertools.product(
            (10**4, 10**6, ANSWERS), {"from the votes": (votes, moved), "to the votes": (moved, votes)}.items()
        ):
            curves = _curves(first, second, sigma, options, methods, answers)
            for order in (2, 8, 32):
                at = int(np.flatnonzero(order == ORDERS)[0])
                divergences = {what: float(curves[what][at]) for what in ("exact", *methods)}
                rows.append({"votes": name, "direction": direction, "answers": answers, "order": order, **divergences})
    lines = [
        f"{'votes':<16}{'':<16}{'answers':>12}{'order':>7}{'exact':>10}{'published':>11}{'2-cut':>10}{'k-cut':>10}"
    ]
    lines += [
        f"{row['votes']:<16}{row['direction']:<16}{row['answers']:>12,}{row['order']:>7}{row['exact']:>10.5f}"
        f"{row[TERMWISE]:>11.5f}"
        f"{row['2-cut']:>10.5f}{row['k-cut']:>10.5f}"
        for row in rows
    ]
    most = [row for row in rows if row["answers"] == ANSWERS and row["direction"] == "from the votes"]
    return options.publish("cuts", lines, rows, figure=_draw_cuts(most, methods))


def _draw_cuts(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> Figure:
    """Draw the bounds as a share of the exact divergence, a panel for each histogram."""
    figure, panels = style.canvases(len(SIX), width=8.6, height=3.6)
    for (name, (_, sigma)), axes in zip(SIX.items(), panels, strict=True):
        panel_rows = [row for row in rows if row["votes"] == name]
        for place, method in enumerate(methods):
            at = np.arange(len(panel_rows)) + (place - 1) * 0.26
            shares = [row[method] / row["exact"] for row in panel_rows]
            bars = axes.bar(at, shares, 0.26, color=palette.COLOURS[place], label=method)
            axes.bar_label(bars, [f"{share:.2f}" for share in shares], fontsize=7.5, padding=1)
        axes.axhline(1, color=palette.INK, linewidth=1)
        axes.set_xticks(np.arange(len(panel_rows)), [f"order {row['order']}" for row in panel_rows])
        axes.set_title(f"votes {name}, σ = {sigma:g}", fontsize=10)
        axes.set_ylim(0, 1.12)
    panels[0].set_ylabel("lower bound over exact divergence")
    style.legend_below(figure, columns=len(methods))
    return figure


def _words(histogram: Ints) -> str:
    return f"[{', '.join(map(str, histogram.tolist()))}]"


def _curves(
    first: Ints, second: Ints, sigma: float, options: Options, methods: tuple[str, ...], answers: int
) -> dict[str, Floats]:
    """Return D(first || second) at every order, by theory, exactly, and by each method."""
    laws = [noisy_argmax_probabilities(histogram, sigma) for histogram in (first, second)]
    laws = [law / law.sum() for law in laws]
    curves = {
        "data-independent": ORDERS / sigma**2,
        "data-dependent": np.asarray(gnmax_rdp_data_dependent(first, sigma, ORDERS)),
        "exact": np.asarray(renyi_divergence(laws[0], laws[1], ORDERS)),
    }
    rng = np.random.default_rng(options.seed)
    searched, counts = ([rng.multinomial(answers, law) for law in laws] for _ in range(2))
    chosen = searched[0] > searched[1]
    inside = [np.array([row[chosen].sum(), row[~chosen].sum()]) for row in counts]
    for method in methods:
        curves[method] = np.asarray(_BOUNDS[method](inside if method.startswith("2") else counts, rng))
    return curves


def _two_cut(counts: list[Ints], rng: np.random.Generator) -> object:
    (k1, _), (k2, _) = counts
    return two_cut_bound(k1, counts[0].sum(), k2, counts[1].sum(), ORDERS, confidence=CONFIDENCE)


def _termwise(counts: list[Ints], rng: np.random.Generator) -> object:
    (k1, _), (k2, _) = counts
    totals = counts[0].sum(), counts[1].sum()
    return two_cut_bound(k1, totals[0], k2, totals[1], ORDERS, confidence=CONFIDENCE, method="termwise")


def _k_cut(counts: list[Ints], rng: np.random.Generator) -> object:
    return k_cut_bound(counts[0], counts[1], ORDERS, confidence=CONFIDENCE)


def _goodman(counts: list[Ints], rng: np.random.Generator) -> object:
    return k_cut_bound(counts[0], counts[1], ORDERS, confidence=CONFIDENCE, method="goodman")


def _bootstrap(counts: list[Ints], rng: np.random.Generator) -> object:
    return bootstrap_bound(counts[0], counts[1], ORDERS, confidence=CONFIDENCE, rng=rng)


_BOUNDS: dict[str, Callable[[list[Ints], np.random.Generator], object]] = {
    "2-cut": _two_cut,
    TERMWISE: _termwise,
    "k-cut": _k_cut,
    "k-cut, Goodman": _goodman,
    "2-cut bootstrap": _bootstrap,
    "k-cut bootstrap": _bootstrap,
}
_LINES = {
    "data-independent": ("-", palette.CLAIM),
    "data-dependent": ("--", palette.CLAIM),
    "exact": ("-", palette.INK),
    "2-cut": ("o-", palette.MEMBER),
    TERMWISE: ("o:", palette.MEMBER),
    "k-cut": ("s-", palette.OTHER),
    "k-cut, Goodman": ("s:", palette.OTHER),
    "2-cut bootstrap": ("^-.", "#b7791f"),
    "k-cut bootstrap": ("v-.", "#6b46c1"),
}


def _write_figure(options: Options, name: str, curves: dict[str, Floats], answers: int, title: str) -> Reproduction:
    at = int(np.flatnonzero(ORDERS == 2)[0])
    lines = [f"{title}: D at order 2 and {ORDERS[-1]:g}, {answers:.0e} answers in each world"]
    lines += [f"  {label:<22} {curve[at]:.6f} {curve[-1]:>10.6f}" for label, curve in curves.items()]
    lines.append(
        "  A bootstrap is not a bound (appendix B, Table 2); the 2-cut and the k-cut hold for any number of answers."
    )
    return options.publish(name, lines, {"order": ORDERS, **curves}, figure=_draw(curves, title))


def _draw(curves: dict[str, Floats], title: str) -> Figure:
    """Draw the curves, and the lower bounds as a share of the exact curve."""
    figure, ((axes, shares),) = style.grid(1, 2, width=10.5, height=4.2)
    for label, curve in curves.items():
        line, colour = _LINES[label]
        line_style: dict[str, Any] = {"color": colour, "label": label, "markersize": 3.2, "linewidth": 1.4}
        axes.plot(ORDERS, curve, line, **line_style)
        if label in _BOUNDS:
            shares.plot(ORDERS, curve / curves["exact"], line, **line_style)
    shares.axhline(1, color=palette.INK, linewidth=1.4)
    for panel in (axes, shares):
        panel.set_xscale("log")
        panel.set_xticks(ORDERS, [f"{order:g}" for order in ORDERS])
        panel.minorticks_off()
        panel.set_xlabel("order")
    axes.set_yscale("log")
    axes.set_ylabel("Rényi divergence of one answer, nats")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8, ncols=2)
    shares.set_ylabel("lower bound, as a share of the exact divergence")
    shares.legend(fontsize=8)
    return figure
