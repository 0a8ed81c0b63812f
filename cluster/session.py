"""One place that starts or joins Ray, and quiets it: never at import, never over a session that is there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpaudit.consent import may_import_from
from dpaudit.errors import RunError, shortened
from dpaudit.plain_files import open_plain

KEPT_LOG_BYTES = 8_000_000  # of what a process of a local session prints: the last ones, and as many before them
SHARED_MEMORY = "/dev/shm"  # where Ray asks how much room there is, whatever it uses then
REACHED_S = 12.0  # how long a cluster may take to answer its door
CLIENT_PORT = 10001  # where Ray's server for `ray://` listens when nothing else is said

_PREFIX, _DRIVER = "dpaudit-", "driver"  # of the folders of local sessions; the file that its driver holds locked
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_BOUNDED = {"RAY_ROTATION_MAX_BYTES": str(KEPT_LOG_BYTES), "RAY_ROTATION_BACKUP_COUNT": "1"}
# How long Ray waits for its own processes, all that can be set: for a second try, unless the user has set them.
_LONGER = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_py_gcs_connect_timeout_s": "120",
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ray_session(address: str | None = None, *, cpus: int | None = None) -> Iterator[None]:
    """A Ray session for the length of a `with` block.

    Uses the session there is; else joins the cluster at `address`; else, when this process runs as a job of a
    cluster (RAY_ADDRESS), joins that one; else starts a local one and ends it afterwards. A local session listens on
    this machine alone, asks for a token of its own, and keeps all its files in a folder that goes with it.

    An `address` is "auto", "ray://host:10001" or "host:6379"; `cpus` are those of a local session, None takes all.
    Raises: RunError when the cluster cannot be joined, or a local session does not come up.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    with _joined(address) if address else _local(cpus):
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """The cluster's own choice of authentication, and whichever token the user has for it, stay as they are."""
    import ray

    with _environment(_QUIET):
        try:
            _check_reachable(address)
            _init(address=address)
        except ray.exceptions.AuthenticationError as err:
            mode = os.environ.get("RAY_AUTH_MODE")
            raise RunError(
                f"the Ray cluster at {address} cannot be joined: it asks for a token, and the one given here is not "
                f"its own (RAY_AUTH_MODE is {mode or 'not set'}); set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to "
                "the file of the cluster's token"
            ) from err
        except Exception as err:  # Ray raises plain ones among others
            raise RunError(
                f"the Ray cluster at {address} cannot be joined: {_first_line(err)}; check that it "
                "runs, and, where it asks for a token, that RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH are set here"
            ) from err
        yield


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes where nothing listens or answers, and says nothing of a wrong token."""
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    scheme, _, place = address.rpartition("://")
    if place == "auto":
        place = canonicalize_bootstrap_address("auto") or ""
    elif scheme == "ray" and ":" not in place:
        place = f"{place}:{CLIENT_PORT}"
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        return
    began = time.monotonic()
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_S).close()
    _check_answering(place, REACHED_S - (time.monotonic() - began))
    if not scheme:
        GcsClient(address=place)


def _check_answering(place: str, within_s: float) -> None:
    """Something may take connections and never say a word: a stopped process, or a port of another kind."""
    import grpc  # type: ignore[import-untyped]
    from ray._private.grpc_utils import init_grpc_channel

    channel = init_grpc_channel(place)
    try:
        grpc.channel_ready_future(channel).result(timeout=max(1.0, within_s))
    except grpc.FutureTimeoutError:
        raise TimeoutError(f"it takes connections, and does not answer within {REACHED_S:.0f} s") from None
    finally:
        channel.close()


@contextmanager
def _local(cpus: int | None) -> Iterator[None]:
    """A local session, begun a second time where it did not come up: a machine that is busy may need longer."""
    parent = _place_of_sessions()
    with contextlib.ExitStack() as session:
        for longer in ({}, {name: value for name, value in _LONGER.items() if name not in os.environ}):
            try:
                session.enter_context(_begun(parent, cpus, longer))
                break
            except Exception as err:  # Ray raises plain ones among others
                if isinstance(err, OSError):
                    _refuse_folder(parent, err)
                why = err
        else:
            raise RunError(
                f"a local Ray session must come up, and did not in two tries: {_first_line(why)}; run again when the "
                "machine is less busy and has memory left, or without Ray: `--runner in-process`, or "
                "`run: {runner: in-process}` in a spec"
            ) from why
        yield


def _refuse_folder(parent: str, err: OSError) -> None:
    """Raises RunError where the folder for sockets and logs is why a session did not begin: it is so the next time."""
    if "AF_UNIX" in str(err):
        raise RunError(
            "the folder of a local Ray session must have a path so short that those of its sockets have at most 107 "
            f"bytes, got {shortened(parent)}; set RAY_TMPDIR to a shorter one, or to none"
        ) from err
    if str(err.filename) == SHARED_MEMORY:
        raise RunError(
            f"a local Ray session needs the folder {SHARED_MEMORY}, which cannot be used: {err.strerror}; give the "
            "container one (`docker run --shm-size=4g`), or run without Ray: `--runner in-process`"
        ) from err
    if str(err.filename).startswith(parent) or err.errno == errno.ENOSPC:
        raise RunError(
            f"the folder of a local Ray session must be one that can be written and has room, {shortened(parent)} is "
            f"not: {err.strerror}; set RAY_TMPDIR to another one"
        ) from err


def _first_line(err: Exception) -> str:
    return shortened(next(iter(str(err).strip().splitlines()), type(err).__name__), 300)


@contextmanager
def _begun(parent: str, cpus: int | None, longer: Mapping[str, str]) -> Iterator[None]:
    # Ray's sockets need a short path; it opens its own folder to all, so the token lies beside it.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    held = _held(folder)
    try:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        # An open Ray port is remote code execution.
        auth = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"), "RAY_AUTH_TOKEN_PATH": str(token)}
        with _environment({**longer, **_QUIET, **_BOUNDED, **auth}), _on_this_machine_alone():
            _init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(folder / "ray"))
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_left_sessions() -> None:
    """Removes folders of this user's local sessions whose drivers were killed: nobody holds the lock in them."""
    for folder in Path(_place_of_sessions()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, RunError):  # a lock that is held, or no folder of a session
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                file = open_plain(folder / _DRIVER, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(file)


def _held(folder: Path) -> int:
    """A lock in a session's folder, which dies with this process, however it dies."""
    file = open_plain(folder / f"{_DRIVER}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    fcntl.flock(file, fcntl.LOCK_EX)
    (folder / f"{_DRIVER}.new").rename(folder / _DRIVER)  # never seen without its lock
    return file


def _place_of_sessions() -> str:
    return os.environ.get("RAY_TMPDIR") or ("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())


def _init(**options: Any) -> None:
    """Starts Ray and takes back the signals it took: its handlers end the process with a crash dump."""
    import ray

    if not may_import_from(os.getcwd()) and not options["address"].startswith("ray://"):  # that leaves it out itself
        options["job_config"] = _without_working_folder()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        ray.init(logging_level="ERROR", log_to_driver=False, **options)
    except BaseException as err:
        ray.shutdown()  # what was started half-way
        if isinstance(err, SystemExit) and err.code == signal.SIGTERM:  # Ray's handler, while it starts
            raise KeyboardInterrupt("SIGTERM") from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


def _without_working_folder() -> Any:
    """How workers begin: Ray would put the driver's working folder before everything installed on their import path."""
    from ray.job_config import JobConfig

    class OnlyInstalled(JobConfig):  # type: ignore[misc]
        def _get_proto_job_config(self) -> Any:
            self._py_driver_sys_path: list[str] = []
            return super()._get_proto_job_config()

    return OnlyInstalled()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the length of a block, seen by Ray even where it was imported before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _reread_authentication()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reread_authentication()


def _reread_authentication() -> None:
    """Ray reads its mode of authentication at import and its token once: made to look again, as by its own tests."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    # The mode comes first: without a mode no thread of a session that ends asks for a token that is gone.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _on_this_machine_alone() -> Iterator[None]:
    """Ray's own switch, on by default on macOS and Windows: every port of a local session on the loopback address."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
