"""Factors behind the bounds of Tables 1 and 2 of arXiv:2511.14084, one at a time, with a control on unseen rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.criteo import CriteoSynthetic
from dpaudit.engine.data.images import FashionMnist, Mnist
from dpaudit.engine.data.partition import Joined, Partition
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.proxies import CalibratedModel, ModelProxy, TruePosterior
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import run_plan
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.plain_files import write_atomically
from dpaudit.registry import register
from papers.criteo_tables import MODEL, PROXY, SMALL_SPLIT, SMALL_TEACHERS, click_log
from papers.image_tables import SMALL, SMALL_PATE_FM, SMALL_PROXY
from papers.label_tables import REPLAYS, Constant
from papers.reproduction import Options, Reproduction
from papers.uncorrected_bounds import BEST_FRACTION, DELTA, PUBLISHED, uncorrected

CLICKS = 100_000
"""Generated rows of each day."""
MODEL_PROXY, CORRECTED = ModelProxy(MODEL), CalibratedModel(MODEL)
"""A reference model with the settings of the audited one, which is overconfident on few rows, and its correction."""
FITTING = Mlp(hidden=(1024,), epochs=40, learning_rate=0.05, schedule="cosine", standardise=True)
REDRAWN = 0.1
"""Share of redrawn labels in data with a known label distribution."""
PATE_FM = replace(SMALL_PATE_FM, epsilon=math.inf)
"""PATE-FM without noise: 97 % accuracy on MNIST, from 400 answers."""


@dataclass(frozen=True)
class RedrawnLabels:
    """Pictures with redrawn labels, whose distribution given the picture is known: the proxy has no error.

    Attributes:
        data: Pictures and their classes.
        share: Probability of a change to one of the other classes, in [0, 1]; all of them are equally likely.
    """

    data: Any = field(metadata={"kind": "data"})
    share: float = REDRAWN

    def load(self, *, seed: int = 0) -> Examples:
        """Return the pictures, with labels drawn from `posterior` by `seed`."""
        examples: Examples = self.data.load(seed=seed)
        law = self.posterior(examples.features)
        uniform = np.random.default_rng(np.random.SeedSequence([seed, 1])).random((len(law), 1))
        labels = (law.cumsum(axis=1) < uniform).sum(axis=1)
        return examples.with_(labels=np.minimum(labels, examples.classes - 1))  # the sum of a law may be below 1

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """Return the exact P(y | picture) of pictures from `data`, shape (n, classes)."""
        classes = np.array([self._class_of[picture.tobytes()] for picture in np.asarray(features)])
        law = np.full((len(classes), self._classes), self.share / (self._classes - 1))
        law[np.arange(len(classes)), classes] = 1 - self.share
        return law

    @property
    def _classes(self) -> int:
        return 1 + max(self._class_of.values())

    @cached_property
    def _class_of(self) -> dict[bytes, int]:
        examples: Examples = self.data.load()
        pictures = np.asarray(examples.features)
        return {picture.tobytes(): int(label) for picture, label in zip(pictures, examples.labels, strict=True)}


@dataclass(frozen=True)
class Setting:
    """One training and its audit.

    Attributes:
        name: Name in the table and of the run folder.
        mechanism: The learner.
        proxy: Source of the counterfactual labels.
        data: Rows for training, for the proxy, and for the control.
        split: Their shares.
    """

    name: str
    mechanism: Any
    proxy: Any
    data: Any
    split: Partition


@register(
    "reproduction", "observational-label factors", source="arXiv:2511.14084, Tables 1 and 2, one factor at a time"
)
def factors(options: Options) -> Reproduction:
    """Factors behind the bounds of tables 1 and 2: fitted labels, rows, early stopping, PATE's queries, the proxy."""
    every = (*_images(options), *_clicks(options))
    settings = options.chosen_parts(every, lambda setting: setting.name, must="words of a setting, as `PATE-FM`")
    options.say(
        f"Cost: {len(settings)} trainings and their proxies, of {len(every)} in at most 26 minutes of one core."
    )
    audited = [(setting.name, *_run_setting(setting, options)) for setting in settings]
    text = "\n".join(
        [
            "| setting | as published | best fraction | if the proxy is right | rows never seen | beyond those "
            "| constant predictor | constant predictor, as published |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(
                "| " + " | ".join([name, *map(_formatted, _numbers(*results).values())]) + " |"
                for name, *results in audited
            ),
            "",
            "Lower bounds on epsilon in nats. Rows never seen: the bound of the best of three distinguishers by the "
            "same game on rows outside the training set. Beyond those: the remainder of the bound. Constant predictor: "
            "equal probabilities that saw no row.",
        ]
    )
    folder = options.output / "factors"
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(
        [{"setting": name, **_numbers(result, constant), **result.metrics} for name, result, constant in audited]
    )
    style.save(_draw(table.to_pylist()), folder, "factors")
    files = (folder / "factors.md", folder / "factors.csv", folder / "factors.png")
    write_atomically(files[0], lambda file: file.write(text.encode()))
    write_atomically(files[1], lambda file: pacsv.write_csv(table, file))
    return Reproduction(text, files)


