"""Learners against values of epsilon: trainings, their audits, and the tables built from them.

Tables 1 and 4 of arXiv:2511.14084, like Tables 2 and 5, describe the same trained models: the audit's bounds, and the
models' utility. Every cell of a table compares our figure with the printed one. Each seed is one run, so that a
reproduction that stops early has all cells of the first seeds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.one_run.answers import Predictions
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.report.page import figure_markup, template
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import run_plan
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import MeanAndDeviation, mean_and_deviation
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.plain_files import write_atomically
from papers.reproduction import Options, Reproduction
from papers.uncorrected_bounds import BEST_FRACTION, DELTA, PUBLISHED, uncorrected

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
        seeds: Number of trainings of each learner at each epsilon, with consecutive seeds.
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
    seeds: int = 1


@dataclass(frozen=True)
class Constant:
    """Training method that looks at no row: equal probabilities of all classes."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Even:
        return Even(train.classes)


@dataclass(frozen=True)
class Even:
    """Predictor with equal probabilities of all `classes`."""

    classes: int

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.full((len(features), self.classes), 1 / self.classes)


@dataclass(frozen=True)
class Cell:
    """Results of one training of a learner at one epsilon.

    Attributes:
        learner: Its name in the paper.
        epsilon: The claim.
        seed: Seed of the training and of the game.
        published: Mean over replays by the paper's estimator; NaN without a training.
        published_deviation: Its deviation over replays.
        best_fraction: The same for every mechanism, not for the Gaussian family alone.
        best_fraction_deviation: Its deviation over replays.
        bound: The bound over all replays, valid if the proxy is right; NaN without a training.
        bound_deviation: Deviation of the bounds of single replays.
        violation: True if the part of the bound beyond the proxy's error exceeds the claim.
        never_seen: Bound of the same game on rows that the learner never saw; NaN without a training.
        beyond: Part of the bound beyond `never_seen`; NaN without a training.
        constant_bound: Bound of the same game for a predictor that is the same for all rows.
        constant_predictor: The same by the paper's estimator.
        constant_deviation: Its deviation over replays.
        constant: True if the model gives the same prediction for every row.
        utility: Utility metrics of the model, by name.
        failed: The error if a training failed, else "".
    """

    learner: str
    epsilon: float
    seed: int
    published: float
    published_deviation: float
    best_fraction: float
    best_fraction_deviation: float
    bound: float
    bound_deviation: float
    violation: bool
    never_seen: float
    beyond: float
    constant_bound: float
    constant_predictor: float
    constant_deviation: float
    constant: bool
    utility: Mapping[str, float]
    failed: str

    @property
    def informative(self) -> bool:
        """True if there is a model, and it depends on the features."""
        return not self.constant and not self.failed


@dataclass(frozen=True)
class StudyResults:
    """A study's cells.

    Attributes:
        study: The trainings and audits.
        cells: Cells by seed, then by learner, in the order of epsilon.
        report: The run with the first seed.
    """

    study: Study
    cells: tuple[Cell, ...]
    report: Report

    def of(self, learner: str) -> list[tuple[Cell, ...]]:
        """Return a learner's trainings at each epsilon, one for each seed."""
        cells = [cell for cell in self.cells if cell.learner == learner]
        return [tuple(cells[place :: len(self.study.epsilons)]) for place in range(len(self.study.epsilons))]


def run_study(study: Study, options: Options) -> StudyResults:
    """State the cost, run the unfinished units seed by seed, and return the cells."""
    options.say(study.cost)
    runs = [_run_seed(study, seed, options) for seed in range(options.seed, options.seed + study.seeds)]
    return StudyResults(study, tuple(itertools.chain.from_iterable(cells for cells, _ in runs)), runs[0][1])


def _run_seed(study: Study, seed: int, options: Options) -> tuple[list[Cell], Report]:
    plan = make_plan(requested_audits(study, seed, options))
    folder = options.output / study.name / f"seed-{seed}"
    report = run_plan(plan, folder, options.listeners)
    store = UnitStore(folder / "units")
    pairs = itertools.product(study.learners, study.epsilons)
    *results, constant = report.results
    cells = [
        _cell(learner, epsilon, seed, result, constant, constant_model=_constant(plan, row, store))
        for row, ((learner, epsilon), result) in enumerate(zip(pairs, results, strict=True))
    ]
    return cells, report


