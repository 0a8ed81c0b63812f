"""Runs: scores do not depend on the runner, runs resume, failures are reported."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from dpaudit import AuditSpec, Examples, RunOptions, Verdict, audit, load_spec
from dpaudit.actors.events import Event, EventKind, read_events
from dpaudit.actors.values import decode, encode
from dpaudit.claims import Claim
from dpaudit.engine.games.one_run.answers import LabelRelease, Predictions
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.run.driver import report_again
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.protocols import Model
from tests.processes import own_workers
from tests.warm import python

SPEC = {
    "name": "small",
    "seed": 5,
    "data": {"name": "gaussian-mixture", "rows": 3000, "classes": 3},
    "game": {"name": "label-inference", "replays": 8},
    "split": {"target": 0.5, "reference": 0.4, "test": 0.1},
    "audits": [
        {"name": "released", "mechanism": {"name": "randomized-response", "epsilon": 2.0}, "proxy": "true-posterior"},
        {
            "name": "trained",
            "mechanism": {"name": "lp-1st", "epsilon": 2.0, "model": {"name": "catboost", "iterations": 5}},
        },
        {"name": "net", "mechanism": {"name": "non-private", "model": {"name": "mlp", "hidden": [16], "epochs": 2}}},
    ],
}


def spec_on(runner: str, workers: int | None = None) -> AuditSpec:
    return replace(load_spec(SPEC), run=RunOptions(runner=runner, workers=workers))  # type: ignore[arg-type]


def digests(folder: Path) -> dict[str, str]:
    files = sorted((folder / "scores").rglob("*.parquet"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-process")
    audit(spec_on("in-process"), output=folder)
    return folder


@pytest.mark.nightly  # by day a lost worker is replaced in tests/actors/test_schedule.py
@pytest.mark.ray
def test_scores_are_the_same_on_two_workers_after_they_were_killed(
    ray_cluster: None, in_process: Path, tmp_path: Path
) -> None:
    killed = threading.Event()

    def kill_a_worker(event: Event) -> None:
        if event.kind is EventKind.UNIT_STARTED and "training" in event.label and not killed.is_set():
            killed.set()
            for pid in own_workers():
                os.kill(pid, signal.SIGKILL)

    audit(spec_on("ray", 2), output=tmp_path, listeners=[kill_a_worker])
    assert killed.is_set()
    kinds = [event.kind for event in read_events(tmp_path / "events.jsonl")]
    assert EventKind.WORKER_LOST in kinds
    assert digests(tmp_path) == digests(in_process)


def test_files_of_a_run_folder(in_process: Path) -> None:
    for name in ("spec.yaml", "plan.parquet", "events.jsonl", "bounds.json", "bounds.parquet", "report.html"):
        assert (in_process / name).exists()
    bounds = json.loads((in_process / "bounds.json").read_text())
    assert [result["verdict"] for result in bounds["results"]] == [
        "INCONCLUSIVE",  # too few rows to reject a claim of 2
        "INCONCLUSIVE",
        "NO CLAIM",
    ]
    first = bounds["results"][0]
    assert first["finding"]["validity"] == "finite-sample"
    assert first["observational"] is True
    assert first["rows"] == {"target": 1500, "reference": 1200, "test": 300, "validation": 0}
    page = (in_process / "report.html").read_text()
    assert page.count("<svg") == 1 + 3 * 3
    assert 'http-equiv="refresh"' not in page
    assert "src=" not in page, "the page is self-contained"
    table = pads.dataset(next((in_process / "scores").glob("released-*")), format="parquet").to_table()
    assert table.num_rows == 8 * 1500
    columns = {"score": pa.float32(), "truth": pa.bool_(), "replay": pa.int32(), "canary": pa.int32()}
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == columns
    assert set(pq.read_table(in_process / "plan.parquet").column_names) >= {"key", "label", "seed", "cpus", "gpus"}


def test_a_finished_run_runs_no_unit(in_process: Path) -> None:
    before = digests(in_process)
    report = audit(spec_on("in-process"), output=in_process)
    assert report.executed == 0
    assert digests(in_process) == before


def test_more_replays_reuse_the_training(in_process: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(in_process, tmp_path / "copy")
    content = {**SPEC, "game": {"name": "label-inference", "replays": 10}, "run": {"runner": "in-process"}}
    report = audit(load_spec(content), output=folder)
    labels = [
        event.label for event in list(read_events(folder / "events.jsonl"))[-60:] if event.kind is EventKind.UNIT_DONE
    ]
    assert report.executed
    assert not any("training" in label or "reference" in label for label in labels[-report.executed :])


def test_report_recomputes_the_report_and_runs_nothing(in_process: Path) -> None:
    (in_process / "report.html").unlink()
    report = report_again(in_process)
    assert (in_process / "report.html").exists()
    assert report.executed == 0
    assert [result.verdict for result in report.results] == [
        Verdict.INCONCLUSIVE,
        Verdict.INCONCLUSIVE,
        Verdict.NO_CLAIM,
    ]


def test_scores_need_not_be_kept(in_process: Path, tmp_path: Path) -> None:
    without_scores = replace(load_spec(SPEC), run=RunOptions(runner="in-process", keep_scores=False))
    report = audit(without_scores, output=tmp_path)
    assert not (tmp_path / "scores").exists()
    with_scores = report_again(in_process)
    assert [result.finding for result in report.results] == [result.finding for result in with_scores.results]


def test_another_seed_gives_other_scores(in_process: Path, tmp_path: Path) -> None:
    spec = spec_on("in-process")
    audit(replace(spec, audits=spec.audits[:2]), output=tmp_path, seed=6)
    assert digests(tmp_path)
    assert not set(digests(tmp_path).values()) & set(digests(in_process).values())


def test_an_interrupted_run_resumes(in_process: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes after three units; the second run runs only the other units."""
    finished_units: list[Event] = []

    def interrupt(event: Event) -> None:
        finished_units.extend([event] if event.kind is EventKind.UNIT_DONE else [])
        if len(finished_units) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            audit(spec_on("in-process"), output=tmp_path, listeners=[interrupt])
    finally:
        signal.signal(signal.SIGINT, before)
    check_resumes(tmp_path, in_process)