def _draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw three bounds of each setting as bars from left to right."""
    figure, axes = style.canvas(8.6, 1.4 + 0.42 * len(rows))
    at = np.arange(len(rows))[::-1]
    for place, (what, colour) in enumerate(zip(BARS, palette.COLOURS, strict=False)):
        widths = [0.0 if row[what] is None or math.isnan(row[what]) else row[what] for row in rows]
        axes.barh(at + (1 - place) * 0.27, widths, 0.27, color=colour, label=what)
    axes.margins(y=0.02)
    style.set_ticks(axes.yaxis, at.tolist(), [row["setting"] for row in rows])
    axes.set_xlabel("lower bound on ε, nats")
    style.legend_below(figure, columns=len(BARS))
    return figure


BARS = ("as published", "if the proxy is right", "rows never seen")


def _images(options: Options) -> list[Setting]:
    """Return the settings of images: proxies, LP-1ST at epsilon 1 with networks that fit their labels, PATE-FM."""
    if options.data_set("fashion_mnist") is None:
        few: Any = Digits()
        many: Any = few
        digits: Any = few
    else:
        clothes, written = str(options.needed("fashion_mnist")), str(options.needed("mnist"))
        few, many = FashionMnist(clothes, rows=10_000), FashionMnist(clothes)
        digits = Mnist(written, part="t10k")
    split = Partition(target=0.4, reference=0.2, test=0.4)
    halves = Partition(target=0.5, reference=0.2, test=0.3)
    proxy, true_posterior = CalibratedModel(SMALL_PROXY), TruePosterior()
    cut = ModelProxy(SmallCnn(epochs=1))
    corrected = CalibratedModel(SmallCnn(epochs=1))
    redrawn, redrawn_digits = RedrawnLabels(few), RedrawnLabels(digits)
    often = RedrawnLabels(few, 3 * REDRAWN)
    return [
        Setting("images, no privacy", NonPrivate(FITTING), proxy, few, split),
        Setting("images, no privacy, proxy of one epoch, not calibrated", NonPrivate(FITTING), cut, few, split),
        Setting("images, no privacy, proxy of one epoch", NonPrivate(FITTING), corrected, few, split),
        Setting("images, LP-1ST, ε = 1, small CNN, 40 epochs", LP1ST(1.0, SMALL), proxy, few, split),
        Setting("images, LP-1ST, ε = 1, perceptron that fits", LP1ST(1.0, FITTING), proxy, few, split),
        Setting("images, LP-1ST, ε = 1, perceptron, all rows", LP1ST(1.0, FITTING), proxy, many, split),
        Setting("redrawn labels, no privacy", NonPrivate(FITTING), true_posterior, redrawn, halves),
        Setting("redrawn labels, LP-1ST, ε = 1", LP1ST(1.0, FITTING), true_posterior, redrawn, halves),
        Setting("redrawn labels, 30 %, LP-1ST, ε = 1", LP1ST(1.0, FITTING), true_posterior, often, halves),
        Setting("written digits, PATE-FM, ε = ∞", PATE_FM, proxy, digits, halves),
        Setting("redrawn labels, written digits, PATE-FM, ε = ∞", PATE_FM, true_posterior, redrawn_digits, halves),
    ]


def _clicks(options: Options) -> list[Setting]:
    """Return the settings of clicks: early stopping, the proxy's settings, PATE's queries, more rows."""
    data, cut = click_log(replace(options, scale="small")), SMALL_SPLIT
    whole = replace(cut, validation=0.0, test=0.28)
    many = Joined(CriteoSynthetic(CLICKS, day=0), CriteoSynthetic(CLICKS, day=1))
    days = Partition(reference=0.5, validation=0.02, target=0.24, test=0.24, order="given")
    proxy = CalibratedModel(PROXY)
    pate: Mapping[int, PATE] = {
        queries: PATE(math.inf, teachers=SMALL_TEACHERS, queries=queries, accounting="moments", model=MODEL)
        for queries in (200, 3_000)
    }
    return [
        Setting("clicks, no privacy", NonPrivate(MODEL), proxy, data, cut),
        Setting("clicks, no privacy, deep proxy, not calibrated", NonPrivate(MODEL), MODEL_PROXY, data, cut),
        Setting("clicks, no privacy, deep proxy", NonPrivate(MODEL), CORRECTED, data, cut),
        Setting("clicks, no privacy, all 100 trees", NonPrivate(MODEL), proxy, data, whole),
        Setting("clicks, LP-1ST, ε = 1", LP1ST(1.0, MODEL), proxy, data, cut),
        Setting("clicks, LP-1ST, ε = 1, deep proxy, not calibrated", LP1ST(1.0, MODEL), MODEL_PROXY, data, cut),
        Setting("clicks, LP-1ST, ε = 1, deep proxy", LP1ST(1.0, MODEL), CORRECTED, data, cut),
        Setting("clicks, LP-1ST, ε = 1, all 100 trees", LP1ST(1.0, MODEL), proxy, data, whole),
        Setting("clicks, LP-1ST, ε = 0.1, deep proxy, not calibrated", LP1ST(0.1, MODEL), MODEL_PROXY, data, cut),
        Setting("clicks, LP-1ST, ε = 0.1, deep proxy", LP1ST(0.1, MODEL), CORRECTED, data, cut),
        *(Setting(f"clicks, PATE, ε = ∞, {queries:,} queries", pate[queries], proxy, data, cut) for queries in pate),
        Setting("generated clicks, 100,000 rows a day, no privacy", NonPrivate(MODEL), proxy, many, days),
        Setting("generated clicks, 100,000 rows a day, LP-1ST, ε = 1", LP1ST(1.0, MODEL), proxy, many, days),
    ]


def _run_setting(setting: Setting, options: Options) -> tuple[AuditResult, AuditResult]:
    """Train and audit a setting, and return its result and that of a constant predictor with the same proxy."""
    audit = Audit(
        mechanism=setting.mechanism,
        data=setting.data,
        game=LabelInference(REPLAYS),
        proxy=setting.proxy,
        attack="label-inference",
        estimator=OneRun(DELTA),
        split=setting.split,
        name=setting.name,
    )
    run = replace(options.run, keep_scores=False, figures=False)
    folder: Path = options.output / "runs" / "".join(letter if letter.isalnum() else "-" for letter in setting.name)
    constant = replace(audit, mechanism=NonPrivate(Constant()), name="constant predictor")
    plan = make_plan(AuditSpec((audit, constant), setting.name, options.seed, run=run))
    first, second = run_plan(plan, folder, options.listeners).results
    return first, second


def _numbers(result: AuditResult, constant: AuditResult) -> dict[str, float]:
    control = result.control
    assert control is not None
    return {
        "as published": float(uncorrected(PUBLISHED, result.guess_counts).mean),
        "best fraction": float(uncorrected(BEST_FRACTION, result.guess_counts).mean),
        "if the proxy is right": result.epsilon,
        "rows never seen": control.epsilon,
        "beyond those": math.nan if control.beyond is None else control.beyond.lower,
        "constant predictor": constant.epsilon,
        "constant predictor, as published": float(uncorrected(PUBLISHED, constant.guess_counts).mean),
    }


def _formatted(value: float) -> str:
    return format_lower(value, 2)
