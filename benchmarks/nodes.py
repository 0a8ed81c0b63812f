"""A Ray cluster with nodes on this machine, which can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Ray accepts no loopback address except 127.0.0.1, which it resolves to the machine's network address.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "object_store_memory": 100_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
for _ in range(1, int(sys.argv[1])):
    cluster.add_node(**node)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.add_node(**node)
"""


def processes(mark: str) -> dict[int, str]:
    """Return process ids and command lines of live processes with `mark` in their environment."""
    commands = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"{mark}\0".encode() in (entry / "environ").read_bytes():
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return {pid: line for pid, line in commands.items() if line}  # a dead process has no command line


@dataclass(frozen=True)
class Nodes:
    """A cluster on this machine.

    Attributes:
        place: Folder of its files; its path identifies the processes.
        keeper: The process that starts nodes.
        environment: Environment for processes that join the cluster.
    """

    place: Path
    keeper: subprocess.Popen[str]
    environment: dict[str, str]

    def add(self) -> None:
        """Request another node, which joins some seconds later."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.write("add\n")
        self.keeper.stdin.flush()

    def workers(self) -> list[int]:
        """Return the processes that run units."""
        return [pid for pid, line in processes(self.mark).items() if "ray::Worker" in line]

    def node(self, rng: random.Random) -> list[int]:
        """Return all processes of a random node other than the head."""
        raylets = [
            pid
            for pid, line in processes(self.mark).items()
            if "raylet/raylet" in line and "--head" not in line.split()
        ]
        chosen = rng.choice(raylets)
        return [chosen, *children_of(chosen)]

    @property
    def mark(self) -> str:
        """Text in the environment of the cluster's processes."""
        return f"RAY_TMPDIR={self.place}"

    def end(self) -> None:
        """Kill all processes of the cluster."""
        kill(list(processes(self.mark)))
        self.keeper.kill()
        self.keeper.wait()


@contextlib.contextmanager
def cluster(place: Path, count: int) -> Iterator[Nodes]:
    """Yield a cluster of `count` nodes with one CPU each and token authentication."""
    place.mkdir()
    (place / "token").write_text(secrets.token_hex(32))
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(place / "token")}
    keeper = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(count)],
        env={**os.environ, **authentication, "RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert keeper.stdout is not None
    nodes = Nodes(place, keeper, {**authentication, "RAY_ADDRESS": keeper.stdout.readline().strip()})
    try:
        yield nodes
    finally:
        nodes.end()


def kill(pids: list[int]) -> bool:
    """Kill processes; return True if there were any."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children; empty if the process has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
