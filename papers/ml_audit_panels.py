"""Panels of ML-Audit's figures: data sets, learners, the attacks on each, and the number of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.bundled import BreastCancer, Iris, Wine
from dpaudit.engine.data.labelled_files import Adult, Csv
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.neighbours.game import COPIES, Scale, as_numbers
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning
from dpaudit.engine.games.neighbours.poisonings.regression import CoefficientTarget, Influence, OpposingRecords
from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip, ClipBackdoorPair, CornerFlip, FarthestFlip, SwapX
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest
from papers.reproduction import Options

EPSILONS: Mapping[str, tuple[float, ...]] = {
    "small": (0.5, 1.0, 2.0, 4.0, 8.0),
    "paper": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 50.0),
}
TRAININGS = {"small": 3_000, "paper": 20_000}
"""Search samples, and as many fresh ones: the paper's 10,000 of each world are 20,000."""
ADULT_ROWS = 3_000
"""Rows of adult at small scale: the effect of one record hardly depends on the number of other rows."""
WIDE = ("adult", "credit")
"""Data sets with many columns, where the additive classifier would take longer than the trainings."""
REACH = 4.0
"""Maximum of copies times epsilon; with a larger epsilon, one record changes."""
PENALTY = 0.01
WHOLE = Partition(target=1.0, reference=0.0, test=0.0)
ATTACK = OutputSet(("linear", "additive"))
WIDE_ATTACK = OutputSet(("linear",))


@dataclass(frozen=True)
class Panel:
    """A learner, the range of its data, and the attacks on it.

    Attributes:
        learner: Its name in the figure.
        make: Function from epsilon to the learner.
        scale: Range of the features.
        attacks: Attacks by name, ours first.
        cost: Approximate cost of an audit for each number in the data, relative to naive Bayes.
    """

    learner: str
    make: Any
    scale: Scale
    attacks: Mapping[str, Poisoning]
    cost: float = 1.0


def forest(epsilon: float) -> PrivateForest:
    """Return a forest that claims `epsilon` for added and removed records."""
    return PrivateForest(epsilon, depth=8)


def bayes(epsilon: float) -> GaussianNaiveBayes:
    """Return naive Bayes that claims `epsilon` for replaced records."""
    return GaussianNaiveBayes(epsilon, relation=Relation.REPLACE)


def output(epsilon: float) -> LogisticOutputPerturbation:
    """Return logistic regression with output perturbation."""
    return LogisticOutputPerturbation(epsilon, penalty=PENALTY)


def objective(epsilon: float) -> LogisticObjectivePerturbation:
    """Return logistic regression with objective perturbation."""
    return LogisticObjectivePerturbation(epsilon, penalty=PENALTY)


def _regression(moved: Literal["coefficients", "slope"]) -> dict[str, Poisoning]:
    return {"opposing-records": OpposingRecords(PENALTY, moved=moved), **_REGRESSION}


_REGRESSION: Mapping[str, Poisoning] = {
    "corner-flip": CornerFlip(),
    "influence": Influence(PENALTY),
    "coefficient-target": CoefficientTarget(PENALTY),
    "clip-bkd": ClipBackdoorPair(),
    "swap-x": SwapX(),
}
PANELS = (
    Panel(
        "naive Bayes",
        bayes,
        "box",
        {"corner-flip": CornerFlip(), "class-flip": ClassFlip(), "clip-bkd": ClipBackdoorPair(), "swap-x": SwapX()},
    ),
    Panel("output perturbation", output, "ball", _regression("coefficients")),
    Panel("objective perturbation", objective, "ball", _regression("slope"), cost=30.0),
    Panel(
        "random forest",
        forest,
        "box",
        {
            "corner-flip": CornerFlip(),
            "farthest-flip": FarthestFlip(),
            "clip-bkd": ClipBackdoorPair(),
            "swap-x": SwapX(),
        },
        cost=3.0,
    ),
)


def copies_at(epsilon: float) -> int:
    """Return the largest of 1, 2, 4 and 8 with copies times epsilon at most `REACH`; 1 if epsilon exceeds it."""
    return max(copies for copies in COPIES if copies == 1 or copies * epsilon <= REACH)


def data_sets(options: Options) -> dict[str, Any]:
    """Return iris, breast cancer and, at the paper's scale, wine, plus the data sets in the folder at --data.

    That folder may hold `adult/`, `credit_german/german.data` and, at the paper's scale,
    `credit_default/UCI_Credit_Card.csv.gz`, with the names of UCI and Kaggle. It may also hold the paper's banknote and
    thoracic as `banknote/banknote.csv` and `thoracic/thoracic.csv`, with a header and a column `class`.
    """
    data_sets: dict[str, Any] = {"iris": first_class(Iris()), "breast-cancer": BreastCancer()}
    paper = options.scale == "paper"
    if paper:
        data_sets["wine"] = first_class(Wine())
    if options.data is None:
        return data_sets
    folder = options.data
    if (folder / "adult").is_dir():
        data_sets["adult"] = Adult(str(folder / "adult"), rows=None if paper else ADULT_ROWS)
    files: dict[str, tuple[str, dict[str, Any]]] = {
        "credit": ("credit_german/german.data", {"label": "column-21", "delimiter": " ", "header": False}),
        "banknote": ("banknote/banknote.csv", {"label": "class"}),
        "thoracic": ("thoracic/thoracic.csv", {"label": "class"}),
    }
    if paper:
        default = {"label": "default.payment.next.month", "drop": ("ID",)}
        files["credit of Taiwan"] = ("credit_default/UCI_Credit_Card.csv.gz", default)
    for name, (file, fields) in files.items():
        if (folder / file).exists():
            data_sets[name] = Csv(str(folder / file), **fields)
    return data_sets


def cheapest_first(sets: Mapping[str, Any]) -> list[tuple[str, Any, Panel]]:
    """Return each data set with each learner, ordered by the number of values times the learner's cost."""
    numbers = {name: np.asarray(as_numbers(_loaded(data), "box").features).size for name, data in sets.items()}
    cells = [(name, data, panel) for name, data in sets.items() for panel in PANELS]
    return sorted(cells, key=lambda cell: numbers[cell[0]] * cell[2].cost)


def _loaded(data: Any) -> Examples:
    loaded: Examples = data if isinstance(data, Examples) else data.load()
    return loaded


def attack_on(name: str) -> OutputSet:
    """Return the output set with the classifiers to try on a data set."""
    return WIDE_ATTACK if name.startswith(WIDE) else ATTACK


def first_class(source: Iris | Wine) -> Examples:
    """Return the first of three classes against the two others; in iris, a line separates it."""
    data = source.load()
    return Examples(data.features, (data.labels == 0).astype(np.int64), 2, f"{data.name}, first class")
