"""diffprivlib as it is, in a Python of its own; skipped where `make diffprivlib` has not made one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence

from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters import diffprivlib as adapter
from dpaudit.mechanisms.adapters.diffprivlib import PYTHON, Diffprivlib
from dpaudit.mechanisms.adapters.other_python.diffprivlib_trainings import Unusable, train
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.queries.row_function import CallOutcome

CPU = Compute()
INSTALLED = Path(__file__).parent.parent.parent / ".venv-diffprivlib" / "bin" / "python"
needs_library = pytest.mark.skipif(
    not (os.environ.get(PYTHON) or INSTALLED.exists()), reason="needs `make diffprivlib`"
)
DATA = Examples(np.random.default_rng(0).random((60, 2)).astype(np.float32) / 2, np.arange(60) % 2, 2)
POINTS = np.zeros((1, 2), np.float32)
COUNTING = Diffprivlib("gaussian-nb", 0.01, expose_counts=True)


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get(PYTHON):
        monkeypatch.setenv(PYTHON, str(INSTALLED))


@needs_library
def test_class_counts_sum_to_the_number_of_records_whatever_epsilon() -> None:
    """So adding or removing a record is seen every time. By day the library is loaded here alone: it takes seconds."""
    first = COUNTING.sample_summaries(DATA, POINTS, 2, seed=SeedSequence(1), compute=CPU)
    assert (first[:, -2:].sum(1) == 60).all()
    assert len(np.unique(first[:, -1])) == 2


@pytest.mark.nightly
@needs_library
def test_the_same_seed_gives_the_same_training_and_fewer_records_smaller_counts() -> None:
    first, again = (COUNTING.sample_summaries(DATA, POINTS, 5, seed=SeedSequence(1), compute=CPU) for _ in range(2))
    assert np.array_equal(first, again)
    fewer = COUNTING.sample_summaries(DATA.take(np.arange(59)), POINTS, 5, seed=SeedSequence(1), compute=CPU)
    assert (fewer[:, -2:].sum(1) == 59).all()


@pytest.mark.nightly
@needs_library
def test_a_training_that_the_library_refuses_is_no_number() -> None:
    bad = Diffprivlib("k-means", 1.0, settings={"n_clusters": -1})
    with pytest.raises(TrainingError, match=r"failed every time\. First error"):
        bad.sample_summaries(DATA, POINTS, 2, seed=SeedSequence(1), compute=CPU)


@pytest.mark.nightly
@needs_library
def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"Unusable: diffprivlib must be 0\.0, got 0\.6\.6; `make diffprivlib`"):
        Diffprivlib("pca", 1.0, version="0.0").sample_summaries(DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU)


def released(*outcomes: CallOutcome, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The summaries of trainings that ended in this way."""
    monkeypatch.setattr(adapter, "_outcomes", lambda table, seeds, settings: list(outcomes))
    return COUNTING.sample_summaries(DATA, POINTS, len(outcomes), seed=SeedSequence(1), compute=CPU)


def test_failed_trainings_are_nan_and_an_error_if_all_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.array([1.5, np.nan, 1e-300]).view(np.int32).astype(np.float64)
    whole, short = CallOutcome("array", bits, ""), CallOutcome("array", bits[:2], "")
    fails = CallOutcome("raises ValueError", np.empty(0), "ValueError: n_clusters")
    vectors = released(whole, fails, short, monkeypatch=monkeypatch)
    np.testing.assert_array_equal(vectors, [[1.5, np.nan, 1e-300], [np.nan] * 3, [np.nan] * 3])
    with pytest.raises(TrainingError, match=r"gaussian-nb failed every time\. First error: ValueError: n_clusters"):
        released(fails, fails, monkeypatch=monkeypatch)


def test_other_versions_and_unsendable_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffprivlib", SimpleNamespace(__version__="0.1", models=None))
    with pytest.raises(Unusable, match=r"diffprivlib must be 0\.6\.6, got 0\.1"):
        train(np.zeros((2, 3)), None, fields={}, points="", version="0.6.6")
    monkeypatch.setitem(sys.modules, "diffprivlib", None)
    with pytest.raises(Unusable, match="ModuleNotFoundError"):
        train(np.zeros((2, 3)), None, fields={}, points="", version="0.6.6")
    with pytest.raises(InputError, match="settings must be numbers, words"):
        Diffprivlib("pca", 1.0, settings={"x": object()}).sample_summaries(
            DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU
        )


def test_a_missing_python_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(InputError, match="must name a Python that has diffprivlib"):
        Diffprivlib("pca", 1.0).sample_summaries(DATA, POINTS, 1, seed=SeedSequence(1), compute=CPU)
    with pytest.raises(InputError, match="learner must be one of gaussian-nb"):
        Diffprivlib("svm", 1.0)  # type: ignore[arg-type]
    assert replace(Diffprivlib("pca", 1.0), epsilon=2.0).claim().epsilon == 2.0
