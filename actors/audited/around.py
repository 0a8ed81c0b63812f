"""Guard the process around one attempt at a unit: capture its output, undo its changes, end processes it left.

The next unit in this process then starts from the same state.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like `signal`, without slow enums
import atexit
import contextlib
import ctypes
import fcntl
import gc
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

from dpaudit.actors.audited.signals import call_periodically, ending_detached


@dataclass
class ProcessGuard:
    """Guard of one attempt, whose fields are set when the attempt has ended."""

    remarks: tuple[str, ...] = ()  # changes of the process by the attempt, as text
    printed: bytes = b""  # output, without its middle if it is long
    printed_bytes: int = 0  # bytes of the whole output

    @staticmethod
    @contextlib.contextmanager
    def consecutive() -> Iterator[None]:
        """Share one capture file between the attempts in the block, between which nothing else runs."""
        global _shared_capture
        with contextlib.ExitStack() as stack:
            _shared_capture = _SharedCapture(stack)
            try:
                yield
            finally:
                _shared_capture = None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Restore the state of the process after the block, which is the attempt."""
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
    """Capture file that consecutive attempts share."""

    stack: contextlib.ExitStack
    capture: tuple[int, list[int]] | None = None
    identity: tuple[int, int] | None = None  # of the capture file

    def file_and_cuts(self) -> tuple[int, list[int]]:
        """Return the empty capture file and its list of cuts; a new file if user code has closed the last one."""
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
MAX_OUTPUT_BYTES = 64_000  # stored output of an attempt, half from its beginning and half from its end
MAX_FILE_BYTES = 64_000_000  # size of the temporary capture file above which it is truncated
CHECK_S = 0.2  # seconds between checks of that size


@contextlib.contextmanager
def _captured(guard: ProcessGuard) -> Iterator[None]:
    """Capture the output of the process in a block; outside the main thread do nothing, since output is shared."""
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
    """Yield a capture file that is truncated while it grows, and the list of bytes cut each time."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - user code may close it
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
    """Redirect descriptors 1 and 2 to a file, and restore them even if the block closes them."""
    _flush()
    copies = {number: _duplicate(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            _flush()
        sys.stdout, sys.stderr = streams
        for number, copy in copies.items():
            _restore_descriptor(number, copy)


def _duplicate(number: int) -> int | None:
    """Duplicate a descriptor above the numbers that user code tends to close; None if it is closed."""
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
    except OSError:  # the copy was closed too: discard later output
        null_device = os.open(os.devnull, os.O_WRONLY)
        if null_device != number:
            os.dup2(null_device, number)
            os.close(null_device)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        _C.fflush(None)  # buffers of C code


def _truncate(file: int, cuts: list[int]) -> None:
    """Truncate a long file to its beginning and append the number of bytes cut to the list."""
    with contextlib.suppress(OSError):
        size = os.fstat(file).st_size
        if size > MAX_FILE_BYTES:
            os.ftruncate(file, MAX_OUTPUT_BYTES)
            cuts.append(size - MAX_OUTPUT_BYTES)


def _ends(file: int, cuts: list[int]) -> tuple[bytes, int]:
    """Return the beginning and the end of a file, and the number of all bytes printed."""
    size, half = os.fstat(file).st_size, MAX_OUTPUT_BYTES // 2
    count = size + sum(cuts)
    if count <= MAX_OUTPUT_BYTES:
        return os.pread(file, size, 0), count
    first, last = os.pread(file, half, 0), os.pread(file, half, max(half, size - half))
    return first + f"\n... {count - len(first) - len(last):,} bytes left out ...\n".encode() + last, count


# Modules other than dpaudit's that results depend on.
LIBRARIES = {
    *("builtins", "hashlib", "json", "math", "os", "pickle", "random", "time"),
    *("numpy", "numpy.linalg", "numpy.random", "pyarrow", "pyarrow.parquet", "scipy.special", "scipy.stats"),
}
_SIGNALS = {number.name: number for number in signal.Signals}
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


@dataclass(frozen=True)
class _ProcessState:
    """Part of the state of a process that all its code shares."""

    name: str
    current: Callable[[], Any]  # returns a comparable value; of a mapping, remarks name the keys that changed
    restore: Callable[[Any], object] | None = None  # restores a value; None does not restore
    # Returns the names of the parts that differ from a value; None compares the values
    changed: Callable[[Any], tuple[str, ...]] | None = None
    by_imports: bool = False  # True if importing libraries changes it too


@contextlib.contextmanager
def _guarded_state() -> Iterator[list[str]]:
    """Restore the state of the process after the block; yield a list that then holds the changes as text."""
    # Libraries come first, since patched functions must not read or restore the other states.
    saved = [(state, _read_or_none(state.current)) for state in _PROCESS_STATES]
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
    """Restore a state if it has changed, and add a remark."""
    now = None if state.changed else _read_or_none(state.current)
    if state.changed is not None:
        changes = state.changed(before)
    elif isinstance(before, dict) and now is not None:
        changes = tuple(name for name in before if now[name] != before[name])
    else:
        changes = () if now == before else ("",)
    if changes and state.restore is not None:
        state.restore(before)
    if changes and not (state.by_imports and imported):
        details = ", ".join(filter(None, changes[:5])) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
        remarks.append(f"{state.name} ({details})" if details else state.name)


def _read_or_none(function: Callable[[], Any]) -> Any:
    """Return the value read, or None if that fails, such as for the name of a deleted folder."""
    try:
        return function()
    except Exception:
        return None


_Names: TypeAlias = tuple[dict[str, Any], list[Any]]
"""Names of a module with their values, and the values alone, which are faster to compare."""

_last_loaded: list[str] = []  # modules at the last check, and those of them that results depend on
_watched_modules: list[str] = []
_module_copies: dict[str, _Names] = {}


def _libraries() -> dict[str, _Names]:
    """Return the names of every module that results depend on; unchanged modules are not copied again."""
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
    """True if the names of a module refer to the same objects as before."""
    return len(names) == len(values) and all(map(operator.is_, names.values(), values))


def _patched_names(before: dict[str, _Names]) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for module, name, _ in _patches(before))


def _patches(before: dict[str, _Names]) -> Iterator[tuple[str, str, Any]]:
    """Yield module, name and former value of each replaced function or class."""
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


_ENVIRON = os.environ  # user code may replace it


def _environment() -> dict[bytes, bytes]:
    """Return the environment as bytes: decoding all values takes fifty times as long."""
    return dict(_ENVIRON._data)  # type: ignore[attr-defined]


def _changed_variables(before: dict[bytes, bytes]) -> tuple[str, ...]:
    """Return names only, since values may be secrets."""
    now, replaced = _environment(), () if os.environ is _ENVIRON else ("all of them",)
    names = () if now == before else before.keys() | now.keys()
    return replaced + tuple(sorted(os.fsdecode(name) for name in names if before.get(name) != now.get(name)))


def _restore_environment(before: dict[bytes, bytes]) -> None:
    os.environ = _ENVIRON  # noqa: B003 - restores the original object
    for name in _environment().keys() - before.keys():
        del os.environ[os.fsdecode(name)]
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in before.items()})


def _swapped_umask() -> int:
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _restore_handlers(before: dict[str, Any]) -> None:
    for name, handler in before.items():
        if _signal.getsignal(_SIGNALS[name]) != handler and handler is not None:
            signal.signal(_SIGNALS[name], handler)


def _restore_limits(before: list[tuple[int, tuple[int, int]]]) -> None:
    for number, (soft, _) in before:
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))


def _file_identity(number: int) -> tuple[int, int] | None:
    """Return device and inode of a descriptor; None for pipes of other processes, which may end with these."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if number <= 2 or not stat.S_ISFIFO(status.st_mode) else None


