"""A cluster that asks for a token lets in who has it, and whoever has not is told so in one sentence."""

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
from pathlib import Path

import pytest

HERE = "127.0.0.2"
"""Ray takes 127.0.0.1 for the machine's address in its network, and no other loopback address."""
JOIN = """
import json, os, sys, time
from dpaudit.cluster.session import ray_session
from dpaudit.errors import RunError

address, token, wrong = sys.argv[1:]
said = {}
for name, mode, path in (("wrong", "token", wrong), ("none", "disabled", ""), ("right", "token", token)):
    os.environ.update(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN_PATH=path)
    began = time.monotonic()
    try:
        with ray_session(address):
            import ray

            said[name] = str(ray.get(ray.remote(num_cpus=1)(lambda: 40 + 2).remote()))
    except RunError as err:
        said[name] = str(err)
    said[f"{name} s"] = time.monotonic() - began
print(json.dumps(said))
"""


@pytest.mark.ray
def test_a_cluster_with_a_token_is_joined_with_it_and_with_no_other(cluster: tuple[str, Path], tmp_path: Path) -> None:
    address, token = cluster
    (tmp_path / "other").write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", JOIN, address, str(token), str(tmp_path / "other")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["right"] == "42"
    for name in ("wrong", "none"):
        assert said[name].startswith(f"the Ray cluster at {address} cannot be joined: it asks for a token"), said
        assert "\n" not in said[name], said
        assert said[f"{name} s"] < 15, "Ray alone takes 22 s to say less"
    assert "(RAY_AUTH_MODE is disabled)" in said["none"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A head node of this test's own, on the loopback address: its address and the file of its token."""
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = free.getsockname()[1]
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    place = tempfile.mkdtemp(prefix="j-", dir="/tmp")  # a short path, which Ray's sockets need
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": place,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    start = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--port={port}",
        "--num-cpus=1",
        f"--node-ip-address={HERE}",
    ]
    try:
        done = subprocess.run(
            [*start, "--include-dashboard=false", "--object-store-memory=100000000"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield f"{HERE}:{port}", token
    finally:
        for pid in _marked(f"RAY_TMPDIR={place}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def _marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"{mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
