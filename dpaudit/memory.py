"""How much memory there is to read something into."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Of a container, and what it uses of it: control groups of version 2, and of version 1."""


def readable_bytes() -> int:
    """What one file may take in memory: half of what is free on this machine, or in this container."""
    free = [_free_of_machine(), *(_free_of_container(*paths) for paths in _LIMITS)]
    return min(bytes_ for bytes_ in free if bytes_ is not None) // 2


def _free_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):  # another system than Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 1 << 32


def _free_of_container(limit: str, used: str) -> int | None:
    try:
        return max(0, int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    except (OSError, ValueError):  # "max": there is none
        return None
