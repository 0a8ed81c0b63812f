"""One attempt at a unit and the process around it: what it prints is caught, what it leaves is put back or ended.

The next unit, in this process or on this worker, then finds what the first one found.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the same without an enum for each answer
import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import locale
import operator
import os
import resource
import signal
import stat
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dpaudit.actors.audited.leftover_processes import ending_detached
from dpaudit.actors.periodic import call_periodically


@dataclass
class Around:
    """What was seen around one attempt; filled in when it has ended."""

    remarks: tuple[str, ...] = ()  # what of the process it changed, in words
    printed: bytes = b""  # what it printed, the middle left out where that was much
    printed_bytes: int = 0  # of all that it printed

    @staticmethod
    @contextlib.contextmanager
    def in_a_row() -> Iterator[None]:
        """Attempts inside the block follow each other and nothing else runs between: as one leaves all, so the next
        finds it."""
        global _row
        with contextlib.ExitStack() as stack:
            _row = _Row(stack)
            try:
                yield
            finally:
                _row = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the process as it is for the length of a block, which is the attempt."""
        try:
            with _caught(self), _watched() as found, ending_detached() as ended:
                yield
        finally:
            if ended:
                found.append(f"processes it left running, {len(ended)}, which were ended")
            if self.printed_bytes > KEPT_BYTES:
                found.append(f"{self.printed_bytes:,} bytes printed, of which both ends are kept")
            self.remarks = tuple(found)


@dataclass
class _Row:
    """What attempts that follow each other share."""

    stack: contextlib.ExitStack
    catching: tuple[int, list[int]] | None = None
    stands_for: tuple[int, int] | None = None  # the file that catches

    def caught(self) -> tuple[int, list[int]]:
        """The file that catches what is printed, emptied; another one where code has closed it."""
        if self.catching is None or _stands_for(self.catching[0]) != self.stands_for:
            self.stack.close()
            self.catching = self.stack.enter_context(_catching())
            self.stands_for = _stands_for(self.catching[0])
        file, cut = self.catching
        if cut or os.fstat(file).st_size:
            os.ftruncate(file, 0)
            cut.clear()
        return self.catching


_C = ctypes.CDLL(None)
_row: _Row | None = None
KEPT_BYTES = 64_000  # of what one attempt prints: half from its beginning, half from its end
MAX_ON_DISK = 64_000_000  # bytes: the file without a name that holds it until the unit ends is cut when it is longer
LOOK_S = 0.2  # how often it is looked at


@contextlib.contextmanager
def _caught(around: Around) -> Iterator[None]:
    """Takes what the process prints in a block; outside the main thread nothing, since it is then somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.nullcontext(_row.caught()) if _row else _catching() as (file, cut):
        try:
            with _standing_in(file):
                yield
        finally:
            with contextlib.suppress(OSError):
                around.printed, around.printed_bytes = _ends(file, cut)


@contextlib.contextmanager
def _catching() -> Iterator[tuple[int, list[int]]]:
    """A file that is kept short while others write in it, and what was cut."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - code that closes all there is has closed it too
    cut: list[int] = []
    with call_periodically(partial(_bounded, file.fileno(), cut), LOOK_S, "printed"):
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        try:
            yield file.fileno(), cut
        finally:
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
    with contextlib.suppress(OSError):
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)
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
        _C.fflush(None)  # what C has not written yet


def _bounded(file: int, cut: list[int]) -> None:
    """Cuts a file that has become long to its beginning; the list holds how many bytes were cut away each time."""
    with contextlib.suppress(OSError):
        size = os.fstat(file).st_size
        if size > MAX_ON_DISK:
            os.ftruncate(file, KEPT_BYTES)
            cut.append(size - KEPT_BYTES)


def _ends(file: int, cut: list[int]) -> tuple[bytes, int]:
    """The file's beginning and end, and how many bytes were printed in all."""
    size, half = os.fstat(file).st_size, KEPT_BYTES // 2
    count = size + sum(cut)
    if count <= KEPT_BYTES:
        return os.pread(file, size, 0), count
    first, last = os.pread(file, half, 0), os.pread(file, half, max(half, size - half))
    return first + f"\n... {count - len(first) - len(last):,} bytes left out ...\n".encode() + last, count


