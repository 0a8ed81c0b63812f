"""Two questions of ML-Audit's appendix, Lu et al. (2022): does Katz-log hold, and how many records should change?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.neighbours.game import COPIES, Neighbours
from dpaudit.engine.games.neighbours.poisonings.rows import CornerFlip
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.two_world.ratio import METHODS, ratio_epsilon
from dpaudit.registry import register
from papers.ml_audit_panels import ATTACK, TRAININGS, WHOLE, bayes
from papers.reproduction import Options, Reproduction

RUNS = (100, 500, 10_000)
"""Trainings of each world; the paper has 500 for DP-SGD, and 10,000 for other learners."""
RATES = tuple((p0, ratio) for p0 in (0.001, 0.01, 0.1, 0.4) for ratio in (1.0, 1.5, 2.0, 8.0) if p0 * ratio < 1)
"""Probability p0 of the output set in world 0, and the ratio of world 1's probability to p0."""
CONFIDENCE = 0.95
FAR = 8.0
"""Range of the sum in standard deviations, plus a few counts; more distant counts are omitted."""
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)


@register("reproduction", "ml-audit coverage", source="Lu et al. (2022), appendix: coverage of the Katz-log interval")
def coverage(options: Options) -> Reproduction:
    """Exact probability that a bound on the ratio of two rates is too high, summed over all counts."""
    rows = [
        {"runs": runs, "p0": p0, "ratio": ratio} | {method: too_high(runs, p0, ratio, method) for method in METHODS}
        for runs in RUNS
        for p0, ratio in RATES
    ]
    lines = [f"Bounds above the truth, %, of {100 * (1 - CONFIDENCE):g} stated:"]
    lines += [f"{'runs a world':>13}{'p0':>8}{'p1/p0':>8}" + "".join(f"{method:>18}" for method in METHODS)]
    lines += [
        f"{row['runs']:>13,}{row['p0']:>8g}{row['ratio']:>8g}"
        + "".join(f"{100 * row[method]:>18.2f}" for method in METHODS)
        for row in rows
    ]
    return options.publish("coverage", lines, rows, figure=_draw_coverage(rows))


def _draw_coverage(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw how often a bound is too high, a panel for each number of trainings and a point for each pair of rates."""
    figure, panels = style.canvases(len(RUNS), width=3.2 * len(RUNS) + 0.8, height=3.6)
    for runs, axes in zip(RUNS, panels, strict=True):
        panel_rows = [row for row in rows if row["runs"] == runs]
        for method, marker, colour in zip(METHODS, "os", palette.COLOURS, strict=False):
            for p0 in dict.fromkeys(row["p0"] for row in panel_rows):
                line = [row for row in panel_rows if row["p0"] == p0]
                label = f"{method}, p0 = 0.001 (pale) to 0.4" if p0 == RATES[0][0] else None
                shade = 0.3 + 0.7 * [p for p, _ in dict.fromkeys((p, 0) for p, _ in RATES)].index(p0) / 3
                ratios, errors = [row["ratio"] for row in line], [100 * row[method] for row in line]
                axes.plot(ratios, errors, f"{marker}-", color=colour, alpha=shade, markersize=4, label=label)
        axes.axhline(100 * (1 - CONFIDENCE), color=palette.INK, linewidth=1, linestyle="--")
        axes.set_xscale("log", base=2)
        style.set_ticks(axes.xaxis, [1, 1.5, 2, 8])
        axes.set_xlabel("p1 / p0")
        axes.set_title(f"{runs:,} trainings a world", fontsize=10)
    panels[0].set_ylabel("bound too high, % (dashed: stated)")
    style.legend_below(figure)
    return figure


def too_high(runs: int, p0: float, ratio: float, method: str) -> float:
    """Return the probability that the bound exceeds ln(p1 / p0), where p1 = ratio p0 is world 1's hit rate."""
    first, second = _likely(runs, ratio * p0), _likely(runs, p0)
    hits1, hits0 = (np.arange(low, high + 1) for low, high in (first, second))
    bounds = np.asarray(
        ratio_epsilon(hits1[:, None], hits0, runs, runs, delta=0.0, confidence=CONFIDENCE, method=method)
    )
    chance1, chance0 = stats.binom.pmf(hits1, runs, ratio * p0), stats.binom.pmf(hits0, runs, p0)
    # The complement's ratio can exceed the set's ratio: a bound holds if it is below the larger of the two.
    truth = max(np.log(ratio), np.log((1 - p0) / (1 - ratio * p0)))
    return float(chance1 @ (bounds > truth) @ chance0)


def _likely(runs: int, rate: float) -> tuple[int, int]:
    reach = FAR * np.sqrt(runs * rate * (1 - rate)) + 12
    return max(0, int(runs * rate - reach)), min(runs, int(runs * rate + reach))


@register("reproduction", "ml-audit copies", source="Lu et al. (2022), appendix: how many records change")
def copies(options: Options) -> Reproduction:
    """Naive Bayes on iris: detected epsilon of one record if 1, 2, 4 or 8 change, and the best number."""
    trainings = TRAININGS[options.scale]
    settings = [(epsilon, count) for epsilon in EPSILONS for count in COPIES]
    audits = tuple(
        Audit(
            bayes(epsilon),
            Iris(),
            game=Neighbours(
                trials=trainings, search=trainings, stack=trainings // 2, poisoning=CornerFlip(), copies=count
            ),
            attack=ATTACK,
            split=WHOLE,
            name=f"epsilon={epsilon:g}, copies={count}",
        )
        for epsilon, count in settings
    )
    folder = options.output / "copies"
    spec = AuditSpec(audits, name="copies", seed=options.seed, run=replace(options.run, figures=False))
    results = audit(spec, output=folder / "runs", listeners=options.listeners, quiet=not options.listeners).results
    # Naive Bayes claims epsilon at delta = 0, where group privacy is a product: the share of one record is a quotient.
    detected = np.array([result.epsilon for result in results]).reshape(len(EPSILONS), -1) / np.array(COPIES)
    rows = [
        {"epsilon": epsilon, "copies": count, "detected": float(detected[row, column])}
        for row, epsilon in enumerate(EPSILONS)
        for column, count in enumerate(COPIES)
    ]
    lines = [f"Detected of one record, by the claim and the records that change; {2 * trainings:,} trainings each:"]
    lines += [f"{'claim':>8}" + "".join(f"{count:>9}" for count in COPIES)]
    lines += [
        f"{epsilon:>8g}" + "".join(f"{format_lower(value, 3):>9}" for value in values)
        for epsilon, values in zip(EPSILONS, detected, strict=True)
    ]
    return options.publish("copies", lines, rows, figure=_draw(detected))


def _draw(detected: NDArray[np.float64]) -> Figure:
    figure, axes = style.canvas(5.6, 3.8)
    for epsilon, values in zip(EPSILONS, detected, strict=True):
        axes.plot(np.arange(len(COPIES)), values / epsilon, "o-", label=f"claim {epsilon:g}", markersize=4)
    axes.axhline(1, color=palette.INK, linewidth=1)
    axes.set_xticks(np.arange(len(COPIES)), [str(count) for count in COPIES])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("records that change")
    axes.set_ylabel("detected of one record, over its claim")
    axes.legend(fontsize=8, frameon=False)
    return figure
