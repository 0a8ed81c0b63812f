"""Checksum of `bounds.json` in the last event of a run: an edit of either file is noticed, an edit of both is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dpaudit.actors.events import Event, EventKind


def checksum_note(bounds: bytes) -> str:
    """Return the event text with the checksum of a `bounds.json`."""
    return f"bounds.json sha256:{hashlib.sha256(bounds).hexdigest()}"


def last_checksum_note(events: Iterable[Event]) -> str:
    """Return the last event text with a checksum; "" if there is none, as in runs of earlier versions."""
    notes = [event.detail for event in events if event.kind in (EventKind.FINISHED, EventKind.REPORTED)]
    return notes[-1] if notes else ""
