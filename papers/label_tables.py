"""Learners against values of epsilon: one run of trainings and audits, and the tables built from it.

Tables 1 and 4 of arXiv:2511.14084, like Tables 2 and 5, describe the same trained models: the audit's bounds, and the
models' utility. Every cell of a table compares our figure with the printed one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.engine import drawing as style
from dpaudit.engine import palette
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.answers import Predictions
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import Report
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.report.page import figure_markup, template
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import run_plan
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import mean_and_deviation
from dpaudit.estimators.selection import AsPublished
from dpaudit.plain_files import write_atomically
from papers.reproduction import Options, Reproduction

DELTA = 1e-5
"""The delta of all four tables; a pure claim is a claim at every delta."""
REPLAYS = 100
NONE = "–"

Printed = Mapping[str, Sequence[tuple[float, float] | None]]
"""Printed figures by learner, in the order of epsilon: value and deviation (NaN if not printed)."""


@dataclass(frozen=True)
class Study:
    """Trainings and audits behind two tables.

    Attributes:
        name: Name of the run folder.
        learners: Functions from epsilon to the mechanism, by name.
        epsilons: Columns, infinity first.
        data: The data set.
        split: Its parts.
        proxy: Source of the counterfactual labels.
        canaries: Number of canaries; None uses all training rows.
        cost: The cost in a sentence, printed before the run.
        differences: Differences from the paper in data and scale, in sentences.
    """

    name: str
    learners: Mapping[str, Callable[[float], Any]]
    epsilons: tuple[float, ...]
    data: Any
    split: Partition
    proxy: Any
    canaries: int | None
    cost: str
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """Results of one learner at one epsilon.

    Attributes:
        learner: Its name in the paper.
        epsilon: The claim.
        published: Mean over replays of the best uncorrected bound, the paper's own figure; NaN without a training.
        published_deviation: Its deviation over replays.
        bound: The valid bound over all replays; NaN without a training.
        bound_deviation: Deviation of the bounds of single replays.
        violation: True if the valid bound exceeds the claim.
        never_seen: Bound of the same game on rows that the learner never saw; NaN without a training.
        beyond: Part of the valid bound beyond `never_seen`; NaN without a training.
        constant: True if the model gives the same prediction for every row.
        utility: Utility metrics of the model, by name.
        failed: The error if a training failed, else "".
    """

    learner: str
    epsilon: float
    published: float
    published_deviation: float
    bound: float
    bound_deviation: float
    violation: bool
    never_seen: float
    beyond: float
    constant: bool
    utility: Mapping[str, float]
    failed: str


@dataclass(frozen=True)
class StudyResults:
    """A study's cells.

    Attributes:
        study: The trainings and audits.
        cells: Cells by learner, in the order of epsilon.
        report: The whole run.
    """

    study: Study
    cells: tuple[Cell, ...]
    report: Report

    def of(self, learner: str) -> list[Cell]:
        """Return a learner's cells."""
        return [cell for cell in self.cells if cell.learner == learner]


def run_study(study: Study, options: Options) -> StudyResults:
    """State the cost, run the unfinished units, and return the cells."""
    options.say(study.cost)
    plan = make_plan(requested_audits(study, options))
    folder = options.output / study.name
    report = run_plan(plan, folder, options.listeners)
    store = UnitStore(folder / "units")
    pairs = itertools.product(study.learners, study.epsilons)
    cells = tuple(
        _cell(learner, epsilon, *report.results[2 * row : 2 * row + 2], constant=_constant(plan, 2 * row, store))
        for row, (learner, epsilon) in enumerate(pairs)
    )
    return StudyResults(study, cells, report)


def requested_audits(study: Study, options: Options) -> AuditSpec:
    """Build the spec: two audits for each cell on the same training, the paper's selection and the valid one."""
    estimators = {"as published": OneRun(DELTA, selection=AsPublished()), "valid": OneRun(DELTA)}
    audits = [
        Audit(
            mechanism=study.learners[learner](epsilon),
            data=study.data,
            game=LabelInference(REPLAYS, study.canaries),
            proxy=study.proxy,
            attack="label-inference",
            estimator=estimator,
            split=study.split,
            name=f"{learner}, ε = {_number(epsilon)}, {selection}",
        )
        for learner, epsilon in itertools.product(study.learners, study.epsilons)
        for selection, estimator in estimators.items()
    ]
    run = replace(options.run, keep_scores=False, figures=False)
    return AuditSpec(tuple(audits), name=f"label-private learners, {study.name}", seed=options.seed, run=run)


