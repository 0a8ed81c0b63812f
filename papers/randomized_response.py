"""Randomised response on a Gaussian mixture: Figures 2 and 3 of arXiv:2511.14084 (section 6.6, appendix 11)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.one_run.attacks import LabelInferenceScore, LikelihoodRatio
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.proxies import ModelProxy, TruePosterior
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.selection import Fixed
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.registry import register
from papers.reproduction import Options, Reproduction

CLASSES = (2, 5, 10)
EPSILONS = (0.1, 1.0, 2.0, 3.0, 4.0, 6.0)
PROXIES = {"ground truth": TruePosterior(), "logistic regression": ModelProxy()}
ATTACKS = {"published score": LabelInferenceScore(), "likelihood ratio": LikelihoodRatio()}
SERIES = (  # attack, proxy, line
    ("published score", "ground truth", "-"),
    ("published score", "logistic regression", "--"),
    ("likelihood ratio", "ground truth", "-"),
)
ROWS = 1_000_000
FRESH = 100_000
"""Fresh rows to train the logistic regression on; the paper does not state their number."""


@register("reproduction", "observational-label figure-2", source="arXiv:2511.14084, Figure 2")
def figure_2(options: Options) -> Reproduction:
    """Bounds on randomised response against its epsilon, 0.1 % of a million canaries guessed."""
    return _figure(options, fraction=0.001, name="figure-2")


@register("reproduction", "observational-label figure-3", source="arXiv:2511.14084, Figure 3")
def figure_3(options: Options) -> Reproduction:
    """Bounds on randomised response against its epsilon, 1 % of a million canaries guessed."""
    return _figure(options, fraction=0.01, name="figure-3")


def _figure(options: Options, *, fraction: float, name: str) -> Reproduction:
    report = audit(_spec(options, fraction, name), output=options.output / name, listeners=options.listeners)
    table = _table(report)
    lines = [f"Lower bounds on randomised response, {fraction:.1%} of {ROWS:,} canaries guessed, 100 replays, 95 %:"]
    lines += [
        f"  k={row['classes']:<3} epsilon={row['epsilon']:<4g} {row['attack']:<17} {row['proxy']:<20} "
        f"mean {row['mean']:.3f} ± {row['deviation']:.3f}   one bound over all replays {row['median_rule']:.3f}"
        for row in table.to_pylist()
    ]
    return options.publish(name, lines, table, "report.html", figure=_draw(table, fraction))


def _spec(options: Options, fraction: float, name: str) -> AuditSpec:
    partition = Partition(target=ROWS / (ROWS + FRESH), reference=FRESH / (ROWS + FRESH), test=0.0, order="given")
    audits = [
        Audit(
            mechanism=RandomizedResponse(epsilon),
            data=GaussianMixture(classes=classes, rows=ROWS + FRESH),
            game=LabelInference(replays=100),
            proxy=PROXIES[proxy],
            attack=ATTACKS[attack],
            estimator=OneRun(selection=Fixed(fraction)),
            split=partition,
            name=f"k={classes} epsilon={epsilon:g} {attack}, {proxy}",
        )
        for classes, epsilon, (attack, proxy, _) in itertools.product(CLASSES, EPSILONS, SERIES)
    ]
    run = replace(options.run, keep_scores=False, figures=False)
    return AuditSpec(tuple(audits), name=f"observational label auditing, {name}", seed=options.seed, run=run)


def _table(report: Report) -> pa.Table:
    """Return one row for each cell: the paper's mean and deviation of single replays at 95 %, and the valid bound."""
    cells = itertools.product(CLASSES, EPSILONS, SERIES)
    rows = []
    for (classes, epsilon, (attack, proxy, _)), result in zip(cells, report.results, strict=True):
        replays = result.series.get("replays")
        assert replays is not None
        assert result.comparison is not None
        single = replays["alone"]
        rows.append(
            {
                "classes": classes,
                "epsilon": epsilon,
                "attack": attack,
                "proxy": proxy,
                "mean": float(np.mean(single)),
                "deviation": float(np.std(single, ddof=1)),
                "median_rule": result.epsilon,
            }
        )
    return pa.Table.from_pylist(rows)


def _draw(table: pa.Table, fraction: float) -> Figure:
    figure, panels = style.canvases(len(ATTACKS), width=9.6, height=4.2)
    rows = table.to_pylist()
    colours = dict(zip(CLASSES, (palette.OTHER, palette.MEMBER, palette.CLAIM), strict=True))
    for panel, attack in zip(panels, ATTACKS, strict=True):
        panel.plot([0, max(EPSILONS)], [0, max(EPSILONS)], color=palette.INK, linewidth=1, label="true ε")
        for classes, (of, proxy, line) in itertools.product(CLASSES, SERIES):
            chosen = [row for row in rows if (row["attack"], row["classes"], row["proxy"]) == (attack, classes, proxy)]
            if of == attack:
                panel.errorbar(
                    [row["epsilon"] for row in chosen],
                    [row["mean"] for row in chosen],
                    [row["deviation"] for row in chosen],
                    color=colours[classes],
                    linestyle=line,
                    marker="o",
                    markersize=3.5,
                    capsize=2.5,
                    label=f"k = {classes}, {proxy}",
                )
        panel.set_xlabel("ε of randomised response, nats")
        panel.set_title(f"{attack}, {fraction:.1%} of {ROWS:,} canaries guessed", fontsize=10)
        panel.legend(fontsize=8.5)
    panels[0].set_ylabel("lower bound on ε, mean ± deviation of 100 replays")
    return figure
