"""Metrics of a run, scraped as by Prometheus."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dpaudit.actors import metrics as measured
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.metrics import RunMetrics
from tests.waiting import until


def scraped(run: str) -> dict[str, float]:
    """Return the exported metrics of a run, by name."""
    import ray

    metrics = {}
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if f'run="{run}"' in line:
                    metrics[line.split("{")[0].removeprefix("ray_dpaudit_")] = float(line.rsplit(" ", 1)[1])
    return metrics


EXPECTED = {
    "units_done": 2,
    "units_failed": 1,
    "units_retried": 1,
    "trainings": 128,
    "units_running": 0,
    "workers": 2,
}


def send_events(monkeypatch: pytest.MonkeyPatch, gpus: dict[str, float]) -> None:
    """Send events of four units in 8 s: two finish, one fails, one is lost with its worker."""
    now = 1_000.0
    monkeypatch.setattr(measured, "time", SimpleNamespace(time=lambda: now))  # the run begins with its first event
    events = EventStream()
    metrics = RunMetrics("watched", {"a": 64, "b": 64}, gpus)
    with events.subscribed(metrics):
        events.emit(Event(EventKind.WORKER_STARTED, count=2, time=now))
        for key in ("a", "b", "c", "d"):
            events.emit(Event(EventKind.UNIT_STARTED, key, time=now))
        events.emit(Event(EventKind.UNIT_DONE, "a", seconds=3.0, time=now + 4))
        events.emit(Event(EventKind.UNIT_FAILED, "c", time=now + 5))
        events.emit(Event(EventKind.WORKER_LOST, "d", time=now + 6))
        events.emit(Event(EventKind.UNIT_DONE, "b", seconds=6.0, time=now + 8))
    metrics.update()
    events.emit(Event(EventKind.UNIT_DONE, "d", time=now + 9))  # the metrics no longer listen


class Metric:
    """Stand-in for a Ray metric with its value and the tag of its run."""

    instances: ClassVar[list[Metric]] = []

    def __init__(self, name: str, words: str, tags: tuple[str, ...]) -> None:
        self.name, self.tag_names, self.value = name, tags, 0.0
        self.tags: dict[str, str] = {}
        self.instances.append(self)

    def set_default_tags(self, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.tag_names
        self.tags = tags

    def inc(self, number: float) -> None:
        self.value += number

    def set(self, value: float) -> None:
        self.value = value


@pytest.mark.parametrize(("gpus", "busy"), [(2.0, 4.5 / (2 * 8)), (0.0, 0.0), (0.5, 1.0)])
def test_metrics_follow_the_events(monkeypatch: pytest.MonkeyPatch, gpus: float, busy: float) -> None:
    """Two units hold half a GPU each, for 9 s together."""
    monkeypatch.setattr(Metric, "instances", [])
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(measured, kind, Metric)
    monkeypatch.setattr(measured.ray, "cluster_resources", lambda: {"GPU": gpus})
    send_events(monkeypatch, {"a": 0.5, "b": 0.5})
    assert {metric.tags["run"] for metric in Metric.instances} == {"watched"}
    values = {metric.name.removeprefix("dpaudit_"): metric.value for metric in Metric.instances}
    assert values == {
        **EXPECTED,
        "trainings_per_second": pytest.approx(128 / 8),
        "gpu_busy_share": pytest.approx(busy),
    }


@pytest.mark.nightly
@pytest.mark.ray
def test_ray_exports_the_metrics_of_a_run(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    send_events(monkeypatch, {})

    def exported_metrics() -> dict[str, float]:
        values = {name.removesuffix("_total"): value for name, value in scraped("watched").items()}
        return values if EXPECTED.items() <= values.items() else {}

    values = until(exported_metrics, f"the session exports {EXPECTED}")
    assert values["trainings_per_second"] == pytest.approx(128 / 8)
    assert values["gpu_busy_share"] == 0
