"""A cluster that asks for a token lets in who has it, and whoever has not is told so in one sentence."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.head import head_node

JOIN = """
import json, os, sys
from dpaudit.cluster import session
from dpaudit.errors import RunError

address, token, wrong = sys.argv[1:]
said, begun, init = {}, [], session._init
session._init = lambda **options: (begun.append(name), init(**options))
for name, mode, path in (("wrong", "token", wrong), ("none", "disabled", ""), ("right", "token", token)):
    os.environ.update(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN_PATH=path)
    try:
        with session.ray_session(address):
            import ray

            said[name] = str(ray.get(ray.remote(num_cpus=1)(lambda: 40 + 2).remote()))
    except RunError as err:
        said[name] = str(err)
print(json.dumps({**said, "begun": begun}))
"""


@pytest.mark.cluster
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
    assert said["begun"] == ["right"], "Ray alone tries for 22 s with a token that is not the cluster's, and says less"
    for name in ("wrong", "none"):
        assert said[name].startswith(f"the Ray cluster at {address} cannot be joined: it asks for a token"), said
        assert "\n" not in said[name], said
    assert "(RAY_AUTH_MODE is disabled)" in said["none"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A head node of this test's own: its address and the file of its token."""
    with head_node(tmp_path) as head:
        yield head.address, head.token
