"""Audited code that writes to its inputs, exits, hangs or ignores its seed must not change a verdict."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Examples, Report, RunOptions, Verdict, audit
from dpaudit.actors.events import Event, EventKind, read_events
from dpaudit.claims import Claim
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.protocols import Model

DATA = {"name": "gaussian-mixture", "rows": 3000}


@dataclass(frozen=True)
class InPlace:
    """Randomized response that overwrites the true labels."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        labels[:] = RandomizedResponse(self.epsilon).release(labels, classes=classes, rng=rng)
        return labels


@dataclass(frozen=True)
class FitsInPlace(InPlace):
    """A learner that overwrites features and labels; its model overwrites the features of queries."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        model = WritesToQuestions(Recall().fit(train, seed=seed, compute=compute))
        train.features[:] -= train.features.mean(axis=0)  # type: ignore[index, operator, union-attr]
        train.labels[:] = 0
        return model


@dataclass(frozen=True)
class WritesToQuestions:
    model: Model

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        answers = self.model.probabilities(features.copy())
        features[:] = 0
        return answers


@dataclass(frozen=True)
class FitsACopy(FitsInPlace):
    """A `FitsInPlace` that works on copies."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return Recall().fit(train, seed=seed, compute=compute)


@dataclass(frozen=True)
class Zeros(InPlace):
    """Randomized response that releases zeros only."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.zeros_like(labels)


@dataclass(frozen=True)
class IgnoresItsSeed(InPlace):
    """Randomized response with an unseeded generator."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return RandomizedResponse(self.epsilon).release(labels, classes=classes, rng=np.random.default_rng())


@dataclass(frozen=True)
class Ends(InPlace):
    """Randomized response that ends its process in different ways."""

    how: str = "exit"

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        match self.how:
            case "exit":
                raise SystemExit(0)
            case "os._exit":
                os._exit(0)
            case "signal":
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait(30)
        raise AssertionError


def run(folder: Path, *mechanisms: object, options: RunOptions | None = None) -> Report:
    audits = tuple(
        Audit(mechanism, DATA, LabelInference(replays=4), "true-posterior", name=f"{number}")
        for number, mechanism in enumerate(mechanisms)
    )
    options = options or RunOptions(runner="in-process", figures=False)
    return audit(AuditSpec(audits, run=options), output=folder, quiet=True)


def test_a_mechanism_that_writes_to_its_input_changes_no_verdict(tmp_path: Path) -> None:
    in_place, zeros = run(tmp_path / "in-place", InPlace(), Zeros()).results
    honest, _ = run(tmp_path / "copy", RandomizedResponse(1.0), Zeros()).results
    assert (in_place.verdict, in_place.finding) == (Verdict.NO_VIOLATION, honest.finding)
    assert zeros.verdict is Verdict.NO_VIOLATION


def test_a_learner_and_a_model_that_write_to_their_inputs_change_nothing(tmp_path: Path) -> None:
    (in_place,) = run(tmp_path / "in-place", FitsInPlace()).results
    (copying,) = run(tmp_path / "copy", FitsACopy()).results
    assert in_place.finding == copying.finding
    assert in_place.metrics == copying.metrics


def test_a_mechanism_that_ignores_its_seed_is_reported(tmp_path: Path) -> None:
    wild, tame = run(tmp_path / "wild", IgnoresItsSeed()), run(tmp_path / "tame", InPlace())
    assert "not repeatable: " in str(wild)
    assert "another result in a second run with the same seed" in (tmp_path / "wild" / "report.html").read_text()
    assert "determinism check passed" in tame.text(verbose=True)
    assert "determinism check" not in str(tame)
    assert [unit.difference for unit in tame.repeated] == ["", ""]
    off = RunOptions(runner="in-process", figures=False, repeats=0)
    assert run(tmp_path / "off", IgnoresItsSeed(), options=off).repeated == ()


def test_a_mechanism_that_exits_fails_its_unit(tmp_path: Path) -> None:
    exited, unaffected = run(tmp_path, Ends(), InPlace()).results
    assert exited.verdict is Verdict.FAILED
    assert "SystemExit" in str(exited)
    assert unaffected.verdict is Verdict.NO_VIOLATION


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        run(tmp_path, InPlace(), Ends(how="signal"))
    events = list(read_events(tmp_path / "events.jsonl"))
    assert (events[-1].kind, events[-1].detail) == (EventKind.INTERRUPTED, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_limits_are_checked() -> None:
    from dpaudit.errors import InputError

    for wrong in ({"time_limit_s": 0.0}, {"repeats": -1}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
            dataclasses.replace(RunOptions(), **wrong)  # type: ignore[arg-type]


def test_a_long_error_is_shortened_to_a_line() -> None:
    from dpaudit.actors.events import last_line

    assert last_line("Traceback\nValueError: " + "x" * 10_000) == "ValueError: " + "x" * 488 + " ..."
    assert last_line("") == ""
    assert Event(EventKind.UNIT_RUNNING, seconds=30.0).detail == ""
