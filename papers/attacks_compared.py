"""Attacks on the same learners, data and budget: Figure 1 of arXiv:2511.14084 (section 6.5), and two more attacks.

The paper compares label inference with difficulty-calibrated membership inference. The figure adds audits that
intervene: labels planted at random, with the paper's score and with the canary attack of Malek et al. (2021). Each
attack has one training of the same learner on the same rows, with the same reference model.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from dpaudit.claims import Claim, Relation
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.one_run.attacks import CalibratedLoss, CanaryConfidence, LabelInferenceScore
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference
from dpaudit.engine.games.one_run.membership import ObservationalMembership
from dpaudit.engine.games.proxies import CalibratedModel
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import MeanAndDeviation, mean_and_deviation
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.registry import register
from papers import criteo_tables, image_tables
from papers.label_tables import REPLAYS, Constant, Study
from papers.reproduction import Options, Reproduction
from papers.uncorrected_bounds import DELTA, PUBLISHED, uncorrected

METHODS = {
    "label inference": palette.MEMBER,
    "membership, calibrated": palette.OTHER,
    "planted labels, same score": palette.CLAIM,
    "planted labels, canary attack": "#a16207",
}
"""The attacks in the order of the bars, each with its colour."""
CONTROL = "#dc2626"
OBSERVATIONAL = ("label inference", "membership, calibrated")
SMALL_EPSILONS = {"criteo": (math.inf, 4.0, 1.0), "images": (math.inf, 10.0, 1.0)}
SMALL_IMAGES = 4_800
IMAGES_SPLIT = Partition(target=0.15, reference=0.55, test=0.28, validation=0.02)
"""Images at small scale and their split, with three rows for the proxy to each for the learner."""
SMALL_NETWORK = replace(image_tables.SMALL, epochs=15)
SMALL_PATE_FM = replace(
    image_tables.SMALL_PATE_FM, teachers=5, queries=400, answers=200, threshold=2.0, teacher_steps=40, student_steps=100
)
"""Learners of images at small scale: 36 trainings, and PATE-FM's teachers, in about 5 minutes of one core."""


@dataclass(frozen=True)
class Comparison:
    """Learners, data and budgets of a comparison of attacks.

    Attributes:
        learners: Functions from epsilon to the mechanism, by name.
        epsilons: Infinity first.
        data: The data set.
        split: Its parts; the test part holds at least `canaries` rows, for membership's fresh points.
        proxy: The adversary's reference model.
        canaries: Number of canaries in the observational games.
        planted: Rows with a random label in the games that intervene; fewer, because they spoil the model.
        replays: Draws of bits for each training.
    """

    learners: Mapping[str, Callable[[float], Any]]
    epsilons: tuple[float, ...]
    data: Any
    split: Partition
    proxy: Any
    canaries: int
    planted: int
    replays: int = REPLAYS


@register("reproduction", "observational-label figure-1", source="arXiv:2511.14084, Figure 1")
def figure_1(options: Options) -> Reproduction:
    """Label inference, calibrated membership inference and planted labels, learner by learner.

    Panel (b), or with --only images panel (a).
    """
    kind, *_ = options.chosen_parts(("criteo", "images"), str, must="criteo or images")
    study = (image_tables if kind == "images" else criteo_tables).study(replace(options, only=()))
    return compare(_comparison(study, kind, options), options, "figure-1")


