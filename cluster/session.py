"""Start or join Ray, with little output: never at import, and never if a session exists."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpaudit.consent import may_import_from
from dpaudit.errors import RunError, shortened
from dpaudit.installation import without_library
from dpaudit.plain_files import open_plain

MAX_LOG_BYTES = 8_000_000  # of each log file of a local session; one rotated file is kept too
SHARED_MEMORY = "/dev/shm"  # Ray reads its free space even if it does not use it
CONNECT_S = 12.0  # time for a cluster to answer
CLIENT_PORT = 10001  # default port of Ray's server for `ray://`

_PREFIX = "dpaudit-"  # of the folders of local sessions
_DRIVER = "driver"  # file in such a folder that the driver keeps locked
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOG_LIMITS = {"RAY_ROTATION_MAX_BYTES": str(MAX_LOG_BYTES), "RAY_ROTATION_BACKUP_COUNT": "1"}
# Ray's timeouts for its own processes, for a second attempt on a busy machine. The user's values take precedence.
_LONG_TIMEOUTS = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_py_gcs_connect_timeout_s": "120",
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ray_session(address: str | None = None, *, cpus: int | None = None) -> Iterator[None]:
    """Provide a Ray session for a `with` block.

    Use the existing session, or join the cluster at `address` or in RAY_ADDRESS (set in jobs of a cluster), or start a
    local session and end it afterwards. A local session listens on the loopback interface only and needs a fresh
    token. Its files are in a temporary folder that is deleted with it.

    Args:
        address: "auto", "ray://host:10001" or "host:6379".
        cpus: CPUs of a local session; None for all.
    Raises: RunError if Ray is not installed, the cluster cannot be joined, or a local session does not start.
    """
    try:
        import ray
    except ModuleNotFoundError as err:
        raise without_library(err) or err from err

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    with _cluster_session(address) if address else _local_session(cpus):
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _cluster_session(address: str) -> Iterator[None]:
    """Join a cluster; its authentication mode and the user's token are not changed."""
    import ray

    with _environment_variables(_QUIET):
        try:
            _check_reachable(address)
            _init(address=address)
        except ray.exceptions.AuthenticationError as err:
            mode = os.environ.get("RAY_AUTH_MODE")
            raise RunError(
                f"cannot join the Ray cluster at {address}: it rejected the token (RAY_AUTH_MODE is "
                f"{mode or 'not set'}). Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file of the cluster's "
                "token"
            ) from err
        except Exception as err:  # Ray raises errors of many types
            raise RunError(
                f"cannot join the Ray cluster at {address}: {_first_line(err)}. Check that it runs. If it needs a "
                "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
            ) from err
        yield


def _check_reachable(address: str) -> None:
    """Raise an error soon if the cluster does not answer: Ray retries for minutes and does not report a wrong token."""
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
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    import grpc  # type: ignore[import-untyped]
    from ray._private.grpc_utils import init_grpc_channel

    channel = init_grpc_channel(place)
    try:
        grpc.channel_ready_future(channel).result(timeout=max(1.0, CONNECT_S - (time.monotonic() - began)))
    except grpc.FutureTimeoutError:
        raise TimeoutError(f"it accepts connections but does not answer within {CONNECT_S:.0f} s") from None
    finally:
        channel.close()
    if not scheme:
        GcsClient(address=place)


@contextmanager
def _local_session(cpus: int | None) -> Iterator[None]:
    """Provide a local session; if it does not start, try once more with longer timeouts, for a busy machine."""
    parent = _sessions_folder()
    with contextlib.ExitStack() as session:
        for timeouts in ({}, {name: value for name, value in _LONG_TIMEOUTS.items() if name not in os.environ}):
            try:
                session.enter_context(_start_local_session(parent, cpus, timeouts))
                break
            except Exception as err:  # Ray raises errors of many types
                if isinstance(err, OSError):
                    _raise_folder_error(parent, err)
                error = err
        else:
            raise RunError(
                f"a local Ray session did not start in two attempts: {_first_line(error)}. Run again when the machine "
                "is less busy and has free memory, or run without Ray: `--runner in-process`, or `run: {runner: "
                "in-process}` in a spec"
            ) from error
        yield


