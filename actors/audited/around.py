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
class ProcessGuard:
    """What was seen around one attempt; filled in when it has ended."""

    remarks: tuple[str, ...] = ()  # what of the process it changed, in words
    printed: bytes = b""  # what it printed, the middle left out where that was much
    printed_bytes: int = 0  # of all that it printed

    @staticmethod
    @contextlib.contextmanager
    def consecutive() -> Iterator[None]:
        """Attempts inside the block follow each other and nothing else runs between: as one leaves all, so the next
        finds it."""
        global _shared_capture
        with contextlib.ExitStack() as stack:
            _shared_capture = _SharedCapture(stack)
            try:
                yield
            finally:
                _shared_capture = None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Keeps the process as it is for the length of a block, which is the attempt."""
        try:
            with _captured(self), _guarded_state() as remarks, ending_detached() as ended_processes:
                yield
        finally:
            if ended_processes:
                remarks.append(f"processes it left running, {len(ended_processes)}, which were ended")
            if self.printed_bytes > MAX_OUTPUT_BYTES:
                remarks.append(f"{self.printed_bytes:,} bytes printed, of which both ends are kept")
            self.remarks = tuple(remarks)


@dataclass
class _SharedCapture:
    """What attempts that follow each other share."""

    stack: contextlib.ExitStack
    capture: tuple[int, list[int]] | None = None
    identity: tuple[int, int] | None = None  # the file that catches

    def file_and_cuts(self) -> tuple[int, list[int]]:
        """The file that catches what is printed, emptied; another one where code has closed it."""
        if self.capture is None or _file_identity(self.capture[0]) != self.identity:
            self.stack.close()
            self.capture = self.stack.enter_context(_capture_file())
            self.identity = _file_identity(self.capture[0])
        file, cuts = self.capture
        if cuts or os.fstat(file).st_size:
            os.ftruncate(file, 0)
            cuts.clear()
        return self.capture


_C = ctypes.CDLL(None)
_shared_capture: _SharedCapture | None = None
MAX_OUTPUT_BYTES = 64_000  # of what one attempt prints: half from its beginning, half from its end
MAX_FILE_BYTES = 64_000_000  # bytes: the file without a name that holds it until the unit ends is cut when it is longer
CHECK_S = 0.2  # how often it is looked at


@contextlib.contextmanager
def _captured(guard: ProcessGuard) -> Iterator[None]:
    """Takes what the process prints in a block; outside the main thread nothing, since it is then somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with (
        contextlib.nullcontext(_shared_capture.file_and_cuts()) if _shared_capture else _capture_file() as (file, cuts)
    ):
        try:
            with _redirected_to(file):
                yield
        finally:
            with contextlib.suppress(OSError):
                guard.printed, guard.printed_bytes = _ends(file, cuts)


@contextlib.contextmanager
def _capture_file() -> Iterator[tuple[int, list[int]]]:
    """A file that is kept short while others write in it, and what was cut."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - code that closes all there is has closed it too
    cuts: list[int] = []
    with call_periodically(partial(_truncate, file.fileno(), cuts), CHECK_S, "printed"):
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        try:
            yield file.fileno(), cuts
        finally:
            with contextlib.suppress(OSError):
                file.close()


@contextlib.contextmanager
def _redirected_to(file: int) -> Iterator[None]:
    """Has 1 and 2 write into a file, whatever they were and whoever closes them meanwhile."""
    _flush()
    copies = {number: _duplicate(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (_text_stream(number) for number in (1, 2))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            _flush()
        sys.stdout, sys.stderr = streams
        for number, copy in copies.items():
            _restore_descriptor(number, copy)


def _duplicate(number: int) -> int | None:
    """Another descriptor of what a number stands for, behind those that code likes to close; None where it is shut."""
    with contextlib.suppress(OSError):
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)
    return None


def _restore_descriptor(number: int, copy: int | None) -> None:
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


def _text_stream(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        _C.fflush(None)  # what C has not written yet


def _truncate(file: int, cuts: list[int]) -> None:
    """Cuts a file that has become long to its beginning; the list holds how many bytes were cut away each time."""
    with contextlib.suppress(OSError):
        size = os.fstat(file).st_size
        if size > MAX_FILE_BYTES:
            os.ftruncate(file, MAX_OUTPUT_BYTES)
            cuts.append(size - MAX_OUTPUT_BYTES)


def _ends(file: int, cuts: list[int]) -> tuple[bytes, int]:
    """The file's beginning and end, and how many bytes were printed in all."""
    size, half = os.fstat(file).st_size, MAX_OUTPUT_BYTES // 2
    count = size + sum(cuts)
    if count <= MAX_OUTPUT_BYTES:
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
class _ProcessState:
    """Something of a process that belongs to all that runs in it."""

    name: str  # in words
    read: Callable[[], Any]  # how it is; what can be compared
    restore: Callable[[Any], object] | None = None  # makes it as it was; None where that is not done
    # From what it was: what of it is other now, in words; () for nothing. None compares.
    changed: Callable[[Any], tuple[str, ...]] | None = None
    by_imports: bool = False  # whether libraries change it too while they are loaded


