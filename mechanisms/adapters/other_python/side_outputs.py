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
from itertools import islice
from typing import Any

MAX_FILE = 1 << 20  # bytes of a file that are read
MAX_ENTRIES = 500  # of the current folder that are looked at
CLOCK_STEP_NS = 20_000_000  # steps in which file systems record times, at most
SCANS = 64  # searches in a row without a file, after which only every 16th call of a function searches the folder


class SideOutputs:
    """Printed text and files of the current call."""

    def __init__(self) -> None:
        self._printed, self._began, self._active, self._scans = 0, 0, False, 0
        self._opened: dict[str, None] = {}
        self._function: Any = None
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def recorded(self, function: Any) -> Iterator[None]:
        """Record all text and files that a call of `function` prints, logs and writes; text is printed as well."""
        if function is not self._function:
            self._function, self._scans = function, 0
        self._printed, self._began = 0, time.time_ns() - CLOCK_STEP_NS
        self._opened.clear()
        out, err, logging = sys.stdout, sys.stderr, sys.modules.get("logging")
        make_record: Any = None if logging is None else logging.getLogRecordFactory()

        def record(*arguments: Any, **named: Any) -> Any:
            log_record = make_record(*arguments, **named)
            with contextlib.suppress(Exception):  # a wrong format is reported by the handler
                self.print(log_record.getMessage())
            return log_record

        sys.stdout = None if out is None else _Recorded(out, self.print)
        sys.stderr = None if err is None else _Recorded(err, self.print)
        if logging is not None:
            logging.setLogRecordFactory(record)
        self._active = True
        try:
            yield
        finally:
            self._active = False
            sys.stdout, sys.stderr = out, err
            if logging is not None:
                logging.setLogRecordFactory(make_record)

    def print(self, text: str) -> None:
        """Add a text to the checksum."""
        self._printed = zlib.crc32(str(text).encode("utf-8", "backslashreplace"), self._printed)

    def written(self, path: str) -> bytes | None:
        """Return the content of a file that this call wrote, at most `MAX_FILE` bytes; None for other paths."""
        try:
            if len(path) > 4_096 or os.stat(path).st_mtime_ns < self._began or not os.path.isfile(path):
                return None
            with open(path, "rb") as file:
                return file.read(MAX_FILE)
        except (OSError, ValueError):
            return None

    def checksums(self, *, scan: bool) -> list[list[str]]:
        """Return descriptions of what the call printed and wrote, with checksums.

        Python reports files that it opens. With `scan`, the current folder is searched for others too.
        """
        if scan:
            self._scans += 1
            if self._scans < SCANS or self._scans % 16 == 0:
                with contextlib.suppress(OSError), os.scandir(".") as entries:
                    new = (entry for entry in islice(entries, MAX_ENTRIES) if entry.stat().st_mtime_ns >= self._began)
                    self._opened.update((os.path.abspath(entry.path), None) for entry in new)
        contents = [content for content in map(self.written, self._opened) if content is not None]
        checksums = [["what the calls printed", f"{self._printed:x}"]] if self._printed else []
        if contents:
            self._scans = 0
            checksums.append(["files that the calls wrote", f"{zlib.crc32(b''.join(contents)):x}"])
        return checksums

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active or event != "open":
            return
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if writes and isinstance(path, (str, bytes, os.PathLike)) and len(self._opened) < MAX_ENTRIES:
            self._opened[os.path.abspath(os.fsdecode(path))] = None


class _Recorded:
    """A stream that passes its text on and records it."""

    def __init__(self, stream: Any, record: Any) -> None:
        self._stream, self._record = stream, record

    def write(self, text: str) -> Any:
        self._record(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