def _constant(plan: Plan, audit: int, store: UnitStore) -> bool:
    (training,) = plan.audits[audit].trainings
    if not store.finished([training]):
        return False
    (trained,) = decode(store.read(training), Predictions)
    return bool((trained.probabilities == trained.probabilities[0]).all())


def _cell(learner: str, epsilon: float, published: AuditResult, valid: AuditResult, *, constant: bool) -> Cell:
    replays = [result.series.get("replays") for result in (published, valid)]
    alone = [mean_and_deviation(bounds["alone"]) if bounds else None for bounds in replays]
    return Cell(
        learner=learner,
        epsilon=epsilon,
        published=published.epsilon,
        published_deviation=float(alone[0].deviation) if alone[0] else math.nan,
        bound=valid.epsilon,
        bound_deviation=float(alone[1].deviation) if alone[1] else math.nan,
        violation=valid.verdict is Verdict.VIOLATION,
        never_seen=valid.control.epsilon if valid.control else math.nan,
        beyond=valid.control.beyond.lower if valid.control and valid.control.beyond else math.nan,
        constant=constant,
        utility=dict(valid.metrics),
        failed=valid.failures[0].error if valid.failures else "",
    )


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        learner: Its name on the first of its lines, else "".
        kind: Content of the line.
        entries: One entry for each epsilon.
    """

    learner: str
    kind: str
    entries: tuple[str, ...]


def bounds_table(results: StudyResults, printed: Printed, *, name: str, title: str, options: Options) -> Reproduction:
    """Write Table 1 or 2: printed bounds, our bounds with the paper's selection, our valid bounds."""
    lines = [
        line
        for learner in results.study.learners
        for line in (
            Line(learner, "paper", tuple(_printed(cell) for cell in printed[learner])),
            Line("", "ours, as published", tuple(_published(cell) for cell in results.of(learner))),
            Line("", "ours, valid bound", tuple(_bound(cell) for cell in results.of(learner))),
            Line("", "rows never seen", tuple(_limit(cell, cell.never_seen) for cell in results.of(learner))),
            Line("", "beyond those", tuple(_limit(cell, cell.beyond) for cell in results.of(learner))),
        )
    ]
    reading = (
        "As published: each replay's best of 100 guess fractions, chosen on the samples it is measured on, mean ± "
        "deviation over 100 replays; that is no valid bound. Valid bound: the best of ten fractions that share the "
        "error, median over replays, 95 % confidence, rounded down; ± is the deviation of single replays. Both at "
        f"δ = {DELTA:g}, from the same trainings.",
        "Rows never seen: what the best of three distinguishers shows by the same game on rows that the learner never "
        "saw, where all it shows is the proxy's error. Beyond those: what that leaves of the valid bound, at 95 %.",
        *_marks(results.cells),
    )
    return _written(results, printed, lines, reading, _draw_bounds(results, printed), name, title, options)


def utility_table(
    results: StudyResults, printed: Printed, metric: Metric, *, name: str, title: str, options: Options
) -> Reproduction:
    """Write Table 4 or 5: utility of the models, printed and ours."""
    lines = [
        line
        for learner in results.study.learners
        for line in (
            Line(
                learner,
                "paper",
                tuple(NONE if cell is None else metric.formatted(cell[0]) for cell in printed[learner]),
            ),
            Line("", "ours", tuple(_utility(cell, metric) for cell in results.of(learner))),
        )
    ]
    reading = (f"{metric.label} on held-out rows, one training a cell.", *_marks(results.cells, bounds=False))
    return _written(results, printed, lines, reading, _draw_utility(results, printed, metric), name, title, options)


