"""Runs with their folder on an S3 server: equal scores, resume on another machine, status and fetch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit import AuditSpec, RunOptions, audit, load_spec
from dpaudit.actors.events import Event, EventKind, EventLog
from dpaudit.engine.run.driver import report_again, resume
from dpaudit.engine.run.run_folder import working_folder
from dpaudit.engine.run.run_status import fetch, run_status
from dpaudit.errors import RunError, SpecError
from tests.remote import SECRET
from tests.waiting import until

SPEC = {
    "name": "remote",
    "seed": 3,
    "data": {"name": "gaussian-mixture", "rows": 600},
    "game": {"name": "label-canaries", "replays": 4},
    "mechanism": {"name": "lp-1st", "epsilon": 1.0, "model": "recall"},
    "run": {"runner": "in-process", "figures": False},
}


def spec() -> AuditSpec:
    return replace(load_spec(SPEC), run=RunOptions(runner="in-process", figures=False))


def scores(folder: Path) -> dict[str, str]:
    files = sorted((folder / "scores").rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_remote_run_resumed_elsewhere_has_the_scores_of_a_local_run(bucket: str, tmp_path: Path) -> None:
    place = bucket.format("runs/one")
    local = audit(spec(), output=tmp_path / "here", quiet=True)
    emitted: list[Event] = []

    def interrupted(event: Event) -> None:
        emitted.append(event)
        if event.kind is EventKind.UNIT_DONE and sum(earlier.kind is event.kind for earlier in emitted) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(spec(), output=place, listeners=[interrupted])
    status = run_status(place)
    assert (status.stage, status.finished) == ("interrupted", 2)
    assert "interrupted" in str(status)
    shutil.rmtree(working_folder(place))  # as on another machine
    resumed = resume(place, quiet=True)
    assert resumed.executed == local.executed - 2
    assert resumed.folder == place
    fetch(place, tmp_path / "fetched")
    assert scores(tmp_path / "fetched") == scores(tmp_path / "here") != {}
    status = run_status(place)
    assert (status.stage, status.finished, status.failed) == ("finished", status.units, 0)
    assert status.verdicts == tuple((result.name, result.verdict) for result in local.results)
    assert report_again(tmp_path / "fetched").results[0].finding == local.results[0].finding
    with pytest.raises(SpecError, match="must be new or empty"):
        fetch(place, tmp_path / "fetched")
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_second_driver_of_a_remote_folder_is_refused(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = bucket.format("runs/two")
    blocked, go = threading.Event(), threading.Event()

    def hold(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE and not blocked.is_set():
            blocked.set()
            until(go.is_set, "the second driver was refused")

    result: list[object] = []
    first = threading.Thread(target=lambda: result.append(audit(spec(), output=place, listeners=[hold])))
    first.start()
    until(blocked.is_set, "the first driver has finished a unit")
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
        with pytest.raises(RunError, match=r"runs/two.* is being written by process \d+ on "):
            audit(spec(), output=place, quiet=True)
    finally:
        go.set()
        first.join()
    assert len(result) == 1


def test_status_of_a_local_run_and_of_no_run(tmp_path: Path) -> None:
    audit(spec(), output=tmp_path / "run", quiet=True)
    status = str(run_status(tmp_path / "run"))
    assert f"{tmp_path / 'run'}: finished" in status
    assert "0 on workers, 0 failed" in status
    assert json.loads((tmp_path / "run" / "bounds.json").read_text())["results"][0]["verdict"] in status
    with pytest.raises(SpecError, match=r"must be the folder of a run \(with plan.parquet\)"):
        run_status(tmp_path)


def test_status_of_a_sweep_that_explores_configurations(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("name: mine")
    with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as log:
        log(Event(EventKind.UNITS_PLANNED, count=3))
        log(Event(EventKind.UNIT_STARTED, unit="a"))
        log(Event(EventKind.UNIT_DONE, unit="a"))
    status = run_status(tmp_path)
    assert (status.units, status.finished) == (3, 1)


@pytest.mark.parametrize("verb", ["run", "status", "fetch"])
def test_wrong_credentials_are_refused_in_one_line(
    checking_s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = f"s3://bucket/run?endpoint_override={checking_s3_server}&scheme=http"
    ask: dict[str, Callable[[], object]] = {
        "run": lambda: audit(spec(), output=place, quiet=True),
        "status": lambda: run_status(place),
        "fetch": lambda: fetch(place, tmp_path / "fetched"),
    }
    with pytest.raises(RunError, match="check the credentials in the environment") as refused:
        ask[verb]()
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)
