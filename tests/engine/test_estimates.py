"""On Ray, a unit reads each audit as soon as its own units have finished; answers are those that the driver reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpaudit import audit, check, sweep
from dpaudit.actors.backend import InProcess
from dpaudit.actors.events import Event, EventKind, EventStream, read_events
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Claim, Relation
from dpaudit.engine.answer import gather
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import resume
from dpaudit.engine.run.run_status import run_status
from dpaudit.errors import RunError
from dpaudit.mechanisms.compute import Compute
from tests.actors.tasks import Add, FailsFirst
from tests.small import few_releases

ONE_RUN = {
    "data": {"name": "gaussian-mixture", "rows": 900, "classes": 3},
    "mechanism": {"name": "randomized-response", "epsilon": 2.0},
    "proxy": "true-posterior",
    "game": {"name": "label-inference", "replays": 2},
    "grid": {"mechanism.epsilon": [1.0, 2.0]},
}
ML_AUDIT = {
    "data": {"name": "iris"},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1},
    "game": {"name": "neighbours", "trials": 60, "search": 60, "stack": 30},
    "attack": {"name": "output-set", "classifiers": ["linear"]},
    "grid": {"mechanism.epsilon": [1, 8]},
}


@pytest.fixture
def on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read audits by units in this process, as workers of Ray do."""
    monkeypatch.setattr(InProcess, "runs_answers", True)


def answers(folder: Path) -> Any:
    content = json.loads((folder / "bounds.json").read_text())
    return {name: part for name, part in content.items() if name not in ("seconds", "events", "repeated")}


def spec_on(content: Mapping[str, Any], runner: str) -> Any:
    return load_spec({"seed": 3, **content, "run": {"runner": runner, "figures": False}})


@pytest.mark.parametrize("content", [ONE_RUN, ML_AUDIT], ids=["one run", "ML-Audit"])
def test_an_estimate_has_the_same_digits_as_in_the_driver(
    content: dict[str, Any], tmp_path: Path, on_workers: None
) -> None:
    audit(spec_on(content, "in-process"), output=tmp_path / "driver", quiet=True)
    report = audit(spec_on(content, "auto"), output=tmp_path / "workers", quiet=True)
    assert answers(tmp_path / "driver") == answers(tmp_path / "workers")
    events = list(read_events(tmp_path / "workers" / "events.jsonl"))
    estimated = [event for event in events if event.kind is EventKind.ESTIMATED]
    assert {event.label for event in estimated} == {f"estimate of {result.name}" for result in report.results}
    last = max(at for at, event in enumerate(events) if event.kind is EventKind.UNIT_DONE)
    assert events.index(estimated[0]) < last, "the first audit is estimated while units of others run"
    assert len(list((tmp_path / "workers" / "units").glob("*.parquet"))) == report.units, "no answer is stored"
    status = run_status(tmp_path / "workers")
    assert (status.finished, status.units) == (report.units, report.units)
    for result in report.results:
        assert result.scores().shape[0] > 0


