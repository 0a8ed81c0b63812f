"""Metrics of a run in the Ray session, which Prometheus can scrape with those of the cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import ray
from ray.util.metrics import Counter, Gauge

from dpaudit.actors.events import Event, EventKind

WINDOW_S = 60.0  # window of rates and shares
UPDATE_S = 1.0  # minimum seconds between updates of Ray, since units may be shorter

_COUNTERS = {
    "units_done": "units finished by this driver",
    "units_failed": "units that failed on every attempt",
    "units_retried": "attempts that were retried, including lost workers",
    "trainings": "models trained by this driver",
}
_GAUGES = {
    "units_running": "units sent to workers",
    "workers": "workers that are up",
    "trainings_per_second": "models trained per second, over the last minute",
    "gpu_busy_share": "share of GPU time spent in units that ended in the last minute",
}


class RunMetrics:
    """Event listener that updates the metrics `dpaudit_...` with the tag `run`, at most once a second."""

    def __init__(self, run: str, trainings: Mapping[str, int], gpus: Mapping[str, float]) -> None:
        self._counters = {name: Counter(f"dpaudit_{name}", words, ("run",)) for name, words in _COUNTERS.items()}
        self._gauges = {name: Gauge(f"dpaudit_{name}", words, ("run",)) for name, words in _GAUGES.items()}
        for metric in (*self._counters.values(), *self._gauges.values()):
            metric.set_default_tags({"run": run})
        self._trainings, self._gpus = trainings, gpus
        self._counts = dict.fromkeys(self._counters, 0)  # since the last update
        self._running = self._workers = 0
        self._gpu_seconds = 0.0
        self._began = self._updated = self._now = time.time()
        self._recent: deque[tuple[float, int, float]] = deque()  # time of update, trainings, GPU seconds

    def __call__(self, event: Event) -> None:
        match event.kind:
            case EventKind.UNIT_STARTED:
                self._running += 1
            case EventKind.UNIT_DONE:
                self._running -= 1
                self._counts["units_done"] += 1
                self._counts["trainings"] += self._trainings.get(event.unit, 0)
                self._gpu_seconds += self._gpus.get(event.unit, 0.0) * event.seconds
            case EventKind.UNIT_FAILED:
                self._running -= 1
                self._counts["units_failed"] += 1
            case EventKind.UNIT_RETRIED | EventKind.WORKER_LOST if event.unit:
                self._running -= 1
                self._counts["units_retried"] += 1
            case EventKind.UNIT_REPEATED:
                self._running -= 1
            case EventKind.WORKER_STARTED:
                self._workers = event.count
            case _:
                return
        self._now = event.time
        if self._now - self._updated >= UPDATE_S:
            self.update()

    def update(self) -> None:
        """Update the metrics of the session; call it again after the last event."""
        window = min(WINDOW_S, max(self._now - self._began, 1e-3))
        self._recent.append((self._now, self._counts["trainings"], self._gpu_seconds))
        while self._recent and self._recent[0][0] <= self._now - window:
            self._recent.popleft()
        for name, count in self._counts.items():
            if count:
                self._counters[name].inc(count)
        spent = sum(spent for *_, spent in self._recent)
        gpus = float(ray.cluster_resources().get("GPU", 0.0)) if spent else 0.0
        self._gauges["units_running"].set(max(self._running, 0))
        self._gauges["workers"].set(self._workers)
        self._gauges["trainings_per_second"].set(sum(trainings for _, trainings, _ in self._recent) / window)
        self._gauges["gpu_busy_share"].set(min(spent / (gpus * window), 1.0) if gpus else 0.0)
        self._counts, self._gpu_seconds, self._updated = dict.fromkeys(self._counters, 0), 0.0, self._now
