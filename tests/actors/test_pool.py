"""The pool on a cluster with several nodes: GPUs, nodes that join and nodes that are lost."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cluster.head import ray_folder
from tests.processes import below
from tests.waiting import HANGS_S, until

SEVERAL_NODES = "DPAUDIT_SEVERAL_NODES"
"""Set by `make chaos`."""


@pytest.mark.cluster
@pytest.mark.skipif(SEVERAL_NODES not in os.environ, reason="nodes that come and go take minutes: `make chaos`")
def test_units_run_on_nodes_that_join_and_leave(tmp_path: Path) -> None:
    """A separate process starts the cluster, since other tests share another session."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with ray_folder() as place:
        environment["RAY_TMPDIR"] = str(place)
        command = [sys.executable, "-m", "tests.actors.pool_checks"]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert process.returncode == 0, process.stdout + process.stderr


def test_a_full_object_store_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.put` raises OutOfDiskError if the disk of the store is full too."""
    import pyarrow as pa
    import ray
    from ray.exceptions import OutOfDiskError

    from dpaudit.actors.pool import RayPool
    from dpaudit.errors import RunError

    def full(value: object) -> None:
        raise OutOfDiskError("Local disk is full\nThe object cannot be created")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(RunError, match=r"into Ray's object store.*OutOfDiskError: Local disk is full.*resume"):
        RayPool.hold(object.__new__(RayPool), pa.table({}))


def test_code_that_cannot_be_imported_is_not_retried() -> None:
    from ray.exceptions import ObjectLostError, RaySystemError  # loads Ray

    from dpaudit.actors.pool import load_failure

    raised = "File ...\nAttributeError: Can't get attribute 'kept' on <module '__main__' from 'worker.py'>"
    message = load_failure(RaySystemError("Can't get attribute 'kept' on <module '__main__'>", raised))
    assert message.startswith(
        "a worker could not load the code that it was given: Can't get attribute 'kept' on <module"
    )
    assert message.endswith("Put the code into a separate module that workers can import")
    assert not load_failure(RaySystemError("the raylet is gone", None))
    assert not load_failure(ObjectLostError("00", None, ""))


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_lost_process_of_a_local_ray_session_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from ray._private import worker

    from dpaudit.actors.pool import RayPool, require_services
    from dpaudit.errors import RunError

    process = subprocess.Popen(["sleep", "60"])
    node = SimpleNamespace(all_processes={name: [SimpleNamespace(process=process)]})
    monkeypatch.setattr(worker, "_global_node", node)
    require_services()
    process.kill()
    process.wait()
    with pytest.raises(
        RunError, match=rf"\({name}\) of the local Ray session has ended \(SIGKILL\)\. .*dpaudit resume"
    ):
        require_services()
    RayPool.close(object.__new__(RayPool))  # asks nothing that would be waited for


@pytest.mark.ray
@pytest.mark.nightly
def test_a_killed_head_process_gives_a_one_line_error(tmp_path: Path) -> None:
    """The command has a separate session, so that the session of other tests survives."""
    (tmp_path / "spec.yaml").write_text(
        "{data: {name: gaussian-mixture, rows: 600}, game: {name: label-canaries, replays: 6000}, seed: 1, "
        "mechanism: {name: randomized-response, epsilon: 1.0}, run: {runner: ray, workers: 1, figures: false}}"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "dpaudit", "run", "spec.yaml", "-o", "run", "--quiet"]
    run = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until(lambda: len(list((tmp_path / "run").glob("units/*.parquet"))) > 3 or run.poll() is not None, "units finish")
    (head,) = [pid for pid in below(run.pid) if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(head, signal.SIGKILL)
    _, stderr = run.communicate(timeout=HANGS_S)
    assert run.returncode == 3
    (line,) = stderr.strip().splitlines()
    assert "has ended (SIGKILL). Finished units are kept: `dpaudit resume" in line
