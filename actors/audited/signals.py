"""Signals and time limits as exceptions, periodic calls, and the end of processes that audited code leaves running.

SIGTERM and SIGHUP end a run in order, as Ctrl-C does. On Linux this process becomes a "subreaper", which adopts
descendants whose parent dies, even detached ones. Elsewhere only direct children are found.

Audited code may raise any exception, including `SystemExit` and `KeyboardInterrupt`. Then only its unit or trial fails,
and the run continues.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
SWALLOWED_S = 10.0  # a library may swallow an interrupt and raise its own `KeyboardInterrupt` within this time
REPEATED_SIGNAL_S = 2.0  # signals this close together count as one: terminal and parent process may both send one


class _InterruptHandler:
    """Signal handler that raises `Terminated`, once for repeated signals."""

    def __init__(self) -> None:
        self.last_signal = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        previous, self.last_signal = self.last_signal, time.monotonic()
        if self.last_signal - previous >= REPEATED_SIGNAL_S:
            raise Terminated(signal.Signals(number).name)


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end; the message is the signal's name."""


@contextmanager
def signals_interrupt(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raise `Terminated` in the block when one of the signals `numbers` arrives.

    Only default handlers are replaced: other handlers, and ignored signals (`nohup`), stay. Does nothing outside the
    main thread, where Python cannot set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = _InterruptHandler()
    replaced = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) in DEFAULT_HANDLERS}
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def raised_externally(err: BaseException) -> bool:
    """True if a signal or a time limit raised `err`, and not the code that ran.

    A `KeyboardInterrupt` comes from the code itself if a signal would not have raised it: outside the main thread,
    inside `signals_interrupt`, or if SIGINT is ignored. Shortly after a signal it counts as external: CatBoost catches
    the interrupt and raises its own.
    """
    if isinstance(err, Terminated | TimeLimitExceeded):
        return True
    if not isinstance(err, KeyboardInterrupt):
        return False
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _InterruptHandler) and time.monotonic() - handler.last_signal < SWALLOWED_S:
            return True
    return not (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        or isinstance(signal.getsignal(signal.SIGINT), _InterruptHandler)
    )


class TimeLimitExceeded(BaseException):
    """A unit ran longer than its limit. Not an `Exception`, so that audited code does not catch it by mistake."""


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in a block that runs longer than `limit_s` seconds.

    Works for Python code in the main thread, on POSIX. None sets no limit.
    """
    supported = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
    if limit_s is None or not supported:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeLimitExceeded

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    # An alarm set earlier, for example by a test runner, is restored with its remaining time.
    other_alarm_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if other_alarm_s:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, other_alarm_s - (time.monotonic() - start)))


@contextmanager
def call_periodically(
    callback: Callable[[], object], interval_s: float, name: str, *, rest_factor: float = 0.0
) -> Iterator[None]:
    """Call `callback` every `interval_s` seconds in a thread until the block ends.

    After a slow call, the next one waits at least `rest_factor` times as long as the call took.
    """
    ended = threading.Event()

    def loop() -> None:
        pause_s = interval_s
        while not ended.wait(pause_s):
            start = time.monotonic()
            callback()
            pause_s = max(interval_s, rest_factor * (time.monotonic() - start))

    thread = threading.Thread(target=loop, name=f"dpaudit-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # from <linux/prctl.h>
ENDED_S = 5.0  # a process still alive this long after SIGKILL waits for a device, and is left to the system


def adopt_orphans(enable: bool = True) -> bool:
    """Set whether orphaned descendants become children of this process; return the previous setting."""
    if sys.platform != "linux":
        return False
    prctl, previous = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(previous), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, int(enable), 0, 0, 0)
    return bool(previous.value)


def child_processes() -> set[int]:
    """Return the process ids of this process's children, including adopted ones."""
    pids: set[int] = set()
    try:  # one system call detects that there are no children; otherwise read each thread's list
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return pids
    with contextlib.suppress(FileNotFoundError):  # not Linux
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # the thread has ended
                pids.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return pids


def end_children(excluded: Collection[int] = (), should_end: Callable[[int], bool] = lambda pid: True) -> set[int]:
    """Kill children and their descendants; return the ids of the children that ended.

    Args:
        excluded: Process ids of children to leave alone.
        should_end: Returns True for each child to kill.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + ENDED_S
    while time.monotonic() < deadline:
        remaining = {pid for pid in child_processes() - set(excluded) if should_end(pid)}
        if not remaining:
            break
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    ended.add(pid)
        time.sleep(0.005)
    return ended


@contextlib.contextmanager
def ending_leftovers() -> Iterator[None]:
    """At the end of the block, kill every process started in it that still runs, including orphans."""
    # Main thread only: elsewhere, other threads may start their own processes during the block.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous, earlier = adopt_orphans(), child_processes()
    try:
        yield
    finally:
        end_children(earlier, lambda pid: not _is_resource_tracker(pid))
        adopt_orphans(previous)


@contextlib.contextmanager
def ending_detached() -> Iterator[set[int]]:
    """At the end of the block, kill the processes it left running in their own session; fill the set with their ids.

    Other helpers, such as a library's process pool, may serve the next unit. They end with the run.
    """
    ended: set[int] = set()
    earlier = child_processes()
    try:
        yield ended
    finally:
        if threading.current_thread() is threading.main_thread():
            ended |= end_children(earlier, _is_detached)


def _is_detached(pid: int) -> bool:
    """True if a process has its own session, and so was meant to outlive this one; a library's helpers have none."""
    try:
        return os.getsid(pid) != os.getsid(0)
    except OSError:
        return False


def _is_resource_tracker(pid: int) -> bool:
    """True for Python's helper process that removes shared memory; it ends with this process."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
