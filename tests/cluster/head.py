"""Nodes of a Ray cluster for tests, on a loopback address, with a token."""

from __future__ import annotations

import contextlib
import json
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

NODE_ADDRESS = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's address in its network, but no other loopback address."""


@dataclass(frozen=True)
class Head:
    """A head node.

    Attributes:
        address: Address for drivers.
        dashboard: Address for jobs, if it has a job server.
        token: File with its token.
    """

    address: str
    dashboard: str
    token: Path


@contextlib.contextmanager
def head_node(folder: Path, *, jobs: bool = False, cpus: int = 2) -> Iterator[Head]:
    """Run a head node for a `with` block and delete all its files.

    Args:
        folder: Folder for its token.
        jobs: Start a job server.
        cpus: Number of CPUs.
    """
    port, dashboard, agent = _free_ports(3)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    with ray_folder() as place:
        _start(
            place,
            token,
            "--head",
            f"--port={port}",
            f"--num-cpus={cpus}",
            f"--dashboard-agent-listen-port={agent}",
            f"--include-dashboard={str(jobs).lower()}",
            f"--dashboard-port={dashboard}",
        )
        yield Head(f"{NODE_ADDRESS}:{port}", f"http://127.0.0.1:{dashboard}", token)


@contextlib.contextmanager
def another_node(head: Head, **resources: float) -> Iterator[Path]:
    """Run another node of the cluster, with one CPU, for a `with` block; yield its folder.

    Args:
        resources: Custom resources of the node.
    """
    (agent,) = _free_ports(1)
    with ray_folder() as place:
        options = (f"--address={head.address}", "--num-cpus=1", f"--dashboard-agent-listen-port={agent}")
        _start(place, head.token, *options, f"--resources={json.dumps(resources)}")
        yield place


def _start(place: Path, token: Path, *options: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",  # for a busy machine
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "230",
        "RAY_TMPDIR": str(place),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    common = (f"--node-ip-address={NODE_ADDRESS}", "--object-store-memory=100000000")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *common]
    process = subprocess.run(start, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr


@contextlib.contextmanager
def ray_folder() -> Iterator[Path]:
    """Yield a folder for Ray (`RAY_TMPDIR`) with a short path; afterwards kill all processes that use it."""
    place = Path(tempfile.mkdtemp(prefix="j-", dir="/tmp"))
    try:
        yield place
    finally:
        for pid in _processes_with(f"RAY_TMPDIR={place}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind((NODE_ADDRESS, 0))
        return [free.getsockname()[1] for free in sockets]


def _processes_with(variable: str) -> list[int]:
    """Return the ids of processes that have this environment variable."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"{variable}\0".encode() in (entry / "environ").read_bytes():
                pids.append(int(entry.name))
    return pids
