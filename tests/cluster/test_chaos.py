"""Audits that lose workers, nodes, drivers and heads have the scores of undisturbed ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.chaos import content, started, workplace
from benchmarks.chaos_cluster import SPEC, outcome, reference
from benchmarks.nodes import cluster, kill
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.run.run_status import fetch, run_status
from dpaudit.errors import SpecError
from tests.waiting import until

TRAININGS = 30


@pytest.mark.nightly
@pytest.mark.cluster
def test_disturbed_runs_lose_no_unit_and_have_the_same_scores() -> None:
    """A short version of `python -m benchmarks.chaos_cluster`."""
    disturbed = outcome(0, 0, TRAININGS, count=2)
    expected = {"wrong": "", "lost": 0, "twice": 0, "same": True, "planned": 1 + 3 * TRAININGS, "commands": 2}
    assert expected.items() <= disturbed.items(), disturbed


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_run_resumes_on_another_machine_after_head_and_driver_are_lost(bucket: str, tmp_path: Path) -> None:
    """The run folder is on an S3 server; the other machine has only its URI."""
    trainings, uri = 100, bucket.format("runs/lost")
    expected = reference(trainings)
    with workplace() as place:
        (place / "spec.yaml").write_text(SPEC.format(runner="ray", trainings=trainings))
        with cluster(place / "a", 1) as nodes:
            first_environment = {**nodes.environment, "XDG_CACHE_HOME": str(tmp_path / "here")}
            run = started(place, first_environment, "run", "spec.yaml", "-o", uri)
            until(
                lambda: len(list((tmp_path / "here").rglob("*.parquet"))) > 10 or run.command.poll() is not None,
                "ten units are finished",
            )
            for worker in nodes.workers():
                os.kill(
                    worker, signal.SIGSTOP
                )  # pause the run, so that it cannot finish before its results are uploaded
            until(lambda: _finished(uri) >= 5, "five units are uploaded")
            before = _finished(uri)
            nodes.end()
            kill(list(run.processes()))
            assert run.command.wait(60) != 0, "the run finished before its head was lost"
        FileStore.at(uri).delete(".lease")  # as if a minute had passed
        second_environment = {"XDG_CACHE_HOME": str(tmp_path / "there")}
        again = started(place, second_environment, "resume", uri, "--allow-code").command.wait(300)
        assert again == 0, (place / "errors.txt").read_text()
    assert run_status(uri).cached >= before >= 5
    fetch(uri, tmp_path / "fetched")
    assert content(tmp_path / "fetched") == expected


def _finished(uri: str) -> int:
    try:
        return run_status(uri).finished
    except SpecError:  # nothing was uploaded yet
        return 0