@dataclass(frozen=True)
class Metric:
    """A measure of utility.

    Attributes:
        key: Its name among the run's metrics.
        label: Label in the table.
        factor: Factor from the run's unit to the table's.
        digits: Number of decimals.
    """

    key: str
    label: str
    factor: float
    digits: int

    def formatted(self, value: float) -> str:
        """Return a value as text in the table's unit."""
        return f"{value:.{self.digits}f}"


def _printed(cell: tuple[float, float] | None) -> str:
    return NONE if cell is None else f"{cell[0]:.2f} ± {cell[1]:.2f}"


def _published(cell: Cell) -> str:
    if cell.constant or cell.failed:
        return NONE
    return f"{cell.published:.2f} ± {cell.published_deviation:.2f}"


def _bound(cell: Cell) -> str:
    if cell.constant or cell.failed:
        return NONE
    return f"{format_lower(cell.bound, 2)} ± {cell.bound_deviation:.2f}{'!' if cell.violation else ''}"


def _limit(cell: Cell, value: float) -> str:
    return NONE if cell.constant or cell.failed or math.isnan(value) else format_lower(value, 2)


def _utility(cell: Cell, metric: Metric) -> str:
    if cell.failed:
        return NONE
    return metric.formatted(metric.factor * cell.utility[metric.key]) + (" (constant)" if cell.constant else "")


def _marks(cells: Sequence[Cell], *, bounds: bool = True) -> list[str]:
    """Return explanations of the marks that occur in a table."""
    notes = []
    constant = [f"{cell.learner} at ε = {_number(cell.epsilon)}" for cell in cells if cell.constant]
    if constant:
        notes.append(
            f"{NONE if bounds else '(constant)'}: {', '.join(constant)}: the prior makes one label so likely that "
            "every row receives it (k* = 1), independent of its true label; the model predicts the same for all rows "
            "and reveals nothing. A – in the paper means that training gave no meaningful outcome."
        )
    if bounds and any(cell.violation for cell in cells):
        notes.append("!: the bound exceeds the claim.")
    notes += [f"{cell.learner} at ε = {_number(cell.epsilon)} failed: {cell.failed}" for cell in cells if cell.failed]
    return notes


def _written(
    results: StudyResults,
    printed: Printed,
    lines: Sequence[Line],
    reading: Sequence[str],
    figure: Figure,
    name: str,
    title: str,
    options: Options,
) -> Reproduction:
    """Write Markdown, CSV, HTML and the figure of a table."""
    folder = options.output / name
    svg = style.save(figure, folder, name)
    rows = results.report.results[0].rows
    setting = (
        f"{options.scale} scale on {results.report.results[0].data.partition(':')[0]}: "
        f"{rows['target']:,} rows trained on, {rows['reference']:,} for the proxy, {rows['test']:,} held out; "
        f"{REPLAYS} replays; seed {options.seed}"
    )
    heads = ["", "", *(f"ε = {_number(epsilon)}" for epsilon in results.study.epsilons)]
    notes = (*reading, *results.study.differences, results.study.cost)
    text = "\n".join(
        [
            f"# {title}",
            "",
            setting,
            "",
            _row(heads),
            _row(["---"] * 2 + ["---:"] * len(results.study.epsilons)),
            *(_row([line.learner, line.kind, *line.entries]) for line in lines),
            "",
            *(f"- {note}" for note in notes),
            "",
        ]
    )
    files = tuple(folder / f"{name}.{kind}" for kind in ("md", "csv", "html", "png"))
    write_atomically(files[0], lambda file: file.write(text.encode()))
    write_atomically(files[1], lambda file: pacsv.write_csv(_long(results, printed), file))
    page = template("reproduced.html.j2", "papers").render(
        title=title, setting=setting, heads=heads, lines=lines, notes=notes, figure=figure_markup(svg)
    )
    write_atomically(files[2], lambda file: file.write(page.encode()))
    return Reproduction(text, (*files, Path(results.report.folder) / "report.html"))


