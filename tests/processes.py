"""The processes below one of this test session, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def own_workers() -> list[int]:
    """Process ids of the Ray workers that descend from this process, not those of other sessions on the machine."""
    return [pid for pid in below(os.getpid()) if _name(pid).startswith("ray::Worker")]


def below(ancestor: int) -> list[int]:
    """Process ids of all that descend from a process."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if ancestor in _ancestors(pid)]


def processor_s() -> float:
    """Processor seconds of this process and of every process it started, finished or running."""
    finished = os.times()
    running, waiting = 0.0, _children(os.getpid())
    while waiting:
        child = waiting.pop()
        running += _ticks(child) / os.sysconf("SC_CLK_TCK")
        waiting += _children(child)
    return finished.user + finished.system + finished.children_user + finished.children_system + running


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except OSError:
        return []


def _ticks(pid: int) -> int:
    """Clock ticks of a process and of its finished children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


def _ancestors(pid: int) -> list[int]:
    matching = []
    while pid > 1:
        try:
            # The name in parentheses may hold spaces; the parent is the second field behind it.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        matching.append(pid)
    return matching