# What results depend on beside dpaudit itself.
LIBRARIES = {
    *("builtins", "hashlib", "json", "math", "os", "pickle", "random", "time"),
    *("numpy", "numpy.linalg", "numpy.random", "pyarrow", "pyarrow.parquet", "scipy.special", "scipy.stats"),
}
_NUMBERS = tuple(signal.Signals)
_STREAMS = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class _Aspect:
    """Something of a process that belongs to all that runs in it."""

    name: str  # in words
    read: Callable[[], Any]  # how it is; what can be compared
    put_back: Callable[[Any], object] | None = None  # makes it as it was; None where that is not done
    # From what it was: what of it is other now, in words; () for nothing. None compares.
    changed: Callable[[Any], tuple[str, ...]] | None = None
    by_imports: bool = False  # whether libraries change it too while they are loaded


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """What the block did to the process; the list is filled when it ends, and is empty for most code."""
    # a patch of what reads and puts back must be undone before anything else is looked at: the libraries come first.
    before = [(aspect, _safely(aspect.read)) for aspect in _ASPECTS]
    loaded, found = len(sys.modules), list[str]()
    try:
        yield found
    finally:
        imported = len(sys.modules) > loaded
        for aspect, was in before:
            if was is not None:
                with contextlib.suppress(Exception):
                    _compare(aspect, was, found, imported=imported)


def _compare(aspect: _Aspect, was: Any, found: list[str], *, imported: bool) -> None:
    """Put an aspect back if it has changed, and note it."""
    if aspect.changed is not None:
        what = aspect.changed(was)
    else:
        what = () if _safely(aspect.read) == was else ("",)
    if what and aspect.put_back is not None:
        aspect.put_back(was)
    if what and not (aspect.by_imports and imported):
        named = ", ".join(filter(None, what[:5])) + (f" and {len(what) - 5} more" if len(what) > 5 else "")
        found.append(f"{aspect.name} ({named})" if named else aspect.name)


def _safely(read: Callable[[], Any]) -> Any:
    """What was read; None where the system refuses, such as the name of a folder that is gone."""
    try:
        return read()
    except Exception:
        return None


_Names: TypeAlias = tuple[dict[str, Any], list[Any]]
"""The names of a module with their values, and the values alone, which are faster to compare."""

_loaded: list[str] = []  # the modules of the last look, and those of them that results depend on
_watched_modules: list[str] = []
_copied: dict[str, _Names] = {}


def _libraries() -> dict[str, _Names]:
    """Return the names of every module that results depend on; a module that is unchanged is not copied again."""
    loaded = list(sys.modules)
    if loaded != _loaded:
        _loaded[:] = loaded
        _watched_modules[:] = [name for name in loaded if name in LIBRARIES or name.startswith("dpaudit.")]
    modules = [(name, sys.modules[name]) for name in _watched_modules]
    watched = {name: vars(module) for name, module in modules if isinstance(module, types.ModuleType)}
    for name, names in watched.items():
        if name not in _copied or not _holds(names, _copied[name][1]):
            _copied[name] = dict(names), list(names.values())
    return {name: _copied[name] for name in watched}


def _holds(names: dict[str, Any], values: list[Any]) -> bool:
    """True if the names of a module stand for the same objects as before."""
    return len(names) == len(values) and all(map(operator.is_, names.values(), values))


def _patched(before: dict[str, _Names]) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for module, name, _ in _patches(before))


def _patches(before: dict[str, _Names]) -> Iterator[tuple[str, str, Any]]:
    """Module, name and former value of each function and class that is another one now."""
    for module, (names, values) in before.items():
        now = vars(sys.modules[module]) if module in sys.modules else {}
        if _holds(now, values):
            continue
        for name, value in names.items():
            if callable(value) and now.get(name) is not value:
                yield module, name, value


def _unpatch(before: dict[str, _Names]) -> None:
    for module, name, value in list(_patches(before)):
        if module in sys.modules:
            setattr(sys.modules[module], name, value)


_ENVIRON = os.environ  # code may put something else in its place


def _environment() -> dict[bytes, bytes]:
    """As it is kept: to decode each value for each unit takes fifty times as long."""
    return dict(_ENVIRON._data)  # type: ignore[attr-defined]


def _names_that_differ(before: dict[bytes, bytes]) -> tuple[str, ...]:
    """Names alone: values may be secrets."""
    now, replaced = _environment(), () if os.environ is _ENVIRON else ("all of them",)
    names = () if now == before else before.keys() | now.keys()
    return replaced + tuple(sorted(os.fsdecode(name) for name in names if before.get(name) != now.get(name)))


def _put_back_environment(before: dict[bytes, bytes]) -> None:
    os.environ = _ENVIRON  # noqa: B003 - it is the one that there was
    for name in _environment().keys() - before.keys():
        del os.environ[os.fsdecode(name)]
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in before.items()})


