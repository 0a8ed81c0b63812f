"""Synchronisation of a local folder with its remote copy, through changes, outages and lost workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpaudit.actors.backend import attempt_unit
from dpaudit.actors.storage.mirror import FileStore, Mirror
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.errors import RunError
from dpaudit.plain_files import join_place
from tests.actors.checkpointing import CountsSteps

pytestmark = pytest.mark.usefixtures("code_read_once")


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("bucket").format("run"))
    return f"file://{tmp_path / 'there'}"


def tree(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not path.name.startswith(".")}


def test_pushed_changes_are_pulled(uri: str, tmp_path: Path) -> None:
    first, second = Mirror(tmp_path / "one", uri), Mirror(tmp_path / "other", uri, excluded=("left",))
    (first.folder / "units").mkdir()
    (first.folder / "left").mkdir()
    for name in ("units/a.parquet", "report.html", ".hidden", "left/b"):
        (first.folder / name).write_text(name)
    first.push()
    second.pull()
    assert tree(second.folder) == {"units/a.parquet": b"units/a.parquet", "report.html": b"report.html"}
    (first.folder / "report.html").write_text("another one")
    (first.folder / "units/a.parquet").unlink()
    first.push()
    second.pull()
    assert tree(second.folder) == {"report.html": b"another one"}


def test_files_not_yet_pushed_survive_a_pull(uri: str, tmp_path: Path) -> None:
    """An outage left a finished unit only on this machine, while another machine pushed."""
    first, second = Mirror(tmp_path / "one", uri), Mirror(tmp_path / "other", uri)
    (first.folder / "first").write_text("1")
    first.push()
    (first.folder / "second").write_text("2")
    second.pull()
    (second.folder / "first").write_text("changed")
    second.push()
    again = Mirror(tmp_path / "one", uri)
    again.pull()
    again.push()
    second.pull()
    assert tree(first.folder) == tree(second.folder) == {"first": b"changed", "second": b"2"}


def test_a_copy_at_a_second_place_is_complete(tmp_path: Path) -> None:
    first, second = (f"file://{tmp_path / name}" for name in ("there", "elsewhere"))
    mirror = Mirror(tmp_path / "one", first)
    (mirror.folder / "a").write_text("a")
    mirror.push()
    again = Mirror(tmp_path / "one", second)
    again.push()
    assert tree(tmp_path / "there") == tree(tmp_path / "elsewhere") == {"a": b"a"}


def test_only_what_changed_is_copied(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(tmp_path / "one", uri)
    copied: list[str] = []
    upload, download = Mirror._upload, Mirror._download
    monkeypatch.setattr(Mirror, "_upload", lambda self, name, local: (copied.append(name), upload(self, name, local)))
    monkeypatch.setattr(Mirror, "_download", lambda self, name, mark: (copied.append(name), download(self, name, mark)))
    for name in ("a", "b", "bounds.json"):
        (mirror.folder / name).write_text(name)
    mirror.push()
    assert copied == ["a", "b", "bounds.json"], "files that refer to others come last"
    (mirror.folder / "b").write_text("changed")
    mirror.push()
    again = Mirror(tmp_path / "one", uri)
    again.pull()
    assert copied[3:] == ["b"]


def test_an_outage_is_reported_once_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    mirror = Mirror(tmp_path / "here", f"file://{tmp_path / 'there'}", on_trouble=messages.append)
    upload, failing = Mirror._upload, [OSError(5, "out of reach")] * 3

    def sometimes(self: Mirror, name: str, local: tuple[int, int]) -> None:
        if failing:
            raise failing.pop()
        upload(self, name, local)

    monkeypatch.setattr(Mirror, "_upload", sometimes)
    monkeypatch.setattr("dpaudit.actors.storage.mirror.time.sleep", lambda seconds: None)
    with mirror.synchronized(interval_s=0.01):
        (mirror.folder / "unit").write_text("1")
    assert (tmp_path / "there/unit").read_text() == "1"
    assert len(messages) == 2
    assert "does not answer, and is tried again: [Errno 5] out of reach" in messages[0]
    assert messages[1].endswith("answers again")


def test_results_that_cannot_be_uploaded_stay_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(tmp_path / "here", f"file://{tmp_path / 'there'}")

    def never(*_: object) -> None:
        raise OSError(5, "out of reach")

    monkeypatch.setattr(Mirror, "_upload", never)
    synchronized = mirror.synchronized(interval_s=60, patience_s=0)
    with pytest.raises(RunError, match=r"did not accept uploads for 0 s.*all results are in .*here"), synchronized:
        (mirror.folder / "unit").write_text("1")
    assert (mirror.folder / "unit").read_text() == "1"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://key:hidden-secret@bucket/run", "without credentials"),
        ("nowhere://bucket/run", "must be a place that can be reached"),
    ],
)
def test_an_invalid_place_is_refused(uri: str, message: str) -> None:
    with pytest.raises(RunError, match=message) as refused:
        FileStore.at(uri)
    assert "hidden-secret" not in str(refused.value)


def test_a_training_resumes_from_the_checkpoint_of_a_lost_worker(uri: str, tmp_path: Path) -> None:
    """Each attempt writes a checkpoint and fails; the next one resumes on another node."""
    unit = Unit(CountsSteps(3), "long training")
    for attempt in range(1, 4):
        os.environ["TMPDIR"] = str(tmp_path / f"node {attempt}")
        (tmp_path / f"node {attempt}").mkdir()
        try:
            result, table = attempt_unit(unit, Inputs({}, {}), uri)
        finally:
            del os.environ["TMPDIR"]
        assert bool(result.error) == (attempt < 3), result.error
    assert table is not None
    assert table["count"].to_pylist() == [3]
    empty = Mirror(tmp_path / "after", join_place(uri, unit.key))
    empty.pull()
    assert tree(empty.folder) == {}, "a finished unit leaves no checkpoints"


def test_the_uploaded_log_names_no_unit_that_is_not_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log grows while units are uploaded. It is uploaded after them, with its size before the upload."""
    local, remote = tmp_path / "here", tmp_path / "there"
    local.mkdir()
    (local / "events.jsonl").write_text("one\n")
    (local / "units.parquet").write_text("1")
    uploaded: list[str] = []
    upload = Mirror._upload

    def grows(mirror: Mirror, name: str, state: tuple[int, int]) -> None:
        uploaded.append(name)
        if name != "events.jsonl":
            with (local / "events.jsonl").open("a") as log:
                log.write("two\n")
        upload(mirror, name, state)

    monkeypatch.setattr(Mirror, "_upload", grows)
    mirror = Mirror(local, f"file://{remote}")
    mirror.push()
    assert uploaded == ["units.parquet", "events.jsonl"]
    assert (remote / "events.jsonl").read_text() == "one\n"
    mirror.push()
    assert (remote / "events.jsonl").read_text() == "one\ntwo\n"