@contextlib.contextmanager
def _guarded_state() -> Iterator[list[str]]:
    """What the block did to the process; the list is filled when it ends, and is empty for most code."""
    # a patch of what reads and puts back must be undone before anything else is looked at: the libraries come first.
    saved = [(state, _read_or_none(state.read)) for state in _PROCESS_STATES]
    module_count, remarks = len(sys.modules), list[str]()
    try:
        yield remarks
    finally:
        imported = len(sys.modules) > module_count
        for state, before in saved:
            if before is not None:
                with contextlib.suppress(Exception):
                    _restore_if_changed(state, before, remarks, imported=imported)


def _restore_if_changed(state: _ProcessState, before: Any, remarks: list[str], *, imported: bool) -> None:
    """Put an aspect back if it has changed, and note it."""
    if state.changed is not None:
        changes = state.changed(before)
    else:
        changes = () if _read_or_none(state.read) == before else ("",)
    if changes and state.restore is not None:
        state.restore(before)
    if changes and not (state.by_imports and imported):
        details = ", ".join(filter(None, changes[:5])) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
        remarks.append(f"{state.name} ({details})" if details else state.name)


def _read_or_none(read: Callable[[], Any]) -> Any:
    """What was read; None where the system refuses, such as the name of a folder that is gone."""
    try:
        return read()
    except Exception:
        return None


_Names: TypeAlias = tuple[dict[str, Any], list[Any]]
"""The names of a module with their values, and the values alone, which are faster to compare."""

_last_loaded: list[str] = []  # the modules of the last look, and those of them that results depend on
_watched_modules: list[str] = []
_module_copies: dict[str, _Names] = {}


def _libraries() -> dict[str, _Names]:
    """Return the names of every module that results depend on; a module that is unchanged is not copied again."""
    loaded = list(sys.modules)
    if loaded != _last_loaded:
        _last_loaded[:] = loaded
        _watched_modules[:] = [name for name in loaded if name in LIBRARIES or name.startswith("dpaudit.")]
    modules = [(name, sys.modules[name]) for name in _watched_modules]
    watched = {name: vars(module) for name, module in modules if isinstance(module, types.ModuleType)}
    for name, names in watched.items():
        if name not in _module_copies or not _same_objects(names, _module_copies[name][1]):
            _module_copies[name] = dict(names), list(names.values())
    return {name: _module_copies[name] for name in watched}


def _same_objects(names: dict[str, Any], values: list[Any]) -> bool:
    """True if the names of a module stand for the same objects as before."""
    return len(names) == len(values) and all(map(operator.is_, names.values(), values))


def _patched_names(before: dict[str, _Names]) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for module, name, _ in _patches(before))


def _patches(before: dict[str, _Names]) -> Iterator[tuple[str, str, Any]]:
    """Module, name and former value of each function and class that is another one now."""
    for module, (names, values) in before.items():
        now = vars(sys.modules[module]) if module in sys.modules else {}
        if _same_objects(now, values):
            continue
        for name, value in names.items():
            if callable(value) and now.get(name) is not value:
                yield module, name, value


def _restore_libraries(before: dict[str, _Names]) -> None:
    for module, name, value in list(_patches(before)):
        if module in sys.modules:
            setattr(sys.modules[module], name, value)


_ENVIRON = os.environ  # code may put something else in its place


def _environment() -> dict[bytes, bytes]:
    """As it is kept: to decode each value for each unit takes fifty times as long."""
    return dict(_ENVIRON._data)  # type: ignore[attr-defined]


def _changed_variables(before: dict[bytes, bytes]) -> tuple[str, ...]:
    """Names alone: values may be secrets."""
    now, replaced = _environment(), () if os.environ is _ENVIRON else ("all of them",)
    names = () if now == before else before.keys() | now.keys()
    return replaced + tuple(sorted(os.fsdecode(name) for name in names if before.get(name) != now.get(name)))


