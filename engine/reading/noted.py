"""The hash of `bounds.json` in the run's last event: an edit of one of the two files is seen, one of both is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dpaudit.actors.events import Event, EventKind


def note_of(bounds: bytes) -> str:
    """What an event says of a `bounds.json`."""
    return f"bounds.json sha256:{hashlib.sha256(bounds).hexdigest()}"


def last_note(events: Iterable[Event]) -> str:
    """What the last event says that names a `bounds.json`; "" where none does, as in runs of earlier versions."""
    notes = [event.detail for event in events if event.kind in (EventKind.FINISHED, EventKind.REPORTED)]
    return notes[-1] if notes else ""