def _row(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _long(results: StudyResults, printed: Printed) -> pa.Table:
    """Return one row for each cell."""
    rows = []
    for learner in results.study.learners:
        for cell, paper in zip(results.of(learner), printed[learner], strict=True):
            value, deviation = paper or (math.nan, math.nan)
            rows.append(
                {
                    "learner": learner,
                    "epsilon": cell.epsilon,
                    "paper": value,
                    "paper_deviation": deviation,
                    "as_published": cell.published,
                    "as_published_deviation": cell.published_deviation,
                    "valid_bound": cell.bound,
                    "valid_bound_deviation": cell.bound_deviation,
                    "exceeds_claim": cell.violation,
                    "never_seen": cell.never_seen,
                    "beyond": cell.beyond,
                    "constant_model": cell.constant,
                    **{key: cell.utility.get(key, math.nan) for key in ("test_accuracy", "test_log_loss")},
                    "failed": cell.failed,
                }
            )
    return pa.Table.from_pylist(rows)


Series = tuple[str, str, str, Sequence[float], Sequence[float]]
"""Label, colour, marker, values and deviations in the order of epsilon; NaN is not drawn."""


def _draw_bounds(results: StudyResults, printed: Printed) -> Figure:
    def series(learner: str) -> list[Series]:
        cells = results.of(learner)
        blank = [math.nan if cell.constant else 1.0 for cell in cells]
        return [
            ("paper", palette.INK, "s", *_paper(printed[learner])),
            (
                "ours, as published",
                palette.OTHER,
                "o",
                [cell.published * keep for cell, keep in zip(cells, blank, strict=True)],
                [cell.published_deviation for cell in cells],
            ),
            (
                "ours, valid bound",
                palette.MEMBER,
                "o",
                [cell.bound * keep for cell, keep in zip(cells, blank, strict=True)],
                [math.nan] * len(cells),
            ),
        ]

    return _panels(results, series, "lower bound on ε, nats", claims=True)


def _draw_utility(results: StudyResults, printed: Printed, metric: Metric) -> Figure:
    def series(learner: str) -> list[Series]:
        values = [metric.factor * cell.utility.get(metric.key, math.nan) for cell in results.of(learner)]
        return [
            ("paper", palette.INK, "s", *_paper(printed[learner])),
            ("ours", palette.MEMBER, "o", values, [math.nan] * len(values)),
        ]

    return _panels(results, series, metric.label, claims=False)


def _paper(row: Sequence[tuple[float, float] | None]) -> tuple[list[float], list[float]]:
    points = [cell or (math.nan, math.nan) for cell in row]
    return [value for value, _ in points], [deviation for _, deviation in points]


def _panels(results: StudyResults, series: Callable[[str], list[Series]], label: str, *, claims: bool) -> Figure:
    """Draw one panel for each learner, epsilon from small to infinite."""
    learners = list(results.study.learners)
    epsilons = results.study.epsilons[::-1]
    places = np.arange(len(epsilons))
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(2.5 * len(learners), 3.4), layout="constrained")
        panels = figure.subplots(1, len(learners), sharey=True, squeeze=False)[0]
    for learner, axes in zip(learners, panels, strict=True):
        for name, colour, marker, values, deviations in series(learner):
            points = np.array(values[::-1], dtype=np.float64)
            spread = np.nan_to_num(np.array(deviations[::-1], dtype=np.float64))
            axes.errorbar(
                places,
                points,
                spread,
                color=colour,
                marker=marker,
                markersize=3.5,
                capsize=2,
                linewidth=1.3,
                label=name,
            )
        axes.set_title(learner, fontsize=9)
        axes.set_xticks(places, [_number(epsilon) for epsilon in epsilons])
    top = panels[0].get_ylim()[1]  # shared by all panels
    for axes in panels:
        for place, epsilon in zip(places, epsilons, strict=True):
            if claims and epsilon <= top:
                axes.plot([place - 0.35, place + 0.35], [epsilon] * 2, color=palette.CLAIM, linewidth=2, label="claim")
        axes.set_ylim(0, top)
    figure.supxlabel("claimed ε", fontsize=9.5)
    panels[0].set_ylabel(label)
    entries = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=4, fontsize=8.5, frameon=False)
    return figure


def _number(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"
