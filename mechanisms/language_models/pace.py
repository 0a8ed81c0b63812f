"""No more requests and tokens a minute than a server allows, counted over all processes of a machine.

Each request takes the next free moment and moves it on by its share of a minute: requests are evenly spaced. The
moments stand in a small file under a lock, so that many workers keep one limit together.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpaudit.mechanisms.language_models.answer_store import open_regular

FARTHEST_S = 86_400.0
"""A moment farther away than this was not written by a request that waited for its turn."""


@dataclass(frozen=True)
class Pace:
    """The limits of one server.

    Attributes:
        file: Where the next free moments are kept; shared by whoever shares the limit.
        requests: A minute; None: no limit.
        tokens: A minute; None: no limit.
        clock: Seconds, the same for all processes of a machine.
    """

    file: Path
    requests: float | None = None
    tokens: float | None = None
    clock: Callable[[], float] = time.time

    def reserve(self, tokens: int) -> float:
        """Takes the next free moment for one request of so many tokens; the seconds until then."""
        now = self.clock()
        with self._moments() as moments:
            start = max(now, *moments.values())
            if self.requests is not None:
                moments["requests"] = start + 60 / self.requests
            if self.tokens is not None:
                moments["tokens"] = start + 60 * tokens / self.tokens
        return start - now

    def hold(self, seconds: float) -> None:
        """Nobody starts a request within so many seconds: the server asked for that."""
        with self._moments() as moments:
            moments["held"] = max(moments["held"], self.clock() + seconds)

    @contextmanager
    def _moments(self) -> Iterator[dict[str, float]]:
        file = open_regular(self.file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            moments = {"requests": 0.0, "tokens": 0.0, "held": 0.0}
            try:
                kept = json.loads(os.pread(file, 4096, 0))
                found = {name: float(kept[name]) for name in moments}
                if all(moment <= self.clock() + FARTHEST_S for moment in found.values()):
                    moments |= found
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                pass  # new, or cut while it was written: nobody has waited for anything yet
            yield moments
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(moments).encode(), 0)
        finally:
            os.close(file)  # which lets go of the lock
