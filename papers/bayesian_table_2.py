"""Intervals of three methods on image and text classifiers: Table 2 of Zanella-Beguelin et al. (2023), section 4.

Shadow models select the point that LiRA recognises best. Fresh models are then trained with or without that point,
once without privacy and once by DP-SGD at epsilon = 8. Each method turns the attack's errors into an interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.generated import MadePhrases
from dpaudit.engine.data.images import Cifar10, FashionMnist
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.data.texts import Sst2
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.two_world.attacks.lira import LiraOnline, SelectWorst
from dpaudit.engine.games.two_world.game import IndMia
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Series
from dpaudit.estimators.selection import Fixed
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.estimators.two_world.confusion_tables import Bayesian
from dpaudit.estimators.two_world.two_sample import Band
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import BagOfEmbeddings, Mlp, Network, SmallCnn, SmallTransformer, TanhCnn
from dpaudit.plain_files import write_atomically
from dpaudit.registry import register
from papers.data.encoded_sentences import EncodedSentences, middle_layer
from papers.data.picture_strips import Cifar10Strips, cifar10
from papers.reproduction import Options, Reproduction
from papers.training_operations import SUSTAINED_FLOPS, training_flops

METHODS = ("clopper-pearson", "jeffreys", "bayesian")
DELTA, ALPHA, EPSILON = 1e-5, 0.1, 8.0
LEARNERS = ("No DP", "ε = 8")
PAPER, PUBLISHED, FIXED = "paper", "as published", "fixed threshold"

Ends = tuple[float, float]

PRINTED: Mapping[tuple[str, str], tuple[Ends, ...]] = {
    ("images", "No DP"): ((1.8, 5.3), (1.9, 5.0), (2.2, 4.5)),
    ("images", "ε = 8"): ((0.23, 7.7), (0.43, 6.0), (1.1, 5.0)),
    ("text", "No DP"): ((0.0, math.inf), (3.57, math.inf), (4.0, 9.2)),
    ("text", "ε = 8"): ((0.0, math.inf), (0.0, math.inf), (0.12, 8.5)),
}
"""The paper's intervals, CIFAR-10 and SST-2, in the order of `METHODS`."""


PRINTED_REDUCTIONS = {("images", "No DP"): (0.11, 0.40), ("images", "ε = 8"): (0.25, 0.48)}
"""Reductions of the Jeffreys and Bayesian widths relative to Clopper-Pearson's, as printed in the paper."""


@dataclass(frozen=True)
class Study:
    """A data set and the models trained on it.

    Attributes:
        kind: "images" or "text".
        data: The data set.
        split: Its parts.
        plain: Learner without privacy.
        private: The same learner by DP-SGD.
    """

    kind: str
    data: Any
    split: Partition
    plain: NonPrivate
    private: DpSgd

    def mechanism(self, learner: str) -> Any:
        """Return the mechanism under audit."""
        return self.plain if learner == LEARNERS[0] else self.private


@dataclass(frozen=True)
class Size:
    """Numbers of models and rows.

    Attributes:
        trials: Audited models for each learner.
        shadows: Shadow models for each learner.
        stack: Models trained together.
        rows: Rows used of each data set.
    """

    trials: int
    shadows: int
    stack: int
    rows: int | None


SIZES = {"small": Size(trials=1024, shadows=128, stack=64, rows=2000), "paper": Size(1024, 512, 32, None)}
CONVOLVED_ROWS = 1000
"""Colour pictures used at small scale: a stack of 64 convolutional networks takes about a minute of a core."""
SPLIT = Partition(target=0.45, reference=0.0, test=0.55)
PAPER_SPLIT = Partition(target=0.9, reference=0.0, test=0.1)


class Line(NamedTuple):
    """One learner's intervals at one choice of the threshold.

    Attributes:
        kind: "images" or "text".
        learner: "No DP" or "ε = 8".
        source: "paper", "as published" or "fixed threshold".
        intervals: In the order of `METHODS`.
    """

    kind: str
    learner: str
    source: str
    intervals: tuple[Ends, ...]

    def width(self, method: str) -> float:
        """Return the upper end less the lower end, in nats."""
        lower, upper = self.intervals[METHODS.index(method)]
        return upper - lower

    def reduction(self, method: str) -> float:
        """Return the reduction relative to Clopper-Pearson's width; the paper's lines return the printed value.

        NaN if Clopper-Pearson's width is infinite.
        """
        if self.source == PAPER and method != METHODS[0]:
            printed = PRINTED_REDUCTIONS.get((self.kind, self.learner), (math.nan, math.nan))
            return printed[METHODS.index(method) - 1]
        widest = self.width(METHODS[0])
        return 1 - self.width(method) / widest if math.isfinite(widest) else math.nan


