"""Metrics of a run, scraped as Prometheus would scrape them."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace

import pytest

from dpaudit.actors import metrics as measured
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.metrics import RunMetrics
from tests.waiting import until


def scraped(run: str) -> dict[str, float]:
    """What the session exports of a run, by name."""
    import ray

    found = {}
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if f'run="{run}"' in line:
                    found[line.split("{")[0].removeprefix("ray_dpaudit_")] = float(line.rsplit(" ", 1)[1])
    return found


@pytest.mark.ray
def test_a_run_can_be_watched_by_its_metrics(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(measured, "time", SimpleNamespace(time=lambda: now))  # the run begins with its first event
    events = EventStream()
    metrics = RunMetrics("watched", {"a": 64, "b": 64}, {})
    with events.heard_by(metrics):
        events.emit(Event(EventKind.WORKER_STARTED, count=2, time=now))
        for key in ("a", "b", "c", "d"):
            events.emit(Event(EventKind.UNIT_STARTED, key, time=now))
        events.emit(Event(EventKind.UNIT_DONE, "a", seconds=3.0, time=now + 4))
        events.emit(Event(EventKind.UNIT_FAILED, "c", time=now + 5))
        events.emit(Event(EventKind.WORKER_LOST, "d", time=now + 6))
        events.emit(Event(EventKind.UNIT_DONE, "b", seconds=6.0, time=now + 8))
    metrics.tell()
    events.emit(Event(EventKind.UNIT_DONE, "d", time=now + 9))  # nobody listens any more
    expected = {
        "units_done": 2,
        "units_failed": 1,
        "units_retried": 1,
        "trainings": 128,
        "units_running": 0,
        "workers": 2,
    }

    def told() -> dict[str, float]:
        found = {name.removesuffix("_total"): value for name, value in scraped("watched").items()}
        return found if expected.items() <= found.items() else {}

    found = until(told, f"the session exports {expected}")
    assert found["trainings_per_second"] == pytest.approx(16)
    assert found["gpu_busy_share"] == 0
