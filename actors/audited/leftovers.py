"""Processes that audited code leaves behind end with what they were begun in, also those that set themselves apart.

Linux hands processes whose parent has died to the nearest ancestor that asks for them (a "subreaper"); elsewhere only
children are found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # of <linux/prctl.h>
ENDED_S = 5.0  # a process that is not gone so long after SIGKILL waits for a device, and is left to the system


def adopt_orphans(yes: bool = True) -> bool:
    """Whether processes whose parent dies become this one's children from now on; what it was before."""
    if sys.platform != "linux":
        return False
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)
    return bool(before.value)


def children() -> set[int]:
    """Process ids of this process's children, adopted ones among them."""
    found: set[int] = set()
    try:  # one question tells that there is none; each thread's file is asked where there is one
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return found
    with contextlib.suppress(FileNotFoundError):  # of another system
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it is gone
                found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return found


def end_children(spared: Collection[int] = (), which: Callable[[int], bool] = lambda pid: True) -> set[int]:
    """Ends children, but those spared or not chosen, with all that descends from them; those that were ended."""
    ended: set[int] = set()
    until = time.monotonic() + ENDED_S
    while time.monotonic() < until and (left := {pid for pid in children() - set(spared) if which(pid)}):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    ended.add(pid)
        time.sleep(0.005)
    return ended


@contextlib.contextmanager
def ended_with() -> Iterator[None]:
    """Ends, after the block, every process that was begun in it and still runs, orphans among them."""
    # Not outside the main thread: others of the process's threads may begin processes of their own meanwhile.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, spared = adopt_orphans(), children()
    try:
        yield
    finally:
        end_children(spared, lambda pid: not _keeps_resources(pid))
        adopt_orphans(before)


@contextlib.contextmanager
def apart_ended() -> Iterator[set[int]]:
    """Ends, after the block, what it left running in a session of its own; the set is filled with what was ended.

    Other helpers, such as a library's pool of processes, may serve the next unit; they end with the run.
    """
    ended: set[int] = set()
    spared = children()
    try:
        yield ended
    finally:
        if threading.current_thread() is threading.main_thread():
            ended |= end_children(spared, _set_apart)


def _set_apart(pid: int) -> bool:
    """Whether a process has a session of its own: a library's helper has none, what was made to outlive us has."""
    try:
        return os.getsid(pid) != os.getsid(0)
    except OSError:
        return False


def _keeps_resources(pid: int) -> bool:
    """Whether it is Python's own helper that removes shared memory in the end; it goes with the process."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
