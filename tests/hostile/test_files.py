"""Replaced files of a run: links, pipes, sparse files, names that leave the folder, files that unpack to gigabytes."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile.reader import Reader
from tests.remote import SECRET

NO_FILE = "must be a plain file"


class Denies(BaseHTTPRequestHandler):
    """An object store that refuses all requests."""

    def answer(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815, names that the server looks up

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def denying_store() -> Iterator[str]:
    """Yield host and port of the store."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Denies) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def replace_path(path: Path, make: Callable[[Path], object]) -> None:
    """Replace a file or folder."""
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}-before"))
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        pytest.param("report", ".lease", marks=pytest.mark.nightly),
        ("report", "events.jsonl"),
        pytest.param("report", "bounds.json", marks=pytest.mark.nightly),
        ("report", "figures"),
        ("report", "scores/from-a-stranger"),
        ("resume", "units"),
        pytest.param("resume", "earlier/2026", marks=pytest.mark.nightly),
        ("status", "plan.parquet"),
    ],
)
def test_a_link_out_of_the_folder_is_refused(reader: Reader, folder: Path, verb: str, name: str) -> None:
    outside = reader.elsewhere if (folder / name).is_dir() or "." not in name else reader.elsewhere / "thesis.tex"
    replace_path(folder / name, lambda path: path.symlink_to(outside))
    reader.opens(verb, folder).refused(name, NO_FILE, "it is a link")


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("report", "events.jsonl"),
        ("run", ".lease"),
        pytest.param("report", ".lease", marks=pytest.mark.nightly),
        pytest.param("run", "events.jsonl", marks=pytest.mark.nightly),
    ],
)
def test_a_hard_link_to_another_file_is_not_written_to(reader: Reader, folder: Path, verb: str, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.link(reader.elsewhere / "thesis.tex", folder / name)
    words = [verb, folder]
    if verb == "run":
        (reader.work / "spec.yaml").write_bytes((folder / "spec.yaml").read_bytes())
        words = [verb, "spec.yaml", "--output", folder]
    before = (folder / "report.html").read_bytes()
    reader.opens(*words).refused(name, "must have no other hard link")
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize("verb", ["status", "report", "plan", "fetch"])
def test_a_pipe_is_refused_at_once(reader: Reader, folder: Path, verb: str) -> None:
    replace_path(folder / "plan.parquet", os.mkfifo)
    (reader.work / "spec.yaml").write_bytes((folder / "spec.yaml").read_bytes())
    words = {"plan": ["spec.yaml", "--timings", folder], "fetch": [folder, "copy"]}.get(verb, [folder])
    reader.opens(verb, *words, time_limit_s=60).refused("plan.parquet", NO_FILE, "named pipe")


def test_a_sweep_with_a_socket_in_it_is_refused(reader: Reader, folder: Path) -> None:
    (folder / "sweep.yaml").write_text("name: x\n")
    with socket.socket(socket.AF_UNIX) as listener:
        present = Path.cwd()
        os.chdir(folder)
        listener.bind("s")
        os.chdir(present)
    reader.opens("sweep", "--restore", folder).refused(NO_FILE, "it is a socket")


@pytest.mark.parametrize(("verb", "name"), [("status", "events.jsonl"), ("report", "plan.parquet")])
def test_a_sparse_file_is_refused(reader: Reader, folder: Path, verb: str, name: str) -> None:
    replace_path(folder / name, lambda path: path.touch())
    os.truncate(folder / name, 20 << 30)
    reader.opens(verb, folder, time_limit_s=60).refused(name, "bytes are holes")


def test_a_plan_that_unpacks_to_gigabytes_is_refused(reader: Reader, folder: Path) -> None:
    about = pq.read_schema(folder / "plan.parquet").metadata
    keys = pa.DictionaryArray.from_arrays(np.zeros(20_000_000, np.int32), ["k" * 64])
    table = pa.table({"key": keys}).replace_schema_metadata(about)
    pq.write_table(table, folder / "plan.parquet", store_schema=False, compression="zstd")
    assert (folder / "plan.parquet").stat().st_size < 1_000_000
    reader.opens("report", folder).refused(
        "plan.parquet is not a valid plan", "must unpack to at most 1,000 times its size"
    )


def test_a_table_that_unpacks_to_gigabytes_is_refused(reader: Reader) -> None:
    table = pa.table({"score": np.zeros(100_000_000), "member": np.zeros(100_000_000, bool)})
    pq.write_table(table, reader.stranger / "scores.parquet", compression="zstd")
    reader.opens("estimate", reader.stranger / "scores.parquet").refused("must unpack to at most 1,000 times its size")


KEYS = ["../../evil", "units/../../../evil", "/etc/evil", "a%5C..%5Cb", "SPEC.yaml", "spec.yaml/x"]


@pytest.mark.parametrize("key", KEYS)
def test_a_name_that_leaves_the_target_of_fetch_is_refused(
    reader: Reader, folder: Path, bucket: str, s3_server: str, key: str
) -> None:
    place = bucket.format("runs/evil")
    name = place.removeprefix("s3://").partition("/")[0]
    client = http.client.HTTPConnection(s3_server)
    for path, content in (("spec.yaml", (folder / "spec.yaml").read_bytes()), (key, b"evil")):
        client.request("PUT", f"/{name}/runs/evil/{path}", body=content)
        answer = client.getresponse()
        assert answer.read() is not None
        assert answer.status == 200
    process = reader.opens("fetch", place, "copy", AWS_SECRET_ACCESS_KEY=SECRET)
    assert not (reader.work / "copy").exists()
    process.refused("must hold only files that can be copied below a folder", "nothing was copied")


def test_existing_files_in_the_target_of_fetch_stay(reader: Reader, folder: Path) -> None:
    (reader.work / "copy").symlink_to(reader.elsewhere)
    reader.opens("fetch", folder, "copy").refused("must be new or empty")
    reader.opens("fetch", reader.stranger, "new").refused("must be a run folder")


@pytest.mark.parametrize("verb", ["status", "report", "resume", "fetch"])
def test_a_denied_store_is_refused_in_one_line_with_its_address(reader: Reader, verb: str, denying_store: str) -> None:
    place = f"s3://bucket/run?endpoint_override={denying_store}&scheme=http"
    words = [place, "copy"] if verb == "fetch" else [place]
    process = reader.opens(verb, *words, AWS_ACCESS_KEY_ID="wrong", AWS_DEFAULT_REGION="us-east-1", time_limit_s=60)
    assert process.code == 3, process.err
    assert "Traceback" not in process.err
    message = " ".join(process.err.split())
    assert message.startswith(f"dpaudit: {place[:100]}")
    assert "check the credentials" in message


def test_a_folder_at_a_file_uri_is_checked(reader: Reader, folder: Path) -> None:
    replace_path(folder / "figures", lambda path: path.symlink_to(reader.elsewhere))
    reader.opens("report", f"file://{folder}").refused("figures", NO_FILE)


def test_objects_have_the_names_of_the_reader(reader: Reader, folder: Path) -> None:
    (folder / "spec.yaml").write_text("[not a spec")
    for verb, named in (("report", f"file://{folder}"), ("resume", f"file://{folder}/spec.yaml")):
        process = reader.opens(verb, f"file://{folder}")
        process.refused(named)
        assert ".cache" not in process.err


def test_a_fetched_copy_of_an_honest_folder_is_complete(reader: Reader, folder: Path) -> None:
    process = reader.opens("fetch", folder, reader.stranger / "copy")
    process.harmless()
    assert process.code == 0, process.err
    names = {path.relative_to(folder) for path in folder.rglob("*") if not path.name.startswith(".")}
    assert {path.relative_to(reader.stranger / "copy") for path in (reader.stranger / "copy").rglob("*")} == names
