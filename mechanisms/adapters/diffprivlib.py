"""Estimators of diffprivlib, run as they are by a Python of their own: the library needs scikit-learn < 1.9.

A spec must not be able to start a program, so the environment variable DPAUDIT_DIFFPRIVLIB_PYTHON names that Python
(`make diffprivlib` installs one in .venv-diffprivlib); without it, the one that runs dpaudit (extra `diffprivlib`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError, require, shortened
from dpaudit.mechanisms.adapters.other_python import diffprivlib_trainings
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import flat_features
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_finite_epsilon, require_positive
from dpaudit.mechanisms.training.recipe import one_of
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
class Diffprivlib(NoiseByEpsilon):
    """An estimator of diffprivlib, trained by the library itself and summed up as what it releases.

    Data from 0 to 1 (`scale: box` of the game) are brought to `lower` .. `upper`, the range the library is told; rows
    of length at most 1 (`scale: ball`) to `norm`. The bounds are never left to the data.

    Attributes:
        learner: Which of its models.
        epsilon: What it is asked for, in nats, > 0.
        lower: The range of every feature, from here; logistic-regression has none.
        upper: To here.
        norm: Largest length of a row, for logistic-regression and pca, > 0.
        expose_counts: Whether counts that the model shows (`class_count_`, `n_samples_seen_`) are looked at. What
            numbers of records the shares of the classes (`class_prior_`) can be of is looked at in any case.
        settings: Other arguments of the model.
        relation: What neighbours its epsilon is taken to be about: the library adds the noise of add-remove.
        version: Of the library; another one is refused, as finished results are of this one.
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

    noiseless_epsilon = 1e4

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        one_of("learner", self.learner, get_args(Learner))
        require(self.lower < self.upper, "lower must be below upper", lower=self.lower, upper=self.upper)
        require_positive(self, "norm")
        object.__setattr__(self, "relation", Relation(self.relation))

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=self.relation)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """One training after another, each with a seed of its own; NaN where the library raised.

        Raises: InputError when there is no such Python or library; TrainingError when all trainings failed.
        """
        by_length = self.learner == "logistic-regression"
        shift, stretch = (0.0, self.norm) if by_length else (self.lower, self.upper - self.lower)
        arrays = {
            "X": flat_features(train.features) * stretch + shift,
            "y": train.labels,
            "points": points.astype(np.float64) * stretch + shift,
            "seeds": seed.generate_state(count).astype(np.int64) >> 1,
        }
        names = ("learner", "epsilon", "lower", "upper", "norm", "expose_counts")
        asked = {name: getattr(self, name) for name in names}
        asked |= {"settings": dict(self.settings), "classes": train.classes}
        vectors, errors = _answered(asked, arrays, self.version)
        if all(errors):
            raise TrainingError(f"diffprivlib's {self.learner} failed every time; the first: {errors[0]}")
        return vectors


def _answered(asked: Mapping[str, Any], arrays: Any, version: str) -> tuple[NDArray[np.float64], list[str]]:
    python = os.environ.get(PYTHON) or sys.executable
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(asked))
        np.savez(folder / "request.npz", **arrays)
        command = [python, diffprivlib_trainings.__file__, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as err:
            raise InputError(f"{PYTHON} must name a Python that has diffprivlib, got {python!r}: {err}") from err
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(
                f"diffprivlib did not run in {python}: {shortened(last)}; `make diffprivlib` installs it beside "
                f"dpaudit, and {PYTHON} names its Python"
            )
        answer = json.loads((folder / "answer.json").read_text())
        require(answer["version"] == version, f"diffprivlib must be {version}", installed=answer["version"])
        with np.load(folder / "answer.npz", allow_pickle=False) as found:
            return found["vectors"], answer["errors"]
