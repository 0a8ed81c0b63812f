"""Ray sessions: a local one is private and leaves nothing behind; errors are one line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpaudit.cluster.session import CONNECT_S, _lock_session, ray_session, remove_left_sessions
from dpaudit.errors import RunError

SESSION = """
import json, os, signal, sys, time
from pathlib import Path
import ray  # before the session: Ray reads its authentication mode at import
from dpaudit.cluster.session import MAX_LOG_BYTES, ray_session

def log_size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.out*") if not path.is_symlink())

with ray_session(cpus=1):
    @ray.remote
    def shout():
        for _ in range(60):
            print("x" * 1_000_000)
        sys.stdout.flush()
        return 1

    folder = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent
    ray.get(shout.remote())
    while log_size(folder) < MAX_LOG_BYTES:  # the test has a timeout
        time.sleep(0.1)
    size = log_size(folder)
variables = [name for name in os.environ if "RAY_A" in name]
print(json.dumps({"size": size, "limit": MAX_LOG_BYTES, "folder_exists": folder.exists(), "variables": variables}))
"""


def test_folders_of_killed_drivers_are_deleted_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("dpaudit-dead", "dpaudit-alive", "dpaudit-other"):
        (tmp_path / name / "ray").mkdir(parents=True)
    (tmp_path / "dpaudit-link").symlink_to("dpaudit-other")
    hold_lock = "import sys, time; from pathlib import Path; from dpaudit.cluster.session import _lock_session\n"
    hold_lock += f"_lock_session(Path({str(tmp_path / 'dpaudit-dead')!r})); print('held', flush=True); time.sleep(60)"
    lock = _lock_session(tmp_path / "dpaudit-alive")
    with subprocess.Popen([sys.executable, "-c", hold_lock], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        remove_left_sessions()
        assert (tmp_path / "dpaudit-dead").exists()
        driver.kill()
    remove_left_sessions()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dpaudit-alive", "dpaudit-link", "dpaudit-other"]
    os.close(lock)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_session_limits_its_logs_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["limit"] <= result["size"] < 3 * result["limit"], "60 MB were printed"
    assert not result["folder_exists"]
    assert result["variables"] == []
    assert list(tmp_path.iterdir()) == [], "no ~/.ray/auth_token"


@pytest.mark.ray
def test_a_local_session_is_private_to_this_user_and_machine(ray_cluster: None) -> None:
    import ray

    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    (node,) = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    network_address = socket.gethostbyname(socket.gethostname())
    if not network_address.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((network_address, node["NodeManagerPort"]), timeout=5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "Ray's handler ends the process with a crash dump"


def test_the_error_of_a_worker_without_memory_names_the_remedy() -> None:
    from ray.exceptions import ActorDiedError, OutOfMemoryError

    from dpaudit.actors.pool import loss_reason

    message = loss_reason(
        OutOfMemoryError("Task was killed due to the node running low on memory.\nRefer to the documentation")
    )
    assert "`workers` in `run:`" in message
    assert "documentation" not in message
    assert loss_reason(ActorDiedError()).startswith("ActorDiedError: ")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_without_a_cluster_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # reserves the port without listening
        check_refused_before_ray(monkeypatch, f"{scheme}127.0.0.1:{unused.getsockname()[1]}", "refused")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_accepts_connections_without_answering_is_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A stopped head does this: the system accepts connections for it."""
    monkeypatch.setattr("dpaudit.cluster.session.CONNECT_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        check_refused_before_ray(monkeypatch, address, "it accepts connections but does not answer within 1 s")


def test_an_address_that_drops_connections_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full connection queue neither accepts nor refuses, like a firewall."""
    monkeypatch.setattr("dpaudit.cluster.session.CONNECT_S", 1.0)
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        check_refused_before_ray(monkeypatch, f"127.0.0.1:{full.getsockname()[1]}", "timed out")


def check_refused_before_ray(monkeypatch: pytest.MonkeyPatch, address: str, why: str) -> None:
    """Assert that the error is one line and comes before Ray, which would retry for minutes."""
    monkeypatch.setattr("dpaudit.cluster.session._init", lambda **options: pytest.fail("Ray was called"))
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have a session
    with pytest.raises(RunError, match=f"cannot join the Ray cluster at {address}: .*{why}") as refused:
        ray_session(address).__enter__()
    assert "\n" not in str(refused.value)


WAIT = "RAY_gcs_server_port_wait_time_s"


class FailingInit:
    """Replaces `ray.init`: raises `errors` one after the other, and records folders and timeouts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors, self.folders, self.waits = [*errors], list[str](), list[str | None]()
        monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have a session
        monkeypatch.setattr("ray.init", self)
        monkeypatch.setattr("ray.shutdown", lambda: None)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def __call__(self, **options: Any) -> None:
        self.folders.append(options["_temp_dir"])
        self.waits.append(os.environ.get(WAIT))
        if self.errors:
            raise self.errors.pop(0)


START_ERRORS = (
    Exception(
        "The current node timed out during startup. This could happen because some of the raylet failed to startup or "
        "the GCS has become overloaded."
    ),
    RuntimeError(
        "Failed to start GCS.  Last 1 lines of error files:\n[2026] C killed\n.Please check /tmp/x for details."
    ),
    ConnectionRefusedError(111, "Connection refused"),
    TimeoutError("Timed out after 30 seconds while waiting for node to startup."),
    RuntimeError(),
)


@pytest.mark.parametrize("error", START_ERRORS)
def test_a_session_that_does_not_start_gets_a_second_attempt(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    init = FailingInit(monkeypatch, error)
    with ray_session():
        pass
    assert init.waits == [None, "120"], "the second attempt has longer timeouts"
    assert len({*init.folders}) == 2
    assert not any(Path(folder).parent.exists() for folder in init.folders)


@pytest.mark.parametrize("error", START_ERRORS)
def test_a_session_that_never_starts_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    init = FailingInit(monkeypatch, error, error, error)
    with pytest.raises(RunError, match=r"did not start in two attempts: .*less busy") as refused:
        ray_session().__enter__()
    assert "\n" not in str(refused.value)
    assert len(init.folders) == 2
    assert WAIT not in os.environ


def test_a_folder_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray._private.utils import validate_socket_filepath

    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with pytest.raises(OSError, match="AF_UNIX") as raised:
        validate_socket_filepath(str(deep / "session_2026-01-01_00-00-00_000000_1" / "sockets" / "plasma_store"))
    init = FailingInit(monkeypatch, raised.value)
    monkeypatch.setenv("RAY_TMPDIR", str(deep))
    with pytest.raises(RunError, match=r"has too long a path: .* Set RAY_TMPDIR to a shorter path"):
        ray_session().__enter__()
    assert len(init.folders) == 1, "no second attempt"
    assert not list(deep.iterdir())


def test_a_machine_without_shared_memory_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    init = FailingInit(monkeypatch, FileNotFoundError(2, "No such file or directory", "/dev/shm"))
    with pytest.raises(RunError, match=r"needs the folder /dev/shm, .* No such file or directory. Give the container"):
        ray_session().__enter__()
    assert len(init.folders) == 1, "no second attempt"


def test_a_missing_folder_for_sessions_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FailingInit(monkeypatch)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(
        RunError,
        match=r"/gone is not writable or is full \(No such file or directory\). Set RAY_TMPDIR to another folder",
    ):
        ray_session().__enter__()


def test_any_error_of_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("dpaudit.cluster.session._check_reachable", lambda address: None)
    for error in (Exception("Head node temp_dir not found in NodeInfo"), RuntimeError()):
        monkeypatch.setattr(
            "dpaudit.cluster.session._init", lambda error=error, **options: (_ for _ in ()).throw(error)
        )
        with pytest.raises(RunError, match=r"cannot join the Ray cluster at 10.0.0.1:6379: (Head|RuntimeE)"):
            ray_session("10.0.0.1:6379").__enter__()


def test_the_connection_timeout_is_less_than_documented() -> None:
    assert CONNECT_S + 1 < 15, "docs/guides/cluster.md says 15 s"
