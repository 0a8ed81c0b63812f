"""A Ray cluster whose nodes are of this machine, and may be killed."""

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

# Ray takes 127.0.0.1 for the machine's address in its network, and no other loopback address.
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
    """Process ids and command lines of whatever lives and has this in its environment."""
    commands = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"{mark}\0".encode() in (entry / "environ").read_bytes():
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return {pid: line for pid, line in commands.items() if line}  # one without a command line is dead already


@dataclass(frozen=True)
class Nodes:
    """A cluster of this machine.

    Attributes:
        place: Folder of its files, which marks its processes.
        keeper: The process that brings nodes.
        environment: Of who joins it.
    """

    place: Path
    keeper: subprocess.Popen[str]
    environment: dict[str, str]

    def add(self) -> None:
        """Has a node join, some seconds later."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.write("add\n")
        self.keeper.stdin.flush()

    def workers(self) -> list[int]:
        """Processes that run units."""
        return [pid for pid, line in processes(self.mark).items() if "ray::Worker" in line]

    def node(self, rng: random.Random) -> list[int]:
        """All processes of a node that is not the head."""
        raylets = [
            pid
            for pid, line in processes(self.mark).items()
            if "raylet/raylet" in line and "--head" not in line.split()
        ]
        chosen = rng.choice(raylets)
        return [chosen, *children_of(chosen)]

    @property
    def mark(self) -> str:
        """In the environment of its processes."""
        return f"RAY_TMPDIR={self.place}"

    def end(self) -> None:
        """Kills all of it."""
        kill(list(processes(self.mark)))
        self.keeper.kill()
        self.keeper.wait()


@contextlib.contextmanager
def cluster(place: Path, count: int) -> Iterator[Nodes]:
    """Nodes of one CPU each, that ask for a token."""
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
    """Kills processes; whether there were any."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def children_of(pid: int) -> list[int]:
    """Process ids of its children; none of a process that is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