def test_a_killed_run_resumes(in_process: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_on("in-process").to_yaml())
    folder = tmp_path / "run"
    code = (
        "import os, signal\n"
        "from dpaudit import audit\n"
        "from dpaudit.actors.events import EventKind\n"
        "done = []\n"
        "def stop(event):\n"
        "    if event.kind is EventKind.UNIT_DONE:\n"
        "        done.append(event)\n"
        "        if len(done) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"audit({str(spec)!r}, output={str(folder)!r}, listeners=[stop])\n"
    )
    assert python(code, cwd=tmp_path).code == -signal.SIGKILL
    check_resumes(folder, in_process)


def check_resumes(folder: Path, complete_run: Path) -> None:
    """Resume a run with three finished units, and compare its scores with those of `complete_run`."""
    spec = spec_on("in-process")
    assert len(list((folder / "units").glob("*.parquet"))) == 3
    assert audit(spec, output=folder).executed == len(make_plan(spec).units) - 3
    assert digests(folder) == digests(complete_run)


@dataclass(frozen=True)
class SometimesNaN:
    """A learner whose training fails for some seeds."""

    failing: bool = True

    def claim(self) -> Claim:
        return Claim(1.0)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        if self.failing:
            raise TrainingError("the loss became NaN in epoch 3; lower the learning rate")
        raise AssertionError


def test_a_failed_training_is_shown_and_gives_no_bound(tmp_path: Path) -> None:
    base = load_spec(SPEC).audits[0]
    failing = replace(base, mechanism=SometimesNaN(), name="fails")
    spec = AuditSpec((base, failing), name="half", seed=5, run=RunOptions(runner="in-process"))
    report = audit(spec, output=tmp_path)
    good, bad = report.results
    assert good.comparison is not None
    assert bad.verdict is Verdict.FAILED
    assert "lower the learning rate" in str(report)
    assert "lower the learning rate" in (tmp_path / "report.html").read_text()
    assert any("TrainingError" in path.read_text() for path in (tmp_path / "units").glob("*.failed"))
    kinds = [event.kind for event in read_events(tmp_path / "events.jsonl")]
    assert EventKind.UNIT_RETRIED in kinds


@dataclass(frozen=True)
class FailsTheSecondTime(SometimesNaN):
    """A learner whose second training fails; the others recall every label."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        if seed.spawn_key[-1] == 1:
            raise TrainingError("the loss became NaN")
        return Recall().fit(train, seed=seed, compute=compute)


def test_one_failed_training_of_several_counts_as_no_evidence(tmp_path: Path) -> None:
    base = load_spec(SPEC).audits[0]
    some = replace(base, mechanism=FailsTheSecondTime(), game=LabelInference(replays=2, trainings=3), name="some")
    none = replace(base, mechanism=NonPrivate(Recall()), game=LabelInference(replays=2, trainings=3), name="none")
    spec = AuditSpec((some, none), name="part", seed=5, run=RunOptions(runner="in-process"))
    lossy, whole = audit(spec, output=tmp_path).results
    assert lossy.comparison is not None
    assert whole.comparison is not None
    assert dict(lossy.finding.counts)["lost replays"] == 2
    assert 0 < lossy.comparison.observed < whole.comparison.observed
    assert "training 2 of 3" in str(lossy)


@pytest.mark.nightly
def test_memory_stays_small_for_many_canaries(tmp_path: Path) -> None:
    """200,000 canaries and 100 replays need less than 1.5 GB, measured in a new process."""
    code = f"""
from dpaudit import audit
from dpaudit.actors.backend import peak_memory_mb
audit({{'name': 'big', 'data': {{'name': 'gaussian-mixture', 'rows': 202000}}, 'proxy': 'true-posterior',
       'split': {{'target': 200/202, 'reference': 0.0, 'test': 0.0}},
       'mechanism': {{'name': 'randomized-response', 'epsilon': 1.0}},
       'run': {{'runner': 'in-process', 'figures': False}}}}, output={str(tmp_path)!r})
print(peak_memory_mb() / 1000)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert float(process.stdout.split()[-1]) < 1.5
    assert pads.dataset(next((tmp_path / "scores").iterdir()), format="parquet").count_rows() == 200_000 * 100


def test_outputs_are_stored_unchanged() -> None:
    """A model gives probabilities; a label mechanism gives labels, which determine them."""
    predictions = Predictions(np.array([[0.25, 0.75], [1.0, 0.0]], np.float32))
    (again,) = decode(encode([predictions], Predictions), Predictions)
    assert (again.probabilities.tolist(), again.probabilities.dtype) == (predictions.probabilities.tolist(), np.float32)
    for released in (LabelRelease.revealing(np.array([2, 0]), 3), LabelRelease.uninformative(2, 3)):
        (same,) = decode(encode([released], LabelRelease), LabelRelease)
        assert (same.labels.tolist(), same.classes, same.informative) == (
            released.labels.tolist(),
            3,
            released.informative,
        )
        assert same.probabilities.tolist() == released.probabilities.tolist()
    assert LabelRelease.revealing(np.array([2, 0]), 3).probabilities.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert LabelRelease.uninformative(2, 4).probabilities.tolist() == [[0.25] * 4] * 2