def requested_audits(study: Study, seed: int, options: Options) -> AuditSpec:
    """Build the spec: one audit for each cell, then one of a constant predictor."""
    mechanisms = {
        f"{learner}, ε = {_number(epsilon)}": study.learners[learner](epsilon)
        for learner, epsilon in itertools.product(study.learners, study.epsilons)
    }
    audits = [
        Audit(
            mechanism=mechanism,
            data=study.data,
            game=LabelInference(REPLAYS, study.canaries),
            proxy=study.proxy,
            attack="label-inference",
            estimator=OneRun(DELTA),
            split=study.split,
            name=name,
        )
        for name, mechanism in {**mechanisms, "constant predictor": NonPrivate(Constant())}.items()
    ]
    run = replace(options.run, keep_scores=False, figures=False)
    return AuditSpec(tuple(audits), name=f"label-private learners, {study.name}", seed=seed, run=run)


def _constant(plan: Plan, audit: int, store: UnitStore) -> bool:
    (training,) = plan.audits[audit].trainings
    if not store.finished([training]):
        return False
    (trained,) = decode(store.read(training), Predictions)
    return bool((trained.probabilities == trained.probabilities[0]).all())


def _cell(
    learner: str, epsilon: float, seed: int, result: AuditResult, constant: AuditResult, *, constant_model: bool
) -> Cell:
    nothing = MeanAndDeviation(math.nan, math.nan)
    replays, control = result.guess_counts, uncorrected(PUBLISHED, constant.guess_counts)
    published, best = (uncorrected(kind, replays) if replays else nothing for kind in (PUBLISHED, BEST_FRACTION))
    valid = mean_and_deviation(result.series["replays"]["alone"]) if replays else nothing
    return Cell(
        learner=learner,
        epsilon=epsilon,
        seed=seed,
        published=float(published.mean),
        published_deviation=float(published.deviation),
        best_fraction=float(best.mean),
        best_fraction_deviation=float(best.deviation),
        bound=result.epsilon,
        bound_deviation=float(valid.deviation),
        violation=result.verdict is Verdict.VIOLATION,
        never_seen=result.control.epsilon if result.control else math.nan,
        beyond=result.control.beyond.lower if result.control and result.control.beyond else math.nan,
        constant_bound=constant.epsilon,
        constant_predictor=float(control.mean),
        constant_deviation=float(control.deviation),
        constant=constant_model,
        utility=dict(result.metrics),
        failed=result.failures[0].error if result.failures else "",
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
    """Write Table 1 or 2: printed bounds, our bounds by the paper's estimator and by ours, and two controls."""
    lines = [
        line
        for learner in results.study.learners
        for line in (
            Line(learner, "paper", tuple(_printed(cell) for cell in printed[learner])),
            *(
                Line("", kind.label, tuple(kind.entry(cells) for cells in results.of(learner)))
                for kind in KINDS_OF_BOUND
            ),
        )
    ]
    seeds = results.study.seeds
    reading = (
        "As published: each replay's best of 100 guess fractions, chosen on the samples it is measured on, converted "
        "for mechanisms of the Gaussian family; mean over 100 replays. Best fraction: the same choice, for every "
        "mechanism. Neither is a valid bound. If the proxy is right: the best of ten fractions that share the error, "
        f"median over replays, 95 % confidence, rounded down. All at δ = {DELTA:g}, from the same trainings.",
        f"Median (least, largest) of {seeds} trainings with consecutive seeds."
        if seeds > 1
        else "One training a cell; ± is the deviation over replays, which share the training.",
        "Rows never seen: what the best of three distinguishers shows by the same game on rows that the learner never "
        "saw, where all it shows is the proxy's error. Beyond those: what that leaves of the bound, at 95 %, if no "
        "other distinguisher shows more there. Constant predictor: equal probabilities that saw no row, in the place "
        "of the learner's.",
        *_marks(results.cells, seeds),
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
            Line("", "ours", tuple(_utility(cells, metric) for cells in results.of(learner))),
        )
    ]
    seeds = results.study.seeds
    trainings = f"median of {seeds} trainings" if seeds > 1 else "one training"
    reading = (f"{metric.label} on held-out rows, {trainings} a cell.", *_marks(results.cells, seeds, bounds=False))
    return _written(results, printed, lines, reading, _draw_utility(results, printed, metric), name, title, options)


