"""The pool on a cluster of several nodes: GPUs beside CPUs, nodes that join, nodes that are lost."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.head import own_place

SEVERAL_NODES = "DPAUDIT_SEVERAL_NODES"
"""Set by `make chaos`."""


@pytest.mark.cluster
@pytest.mark.skipif(SEVERAL_NODES not in os.environ, reason="nodes that come and go take minutes: `make chaos`")
def test_units_run_where_they_fit_on_nodes_that_come_and_go(tmp_path: Path) -> None:
    """In a process of its own: a cluster of several nodes is not the session of the other tests."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with own_place() as place:
        environment["RAY_TMPDIR"] = str(place)
        command = [sys.executable, "-m", "tests.actors.pool_checks"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_full_object_store_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.put` raises this where the disk beside the store is full as well."""
    import pyarrow as pa
    import ray
    from ray.exceptions import OutOfDiskError

    from dpaudit.actors.pool import RayPool
    from dpaudit.errors import RunError

    def full(value: object) -> None:
        raise OutOfDiskError("Local disk is full\nThe object cannot be created")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(RunError, match=r"room in the object store.*OutOfDiskError: Local disk is full.*resume"):
        RayPool.hold(object.__new__(RayPool), pa.table({}))


def test_code_that_no_worker_can_load_is_told_apart_from_a_worker_that_died() -> None:
    from ray.exceptions import ObjectLostError, RaySystemError  # loads Ray

    from dpaudit.actors.pool import cannot_load

    raised = "File ...\nAttributeError: Can't get attribute 'kept' on <module '__main__' from 'worker.py'>"
    said = cannot_load(RaySystemError("Can't get attribute 'kept' on <module '__main__'>", raised))
    assert said.startswith("a worker could not load the code that it was given: Can't get attribute 'kept' on <module")
    assert said.endswith("put the code into a module of its own, which the workers can import")
    assert not cannot_load(RaySystemError("the raylet is gone", None))
    assert not cannot_load(ObjectLostError("00", None, ""))
