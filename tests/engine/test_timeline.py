"""The timeline of a run: attempts from events, however many, and a figure that stays small."""

from __future__ import annotations

import io

import numpy as np
import pytest

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.report.timeline import attempts_in, kind_of, timeline


def unit(key: str, label: str, end: float, seconds: float, worker: str, kind: EventKind = EventKind.UNIT_DONE) -> Event:
    return Event(kind, key, label, 1, seconds, time=end, worker=worker)


def test_attempts_are_those_of_the_last_driver_that_ran_any() -> None:
    events = [
        Event(EventKind.UNITS_PLANNED, count=2, time=1.0),
        unit("a", "reference model", 9.0, 1.0, "h:1"),
        Event(EventKind.UNITS_PLANNED, count=4, time=100.0),
        Event(EventKind.UNIT_STARTED, "b", "training trials 1-64", 1, time=101.0),
        unit("a", "training trials 65-128", 104.0, 2.0, "h:2", EventKind.UNIT_RETRIED),
        Event(EventKind.WORKER_LOST, "b", "training trials 1-64", 1, time=110.0),
        unit("b", "training trials 1-64", 115.0, 4.0, "h:2"),
        Event(EventKind.UNIT_REPEATED, "b", "training trials 1-64", seconds=3.0, time=119.0),
        Event(EventKind.UNITS_PLANNED, count=4, time=200.0),  # a driver that found all of it finished
    ]
    found = [(one.worker, one.begin, one.end, one.failed) for one in attempts_in(events)]
    assert found == [("h:2", 1.0, 3.0, True), ("lost", 0.0, 9.0, True), ("h:2", 10.0, 14.0, False)]
    assert timeline([Event(EventKind.UNITS_PLANNED, count=1)]) is None


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("training trials 65-128", "training trials"),
        ("training 1 of 3", "training"),
        ("replays 1,001-1,010", "replays"),
        ("bounds of audit 2, thresholds 3/7", "bounds of audit"),
        ("12/24", "unit"),
    ],
)
def test_units_of_a_kind_share_their_words(label: str, kind: str) -> None:
    assert kind_of(label) == kind


@pytest.mark.figures
def test_ten_thousand_units_on_a_hundred_workers_are_a_small_figure() -> None:
    """The share of idle time is that of the events, and no unit is a shape of its own."""
    rng = np.random.default_rng(0)
    clock = np.zeros(100)
    events = []
    for number in range(10_000):
        worker = int(clock.argmin())
        seconds = float(rng.exponential(1.0))
        events.append(
            unit(str(number), f"training trials {number}", clock[worker] + seconds, seconds, f"host:{worker}")
        )
        clock[worker] += seconds / 0.8
    picture = timeline(events)
    assert picture is not None
    figure = picture.figure
    title = figure.axes[0].get_title()
    assert "10,000 attempts on 100 workers, 0 failed" in title
    idle = int(title.split("idle ")[1].split("%")[0])
    assert 19 <= idle <= 24
    assert len(figure.axes[1].collections) <= 24
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    assert len(drawn.getvalue()) < 600_000
