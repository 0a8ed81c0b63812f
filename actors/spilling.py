"""What Ray's object stores have written to disk for want of memory, seen while a run goes on."""

from __future__ import annotations

import time

from dpaudit.actors.events import Event, EventKind, EventStream

EVERY_S = 30.0  # between two looks
ANSWERED_S = 2.0  # how long the nodes may take to say it
MB = 1_000_000


def spilled_bytes() -> int | None:
    """What all nodes' stores have spilled since the session began; None where it cannot be learnt (`ray://`, busy).

    Ray has no public call for it; `ray memory --stats-only` asks the same.
    """
    from ray._private import state
    from ray._private.internal_api import get_memory_info_reply

    try:
        reply = get_memory_info_reply(state.state, timeout_seconds=ANSWERED_S)
    except Exception:  # no answer in time, no living node, another version's protocol: nothing depends on it
        return None
    return int(reply.store_stats.spilled_bytes_total)


class SpillWatch:
    """Tells when the stores have written more to disk than before, with all since this watch began."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._before = spilled_bytes() or 0
        self._told = 0
        self._looked = time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Asks, if it is time or if told to."""
        if not now and time.monotonic() - self._looked < EVERY_S:
            return
        found = spilled_bytes()
        self._looked = time.monotonic()
        megabytes = ((found or 0) - self._before) // MB
        if megabytes > self._told:
            self._told = megabytes
            self._events.emit(Event(EventKind.SPILLED, count=megabytes))