def _comparison(study: Study, kind: str, options: Options) -> Comparison:
    if options.scale == "small":
        study = replace(study, epsilons=SMALL_EPSILONS[kind])
    if options.scale == "small" and kind == "images":
        learners = image_tables.learners_on(SMALL_NETWORK, image_tables.SMALL_PRIOR, SMALL_PATE_FM, SMALL_NETWORK)
        proxy = CalibratedModel(replace(image_tables.SMALL_PROXY, epochs=SMALL_NETWORK.epochs))
        study = replace(study, learners=learners, data=replace(study.data, rows=SMALL_IMAGES), proxy=proxy)
    order = study.split.order
    split = Partition(target=0.3, reference=0.4, test=0.28, validation=0.02, order=order)
    if options.scale == "small":  # on clicks the reference is the day before
        split = IMAGES_SPLIT if kind == "images" else study.split
    elif order == "given":
        split = replace(split, target=0.25, reference=0.5, test=0.23)
    rows = len(study.data.load(seed=options.seed))
    canaries = min(math.floor(split.test * rows), math.floor(split.target * rows)) - 1
    if study.canaries is not None:
        canaries = min(canaries, study.canaries)
    planted = max(1, canaries // 10)
    return Comparison(study.learners, study.epsilons, study.data, split, study.proxy, canaries, planted)


def compare(comparison: Comparison, options: Options, name: str) -> Reproduction:
    """Run every attack on every learner and write the figure, the table and the run's report."""
    folder = options.output / name
    trainings = 3 * len(comparison.learners) * len(comparison.epsilons)
    options.say(
        f"{trainings} trainings: {', '.join(comparison.learners)}, three each at every epsilon, and a reference."
    )
    report = audit(_spec(comparison, options, name), output=folder, listeners=options.listeners)
    cells = itertools.product(comparison.learners, comparison.epsilons, METHODS)
    constants = dict(zip(OBSERVATIONAL, report.results[-len(OBSERVATIONAL) :], strict=True))
    rows = [
        _row(learner, epsilon, method, result, constants.get(method))
        for (learner, epsilon, method), result in zip(cells, report.results, strict=False)
    ]
    table = pa.Table.from_pylist(rows)
    lines = [
        f"Attacks on {report.results[0].data}, bounds at 95 % and delta = {DELTA:g}; one training an attack, "
        f"{comparison.canaries:,} canaries ({comparison.planted:,} planted labels), {comparison.replays} replays:"
    ]
    lines += [_line(row) for row in table.to_pylist()]
    lines += [
        "bound: over all replays, the choice of the guess fraction paid for, on the condition named; constant: equal "
        "probabilities that saw no row, in the place of the learner's; as published: mean ± deviation over replays of "
        "the best fraction for the Gaussian family, chosen on the samples it is measured on, which is no bound.",
        "Planted labels spoil the model that is attacked; their test loss is that of one more, on the true labels. "
        "Membership says nothing of a claim for labels: its bars are no violation of one.",
    ]
    if any(not math.isnan(row["never_seen"]) for row in table.to_pylist()):
        lines.append(
            "never seen: what the same game shows on rows that the learner never saw, by the reference model's error. "
            "A bound that is not above it is not trustworthy."
        )
    return options.publish(name, lines, table, "report.html", figure=_draw(table, report.results[0].data))


def _spec(comparison: Comparison, options: Options, name: str) -> AuditSpec:
    """Build the spec: one audit for each attack on each learner, then a constant predictor for observational ones."""
    audits = [
        _audit(comparison, comparison.learners[learner](epsilon), method, f"{learner}, ε = {epsilon:g}")
        for learner, epsilon in itertools.product(comparison.learners, comparison.epsilons)
        for method in METHODS
    ]
    audits += [_audit(comparison, NonPrivate(Constant()), method, "constant predictor") for method in OBSERVATIONAL]
    run = replace(options.run, keep_scores=False, figures=False)
    return AuditSpec(tuple(audits), name=f"attacks compared, {name}", seed=options.seed, run=run)


def _audit(comparison: Comparison, mechanism: Any, method: str, where: str) -> Audit:
    replays = comparison.replays
    game, attack = {
        "label inference": (LabelInference(replays, comparison.canaries), LabelInferenceScore()),
        "membership, calibrated": (ObservationalMembership(replays, comparison.canaries), CalibratedLoss()),
        "planted labels, same score": (LabelCanaries(replays, comparison.planted), LabelInferenceScore()),
        "planted labels, canary attack": (LabelCanaries(replays, comparison.planted), CanaryConfidence()),
    }[method]
    membership = isinstance(game, ObservationalMembership)
    return Audit(
        mechanism=mechanism,
        data=comparison.data,
        game=game,
        proxy=comparison.proxy,
        attack=attack,
        # Calibrated losses are not centred on 0.
        estimator=OneRun(DELTA, guess="both-tails" if membership else "signed"),
        split=comparison.split,
        # A claim about labels does not bound membership.
        claim=Claim(math.inf, relation=Relation.REPLACE) if membership else None,
        name=f"{where}, {method}",
    )


def _row(
    learner: str, epsilon: float, method: str, result: AuditResult, constant: AuditResult | None
) -> dict[str, Any]:
    """Return the row of one bar; NaN if a training failed."""
    replays = result.guess_counts
    deviation = mean_and_deviation(result.series["replays"]["alone"]).deviation if replays else math.nan
    published = uncorrected(PUBLISHED, replays) if replays else MeanAndDeviation(math.nan, math.nan)
    return {
        "learner": learner,
        "epsilon": epsilon,
        "attack": method,
        "bound": result.epsilon,
        "deviation": float(deviation),
        "as_published": float(published.mean),
        "as_published_deviation": float(published.deviation),
        "observational": result.observational,
        "conditional": result.on_proxy,
        "never_seen": result.control.epsilon if result.control else math.nan,
        "constant_predictor": constant.epsilon if constant else math.nan,
        "constant_published": float(uncorrected(PUBLISHED, constant.guess_counts).mean) if constant else math.nan,
        "test_accuracy": result.metrics.get("test_accuracy", math.nan),
        "test_log_loss": result.metrics.get("test_log_loss", math.nan),
        "failed": result.failures[0].error if result.failures else "",
    }


def condition(observational: bool, conditional: bool) -> str:
    """Return the condition on which a bound holds."""
    if conditional:
        return "if the proxy is right"
    return "rows divided at random" if observational else "labels planted at random"


def _line(row: Mapping[str, Any]) -> str:
    bound = "failed" if math.isnan(row["bound"]) else format_lower(row["bound"])
    never_seen = "" if math.isnan(row["never_seen"]) else f"  never seen {format_lower(row['never_seen'])}"
    constant = "" if math.isnan(row["constant_predictor"]) else f"  constant {format_lower(row['constant_predictor'])}"
    return (
        f"  {row['learner']:<29} ε={row['epsilon']:<4g} {row['attack']:<30} "
        f"{condition(row['observational'], row['conditional'])} {bound}  as published "
        f"{row['as_published']:.3f} ± {row['as_published_deviation']:.3f}  test log-loss {row['test_log_loss']:.3f}"
        f"{never_seen}{constant}"
    )


def _draw(table: pa.Table, data: str) -> Figure:
    rows = table.to_pylist()
    groups = list(dict.fromkeys((row["learner"], row["epsilon"]) for row in rows))
    figure, axes = style.canvas(max(6.4, 1.2 * len(groups)), 4.6)
    width = 0.8 / len(METHODS)
    for place, (method, colour) in enumerate(METHODS.items()):
        bars = [row for row in rows if row["attack"] == method]
        centres = np.arange(len(groups)) + (place - (len(METHODS) - 1) / 2) * width
        axes.bar(
            centres,
            [row["bound"] for row in bars],
            width * 0.92,
            color=colour,
            alpha=1.0 if method in OBSERVATIONAL else 0.55,
            yerr=np.nan_to_num([row["deviation"] for row in bars]),
            capsize=2,
            ecolor=palette.INK,
            error_kw={"linewidth": 0.9},
            label=method,
        )
        control = [row["never_seen"] for row in bars]
        axes.hlines(control, centres - width / 2, centres + width / 2, color=CONTROL, linewidth=2.2, zorder=4)
        published = [row["as_published"] for row in bars]
        axes.plot(centres, published, "D", markersize=3.5, markerfacecolor="white", color=palette.INK, zorder=3)
    axes.plot([], [], "D", markersize=3.5, markerfacecolor="white", color=palette.INK, label="as published, not valid")
    axes.plot([], [], color=CONTROL, linewidth=2.2, label="the same game on rows never seen")
    top = axes.get_ylim()[1]
    for group, (_, epsilon) in enumerate(groups):
        if epsilon <= top:
            axes.plot([group - 0.45, group + 0.45], [epsilon] * 2, color=palette.INK, linewidth=1.6)
    axes.set_ylim(0, top)
    axes.set_xticks(
        range(len(groups)),
        [
            f"{textwrap.fill(learner, 14)}\nε = {'∞' if math.isinf(epsilon) else format(epsilon, 'g')}"
            for learner, epsilon in groups
        ],
        fontsize=7.5,
    )
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("lower bound on ε, nats (± deviation of replays)")
    axes.set_title(f"Attacks on {data}; black line = claim", fontsize=10)
    figure.legend(loc="outside lower center", fontsize=8, ncols=3, frameon=False)
    return figure
