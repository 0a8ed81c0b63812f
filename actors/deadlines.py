"""How long a unit may run before it is ended, and what is said of one that still runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.unit import Unit
from dpaudit.errors import require

MULTIPLE = 30
"""A unit that runs this many times longer than the slowest of its kind so far hangs rather than works."""
SHORTEST_S = 600.0
"""No limit learned from other units is shorter: a machine may be busy, a first look at the data slow."""
REMIND_S = 30.0
"""After this long, and again each time, a unit that still runs is shown."""


@dataclass
class Deadlines:
    """How long each unit may run: what was stated, else `MULTIPLE` times the slowest unit of its kind so far.

    Attributes:
        stated_s: Seconds, > 0; None learns from the units that came back, and knows no limit before the first.
    """

    stated_s: float | None = None
    _slowest_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.stated_s is None or self.stated_s > 0, "a time limit must be > 0 s", stated_s=self.stated_s)

    def learn(self, unit: Unit, seconds: float) -> None:
        """Takes note of how long a unit ran that came back with a result."""
        kind = unit.does
        self._slowest_s[kind] = max(seconds, self._slowest_s.get(kind, 0.0))

    def limit_s(self, unit: Unit) -> float | None:
        """Seconds this unit may run; None while there is nothing to tell by."""
        if self.stated_s is not None:
            return self.stated_s
        slowest = self._slowest_s.get(unit.does)
        return None if slowest is None else max(SHORTEST_S, MULTIPLE * slowest)

    def refusal(self, limit_s: float) -> str:
        """What is recorded of a unit that was ended."""
        if self.stated_s is not None:
            return f"TimeLimit: still running after {limit_s:.4g} s, the stated `time_limit_s`"
        return (
            f"TimeLimit: still running after {limit_s:.4g} s, more than {MULTIPLE} times the slowest unit of its kind; "
            "state `time_limit_s` in `run:` when it needs that long"
        )


@contextmanager
def shown_while_it_runs(unit: Unit, events: EventStream) -> Iterator[None]:
    """Says every `REMIND_S` seconds that the unit still runs."""
    ended, began = threading.Event(), time.monotonic()

    def remind() -> None:
        while not ended.wait(REMIND_S):
            events.emit(still_running(unit, time.monotonic() - began))

    thread = threading.Thread(target=remind, name="dpaudit-still-running", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def still_running(unit: Unit, seconds: float) -> Event:
    """The event of a unit that has not come back yet."""
    return Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=seconds)