def _restore_environment(before: dict[bytes, bytes]) -> None:
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


def _restore_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if _signal.getsignal(number) != handler and handler is not None:
            signal.signal(number, handler)


def _limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _restore_limits(before: dict[str, tuple[int, int]]) -> None:
    for name, (soft, _) in before.items():
        most = resource.getrlimit(getattr(resource, name))[1]
        resource.setrlimit(getattr(resource, name), (soft, most))


def _open_files() -> dict[int, tuple[int, int] | None]:
    """What each descriptor stands for."""
    return {int(number): _file_identity(int(number)) for number in os.listdir("/proc/self/fd")}


def _file_identity(number: int) -> tuple[int, int] | None:
    """None of a pipe beyond the standard ones: those of another Python's process end with it."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if number <= 2 or not stat.S_ISFIFO(status.st_mode) else None


def _closed_files(before: dict[int, tuple[int, int] | None]) -> tuple[str, ...]:
    """Standard ones that stand for something else, and others where several are gone: one may have been collected."""
    gone = {number for number, was in before.items() if was is not None and _file_identity(number) != was}
    return tuple(map(str, sorted(gone if len(gone - {0, 1, 2}) > 1 else gone & {0, 1, 2})))


def _new_threads(before: frozenset[threading.Thread]) -> tuple[str, ...]:
    return tuple(
        sorted(thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("dpaudit-"))
    )


def _torch_state() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return ()
    return (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled())


def _changed_torch(before: tuple[Any, ...]) -> tuple[str, ...]:
    names = ("default dtype", "deterministic algorithms", "gradients")
    expected = before or _torch_defaults()
    return tuple(name for name, was, now in zip(names, expected, _torch_state(), strict=False) if was != now)


def _torch_defaults() -> tuple[Any, ...]:
    """What it is where it has just been loaded."""
    torch = sys.modules.get("torch")
    return (torch.float32, False, True) if torch is not None else ()


def _restore_torch(before: tuple[Any, ...]) -> None:
    import torch

    dtype, deterministic, gradients = before or _torch_defaults()
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_grad_enabled(gradients)


def _restore_streams(before: tuple[Any, ...]) -> None:
    for name, stream in zip(_STREAMS, before, strict=True):
        setattr(sys, name, stream)


def _restore_import_path(before: list[str]) -> None:
    sys.path[:] = before


def _changed_filters(before: list[Any]) -> tuple[str, ...]:
    """Python compiles a name of its own filters when a library sets them as they are: that changes nothing."""

    def plain(filters: Sequence[Any]) -> list[Any]:
        return [tuple(getattr(part, "pattern", part) for part in each) for each in filters]

    return () if before == warnings.filters or plain(before) == plain(warnings.filters) else ("",)


def _restore_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


_PROCESS_STATES = (
    _ProcessState("functions of libraries", _libraries, _restore_libraries, _patched_names),
    _ProcessState("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _ProcessState("the import path", lambda: list(sys.path), _restore_import_path),
    _ProcessState("the working folder", os.getcwd, os.chdir),
    _ProcessState("the umask", _umask, os.umask),
    _ProcessState("signal handlers", _handlers, _restore_handlers, _changed_handlers),
    _ProcessState("environment variables", _environment, _restore_environment, _changed_variables, True),
    _ProcessState("limits of the process", _limits, _restore_limits),
    _ProcessState("open files it closed", _open_files, None, _closed_files),
    _ProcessState("the standard streams", lambda: (sys.stdin, sys.stdout, sys.stderr), _restore_streams),
    _ProcessState("warnings filters", lambda: list(warnings.filters), _restore_filters, _changed_filters, True),
    _ProcessState(
        "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda was: locale.setlocale(locale.LC_ALL, was)
    ),
    _ProcessState("numpy.seterr", np.geterr, lambda was: np.seterr(**was)),
    _ProcessState("torch", _torch_state, _restore_torch, _changed_torch),
    _ProcessState("garbage collection", gc.isenabled, lambda was: gc.enable() if was else gc.disable()),
    _ProcessState("tracing", lambda: (sys.gettrace(), sys.getprofile())),
    _ProcessState("the hook of errors", lambda: sys.excepthook, lambda was: setattr(sys, "excepthook", was)),
    _ProcessState(
        "threads left running", lambda: frozenset(threading.enumerate()), None, _new_threads, by_imports=True
    ),
    _ProcessState("functions to call at exit", atexit._ncallbacks, None, by_imports=True),
)
