"""Printed text, log records and files of a call; runs in any Python from 3.8 on.

Their checksums show that something differs from call to call. They are no evidence against a claim, because a program
may print or store data that it does not release. Like `worker`, which loads this file, it imports only the standard
library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

MAX_FILE = 1 << 20
"""Largest number of bytes of a file that are read."""
MAX_ENTRIES = 500
"""Largest number of entries of the current folder that are looked at."""
CLOCK_STEP_NS = 20_000_000
"""Steps in which file systems record times, at most."""


class SideOutputs:
    """Printed text and files of the current call.

    Attributes:
        printed: Checksum of the text and the log records; 0 for none.
    """

    def __init__(self) -> None:
        self.printed, self._began, self._active = 0, 0, False
        self._opened: dict[str, None] = {}
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record all text and files that the block prints, logs and writes; the text is printed as well."""
        self.printed, self._began, self._opened = 0, time.time_ns() - CLOCK_STEP_NS, {}
        streams, logging = (sys.stdout, sys.stderr), sys.modules.get("logging")
        make_record: Any = None if logging is None else logging.getLogRecordFactory()

        def record(*arguments: Any, **named: Any) -> Any:
            log_record = make_record(*arguments, **named)
            with contextlib.suppress(Exception):  # a wrong format is reported by the handler
                self.print(log_record.getMessage())
            return log_record

        sys.stdout, sys.stderr = (None if stream is None else _Recorded(stream, self) for stream in streams)
        if logging is not None:
            logging.setLogRecordFactory(record)
        self._active = True
        try:
            yield
        finally:
            self._active = False
            sys.stdout, sys.stderr = streams
            if logging is not None:
                logging.setLogRecordFactory(make_record)

    def print(self, text: str) -> None:
        """Add a text to the checksum."""
        self.printed = zlib.crc32(str(text).encode("utf-8", "backslashreplace"), self.printed)

    def written(self, path: str) -> bytes | None:
        """Return the content of a file that this call wrote, at most `MAX_FILE` bytes; None for other paths."""
        try:
            if len(path) > 4_096 or "\n" in path or os.stat(path).st_mtime_ns < self._began or not os.path.isfile(path):
                return None
            with open(path, "rb") as file:
                return file.read(MAX_FILE)
        except (OSError, ValueError):
            return None

    def files(self, *, scan: bool) -> int:
        """Return a checksum of the files that this call wrote, 0 for none.

        Python reports files that it opens. With `scan`, the current folder is searched for others too.
        """
        paths = list(self._opened)
        with contextlib.suppress(OSError):
            paths += [entry.path for entry in _first(os.scandir("."))] if scan else []
        checksum = 0
        for path in dict.fromkeys(map(os.path.abspath, paths)):
            content = self.written(path)
            checksum = checksum if content is None else zlib.crc32(content, checksum)
        return checksum

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active or event != "open":
            return
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if writes and isinstance(path, (str, bytes, os.PathLike)) and len(self._opened) < MAX_ENTRIES:
            self._opened[os.path.abspath(os.fsdecode(path))] = None


def _first(entries: Any) -> list[Any]:
    with entries:
        return [entry for _, entry in zip(range(MAX_ENTRIES), entries) if entry.is_file()]  # noqa: B905


class _Recorded:
    """A stream that passes its text on and records it."""

    def __init__(self, stream: Any, outputs: SideOutputs) -> None:
        self._stream, self._outputs = stream, outputs

    def write(self, text: str) -> Any:
        self._outputs.print(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