def test_a_check_decides_by_the_estimates(tmp_path: Path, on_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it stops after a rejected claim."""
    options: dict[str, Any] = {
        "claim": Claim(1.0, 0.0, Relation.LABEL),
        "seed": 1,
        "quiet": True,
        "data": {"name": "gaussian-mixture", "rows": 60},
    }
    few_releases(monkeypatch)
    folders = [tmp_path / "driver", tmp_path / "workers"]
    for folder, runner in zip(folders, ("in-process", "auto"), strict=True):
        run = RunOptions(runner=runner, figures=False)  # type: ignore[arg-type]
        check({"name": "randomized-response", "epsilon": 3.0}, **options, output=folder, run=run)
    assert answers(folders[0]) == answers(folders[1])
    assert any(event.kind is EventKind.ESTIMATED for event in read_events(folders[1] / "events.jsonl"))


@pytest.mark.ray
def test_actors_estimate_audits_and_give_the_table_of_scores(ray_cluster: None, tmp_path: Path) -> None:
    import ray

    audit(spec_on(ML_AUDIT, "in-process"), output=tmp_path / "driver", quiet=True)
    report = audit(spec_on(ML_AUDIT, "ray"), output=tmp_path / "ray", quiet=True)
    assert answers(tmp_path / "driver") == answers(tmp_path / "ray")
    events = list(read_events(tmp_path / "ray" / "events.jsonl"))
    estimated = [event for event in events if event.kind is EventKind.ESTIMATED]
    assert len(estimated) == 2
    assert {event.worker for event in estimated} <= {event.worker for event in events if event.unit} - {""}
    table = ray.get(report.results[0].scores_ref())
    assert table.to_pandas().equals(report.results[0].scores())


def test_a_reference_to_scores_needs_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = audit(spec_on(ML_AUDIT, "in-process"), output=tmp_path, quiet=True)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test may have started the session
    with pytest.raises(RunError, match=r"needs a Ray session\. Call ray\.init"):
        report.results[0].scores_ref()


def fail_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any, inputs: Inputs, compute: Compute) -> pa.Table:
        raise MemoryError("no memory on this worker")

    monkeypatch.setattr(gather.ReadAudit, "run", run)


def test_an_audit_whose_estimate_failed_on_a_worker_is_read_by_the_driver(
    tmp_path: Path, on_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(spec_on(ML_AUDIT, "in-process"), output=tmp_path / "driver", quiet=True)
    fail_on_workers(monkeypatch)
    report = audit(spec_on(ML_AUDIT, "auto"), output=tmp_path / "workers", quiet=True)
    assert answers(tmp_path / "driver") == answers(tmp_path / "workers")
    assert not any(result.failures for result in report.results)
    assert not list((tmp_path / "workers" / "units").glob("*.failed"))


def test_an_estimator_that_fails_gives_the_error_of_the_driver(
    tmp_path: Path, on_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("a bug of an estimator")

    monkeypatch.setattr(gather._Finished, "_finding", broken)
    for runner in ("in-process", "auto"):
        with pytest.raises(ValueError, match=r"^a bug of an estimator$"):
            audit(spec_on(ML_AUDIT, runner), output=tmp_path / runner, quiet=True)


def test_a_run_that_ends_before_its_estimates_loses_nothing(tmp_path: Path, on_workers: None) -> None:
    audit(spec_on(ML_AUDIT, "in-process"), output=tmp_path / "driver", quiet=True)

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.ESTIMATED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(spec_on(ML_AUDIT, "auto"), output=tmp_path / "workers", listeners=[interrupt])
    resume(tmp_path / "workers", quiet=True)
    expected, resumed = answers(tmp_path / "driver"), answers(tmp_path / "workers")
    assert expected["results"] == resumed["results"]


@pytest.mark.parametrize("workers", [True, False])
def test_a_sweep_reads_each_configuration_once(workers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcess, "runs_answers", workers)
    audits_read: list[str] = []
    original = gather.read_audit

    def counted(entry: Any, *rest: Any, **options: Any) -> Any:
        audits_read.append(entry.audit.name)
        return original(entry, *rest, **options)

    for module in ("answer.gather", "run.policy"):
        monkeypatch.setattr(f"dpaudit.engine.{module}.read_audit", counted)
    content = {**ONE_RUN, "mechanism": {"name": "lp-1st", "epsilon": 1.0, "model": "logistic-regression"}}
    content |= {"name": "sweep", "proxy": "model", "run": {"runner": "auto", "figures": False}}
    result = sweep(content, output=tmp_path, quiet=True)
    assert sorted(audits_read) == sorted(trial.configuration.name for trial in result)
    assert all(trial.is_audited for trial in result)


# The scheduler


@dataclass(frozen=True)
class Sum:
    """An answer: the sum of its tables, and the metadata that it got."""

    metadata: tuple[str, ...] = ()

    def following(self, metadata: Mapping[str, Mapping[bytes, bytes]]) -> Sum:
        return replace(self, metadata=tuple(sorted(metadata)))

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        return pa.table({"sum": [sum(table["total"][0].as_py() for table in inputs.tables.values())]})

    def value(self, table: pa.Table) -> Any:
        return table["sum"][0].as_py()


def run_with_answer(units: list[Unit], answer: Unit, folder: Path) -> tuple[RunOutcome, list[Event]]:
    emitted: list[Event] = []
    backend, store = InProcess({}), UnitStore(folder)
    return run_units([*units, answer], backend, store, EventStream(emitted.append)), emitted


def answer_of(needs: list[Unit], follows: list[Unit]) -> Unit:
    keys, further = (tuple(unit.key for unit in units) for units in (needs, follows))
    return Unit(Sum(), "answer", needs=keys, key="answer", follows=further, is_answer=True)


@pytest.mark.parametrize("on_backend", [True, False])
def test_an_answer_is_returned_and_not_stored(
    on_backend: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code_read_once: None
) -> None:
    monkeypatch.setattr(InProcess, "runs_answers", on_backend)
    units = [Unit(Add(number), f"unit {number}") for number in (1, 2, 4)]
    outcome, emitted = run_with_answer(units, answer_of(units[:2], units[2:]), tmp_path)
    assert outcome.answers == {"answer": 3 if on_backend else None}
    assert outcome.finished == {unit.key for unit in units}
    assert (outcome.ran, outcome.failed, outcome.skipped) == (3, {}, frozenset())
    assert [event.count for event in emitted if event.kind is EventKind.UNITS_PLANNED] == [3]
    assert not UnitStore(tmp_path).has_file("answer")


def test_an_answer_that_needs_a_failed_unit_is_none(tmp_path: Path, on_workers: None, code_read_once: None) -> None:
    for number, of_failed in enumerate(("needs", "follows")):
        good, bad = Unit(Add(1), "good"), Unit(FailsFirst(str(tmp_path), str(number), 9, "bug"), "bad")
        answer = answer_of([good, bad], []) if of_failed == "needs" else answer_of([good], [bad])
        outcome, emitted = run_with_answer([good, bad], answer, tmp_path / of_failed)
        assert outcome.answers == {"answer": None}
        assert outcome.failed.keys() == {bad.key}
        assert not any(event.unit == "answer" for event in emitted)
