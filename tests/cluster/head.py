"""A head node of a test's own, on the loopback address, that asks for a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = "127.0.0.2"
"""Ray takes 127.0.0.1 for the machine's address in its network, and no other loopback address."""


@dataclass(frozen=True)
class Head:
    """A head node.

    Attributes:
        address: For drivers.
        dashboard: For jobs, where it has a job server.
        token: The file of its token.
    """

    address: str
    dashboard: str
    token: Path


@contextlib.contextmanager
def head_node(folder: Path, *, jobs: bool = False, cpus: int = 2) -> Iterator[Head]:
    """A head node for the length of a `with` block; nothing of it is left.

    Args:
        folder: Where its token goes.
        jobs: Whether it has a job server.
        cpus: Its CPUs.
    """
    port, dashboard, agent = _free_ports(3)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    shown = (f"--include-dashboard={str(jobs).lower()}", f"--dashboard-port={dashboard}")
    with own_place() as place:
        known = (f"--port={port}", f"--num-cpus={cpus}", f"--dashboard-agent-listen-port={agent}")
        _start(place, token, "--head", *known, *shown)
        yield Head(f"{HERE}:{port}", f"http://127.0.0.1:{dashboard}", token)


@contextlib.contextmanager
def another_node(head: Head) -> Iterator[Path]:
    """One more node of that cluster, with one CPU, for the length of a `with` block; its folder marks its processes."""
    (agent,) = _free_ports(1)
    with own_place() as place:
        _start(
            place,
            head.token,
            f"--address={head.address}",
            "--num-cpus=1",
            f"--dashboard-agent-listen-port={agent}",
        )
        yield place


def _start(place: Path, token: Path, *options: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",  # a busy machine
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "230",
        "RAY_TMPDIR": str(place),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    common = (f"--node-ip-address={HERE}", "--object-store-memory=100000000")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *common]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def own_place() -> Iterator[Path]:
    """A folder for Ray (`RAY_TMPDIR`), with the short path its sockets need; ends every process that was given it."""
    place = Path(tempfile.mkdtemp(prefix="j-", dir="/tmp"))
    try:
        yield place
    finally:
        for pid in _marked(f"RAY_TMPDIR={place}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind((HERE, 0))
        return [free.getsockname()[1] for free in sockets]


def _marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"{mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
