"""One attempt at a unit and the process around it: what it prints is caught, what it leaves is put back or ended.

The next unit, in this process or on this worker, then finds what the first one found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from dpaudit.actors.audited.leftovers import apart_ended
from dpaudit.actors.audited.printed import KEPT_BYTES, caught
from dpaudit.actors.audited.surroundings import watched


@dataclass
class Around:
    """What was seen around one attempt; filled in when it has ended.

    Attributes:
        remarks: What of the process it changed, in words.
        printed: What it printed, the middle left out where that was much.
    """

    remarks: tuple[str, ...] = ()
    printed: bytes = b""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the process as it is for the length of a block, which is the attempt."""
        said: list[str] = []
        try:
            with caught() as printed, watched() as changed, apart_ended() as ended:
                yield
        finally:
            if len(ended):
                said.append(f"processes it left running, {len(ended)}, which were ended")
            if printed.count > KEPT_BYTES:
                said.append(f"{printed.count:,} bytes printed, of which both ends are kept")
            self.remarks, self.printed = (*changed, *said), printed.kept
