"""Where a trial finds what is finished and leaves what it finishes: the sweep's folder, or a copy of a remote one.

Trials run on whatever node there is. A folder that has a URI is brought to none of them whole: a trial has the rows and
its own units, and what it finishes is uploaded while it goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from dpaudit.actors.events import EventLog, EventStream, read_events
from dpaudit.actors.storage.mirror import Mirror, is_remote
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit
from dpaudit.engine.data.in_memory import FOLDER as ROWS
from dpaudit.plain_files import temporary_folder

UNITS, EVENTS = "units", "events.jsonl"
OF_TRIALS = "trials"
"""Folder of the events of single trials, until the driver has them; objects cannot be appended to by several."""


class TrialFolder:
    """The files of one trial.

    Args:
        place: The sweep's folder, an absolute path or a URI.
        trial: Name of the configuration.
    Raises: RunError when a remote place cannot be read.
    """

    def __init__(self, place: str | Path, trial: str) -> None:
        self._keys: set[str] = set()
        self._mirror: Mirror | None = None
        if is_remote(place):
            name = hashlib.sha256(f"{place} {trial}".encode()).hexdigest()[:24]
            self.path = temporary_folder() / name
            self._log = self.path / OF_TRIALS / f"{name}.jsonl"
            self._mirror = Mirror(self.path, str(place), only=self._wanted)
            self._mirror.pull()
        else:
            self.path = Path(place)
            self._log = self.path / EVENTS
        self.store = UnitStore(self.path / UNITS)

    @contextlib.contextmanager
    def running(self, units: Iterable[Unit]) -> Iterator[EventStream]:
        """Has those of some units that are finished, and leaves at the place what is finished in a `with` block.

        Gives: Whom to tell of events.
        Raises: RunError when a remote place does not answer for long; what is finished is in `path` still.
        """
        if self._mirror is not None:
            self._keys |= {unit.key for unit in units}
            self._mirror.pull()
        with contextlib.nullcontext() if self._mirror is None else self._mirror.kept_up():
            self._log.parent.mkdir(parents=True, exist_ok=True)
            log = EventLog(self._log)
            try:
                yield EventStream(log)
            finally:
                log.close()

    def close(self) -> None:
        """Takes the copy away, where it is one."""
        if self._mirror is not None:
            shutil.rmtree(self.path, ignore_errors=True)

    def _wanted(self, name: str) -> bool:
        folder, _, file = name.partition("/")
        return folder == ROWS or name.endswith(self._log.name) or (folder == UNITS and Path(file).stem in self._keys)


def gather_events(folder: Path) -> None:
    """Appends the events of single trials to those of the sweep.

    Args:
        folder: The sweep's folder, or the working folder of a remote one.
    """
    logs = sorted((folder / OF_TRIALS).glob("*.jsonl"))
    if not logs:
        return
    together = EventLog(folder / EVENTS)
    for event in sorted((event for log in logs for event in read_events(log)), key=lambda event: event.time):
        together(event)
    together.close()
    for log in logs:
        log.unlink()
