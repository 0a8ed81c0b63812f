"""Unchanged estimators of diffprivlib, run by a separate Python, because the library needs scikit-learn < 1.9.

The environment variable DPAUDIT_DIFFPRIVLIB_PYTHON names that Python, so that no spec can start a program. `make
diffprivlib` installs one in .venv-diffprivlib. Without the variable, this Python is used (extra `diffprivlib`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require, shortened
from dpaudit.mechanisms.adapters.other_python import diffprivlib_trainings, worker
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import FlatFeaturesLearner, flat_features
from dpaudit.mechanisms.queries.row_function import CallOutcome
from dpaudit.mechanisms.ranges import require_finite_epsilon, require_positive
from dpaudit.mechanisms.training.recipe import require_one_of
from dpaudit.registry import register

PYTHON = "DPAUDIT_DIFFPRIVLIB_PYTHON"
Learner = Literal[
    "gaussian-nb",
    "logistic-regression",
    "linear-regression",
    "random-forest",
    "decision-tree",
    "k-means",
    "pca",
    "standard-scaler",
]


@register("mechanism", "diffprivlib", source="the package diffprivlib; Holohan et al. (2019), arXiv:1907.02444")
@dataclass(frozen=True)
class Diffprivlib(FlatFeaturesLearner):
    """An estimator of diffprivlib, trained by the library and summarised as its released numbers.

    Data from 0 to 1 (`scale: box` of the game) are rescaled to `lower` .. `upper`, the range passed to the library.
    Rows of length at most 1 (`scale: ball`) are rescaled to `norm`. Bounds are never inferred from the data.

    Attributes:
        learner: Name of the model.
        epsilon: The model's privacy loss in nats, > 0.
        lower: Lower bound of every feature; logistic-regression has none.
        upper: Upper bound of every feature.
        norm: Largest length of a row, for logistic-regression and pca, > 0.
        expose_counts: True to include the model's exact counts (`class_count_`, `n_samples_seen_`). The number of
            records that the class shares (`class_prior_`) imply is always included.
        settings: Further arguments of the model.
        relation: Neighbouring relation of the claim; the library's noise is for add-remove.
        version: Version of the library; others are refused, because finished results belong to this version.
    """

    learner: Learner
    epsilon: float
    lower: float = 0.0
    upper: float = 1.0
    norm: float = 1.0
    expose_counts: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = Relation.ADD_REMOVE
    version: str = "0.6.6"

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require_one_of("learner", self.learner, get_args(Learner))
        require(self.lower < self.upper, "lower must be below upper", lower=self.lower, upper=self.upper)
        require_positive(self, "norm")
        object.__setattr__(self, "relation", Relation(self.relation))

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=self.relation)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Train `count` times with different seeds and return one row each; NaN if the library raised.

        Raises: InputError if the Python or the library is missing; TrainingError if all trainings failed.
        """
        by_length = self.learner == "logistic-regression"
        shift, stretch = (0.0, self.norm) if by_length else (self.lower, self.upper - self.lower)
        rows = np.column_stack([flat_features(train.features) * stretch + shift, train.labels])
        names = ("learner", "epsilon", "lower", "upper", "norm", "expose_counts")
        fields = {name: getattr(self, name) for name in names}
        settings = {
            "fields": fields | {"settings": dict(self.settings), "classes": train.classes},
            "points": (points.astype(np.float64) * stretch + shift).tobytes().hex(),
            "version": self.version,
        }
        seeds = seed.generate_state(count).astype(np.int64) >> 1
        outcomes = _outcomes(pa.table({str(place): column for place, column in enumerate(rows.T)}), seeds, settings)
        if all(outcome.fault for outcome in outcomes):
            raise TrainingError(f"diffprivlib's {self.learner} failed every time. First error: {outcomes[0].fault}")
        # Decoded from their bits; NaN if the training failed or released fewer numbers.
        vectors = [
            np.empty(0) if outcome.fault else outcome.numbers.astype(np.int32).view(np.float64) for outcome in outcomes
        ]
        width, most = max(map(len, vectors)), worker.MAX_NUMBERS // 2 - 1
        require(width <= most, f"a training must release at most {most} numbers", released=width)
        return np.array([vector if len(vector) == width else np.full(width, np.nan) for vector in vectors])


def _outcomes(table: pa.Table, seeds: NDArray[np.int64], settings: Mapping[str, Any]) -> list[CallOutcome]:
    """Run all trainings, one call each.

    Raises: InputError if there is no such Python, or it lacks the library.
    """
    python, file = os.environ.get(PYTHON) or sys.executable, Path(diffprivlib_trainings.__file__)
    library = OtherPython(python, f"{file.stem}:train", form="array", settings=settings, path=[str(file.parent)])
    do = f"run `make diffprivlib` to install it, and set {PYTHON} to its Python"
    try:
        with library:
            outcomes = library.call(table, seeds.tolist())
    except InputError as err:
        raise InputError(f"{PYTHON} must name a Python that has diffprivlib: {err}; {do}") from err
    unusable = [outcome.fault for outcome in outcomes if outcome.ending.startswith("raises Unusable")]
    if unusable:
        raise InputError(f"diffprivlib did not run in {python}: {shortened(unusable[0])}; {do}")
    return outcomes