@register("reproduction", "bayesian table-2", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Table 2")
def table_2(options: Options) -> Reproduction:
    """Intervals of three methods on image and text classifiers, with DP-SGD and without, worst-case challenges."""
    return _write_table(options, _run_audits(options))


def worst_case_counts(options: Options) -> tuple[int, ...]:
    """Return the confusion counts (tp, fp, tn, fn) of DP-SGD on images at the published threshold.

    Table 2's run in the output folder is started or resumed first.
    """
    everywhere, _ = _run_audits(options).results["images", LEARNERS[1]]
    return _best_table(everywhere.series["trade-off"])


CellResults = Mapping[tuple[str, str], tuple[AuditResult, AuditResult]]
"""Results by kind and learner: the audit over all thresholds, and the audit at the predetermined threshold."""


class Audited(NamedTuple):
    """Table 2's audits.

    Attributes:
        folder: The run folder.
        studies: The audited data sets and models.
        size: Numbers of models and rows.
        cost: The cost in a sentence.
        results: Results by kind and learner.
    """

    folder: Path
    studies: tuple[Study, ...]
    size: Size
    cost: str
    results: CellResults

    def data_name(self, kind: str) -> str:
        """Return the registered name of the images or of the texts."""
        (study,) = (study for study in self.studies if study.kind == kind)
        return str(_unencoded(study.data).registered_name)


def _run_audits(options: Options) -> Audited:
    """State the cost, then train and audit the missing models."""
    size, studies = SIZES[options.scale], table_studies(options)
    cost = _cost(studies, size, options)
    options.say(cost)
    folder, spec = options.output / f"table-2-{options.scale}", requested_audits(studies, size, options)
    report = audit(spec, output=folder, listeners=options.listeners)
    pairs = zip(report.results[::2], report.results[1::2], strict=True)
    cells = zip(itertools.product(studies, LEARNERS), pairs, strict=True)
    return Audited(folder, studies, size, cost, {(study.kind, learner): pair for (study, learner), pair in cells})


def requested_audits(studies: tuple[Study, ...], size: Size, options: Options) -> AuditSpec:
    """Return the spec of all cells, at the paper's scale with one GPU for each worker unless `run` sets a share."""
    run = options.run
    if options.scale == "paper" and not run.resources.gpus:
        run = replace(run, resources=replace(run.resources, gpus=1.0))
    name = f"Bayesian estimation, table-2-{options.scale}"
    return AuditSpec(_audits(studies, size), name=name, seed=options.seed, run=run)


def table_studies(options: Options) -> tuple[Study, ...]:
    """Return the studies of images and of texts."""
    size = SIZES[options.scale]
    return _images(options, size), _text(options, size)


def _audits(studies: tuple[Study, ...], size: Size) -> tuple[Audit, ...]:
    """Return two audits for each cell, on the same trainings."""
    game = IndMia(size.trials, size.stack, size.shadows, population=0, canary=SelectWorst(count=1))
    estimators = {
        "all thresholds": Band(DELTA, 1 - ALPHA / 2),
        # LiRA's decision threshold: both worlds are equally likely.
        FIXED: Bayesian(DELTA, 1 - ALPHA, Fixed(0.0)),
    }
    return tuple(
        Audit(
            mechanism=study.mechanism(learner),
            data=study.data,
            game=game,
            attack=LiraOnline(variance="per-point"),
            estimator=estimator,
            split=study.split,
            name=f"{study.kind}, {learner}, {name}",
        )
        for study, learner in itertools.product(studies, LEARNERS)
        for name, estimator in estimators.items()
    )


def _images(options: Options, size: Size) -> Study:
    """Return the study of images: CIFAR-10 or Fashion-MNIST in the folder at --data, digits without --data."""
    data: Any = Digits()
    colour = (path := options.data_set("cifar10")) is not None and "fashion_mnist" not in options.only
    if path is not None and colour:
        rows = CONVOLVED_ROWS if options.scale == "small" else size.rows
        data = cifar10(path, rows=rows)
    elif (path := options.data_set("fashion_mnist")) is not None:
        data = FashionMnist(str(path), rows=size.rows)
    if options.scale == "paper":
        plain: Network = TanhCnn(epochs=50, learning_rate=0.05, batch_size=256, schedule="cosine")
        private: Network = TanhCnn(epochs=50, learning_rate=1.0, momentum=0.0, batch_size=500)
        return Study("images", data, PAPER_SPLIT, NonPrivate(plain), DpSgd(EPSILON, sample_rate=0.02, model=private))
    plain = Mlp(hidden=(32,), epochs=15, learning_rate=0.05, batch_size=32)
    private = Mlp(hidden=(32,), epochs=10, learning_rate=1.0, momentum=0.0, batch_size=45)
    if colour:  # a perceptron learns nothing from this few pictures
        plain = SmallCnn(epochs=10, learning_rate=3e-3, batch_size=16, optimizer="adam", standardise=True)
        private = SmallCnn(epochs=6, learning_rate=0.5, momentum=0.0, batch_size=45)
    return Study("images", data, SPLIT, NonPrivate(plain), DpSgd(EPSILON, sample_rate=0.1, model=private))


def _text(options: Options, size: Size) -> Study:
    """Return the study of texts: SST-2 in the folder at --data, made phrases without --data.

    If the folder holds a language model, its states represent the texts.
    """
    path = options.data_set("sst2")
    vocabulary = 2048 if options.scale == "small" else 16384
    data: Any = MadePhrases(size.rows or 20_000, vocabulary=vocabulary)
    if path is not None:
        data = Sst2(str(path), rows=size.rows, vocabulary=vocabulary)
    if options.scale == "paper":
        wide = SmallTransformer(
            vocabulary=vocabulary, width=128, heads=4, epochs=10, batch_size=64, optimizer="adam", learning_rate=1e-3
        )
        private: Network = replace(wide, batch_size=1000, optimizer="sgd", momentum=0.0, learning_rate=1.0)
        return Study("text", data, PAPER_SPLIT, NonPrivate(wide), DpSgd(EPSILON, sample_rate=0.03, model=private))
    model = options.language_model()
    if path is not None and model is not None:
        texts, public = Sst2(str(path), rows=size.rows, raw=True), Sst2(str(path), part="test", rows=900, raw=True)
        states = EncodedSentences(texts, str(model), layer=middle_layer(model), prompt=PROMPT, public=public)
        plain: Network = Mlp(hidden=(), epochs=20, learning_rate=0.2, batch_size=32)
        private = Mlp(hidden=(), epochs=10, learning_rate=1.0, momentum=0.0, batch_size=45)
        return Study("text", states, SPLIT, NonPrivate(plain), DpSgd(EPSILON, sample_rate=0.1, model=private))
    plain = BagOfEmbeddings(vocabulary=vocabulary, epochs=10, learning_rate=1.0, batch_size=32)
    private = replace(plain, learning_rate=4.0, momentum=0.0, batch_size=45)
    return Study("text", data, SPLIT, NonPrivate(plain), DpSgd(EPSILON, sample_rate=0.1, model=private))


PROMPT = "Review: {text}\nIs the review positive or negative?"


def _cost(studies: tuple[Study, ...], size: Size, options: Options) -> str:
    models = size.trials + size.shadows
    trainings = f"{len(studies) * len(LEARNERS) * models:,} trainings ({size.shadows} shadow models and {size.trials}"
    trainings += f" audited ones for each of {len(studies) * len(LEARNERS)} cells)"
    if options.scale == "small":
        minutes = (
            CONVOLVED_MINUTES if any(isinstance(study.data, Cifar10 | Cifar10Strips) for study in studies) else MINUTES
        )
        return f"Cost: {trainings} of small networks in stacks of {size.stack}, {minutes}."
    hours = sum(models * len(LEARNERS) * _training_flops(study) for study in studies) / SUSTAINED_FLOPS / 3600
    return (
        f"Cost: {trainings}; by counted operations at {SUSTAINED_FLOPS / 1e12:g} TFLOP/s (an assumption, not measured) "
        f"about {hours:,.0f} GPU hours, gradients of single examples at the price of ordinary ones."
    )


MINUTES = "about 6 minutes of one core"
CONVOLVED_MINUTES = "about 40 minutes of one core"


def _training_flops(study: Study) -> float:
    """Return the operations of one training."""
    examples = study.data.load()
    rows = round(len(examples) * study.split.target / 2)
    return training_flops(study.private, rows, examples.features.shape[1:], examples.classes)


def _lines(results: CellResults) -> list[Line]:
    lines = []
    for (kind, learner), (everywhere, fixed) in results.items():
        lines.append(Line(kind, learner, PAPER, PRINTED[kind, learner]))
        roc, counts = everywhere.series.get("trade-off"), fixed.series.get("posterior")
        if roc is not None and counts is not None:
            tables = {PUBLISHED: _best_table(roc), FIXED: tuple(counts[name] for name in ("tp", "fp", "tn", "fn"))}
            lines += [Line(kind, learner, source, _intervals(table)) for source, table in tables.items()]
    return lines


def _best_table(roc: Series) -> tuple[int, ...]:
    """Return (tp, fp, tn, fn) at the threshold with the largest Bayesian lower end."""
    tp = np.rint(roc["true_positive_rate"] * roc["members"]).astype(np.int64)
    fp = np.rint(roc["false_positive_rate"] * roc["non_members"]).astype(np.int64)
    tables = np.stack([tp, fp, roc["non_members"] - fp, roc["members"] - tp])
    best = int(np.argmax(epsilon_interval(*tables, delta=DELTA, confidence=1 - ALPHA / 2, side="lower").lower))
    return tuple(tables[:, best].tolist())


def _intervals(table: tuple[int, ...]) -> tuple[Ends, ...]:
    """Return each method's equal-tailed interval."""
    intervals = [epsilon_interval(*table, delta=DELTA, confidence=1 - ALPHA, method=method) for method in METHODS]
    return tuple((float(ends.lower), float(ends.upper)) for ends in intervals)


def _write_table(options: Options, audited: Audited) -> Reproduction:
    """Write Markdown, CSV and the figure."""
    folder, results, size = audited.folder, audited.results, audited.size
    lines = _lines(results)
    text = "\n".join(
        [
            "# Table 2 of arXiv:2206.05199: intervals of three methods on worst-case challenges",
            "",
            f"{options.scale} scale, {size.trials} models audited and {size.shadows} shadow models a cell; "
            f"equal-tailed intervals at α = {ALPHA:g}, δ = {DELTA:g}; seed {options.seed}",
            "",
            "| data | learner | threshold | Clopper-Pearson | width | Jeffreys | width | vs. CP | Bayesian | width | "
            "vs. CP |",
            "| --- | --- | --- | --- | ---: | --- | ---: | ---: | --- | ---: | ---: |",
            *(_row(line, audited) for line in lines),
            "",
            *(
                f"- {note}"
                for note in (*_valid(audited), *READING, *_differences(audited.studies, options), audited.cost)
            ),
            "",
        ]
    )
    write_atomically(folder / "table-2.md", lambda file: file.write(text.encode()))
    write_atomically(folder / "table-2.csv", lambda file: pacsv.write_csv(_long(lines), file))
    style.save(_draw(lines, audited), folder, "table-2")
    names = ("table-2.md", "table-2.csv", "table-2.png", "report.html")
    return Reproduction(text, tuple(folder / name for name in names))


READING = (
    "As published: the threshold with the largest Bayesian lower end, chosen on the measured samples, so no stated "
    "confidence holds. The printed intervals are nested, as intervals at one threshold are. Fixed threshold: LiRA's "
    "likelihood ratio 1. Clopper-Pearson's interval then holds for every sample size; the Bayesian interval is "
    "credible, without a stated error rate.",
    "The paper prints −40 % where its own widths, 2.3 against 3.5, give −34 %; −48 % agrees with 3.9 against 7.5.",
    "The upper end bounds what this attack shows, never what the mechanism leaks.",
)


def _row(line: Line, audited: Audited) -> str:
    data = PAPER_DATA[line.kind] if line.source == PAPER else audited.data_name(line.kind)
    cells = [data, line.learner, line.source]
    for method, (lower, upper) in zip(METHODS, line.intervals, strict=True):
        cells += [f"({_number(lower)}, {_number(upper)})", _number(line.width(method))]
        if method != METHODS[0]:
            reduction = line.reduction(method)
            cells.append("–" if math.isnan(reduction) else f"−{reduction:.0%}")
    return f"| {' | '.join(cells)} |"


PAPER_DATA = {"images": "CIFAR-10", "text": "SST-2"}


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _valid(audited: Audited) -> list[str]:
    """Return notes with the bound valid over all thresholds and the test accuracy of each learner."""
    notes = []
    for (kind, learner), (everywhere, _) in audited.results.items():
        if everywhere.comparison is None:
            reason = everywhere.failures[0].error if everywhere.failures else "nothing was trained"
            notes.append(f"{kind}, {learner}: no bound, {reason}")
            continue
        lower = format_lower(everywhere.epsilon)
        notes.append(
            f"{audited.data_name(kind)}, {learner}: ε ≥ {lower} at {1 - ALPHA / 2:.0%} "
            f"confidence over all thresholds; test accuracy {everywhere.metrics['test_accuracy']:.1%}"
        )
    return notes


def _differences(studies: tuple[Study, ...], options: Options) -> tuple[str, ...]:
    if options.scale == "paper":
        return (
            "Text: a small transformer from scratch; the paper fine-tunes RoBERTa base, by DP-SGD too. "
            "`transformer-fine-tune` does so without privacy.",
        )
    rows = ", ".join(f"{in_use(study.data)}" for study in studies)
    models: list[Any] = [study.private.model for study in studies]
    networks = ", ".join(
        f"{model.registered_name} for {study.kind}" for study, model in zip(studies, models, strict=True)
    )
    return (
        f"Data: {rows}; the paper's are all of CIFAR-10 and SST-2.",
        f"Networks: {networks}; the paper's are a CNN of 974 K parameters and RoBERTa base. Small data and models leak "
        "more of one record, so intervals stand elsewhere; widths compare at equal error rates only.",
    )


def in_use(data: Any) -> str:
    """Return the registered name of a data set, its number of rows and its encoding."""
    base = _unencoded(data)
    rows = getattr(base, "rows", None)
    description = str(base.registered_name) + (f" ({rows:,} rows)" if rows else "")
    return description if base is data else f"{description} as encoded-sentences"


def _unencoded(data: Any) -> Any:
    """Return the texts of encoded sentences, and other data unchanged."""
    return getattr(data, "texts", data)


def _long(lines: list[Line]) -> pa.Table:
    """Return one row for each interval."""
    return pa.Table.from_pylist(
        [
            {
                "data": line.kind,
                "learner": line.learner,
                "threshold": line.source,
                "method": method,
                "lower": line.intervals[place][0],
                "upper": line.intervals[place][1],
                "width": line.width(method),
                "reduction": line.reduction(method),
            }
            for line in lines
            for place, method in enumerate(METHODS)
        ]
    )


COLOURS = dict(zip(METHODS, (palette.OTHER, palette.CLAIM, palette.MEMBER), strict=True))


def _draw(lines: list[Line], audited: Audited) -> Figure:
    """Draw one panel for each cell; an infinite interval runs to the edge of its panel."""
    figure, panels = style.canvases(len(audited.results), width=10.5, height=3.6)
    finite = [upper for line in lines for _, upper in line.intervals if math.isfinite(upper)]
    top = 1.1 * max([EPSILON, *finite])
    for panel, (kind, learner) in zip(panels, audited.results, strict=True):
        chosen = [line for line in lines if (line.kind, line.learner) == (kind, learner)]
        for place, line in enumerate(chosen):
            _draw_line(panel, place, line, top)
        if learner != LEARNERS[0]:
            panel.axhline(EPSILON, color=palette.INK, linewidth=1)
        names = [f"paper,\n{PAPER_DATA[kind]}", *(line.source.replace(" ", "\n", 1) for line in chosen[1:])]
        panel.set_xticks(range(len(chosen)), names, fontsize=8.5)
        panel.set_xlim(-0.5, len(chosen) - 0.5)
        panel.set_ylim(0, top)
        panel.set_title(f"{audited.data_name(kind)}, {learner}", fontsize=9.5)
    panels[0].set_ylabel("90 % interval on ε, nats (black line: the claim)")
    handles_and_labels = panels[0].get_legend_handles_labels()
    figure.legend(*handles_and_labels, loc="outside upper center", ncols=3, fontsize=8.5, frameon=False)
    return figure


def _draw_line(panel: Axes, place: int, line: Line, top: float) -> None:
    for offset, method, (lower, upper) in zip((-0.22, 0.0, 0.22), METHODS, line.intervals, strict=True):
        at, end = place + offset, min(upper, 2 * top)
        label = method if place == 0 else None
        panel.plot([at, at], [lower, end], color=COLOURS[method], linewidth=4, solid_capstyle="butt", label=label)
        if lower == 0 and math.isinf(upper):  # no information: drawn faint
            panel.lines[-1].set_alpha(0.3)
