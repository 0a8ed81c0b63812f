"""What the figures of ML-Audit are made of: data sets, learners, the attacks on each, and how large all is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.data.adult import Adult
from dpaudit.engine.data.bundled import BreastCancer, Iris, Wine
from dpaudit.engine.data.csv import Csv
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.neighbours.game import COPIES, Scale, as_numbers
from dpaudit.engine.games.neighbours.output_set import OutputSet
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
"""Of adult at the small scale: how far a record shows hardly depends on how many others there are."""
WIDE = ("adult", "credit")
"""Data of many columns, where the additive classifier would take longer than the trainings."""
REACH = 4.0
"""Copies times epsilon, at most, where one record alone is below it."""
PENALTY = 0.01
WHOLE = Partition(target=1.0, reference=0.0, test=0.0)
ATTACK = OutputSet(("linear", "additive"))
WIDE_ATTACK = OutputSet(("linear",))


@dataclass(frozen=True)
class Panel:
    """A learner, what its data are scaled to, and the attacks on it.

    Attributes:
        learner: Its name in the figure.
        make: The learner for an epsilon.
        scale: The range of its numbers.
        attacks: By name, ours first.
        cost: Of an audit, about: how much more each number of the data costs than with naive Bayes.
    """

    learner: str
    make: Any
    scale: Scale
    attacks: Mapping[str, Poisoning]
    cost: float = 1.0


def forest(epsilon: float) -> PrivateForest:
    """A forest that claims this of added and removed records."""
    return PrivateForest(epsilon, depth=8)


def bayes(epsilon: float) -> GaussianNaiveBayes:
    """Naive Bayes that claims this of replaced records."""
    return GaussianNaiveBayes(epsilon, relation=Relation.REPLACE)


def output(epsilon: float) -> LogisticOutputPerturbation:
    """Output perturbation."""
    return LogisticOutputPerturbation(epsilon, penalty=PENALTY)


def objective(epsilon: float) -> LogisticObjectivePerturbation:
    """Objective perturbation."""
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
    """The most records, of 1, 2, 4 and 8, with copies times epsilon at most `REACH`; one where epsilon is larger."""
    return max(copies for copies in COPIES if copies == 1 or copies * epsilon <= REACH)


def data_sets(options: Options) -> dict[str, Any]:
    """Iris and breast cancer, at the paper's scale wine; with --data, a folder, what it holds of the others.

    These are `adult/`, `credit_german/german.data` and, at the paper's scale, `credit_default/UCI_Credit_Card.csv.gz`,
    as UCI and Kaggle call them; banknote and thoracic, which the paper has too, as `banknote/banknote.csv` and
    `thoracic/thoracic.csv`, with a header and the class in a column `class`.
    """
    data_sets: dict[str, Any] = {"iris": first_class(Iris()), "breast-cancer": BreastCancer()}
    paper = options.scale == "paper"
    if paper:
        data_sets["wine"] = first_class(Wine())
    if options.data is None:
        return data_sets
    folder = Path(options.data)
    if (folder / "adult").is_dir() or (folder / "adult.data").exists() or (folder / "adult.data.gz").exists():
        place = folder / "adult" if (folder / "adult").is_dir() else folder
        data_sets["adult"] = Adult(str(place), rows=None if paper else ADULT_ROWS)
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
    """Each data set with each learner, by how many numbers the data have and what the learner makes of one."""
    numbers = {name: np.asarray(as_numbers(_loaded(data), "box").features).size for name, data in sets.items()}
    cells = [(name, data, panel) for name, data in sets.items() for panel in PANELS]
    return sorted(cells, key=lambda cell: numbers[cell[0]] * cell[2].cost)


def _loaded(data: Any) -> Examples:
    loaded: Examples = data if isinstance(data, Examples) else data.load()
    return loaded


def attack_on(name: str) -> OutputSet:
    """The classifiers tried on a data set."""
    return WIDE_ATTACK if name.startswith(WIDE) else ATTACK


def first_class(source: Iris | Wine) -> Examples:
    """The first of three classes against the two others: of the irises a line separates it."""
    data = source.load()
    return Examples(data.features, (data.labels == 0).astype(np.int64), 2, f"{data.name}, first class")
