"""What a run does, as metrics of the Ray session: Prometheus scrapes them where the cluster exports its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import ray
from ray.util.metrics import Counter, Gauge

from dpaudit.actors.events import Event, EventKind

WINDOW_S = 60.0
"""Rates and shares are those of the last minute."""


@dataclass(frozen=True)
class Worth:
    """What a unit counts for.

    Attributes:
        trainings: Models that it trains.
        gpus: GPUs that it occupies.
    """

    trainings: int = 0
    gpus: float = 0.0


class RunMetrics:
    """Listens to a run's events and keeps its metrics, each with the tag `run`.

    `dpaudit_units_done` and `dpaudit_units_failed` count, `dpaudit_trainings` counts models; `dpaudit_units_running`,
    `dpaudit_workers`, `dpaudit_trainings_per_second` and `dpaudit_gpu_busy_share` are as they are now, the last two
    over the last minute, of units that ended in it.

    Args:
        run: Its name.
        worth: What units count for, by key; a unit that is left out trains nothing and occupies no GPU.
    """

    def __init__(self, run: str, worth: Mapping[str, Worth]) -> None:
        self._worth = worth
        tags = {"run": run}
        self._counters = {
            name: Counter(f"dpaudit_{name}", description=words, tag_keys=("run",))
            for name, words in (
                ("units_done", "units finished by this driver"),
                ("units_failed", "units without an attempt left"),
                ("units_retried", "attempts that another one follows, lost workers among them"),
                ("trainings", "models trained by this driver"),
            )
        }
        self._gauges = {
            name: Gauge(f"dpaudit_{name}", description=words, tag_keys=("run",))
            for name, words in (
                ("units_running", "units given to workers"),
                ("workers", "workers that are up"),
                ("trainings_per_second", "models trained a second, over the last minute"),
                ("gpu_busy_share", "share of the GPUs' time spent in units that ended in the last minute"),
            )
        }
        for metric in (*self._counters.values(), *self._gauges.values()):
            metric.set_default_tags(tags)
        self._running = 0
        self._began = time.time()
        self._recent: list[tuple[float, int, float]] = []  # when, trainings, GPU seconds

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        worth = self._worth.get(event.unit, Worth())
        match event.kind:
            case EventKind.UNIT_STARTED:
                self._running += 1
            case EventKind.UNIT_DONE:
                self._running -= 1
                self._counters["units_done"].inc()
                if worth.trainings:
                    self._counters["trainings"].inc(worth.trainings)
                self._recent.append((event.time, worth.trainings, worth.gpus * event.seconds))
                self._tell_rates(event.time)
            case EventKind.UNIT_FAILED:
                self._running -= 1
                self._counters["units_failed"].inc()
            case EventKind.UNIT_RETRIED | EventKind.WORKER_LOST if event.unit:
                self._running -= 1
                self._counters["units_retried"].inc()
            case EventKind.UNIT_REPEATED:
                self._running -= 1
            case EventKind.WORKER_STARTED:
                self._gauges["workers"].set(event.count)
            case _:
                return
        self._gauges["units_running"].set(max(self._running, 0))

    def _tell_rates(self, now: float) -> None:
        window = min(WINDOW_S, max(now - self._began, 1e-3))
        self._recent = [one for one in self._recent if one[0] > now - window]
        self._gauges["trainings_per_second"].set(sum(trainings for _, trainings, _ in self._recent) / window)
        gpus = float(ray.cluster_resources().get("GPU", 0.0)) if any(spent for *_, spent in self._recent) else 0.0
        share = sum(spent for *_, spent in self._recent) / (gpus * window) if gpus else 0.0
        self._gauges["gpu_busy_share"].set(min(share, 1.0))
