"""The page of the audit of a synthetic table, one self-contained HTML file, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from dpaudit.engine.figures.drawing import (
    SQUARE,
    WIDE,
    Picture,
    annotate_right,
    canvas,
    fill,
    finish,
    legend_below,
    set_ticks,
    svg_element,
)
from dpaudit.engine.figures.palette import CLAIM, COLOURS, INK, MEMBER, OTHER, QUIET, can_be_drawn
from dpaudit.engine.report.page import figure_markup, write_answer_page
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.measures import roc
from dpaudit.estimators.scores import Scores
from dpaudit.synthetic_tables.front_door.result import GuessedPairs, SyntheticAudit

CHANCE = 0.999
"""Share of attackers whose number of right guesses stays below the dotted line, at one number of guesses."""
LOWEST_RATE = 1e-4
"""Smallest rate on the axes of a ROC curve."""
NUMBER = 0.16
"""Share of the largest bound that a number's text takes at the end of a bar."""


def figures(audit: SyntheticAudit) -> Iterator[Picture]:
    """Yield the figures of an audit: guesses, bounds, ROC curves of the attacks, distances."""
    yield guesses(audit)
    yield bounds(audit)
    yield roc_curves(audit)
    nearest = next((attack for attack in audit.attacks if attack.name == NEAREST), None)
    if nearest is not None:
        yield closeness(nearest.score, audit.trained)


NEAREST = "nearest-neighbour"
"""Name of the attack whose score is drawn for the rows of both files."""


def guesses(audit: SyntheticAudit) -> Picture:
    """Draw the share of right guesses of the deciding test, the most confident guesses first."""
    figure, axes = canvas(*WIDE)
    test = deciding(audit)
    right = right_in_order(test.scores)
    number = np.arange(1, right.size + 1)
    share = np.cumsum(right) / number
    axes.plot(number, 100 * share, color=MEMBER, label="right, of so many guesses")
    claim = audit.tests[0].compared.claim
    limit = 0.5
    if can_be_drawn(claim.epsilon):
        limit = float(expit(claim.epsilon))
        axes.axhline(100 * limit, color=CLAIM, linewidth=1.6, label="most that the claim allows on average")
    chance = stats.binom.ppf(CHANCE, number, limit) / number
    words = "the claim" if limit > 0.5 else "blind guessing"
    axes.plot(number, 100 * chance, ":", color=INK, linewidth=1, label=f"{100 * CHANCE:g} % quantile of {words}")
    axes.axhline(50, color=QUIET, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="guesses, the most confident first", ylabel="right guesses, %", ylim=(None, 103))
    finish(axes, "")
    legend_below(figure)
    return Picture("guesses", f"Right guesses ({test.name})", figure)


def bounds(audit: SyntheticAudit) -> Picture:
    """Draw the bounds of all tests and of each attack alone."""
    tests = [(test.name, test.bound.lower, INK) for test in audit.guessed]
    alone = [(f"{attack.name}, alone", attack.bound.lower, QUIET) for attack in audit.attacks]
    bars = [*tests, *alone]
    figure, axes = canvas(WIDE[0], 0.9 + 0.42 * len(bars))
    claim = audit.tests[0].compared.claim
    marks = [claim.epsilon] if can_be_drawn(claim.epsilon) else []
    reach = max([*(lower for _, lower, _ in bars), *marks]) or 1.0
    for row, (name, lower, colour) in enumerate(reversed(bars)):
        axes.barh([row], [lower], 0.32, color=colour)
        at = lower
        if marks and lower <= marks[0] < lower + NUMBER * reach:
            at = marks[0]
        annotate_right(axes, at, row, format_lower(lower), size=8.5)
        annotate_right(axes, 0, row + 0.36, name, size=8)
    for mark in marks:
        axes.axvline(mark, color=CLAIM, linewidth=1.6)
    words = "lower bound on ε, nats" + ("; green line: claim about one replaced record" if marks else "")
    axes.set(xlabel=words, xlim=(0, 1.2 * reach), yticks=(), ylim=(-0.4, len(bars) - 0.3))
    axes.grid(visible=False, axis="y")
    finish(axes, "")
    return Picture("bounds", "Bounds of the tests, and of each attack alone", figure)


