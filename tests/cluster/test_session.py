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
import time
from pathlib import Path

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
    deadline = time.monotonic() + 20
    while logged(folder) < KEPT_LOG_BYTES and time.monotonic() < deadline:
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


@pytest.mark.ray
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

    from dpaudit.actors.pool import loss

    said = loss(OutOfMemoryError("Task was killed due to the node running low on memory.\nRefer to the documentation"))
    assert "`workers` in `run:`" in said
    assert "documentation" not in said
    assert loss(ActorDiedError()).startswith("ActorDiedError: ")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_no_cluster_is_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there, and itself not listening
        refused_within(monkeypatch, f"{scheme}127.0.0.1:{held.getsockname()[1]}", "refused", 3.0)


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
        refused_within(monkeypatch, address, "it takes connections, and does not answer within 1 s", 4.0)


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
        refused_within(monkeypatch, f"127.0.0.1:{full.getsockname()[1]}", "timed out", 4.0)


def refused_within(monkeypatch: pytest.MonkeyPatch, address: str, why: str, seconds: float) -> None:
    """In one sentence, and soon."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have a session
    began = time.monotonic()
    with pytest.raises(RunError, match=f"the Ray cluster at {address} cannot be joined: .*{why}") as refused:
        ray_session(address).__enter__()
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < seconds, "REACHED_S, and what a busy machine takes"


def test_how_long_an_address_may_take_is_less_than_is_promised() -> None:
    assert REACHED_S + 1 < 15, "docs/cluster.md says 15 s"
