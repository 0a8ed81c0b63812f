"""The processes below one of this test session, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def own_workers() -> list[int]:
    """Process ids of the Ray workers that descend from this process, not those of other sessions on the machine."""
    return [pid for pid in below(os.getpid()) if _name(pid).startswith("ray::Worker")]


def below(ancestor: int) -> list[int]:
    """Process ids of all that descend from a process."""
    return list(_stats_below(ancestor))


def processor_s() -> float:
    """Processor seconds of this process and of every process it started, finished or running."""
    finished = os.times()
    # utime, stime, cutime, cstime: the process's own ticks and those of its finished children
    ticks = sum(int(field) for stat in _stats_below(os.getpid()).values() for field in stat[11:15])
    running = ticks / os.sysconf("SC_CLK_TCK")
    return finished.user + finished.system + finished.children_user + finished.children_system + running


def _stats_below(ancestor: int) -> dict[int, list[str]]:
    """Fields of /proc/PID/stat behind the name, by process id, of all that descend from a process.

    The parents are followed: a list of the children of each thread is lost if the thread ends while it is read.
    """
    stats = {int(entry.name): _stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        if stat:
            children.setdefault(int(stat[1]), []).append(pid)
    descending = []
    waiting = children.get(ancestor, [])
    while waiting:
        pid = waiting.pop()
        descending.append(pid)
        waiting += children.get(pid, [])
    return {pid: stats[pid] for pid in descending}


def _stat(process: Path) -> list[str]:
    """Return the fields behind the name, which is in parentheses and may hold spaces; none of an ended process."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""