def _umask() -> int:
    """Linux shows it; elsewhere it can only be learnt by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: _signal.getsignal(number) for number in _NUMBERS}


def _changed_handlers(before: dict[int, Any]) -> tuple[str, ...]:
    return tuple(number.name for number in _NUMBERS if _signal.getsignal(number) != before[number])


def _put_back_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if _signal.getsignal(number) != handler and handler is not None:
            signal.signal(number, handler)


def _limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _put_back_limits(before: dict[str, tuple[int, int]]) -> None:
    for name, (soft, _) in before.items():
        most = resource.getrlimit(getattr(resource, name))[1]
        resource.setrlimit(getattr(resource, name), (soft, most))


def _open_files() -> dict[int, tuple[int, int] | None]:
    """What each descriptor stands for."""
    return {int(number): _stands_for(int(number)) for number in os.listdir("/proc/self/fd")}


def _stands_for(number: int) -> tuple[int, int] | None:
    """None of a pipe beyond the standard ones: those of another Python's process end with it."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if number <= 2 or not stat.S_ISFIFO(found.st_mode) else None


def _closed(before: dict[int, tuple[int, int] | None]) -> tuple[str, ...]:
    """Standard ones that stand for something else, and others where several are gone: one may have been collected."""
    gone = {number for number, was in before.items() if was is not None and _stands_for(number) != was}
    return tuple(map(str, sorted(gone if len(gone - {0, 1, 2}) > 1 else gone & {0, 1, 2})))


def _started(before: frozenset[threading.Thread]) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in set(threading.enumerate()) - before if not one.name.startswith("dpaudit-")))


def _torch() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return ()
    return (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled())


def _changed_torch(before: tuple[Any, ...]) -> tuple[str, ...]:
    names = ("default dtype", "deterministic algorithms", "gradients")
    usual = before or _usual_torch()
    return tuple(name for name, was, now in zip(names, usual, _torch(), strict=False) if was != now)


def _usual_torch() -> tuple[Any, ...]:
    """What it is where it has just been loaded."""
    torch = sys.modules.get("torch")
    return (torch.float32, False, True) if torch is not None else ()


def _put_back_torch(before: tuple[Any, ...]) -> None:
    import torch

    dtype, deterministic, gradients = before or _usual_torch()
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_grad_enabled(gradients)


def _put_back_streams(before: tuple[Any, ...]) -> None:
    for name, stream in zip(_STREAMS, before, strict=True):
        setattr(sys, name, stream)


def _put_back_path(before: list[str]) -> None:
    sys.path[:] = before


def _changed_filters(before: list[Any]) -> tuple[str, ...]:
    """Python compiles a name of its own filters when a library sets them as they are: that changes nothing."""

    def plain(filters: Sequence[Any]) -> list[Any]:
        return [tuple(getattr(part, "pattern", part) for part in each) for each in filters]

    return () if before == warnings.filters or plain(before) == plain(warnings.filters) else ("",)


def _put_back_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


_ASPECTS = (
    _Aspect("functions of libraries", _libraries, _unpatch, _patched),
    _Aspect("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Aspect("the import path", lambda: list(sys.path), _put_back_path),
    _Aspect("the working folder", os.getcwd, os.chdir),
    _Aspect("the umask", _umask, os.umask),
    _Aspect("signal handlers", _handlers, _put_back_handlers, _changed_handlers),
    _Aspect("environment variables", _environment, _put_back_environment, _names_that_differ, True),
    _Aspect("limits of the process", _limits, _put_back_limits),
    _Aspect("open files it closed", _open_files, None, _closed),
    _Aspect("the standard streams", lambda: (sys.stdin, sys.stdout, sys.stderr), _put_back_streams),
    _Aspect("warnings filters", lambda: list(warnings.filters), _put_back_filters, _changed_filters, True),
    _Aspect("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda was: locale.setlocale(locale.LC_ALL, was)),
    _Aspect("numpy.seterr", np.geterr, lambda was: np.seterr(**was)),
    _Aspect("torch", _torch, _put_back_torch, _changed_torch),
    _Aspect("garbage collection", gc.isenabled, lambda was: gc.enable() if was else gc.disable()),
    _Aspect("tracing", lambda: (sys.gettrace(), sys.getprofile())),
    _Aspect("the hook of errors", lambda: sys.excepthook, lambda was: setattr(sys, "excepthook", was)),
    _Aspect("threads left running", lambda: frozenset(threading.enumerate()), None, _started, by_imports=True),
    _Aspect("functions to call at exit", atexit._ncallbacks, None, by_imports=True),
)
