"""diffprivlib as it is, in a Python of its own; skipped where `make diffprivlib` has not made one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import SeedSequence

from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.diffprivlib import PYTHON, Diffprivlib
from dpaudit.mechanisms.adapters.other_python.diffprivlib_trainings import RELEASED
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples

CPU = Compute()
INSTALLED = Path(__file__).parent.parent.parent / ".venv-diffprivlib" / "bin" / "python"
needs_library = pytest.mark.skipif(
    not (os.environ.get(PYTHON) or INSTALLED.exists()), reason="needs `make diffprivlib`"
)
DATA = Examples(np.random.default_rng(0).random((60, 2)).astype(np.float32) / 2, np.arange(60) % 2, 2)
POINTS = np.zeros((1, 2), np.float32)


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get(PYTHON):
        monkeypatch.setenv(PYTHON, str(INSTALLED))


@needs_library
def test_class_counts_sum_to_the_number_of_records_whatever_epsilon() -> None:
    """So adding or removing a record is seen every time; the same seeds give the same trainings."""
    learner = Diffprivlib("gaussian-nb", 0.01, expose_counts=True)
    first, again = (learner.sample_summaries(DATA, POINTS, 5, seed=SeedSequence(1), compute=CPU) for _ in range(2))
    assert np.array_equal(first, again)
    assert len(np.unique(first[:, -1])) > 1
    assert (first[:, -2:].sum(1) == 60).all()
    fewer = learner.sample_summaries(DATA.take(np.arange(59)), POINTS, 5, seed=SeedSequence(1), compute=CPU)
    assert (fewer[:, -2:].sum(1) == 59).all()


@needs_library
def test_a_training_that_the_library_refuses_is_no_number() -> None:
    bad = Diffprivlib("k-means", 1.0, settings={"n_clusters": -1})
    with pytest.raises(TrainingError, match="failed every time; the first"):
        bad.sample_summaries(DATA, POINTS, 2, seed=SeedSequence(1), compute=CPU)


@needs_library
def test_another_version_and_settings_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(InputError, match=r"Unusable: diffprivlib must be 0\.0, got 0\.6\.6; `make diffprivlib`"):
        Diffprivlib("pca", 1.0, version="0.0").sample_summaries(DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU)
    with pytest.raises(InputError, match="settings must be numbers, words"):
        Diffprivlib("pca", 1.0, settings={"x": object()}).sample_summaries(
            DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU
        )


def test_another_python_is_asked_for_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(InputError, match="must name a Python that has diffprivlib"):
        Diffprivlib("pca", 1.0).sample_summaries(DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU)
    with pytest.raises(InputError, match="learner must be one of gaussian-nb"):
        Diffprivlib("svm", 1.0)  # type: ignore[arg-type]
    assert set(RELEASED) == {
        "gaussian-nb",
        "logistic-regression",
        "linear-regression",
        "random-forest",
        "decision-tree",
        "k-means",
        "pca",
        "standard-scaler",
    }
    assert replace(Diffprivlib("pca", 1.0), epsilon=2.0).claim().epsilon == 2.0