def _closed_files(before: dict[int, tuple[int, int] | None]) -> tuple[str, ...]:
    """Return changed standard descriptors, and others if several are closed: one may be garbage-collected."""
    closed = {
        number for number, identity in before.items() if identity is not None and _file_identity(number) != identity
    }
    return tuple(map(str, sorted(closed if len(closed - {0, 1, 2}) > 1 else closed & {0, 1, 2})))


_TORCH_DEFAULTS = {"default dtype": "torch.float32", "deterministic algorithms": False, "gradients": True}
"""State of torch after its import."""


def _torch_state() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return _TORCH_DEFAULTS
    values = str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
    return dict(zip(_TORCH_DEFAULTS, values, strict=True))


def _restore_torch(before: dict[str, Any]) -> None:
    import torch

    dtype, deterministic, gradients = before.values()
    torch.set_default_dtype(getattr(torch, dtype.removeprefix("torch.")))
    torch.use_deterministic_algorithms(deterministic)
    torch.set_grad_enabled(gradients)


def _changed_filters(before: list[Any]) -> tuple[str, ...]:
    """Return ("",) if the filters differ; a pattern and its compiled form are equal."""

    def plain(filters: Sequence[Any]) -> list[Any]:
        return [tuple(getattr(part, "pattern", part) for part in entry) for entry in filters]

    return () if before == warnings.filters or plain(before) == plain(warnings.filters) else ("",)


def _restore_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _restore_streams(before: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = before


_PROCESS_STATES = (
    _ProcessState("functions of libraries", _libraries, _restore_libraries, _patched_names),
    _ProcessState("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _ProcessState("the import path", lambda: list(sys.path), lambda before: sys.path.__setitem__(slice(None), before)),
    _ProcessState("the working folder", os.getcwd, os.chdir),
    _ProcessState("the umask", _swapped_umask, os.umask),
    _ProcessState(
        "signal handlers",
        lambda: {name: _signal.getsignal(number) for name, number in _SIGNALS.items()},
        _restore_handlers,
    ),
    _ProcessState("environment variables", _environment, _restore_environment, _changed_variables, True),
    _ProcessState(
        "limits of the process",
        lambda: [(number, resource.getrlimit(number)) for number in _LIMITS],
        _restore_limits,
    ),
    _ProcessState(
        "open files it closed",
        lambda: {int(number): _file_identity(int(number)) for number in os.listdir("/proc/self/fd")},
        changed=_closed_files,
    ),
    _ProcessState("the standard streams", lambda: (sys.stdin, sys.stdout, sys.stderr), _restore_streams),
    _ProcessState("warnings filters", lambda: list(warnings.filters), _restore_filters, _changed_filters, True),
    _ProcessState(
        "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)
    ),
    _ProcessState("numpy.seterr", lambda: tuple(np.geterr().items()), lambda before: np.seterr(**dict(before))),
    _ProcessState("torch", _torch_state, _restore_torch),
    _ProcessState("garbage collection", gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()),
    _ProcessState("tracing", lambda: (sys.gettrace(), sys.getprofile())),
    _ProcessState("the hook of errors", lambda: sys.excepthook, lambda before: setattr(sys, "excepthook", before)),
    _ProcessState(
        "threads left running",
        lambda: frozenset(threading.enumerate()),
        changed=lambda before: tuple(
            sorted(
                thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("dpaudit-")
            )
        ),
        by_imports=True,
    ),
    _ProcessState("functions to call at exit", atexit._ncallbacks, None, by_imports=True),
)