def _raise_folder_error(parent: str, err: OSError) -> None:
    """Raise RunError if a folder is the reason why a session did not start: another attempt would fail too."""
    if "AF_UNIX" in str(err):
        raise RunError(
            f"Ray's temporary folder {shortened(parent)} has too long a path: the paths of its sockets must have at "
            "most 107 bytes. Set RAY_TMPDIR to a shorter path, or unset it"
        ) from err
    if str(err.filename) == SHARED_MEMORY:
        raise RunError(
            f"a local Ray session needs the folder {SHARED_MEMORY}, which cannot be used: {err.strerror}. Give the "
            "container shared memory (`docker run --shm-size=4g`), or run without Ray: `--runner in-process`"
        ) from err
    if str(err.filename).startswith(parent) or err.errno == errno.ENOSPC:
        raise RunError(
            f"Ray's temporary folder {shortened(parent)} is not writable or is full ({err.strerror}). Set RAY_TMPDIR "
            "to another folder"
        ) from err


def _first_line(err: Exception) -> str:
    return shortened(next(iter(str(err).strip().splitlines()), type(err).__name__), 300)


@contextmanager
def _start_local_session(parent: str, cpus: int | None, timeouts: Mapping[str, str]) -> Iterator[None]:
    # Ray's sockets need a short path. Every user can read Ray's own folder, so the token is outside it.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = _lock_session(folder)
    try:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        # An open Ray port is remote code execution.
        auth = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"), "RAY_AUTH_TOKEN_PATH": str(token)}
        with _environment_variables({**timeouts, **_QUIET, **_LOG_LIMITS, **auth}), _loopback_only():
            _init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(folder / "ray"))
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_sessions() -> None:
    """Delete the folders of this user's local sessions whose drivers were killed: their locks are free."""
    for folder in Path(_sessions_folder()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, RunError):  # a locked file, or no folder of a session
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                file = open_plain(folder / _DRIVER, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(file)


def called_on_this_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a reference to the value of a call that a Ray task makes on the node of this process.

    Raises: RunError if no Ray session runs.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not ray.is_initialized():
        raise RunError("an object reference needs a Ray session. Call ray.init() before the audit, or read scores()")
    if ray.util.client.ray.is_connected():  # this process is outside the cluster, and so are its files
        return ray.put(function(*arguments))
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=this_node).remote(*arguments)


def _lock_session(folder: Path) -> int:
    """Lock a file in a session's folder and return its descriptor; the lock ends with this process."""
    file = open_plain(folder / f"{_DRIVER}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    fcntl.flock(file, fcntl.LOCK_EX)
    (folder / f"{_DRIVER}.new").rename(folder / _DRIVER)  # the file is never visible without its lock
    return file


def _sessions_folder() -> str:
    return os.environ.get("RAY_TMPDIR") or ("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())


def _init(**options: Any) -> None:
    """Start Ray and restore the signal handlers: Ray's handlers end the process with a crash dump."""
    import ray

    # With `ray://`, Ray does not add the working folder to the import path.
    if not may_import_from(os.getcwd()) and not options["address"].startswith("ray://"):
        from ray.job_config import JobConfig

        class OnlyInstalled(JobConfig):  # type: ignore[misc]
            def _get_proto_job_config(self) -> Any:
                self._py_driver_sys_path: list[str] = []
                return super()._get_proto_job_config()

        options["job_config"] = OnlyInstalled()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        ray.init(logging_level="ERROR", log_to_driver=False, **options)
    except BaseException as err:
        ray.shutdown()  # ends processes that Ray has started
        if isinstance(err, SystemExit) and err.code == signal.SIGTERM:  # raised by Ray's handler during its start
            raise KeyboardInterrupt("SIGTERM") from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


@contextmanager
def _environment_variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a `with` block, also for a Ray that is already imported."""
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _reread_authentication()
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reread_authentication()


def _reread_authentication() -> None:
    """Make Ray read its authentication mode and token again, as its tests do; it reads them only once."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    # The mode comes first: threads of an ending session then do not look for a token that was deleted.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Make a local session listen on the loopback interface only, by Ray's switch for macOS and Windows."""
    from ray._private import ray_constants

    previous, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = previous