def roc_curves(audit: SyntheticAudit) -> Picture:
    """Draw the ROC curve of each attack's own score over the rows of both files."""
    figure, axes = canvas(SQUARE[0], SQUARE[1] + 0.4)
    rows = audit.trained.size
    low = max(LOWEST_RATE, 1 / rows)
    for place, attack in enumerate(audit.attacks):
        curve = roc(Scores(attack.score, audit.trained))
        alarm, hit = (np.maximum(curve[name], low) for name in ("false_positive_rate", "true_positive_rate"))
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(alarm, hit, color=colour, label=attack.name, drawstyle="steps-post", linewidth=1.3)
    axes.plot([low, 1], [low, 1], ":", color=QUIET, linewidth=1, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.05))
    axes.set(xlabel="holdout rows taken for training rows", ylabel="training rows recognised")
    ticks = [rate for rate in (1e-4, 1e-3, 1e-2, 0.1, 1.0) if rate >= low]
    for side in (axes.xaxis, axes.yaxis):
        set_ticks(side, ticks, [f"{100 * rate:g} %" for rate in ticks])
    finish(axes, "")
    legend_below(figure)
    return Picture("roc", "ROC curves of the attacks", figure)


def closeness(score: NDArray[np.float64], trained: NDArray[np.bool_]) -> Picture:
    """Draw how close training and holdout rows are to the synthetic table, by the nearest-neighbour attack's score."""
    figure, axes = canvas(*WIDE)
    low, high = np.quantile(score, (0.001, 0.999))
    edges = np.linspace(low, high if high > low else low + 1, 41)
    for name, rows, colour in (("training rows", trained, MEMBER), ("holdout rows", ~trained, OTHER)):
        counts = np.histogram(np.clip(score[rows], edges[0], edges[-1]), edges)[0]
        share = 100 * np.append(counts, 0) / max(int(rows.sum()), 1)
        fill(axes, edges, np.zeros_like(share), share, color=colour, alpha=0.3, step="post")
        axes.plot(edges, share, color=colour, label=name, drawstyle="steps-post", linewidth=1)
    axes.set(xlabel="closeness to the synthetic table (outermost 0.1 % at the edge)", ylabel="rows, %", ylim=(0, None))
    finish(axes, "above", ncols=2)
    return Picture("closeness", "Closeness of the rows to the synthetic table", figure)


def deciding(audit: SyntheticAudit) -> GuessedPairs:
    """Return the guesses of the test that the verdict rests on; those of all pairs if none was decided."""
    name = "" if audit.answer.test is None else audit.answer.test.name
    return next((test for test in audit.guessed if test.name == name), audit.guessed[0])


def right_in_order(scores: Scores) -> NDArray[np.bool_]:
    """Return True for each right guess of the learned order, the first guess first."""
    order = np.argsort(-np.abs(scores.score), kind="stable")[: np.count_nonzero(scores.score)]
    right: NDArray[np.bool_] = ((scores.score > 0) == scores.truth)[order]
    return right


def write_page(path: str | Path, audit: SyntheticAudit) -> None:
    """Write the page of an audit.

    Raises: DataError if the file cannot be written.
    """
    pictures = [(picture.title, figure_markup(svg_element(picture.figure))) for picture in figures(audit)]
    measures = {measure.name: measure for measure in audit.measures}
    rates = {
        attack.name: [measures.pop(f"{measure} of {attack.name}", None) for measure in ("AUC", "TPR at 1 % FPR")]
        for attack in audit.attacks
    }
    parts = {"audit": audit, "figures": pictures, "rates": rates, "measures": measures.values()}
    write_answer_page(path, "synthetic.html.j2", "dpaudit.synthetic_tables.front_door", title=audit.name, **parts)
