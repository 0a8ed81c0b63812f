"""A local Ray session: on this machine alone, with a token of its own, and gone without a trace."""

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

from dpaudit.cluster.session import REACHED_S, _held, ray_session, remove_left_sessions
from dpaudit.errors import RunError

SESSION = """
import json, os, signal, sys, time
from pathlib import Path
import ray  # before the session: its mode of authentication is read at import
from dpaudit.cluster.session import KEPT_LOG_BYTES, ray_session

def logged(folder):
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
    while logged(folder) < KEPT_LOG_BYTES:  # the process has a limit against hanging
        time.sleep(0.1)
    found = {"logged": logged(folder), "kept": KEPT_LOG_BYTES, "folder": str(folder)}
print(json.dumps({**found, "left": folder.exists(), "variables": [name for name in os.environ if "RAY_A" in name]}))
"""


def test_what_a_killed_driver_left_is_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("dpaudit-dead", "dpaudit-alive", "dpaudit-other"):
        (tmp_path / name / "ray").mkdir(parents=True)
    (tmp_path / "dpaudit-link").symlink_to("dpaudit-other")
    holding = "import sys, time; from pathlib import Path; from dpaudit.cluster.session import _held\n"
    holding += f"_held(Path({str(tmp_path / 'dpaudit-dead')!r})); print('held', flush=True); time.sleep(60)"
    held = _held(tmp_path / "dpaudit-alive")
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        remove_left_sessions()
        assert (tmp_path / "dpaudit-dead").exists()
        driver.kill()
    remove_left_sessions()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dpaudit-alive", "dpaudit-link", "dpaudit-other"]
    os.close(held)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_session_after_import_ray_keeps_little_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kept"] <= found["logged"] < 3 * found["kept"], "60 MB were printed"
    assert not found["left"]
    assert found["variables"] == []
    assert list(tmp_path.iterdir()) == [], "no ~/.ray/auth_token"


@pytest.mark.ray
def test_a_local_session_is_for_this_user_on_this_machine(ray_cluster: None) -> None:
    import ray

    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    (node,) = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    elsewhere = socket.gethostbyname(socket.gethostname())
    if not elsewhere.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, node["NodeManagerPort"]), timeout=5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "Ray's handler ends the process with a crash dump"


def test_out_of_memory_is_said_in_words_that_help() -> None:
    from ray.exceptions import ActorDiedError, OutOfMemoryError

    from dpaudit.actors.pool import loss_reason

    said = loss_reason(
        OutOfMemoryError("Task was killed due to the node running low on memory.\nRefer to the documentation")
    )
    assert "`workers` in `run:`" in said
    assert "documentation" not in said
    assert loss_reason(ActorDiedError()).startswith("ActorDiedError: ")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_no_cluster_is_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there, and itself not listening
        refused_unasked(monkeypatch, f"{scheme}127.0.0.1:{held.getsockname()[1]}", "refused")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_takes_connections_and_never_answers_is_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """As a stopped head does: the system takes connections for it."""
    monkeypatch.setattr("dpaudit.cluster.session.REACHED_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        refused_unasked(monkeypatch, address, "it takes connections, and does not answer within 1 s")


def test_an_address_that_swallows_what_is_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of connections that is full: what comes after is neither taken nor refused, as behind a firewall."""
    monkeypatch.setattr("dpaudit.cluster.session.REACHED_S", 1.0)
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        refused_unasked(monkeypatch, f"127.0.0.1:{full.getsockname()[1]}", "timed out")


def refused_unasked(monkeypatch: pytest.MonkeyPatch, address: str, why: str) -> None:
    """In one sentence, and before Ray is asked, which tries for minutes."""
    monkeypatch.setattr("dpaudit.cluster.session._init", lambda **options: pytest.fail("Ray was asked"))
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have a session
    with pytest.raises(RunError, match=f"the Ray cluster at {address} cannot be joined: .*{why}") as refused:
        ray_session(address).__enter__()
    assert "\n" not in str(refused.value)


WAIT = "RAY_gcs_server_port_wait_time_s"


class Failing:
    """Ray's `init` that fails as Ray does, and keeps what it was begun with."""

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


NOT_UP = (
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


@pytest.mark.parametrize("why", NOT_UP)
def test_a_session_that_does_not_come_up_is_begun_once_more(monkeypatch: pytest.MonkeyPatch, why: Exception) -> None:
    begun = Failing(monkeypatch, why)
    with ray_session():
        pass
    assert begun.waits == [None, "120"], "the second time with longer limits"
    assert len({*begun.folders}) == 2
    assert not any(Path(folder).parent.exists() for folder in begun.folders)


@pytest.mark.parametrize("why", NOT_UP)
def test_a_session_that_never_comes_up_is_one_sentence(monkeypatch: pytest.MonkeyPatch, why: Exception) -> None:
    begun = Failing(monkeypatch, why, why, why)
    with pytest.raises(RunError, match=r"did not in two tries: .*less busy") as told:
        ray_session().__enter__()
    assert "\n" not in str(told.value)
    assert len(begun.folders) == 2
    assert WAIT not in os.environ


def test_a_path_too_long_for_sockets_is_said_of_that_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In Ray's own words, by its own check."""
    from ray._private.utils import validate_socket_filepath

    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with pytest.raises(OSError, match="AF_UNIX") as found:
        validate_socket_filepath(str(deep / "session_2026-01-01_00-00-00_000000_1" / "sockets" / "plasma_store"))
    begun = Failing(monkeypatch, found.value)
    monkeypatch.setenv("RAY_TMPDIR", str(deep))
    with pytest.raises(RunError, match=r"have a path so short .*, got .*; set RAY_TMPDIR to a shorter one"):
        ray_session().__enter__()
    assert len(begun.folders) == 1, "a second try would end the same"
    assert not list(deep.iterdir())


def test_a_machine_without_shared_memory_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Failing(monkeypatch, FileNotFoundError(2, "No such file or directory", "/dev/shm"))
    with pytest.raises(RunError, match=r"needs the folder /dev/shm, .* No such file or directory; give the container"):
        ray_session().__enter__()
    assert len(begun.folders) == 1, "a second try would end the same"


def test_a_folder_for_sessions_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Failing(monkeypatch)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(RunError, match="/gone is not: No such file or directory; set RAY_TMPDIR to another one"):
        ray_session().__enter__()


def test_a_cluster_that_refuses_without_a_word_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("dpaudit.cluster.session._check_reachable", lambda address: None)
    for why in (Exception("Head node temp_dir not found in NodeInfo"), RuntimeError()):
        monkeypatch.setattr("dpaudit.cluster.session._init", lambda why=why, **options: (_ for _ in ()).throw(why))
        with pytest.raises(RunError, match=r"the Ray cluster at 10.0.0.1:6379 cannot be joined: (Head|RuntimeE)"):
            ray_session("10.0.0.1:6379").__enter__()


def test_how_long_an_address_may_take_is_less_than_is_promised() -> None:
    assert REACHED_S + 1 < 15, "docs/guides/cluster.md says 15 s"
