"""Remote run folders: a real S3 server, if one is installed (`make s3`)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.waiting import until

SECRET = "never-written-anywhere-5d1f"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Yield host and port of the server, one for the tests of this process."""
    with _started() as place:
        yield place


@pytest.fixture(scope="module")
def checking_s3_server() -> Iterator[str]:
    """Yield host and port of a server that checks credentials and rejects all."""
    with _started(INITIAL_NO_AUTH_ACTION_COUNT="0") as place:
        yield place


@contextmanager
def _started(**environment: str) -> Iterator[str]:
    server = os.environ.get("DPAUDIT_S3_SERVER")
    if not server or not Path(server).exists():
        pytest.skip("no server that speaks S3; `make s3` installs one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        [server, "-p", str(port)], stdout=nothing, stderr=nothing, env={**os.environ, **environment}
    )
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the S3 server takes connections")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return the URI of a separate bucket for this test, with a place for `{}`; credentials are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"b{abs(hash(str(tmp_path))):x}"
    pafs.S3FileSystem(endpoint_override=s3_server, scheme="http", allow_bucket_creation=True).create_dir(name)
    return f"s3://{name}/{{}}?endpoint_override={s3_server}&scheme=http"
