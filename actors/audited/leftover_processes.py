"""Termination of processes that audited code leaves running, including those that detach from their parent.

On Linux this process becomes a "subreaper": it adopts descendants whose parent dies. Elsewhere only direct children are
found.
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