@dataclass(frozen=True)
class KindOfBound:
    """A line of our bounds in Tables 1 and 2.

    Attributes:
        label: Its name in the table.
        value: Function from a training to the bound.
        deviation: Function from a training to the deviation over replays; None if there is none.
        lower: True for a bound with a confidence, which is never rounded up.
    """

    label: str
    value: Callable[[Cell], float]
    deviation: Callable[[Cell], float] | None = None
    lower: bool = True

    def entry(self, cells: Sequence[Cell]) -> str:
        """Return the text for the trainings at one epsilon: value ± deviation, or median (least, largest)."""
        informative = [cell for cell in cells if cell.informative]
        if not informative or any(math.isnan(self.value(cell)) for cell in informative):
            return NONE
        middle, least, largest = map(self._formatted, spread([self.value(cell) for cell in informative]))
        mark = "!" if self.label == CONDITIONAL and any(cell.violation for cell in informative) else ""
        if len(cells) > 1:
            return f"{middle} ({least}, {largest}){mark}"
        return middle + (f" ± {self.deviation(informative[0]):.2f}" if self.deviation else "") + mark

    def _formatted(self, value: float) -> str:
        return format_lower(value, 2) if self.lower else f"{value:.2f}"


CONDITIONAL = "ours, if the proxy is right"
COLOURS = (palette.OTHER, "#a16207", palette.MEMBER)
"""Colours of the kinds of bounds that are drawn: the first ones."""
KINDS_OF_BOUND = (
    KindOfBound("ours, as published", lambda cell: cell.published, lambda cell: cell.published_deviation, lower=False),
    KindOfBound(
        "ours, best fraction", lambda cell: cell.best_fraction, lambda cell: cell.best_fraction_deviation, lower=False
    ),
    KindOfBound(CONDITIONAL, lambda cell: cell.bound, lambda cell: cell.bound_deviation),
    KindOfBound("rows never seen", lambda cell: cell.never_seen),
    KindOfBound("beyond those", lambda cell: cell.beyond),
    KindOfBound("constant predictor", lambda cell: cell.constant_bound),
    KindOfBound(
        "constant predictor, as published",
        lambda cell: cell.constant_predictor,
        lambda cell: cell.constant_deviation,
        lower=False,
    ),
)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the largest value."""
    return float(np.median(values)), min(values), max(values)


@dataclass(frozen=True)
class Metric:
    """A measure of utility.

    Attributes:
        key: Its name among the run's metrics.
        label: Label in the table.
        factor: Factor from the run's unit to the table's.
        digits: Number of decimals.
        scale: Scale of its axis, "linear" (from 0) or "log".
    """

    key: str
    label: str
    factor: float
    digits: int
    scale: Literal["linear", "log"] = "linear"

    def formatted(self, value: float) -> str:
        """Return a value as text in the table's unit."""
        return f"{value:.{self.digits}f}"


def _printed(cell: tuple[float, float] | None) -> str:
    return NONE if cell is None else f"{cell[0]:.2f} ± {cell[1]:.2f}"


def _utility(cells: Sequence[Cell], metric: Metric) -> str:
    trained = [cell for cell in cells if not cell.failed]
    if not trained:
        return NONE
    middle, _, _ = spread([metric.factor * cell.utility[metric.key] for cell in trained])
    return metric.formatted(middle) + (" (constant)" if all(cell.constant for cell in trained) else "")


