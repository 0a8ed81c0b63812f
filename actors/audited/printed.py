"""What a unit prints, by whichever way (print, os.write, a C library): caught, bounded, and handed back with it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

KEPT_BYTES = 64_000
"""Of what one attempt prints: half from its beginning, half from its end."""
MOST_ON_DISK = 64_000_000
"""What is printed lies in a file without a name until the unit ends; that is cut when it has become longer."""
LOOK_S = 0.2
"""How often it is looked at."""


@dataclass
class Printed:
    """What was printed in a block, filled in when it ends.

    Attributes:
        kept: The bytes, the middle left out where there were many.
        count: How many there were.
    """

    kept: bytes = b""
    count: int = 0


@contextlib.contextmanager
def caught() -> Iterator[Printed]:
    """Takes standard output and error of the whole process for the length of a block.

    Outside the main thread nothing is taken: the process is then somebody else's, who may be printing too.
    """
    printed = Printed()
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield printed
        return
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - code that closes all there is has closed it too
    with _bounded(file.fileno()) as cut:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        try:
            with _standing_in(file.fileno()):
                yield printed
        finally:
            with contextlib.suppress(OSError):
                printed.kept, printed.count = _ends(file.fileno(), cut)
            with contextlib.suppress(OSError):
                file.close()


@contextlib.contextmanager
def _standing_in(file: int) -> Iterator[None]:
    """Has 1 and 2 write into a file, whatever they were and whoever closes them meanwhile."""
    _flush()
    before = {number: _copy(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (_text(number) for number in (1, 2))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            _flush()
        sys.stdout, sys.stderr = streams
        for number, copy in before.items():
            _give_back(number, copy)


def _copy(number: int) -> int | None:
    """Another descriptor of what a number stands for, behind those that code likes to close; None where it is shut."""
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)
    except OSError:
        return None


def _give_back(number: int, copy: int | None) -> None:
    try:
        if copy is None:
            os.close(number)
        else:
            os.dup2(copy, number)
            os.close(copy)
    except OSError:  # the copy was closed: what is printed from now on goes nowhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)


def _text(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)  # what C has not written yet


@contextlib.contextmanager
def _bounded(file: int) -> Iterator[list[int]]:
    """Cuts the file now and then to its beginning; the list holds how many bytes were cut away each time."""
    cut: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            with contextlib.suppress(OSError):
                size = os.fstat(file).st_size
                if size > MOST_ON_DISK:
                    os.ftruncate(file, KEPT_BYTES)
                    cut.append(size - KEPT_BYTES)

    thread = threading.Thread(target=look, name="dpaudit-printed", daemon=True)
    thread.start()
    try:
        yield cut
    finally:
        ended.set()
        thread.join()


def _ends(file: int, cut: list[int]) -> tuple[bytes, int]:
    """The file's beginning and end, and how many bytes were printed in all."""
    size, half = os.fstat(file).st_size, KEPT_BYTES // 2
    count = size + sum(cut)
    if count <= KEPT_BYTES:
        return os.pread(file, size, 0), count
    first, last = os.pread(file, half, 0), os.pread(file, half, max(half, size - half))
    return first + f"\n... {count - len(first) - len(last):,} bytes left out ...\n".encode() + last, count