def _marks(cells: Sequence[Cell], seeds: int, *, bounds: bool = True) -> list[str]:
    """Return explanations of the marks that occur in a table."""
    notes = []
    constant = Counter(f"{cell.learner} at ε = {_number(cell.epsilon)}" for cell in cells if cell.constant)
    if constant:
        names = (name if count == seeds else f"{name} ({count} of {seeds})" for name, count in constant.items())
        notes.append(
            f"{NONE if bounds else '(constant)'}: {', '.join(names)}: the prior makes one label so likely that "
            "every row receives it (k* = 1), independent of its true label; the model predicts the same for all rows "
            "and reveals nothing. A – in the paper means that training gave no meaningful outcome."
        )
    if bounds and any(cell.violation for cell in cells):
        notes.append("!: the bound of a training exceeds the claim.")
    notes += [
        f"{cell.learner} at ε = {_number(cell.epsilon)}, seed {cell.seed} failed: {cell.failed}"
        for cell in cells
        if cell.failed
    ]
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
    seeds = [str(options.seed + place) for place in range(results.study.seeds)]
    setting = (
        f"{options.scale} scale on {results.report.results[0].data.partition(':')[0]}: "
        f"{rows['target']:,} rows trained on, {rows['reference']:,} for the proxy, {rows['test']:,} held out; "
        f"{REPLAYS} replays; seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
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
    """Return one row for each training."""
    places = {epsilon: place for place, epsilon in enumerate(results.study.epsilons)}
    rows = []
    for cell in results.cells:
        value, deviation = printed[cell.learner][places[cell.epsilon]] or (math.nan, math.nan)
        rows.append(
            {
                "learner": cell.learner,
                "epsilon": cell.epsilon,
                "seed": cell.seed,
                "paper": value,
                "paper_deviation": deviation,
                "as_published": cell.published,
                "as_published_deviation": cell.published_deviation,
                "best_fraction": cell.best_fraction,
                "best_fraction_deviation": cell.best_fraction_deviation,
                "bound": cell.bound,
                "bound_deviation": cell.bound_deviation,
                "exceeds_claim": cell.violation,
                "never_seen": cell.never_seen,
                "beyond": cell.beyond,
                "constant_bound": cell.constant_bound,
                "constant_predictor": cell.constant_predictor,
                "constant_predictor_deviation": cell.constant_deviation,
                "constant_model": cell.constant,
                **{key: cell.utility.get(key, math.nan) for key in ("test_accuracy", "test_log_loss")},
                "failed": cell.failed,
            }
        )
    return pa.Table.from_pylist(rows)


Series = tuple[str, str, str, Sequence[float], Sequence[tuple[float, float]]]
"""Label, colour, marker, values and the distance to both ends of their bars, by epsilon; NaN is not drawn."""


def _draw_bounds(results: StudyResults, printed: Printed) -> Figure:
    def series(learner: str) -> list[Series]:
        informative = [[cell for cell in cells if cell.informative] for cells in results.of(learner)]
        return [
            _paper(printed[learner]),
            *(
                (kind.label, colour, "o", *_points(informative, kind.value, kind.deviation))
                for kind, colour in zip(KINDS_OF_BOUND, COLOURS, strict=False)
            ),
        ]

    return _panels(results, series, "lower bound on ε, nats", claims=True)


def _draw_utility(results: StudyResults, printed: Printed, metric: Metric) -> Figure:
    def value(cell: Cell) -> float:
        return metric.factor * cell.utility[metric.key]

    def series(learner: str) -> list[Series]:
        trained = [[cell for cell in cells if not cell.failed] for cells in results.of(learner)]
        return [_paper(printed[learner]), ("ours", palette.MEMBER, "o", *_points(trained, value, None))]

    return _panels(results, series, metric.label, claims=False, scale=metric.scale)


def _points(
    cells: Sequence[Sequence[Cell]], value: Callable[[Cell], float], deviation: Callable[[Cell], float] | None
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return the median over trainings and its bar: least to largest, or the deviation of a single training."""
    values, bars = [], []
    for trainings in cells:
        middle, least, largest = spread([value(cell) for cell in trainings]) if trainings else (math.nan,) * 3
        single = deviation(trainings[0]) if deviation and len(trainings) == 1 else 0.0
        values.append(middle)
        bars.append((middle - least + single, largest - middle + single) if trainings else (0.0, 0.0))
    return values, bars


def _paper(row: Sequence[tuple[float, float] | None]) -> Series:
    points = [cell or (math.nan, math.nan) for cell in row]
    bars = [(0.0, 0.0) if math.isnan(deviation) else (deviation, deviation) for _, deviation in points]
    return "paper", palette.INK, "s", [value for value, _ in points], bars


def _panels(
    results: StudyResults, series: Callable[[str], list[Series]], label: str, *, claims: bool, scale: str = "linear"
) -> Figure:
    """Draw one panel for each learner, epsilon from small to infinite."""
    learners = list(results.study.learners)
    epsilons = results.study.epsilons[::-1]
    places = np.arange(len(epsilons))
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(2.5 * len(learners), 3.4), layout="constrained")
        panels = figure.subplots(1, len(learners), sharey=True, squeeze=False)[0]
    for learner, axes in zip(learners, panels, strict=True):
        all_series = series(learner)
        for at, (name, colour, marker, values, bars) in enumerate(all_series):
            axes.errorbar(
                places + 0.09 * (at - (len(all_series) - 1) / 2),  # so that bars do not cover each other
                np.array(values[::-1], dtype=np.float64),
                np.array(bars[::-1], dtype=np.float64).T,
                color=colour,
                marker=marker,
                markersize=3.5,
                capsize=2,
                linewidth=1.3,
                label=name,
            )
        axes.set_yscale(scale)
        axes.set_title(learner, fontsize=9)
        axes.set_xticks(places, [_number(epsilon) for epsilon in epsilons])
    top = panels[0].get_ylim()[1]  # shared by all panels
    for axes in panels:
        for place, epsilon in zip(places, epsilons, strict=True):
            if claims and epsilon <= top:
                axes.plot([place - 0.35, place + 0.35], [epsilon] * 2, color=palette.CLAIM, linewidth=2, label="claim")
        if scale == "linear":
            axes.set_ylim(0, top)
    figure.supxlabel("claimed ε", fontsize=9.5)
    panels[0].set_ylabel(label)
    entries = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=5, fontsize=8.5, frameon=False)
    return figure


def _number(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"
