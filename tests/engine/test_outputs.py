"""Output files: plain files are replaced atomically, links are followed, devices and pipes are written to."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from dpaudit import Audit, AuditSpec, RunOptions, SyntheticAudit, audit, synthetic
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.cli.main import main
from dpaudit.engine.report.ci_files import write_for_ci
from dpaudit.errors import RunError
from dpaudit.plain_files import write_user_file
from dpaudit.synthetic_tables.front_door.page import write_page
from tests.warm import ROOT, run_warm

SCORES = "score,member\n" + "\n".join(f"{place % 7},{int(place % 7 > 3)}" for place in range(60)) + "\n"
Write = Callable[[Report, Path], object]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a small run with several trainings; a table of scores is in its parent folder."""
    entry = Audit(
        {"name": "randomized-response", "epsilon": 1.0},
        {"name": "gaussian-mixture", "rows": 200},
        {"name": "label-canaries", "replays": 1, "trainings": 4},
        name="it",
    )
    spec = AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False))
    place = tmp_path_factory.mktemp("place")
    (place / "scores.csv").write_text(SCORES)
    return audit(spec, output=place / "run", quiet=True)


def command(*words: str) -> Write:
    """Return a function that runs a command, with RUN, SCORES and FILE replaced by paths."""

    def write(report: Report, file: Path) -> None:
        run = Path(str(report.folder))
        places = {"RUN": run, "SCORES": run.parent / "scores.csv", "FILE": file}
        result = CliRunner().invoke(main, [str(places.get(word, word)) for word in words])
        assert result.exit_code == 0, result.output

    return write


@cache
def synthetic_audit() -> SyntheticAudit:
    """Return the audit of three small tables."""
    rng = np.random.default_rng(0)
    return synthetic(*(pd.DataFrame({"x": rng.normal(size=30)}) for _ in range(3)))


WRITERS: dict[str, tuple[Write, str]] = {
    "estimate": (command("estimate", "SCORES", "-o", "FILE"), "<!doctype html>"),
    "card": (command("card", "RUN", "-o", "FILE"), "---\n"),
    "card as a page": (command("card", "RUN", "--html", "FILE"), "<!doctype html>"),
    "records": (command("records", "RUN", "--csv", "FILE"), "record"),
    "records as a page": (command("records", "RUN", "--html", "FILE"), "<!doctype html>"),
    "synthetic": (lambda report, file: write_page(file, synthetic_audit()), "<!doctype html>"),
    "init": (
        command("init", "FILE", "--mechanism", "randomized-response", "--epsilon", "1", "--data", "iris"),
        "# The mechanism and its claim",
    ),
    "junit": (lambda report, file: write_for_ci(report, "it", junit=file), "<?xml"),
    "sarif": (lambda report, file: write_for_ci(report, "it", sarif=file), "{"),
    "summary": (lambda report, file: write_for_ci(report, "it", summary=file), "## Privacy audit"),
}
OVER_LINKS = {name: writer for name, writer in WRITERS.items() if name != "init"}
"""Commands that may overwrite a file; `init` refuses a link."""
writers = pytest.mark.parametrize(("write", "begins"), WRITERS.values(), ids=list(WRITERS))


@contextmanager
def read_meanwhile(read_bytes: Callable[[], bytes]) -> Iterator[list[bytes]]:
    """Yield a list that receives, at the end, the bytes that a reader got in the meantime."""
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(read_bytes()), daemon=True)
    reader.start()
    yield received
    reader.join(60)
    assert received, "the reader is still waiting"


def null_device(path: Path) -> None:
    """Create a device like /dev/null, if this user is allowed to."""
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root may make a device")


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    null_device(tmp_path / "null")
    (tmp_path / "link").symlink_to("null")
    for name in ("null", "link"):
        write_user_file(tmp_path / name, b"page")
        assert stat.S_ISCHR((tmp_path / "null").stat().st_mode), name
        assert os.readlink(tmp_path / "link") == "null"


@pytest.mark.parametrize(("write", "begins"), OVER_LINKS.values(), ids=list(OVER_LINKS))
def test_a_link_stays_and_its_target_is_written(write: Write, begins: str, report: Report, tmp_path: Path) -> None:
    """Also for a link to a link, and for a dangling link."""
    (tmp_path / "there").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "there" / "page")
    write(report, tmp_path / "first")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()
    (page,) = (tmp_path / "there").iterdir()
    assert page.name == "page"
    assert page.read_text().startswith(begins)


@writers
def test_a_pipe_receives_the_output(write: Write, begins: str, report: Report, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with read_meanwhile((tmp_path / "pipe").read_bytes) as received:
        write(report, tmp_path / "pipe")
    assert received[0].decode().startswith(begins)
    assert (tmp_path / "pipe").is_fifo()


def test_a_descriptor_receives_the_output(tmp_path: Path) -> None:
    """A shell passes /dev/fd/63 for `-o >(command)`."""
    number, writer = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{writer}")
    with os.fdopen(number, "rb") as stream, read_meanwhile(stream.read) as received:
        try:
            write_user_file(Path(f"/dev/fd/{writer}"), b"page, ")
            write_user_file(tmp_path / "link", b"page")
        finally:
            os.close(writer)
    assert received == [b"page, page"]
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("piped", [True, False])
def test_standard_output_receives_both_page_and_text(piped: bool, tmp_path: Path) -> None:
    """A plain file as standard output is neither replaced nor overwritten from its beginning."""
    (tmp_path / "scores.csv").write_text(SCORES)
    (tmp_path / "stdout").symlink_to("/dev/fd/1")  # like /dev/stdout, which no test may damage
    number, writer = os.pipe() if piped else (-1, os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    words = ["estimate", "scores.csv", "-o", "stdout"]
    with os.fdopen(writer, "wb") as out, (tmp_path / "errors").open("wb") as err:
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "editable"), str(ROOT)))}
        code = run_warm(words, cwd=tmp_path, environment=surroundings, out=out, err=err, time_limit_s=120)
    assert code == 0, (tmp_path / "errors").read_text()
    if piped:
        with os.fdopen(number, "rb") as stream:
            text = stream.read().decode()
    else:
        text = (tmp_path / "out").read_text()
    words_before, page = text.split("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "epsilon >=" in words_before


def test_every_output_option_is_tested_and_uses_one_function() -> None:
    """Finds these options by their help texts; `init` has an argument."""
    named = {
        (name, option.name)
        for name, verb in main.commands.items()
        for option in verb.params
        if re.match("(Write|Append|Also write) ", getattr(option, "help", None) or "")
    }
    tried = {
        ("estimate", "output"),
        ("synthetic", "output"),
        ("card", "output"),
        ("card", "html"),
        ("annex", "output"),
        ("annex", "html"),
        ("records", "csv"),
        ("records", "html"),
    }
    for_ci = {(verb, option) for verb in ("run", "check") for option in ("junit", "sarif", "summary")}
    assert named == tried | for_ci
    for path in (*(ROOT / "engine" / "cli").glob("*.py"), ROOT / "engine" / "report" / "ci_files.py"):
        called = {
            getattr(node.func, "attr", getattr(node.func, "id", ""))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        assert called.isdisjoint({"write_atomically", "write_text", "write_bytes", "recreate_file", "new_file"}), (
            path.name
        )


def test_a_socket_receives_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        server.listen(1)

        def read_socket() -> bytes:
            with server.accept()[0] as connection, connection.makefile("rb") as stream:
                return stream.read()

        with read_meanwhile(read_socket) as received:
            write_user_file(Path("socket"), b"page")
    assert received == [b"page"]
    assert stat.S_ISSOCK(os.stat("socket").st_mode)


def test_a_plain_file_is_replaced_atomically_with_its_permissions(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_bytes(b"old")
    page.chmod(0o600)
    with page.open("rb") as old:
        write_user_file(page, b"new")
        assert old.read() == b"old", "a reader of the old file keeps its content"
    assert page.read_bytes() == b"new"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [page]


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a file mounted into a container, or a file in a folder of another user."""
    page = tmp_path / "page"
    page.write_bytes(b"a longer page")

    def busy(source: object, target: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(target))

    monkeypatch.setattr(os, "replace", busy)
    write_user_file(page, b"new")
    assert page.read_bytes() == b"new"
    write_user_file(page, b", and more", append=True)
    assert page.read_bytes() == b"new, and more"
    assert list(tmp_path.iterdir()) == [page]


def test_a_file_with_another_name_keeps_it(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_bytes(b"an older page")
    (tmp_path / "other").hardlink_to(page)
    write_user_file(page, b"new")
    assert (tmp_path / "other").read_bytes() == b"new"
    assert page.samefile(tmp_path / "other")


def test_text_is_appended_to_a_file_and_written_to_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "summary").write_bytes(b"before, ")
    (tmp_path / "link").symlink_to("summary")
    write_user_file(tmp_path / "link", b"now", append=True)
    assert (tmp_path / "summary").read_bytes() == b"before, now"
    number, writer = os.pipe()
    with os.fdopen(number, "rb") as stream, read_meanwhile(stream.read) as received:
        try:
            write_user_file(Path(f"/dev/fd/{writer}"), b"now", append=True)
        finally:
            os.close(writer)
    assert received == [b"now"]


def test_an_unwritable_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "folder").mkdir()
    (tmp_path / "beside").symlink_to("nowhere/page")
    for name in ("itself", "folder", "beside", "nowhere/page"):
        message = f"{name} must be a file that can be written, it is not: .*; name another file"
        with pytest.raises(RunError, match=message):
            write_user_file(tmp_path / name, b"page")
    number, writer = os.pipe()
    with pytest.raises(RunError, match="must be a file that can be written, it is not: Bad file descriptor"):
        write_user_file(Path(f"/dev/fd/{number}"), b"page")  # the reading end
    os.close(number)
    os.close(writer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "folder", "itself"]


def test_a_link_in_a_run_folder_is_not_written_through(report: Report, tmp_path: Path) -> None:
    """Another user put a link where the card would be written."""
    (tmp_path / "mine").write_text("years of work")
    run = Path(str(report.folder))
    (run / "card.md").symlink_to(tmp_path / "mine")
    try:
        result = CliRunner().invoke(main, ["card", str(run), "-o", str(run / "card.md")])
    finally:
        (run / "card.md").unlink()
    assert result.exit_code == 3, result.output
    assert "card.md must be a plain file, it is a link" in result.output
    assert (tmp_path / "mine").read_text() == "years of work"


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("years of work")
    (tmp_path / "link").symlink_to("mine")
    for name in ("mine", "link"):
        result = CliRunner().invoke(main, ["init", str(tmp_path / name), "--data", "iris"])
        assert result.exit_code == 2, result.output
        assert "exists already" in result.output
    assert (tmp_path / "mine").read_text() == "years of work"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "missing.yaml", "--junit"],
        ["check", "missing:f", "--sarif"],
        ["check", "missing:f", "--summary"],
        ["synthetic", "a.csv", "b.csv", "c.csv", "-o"],
        ["estimate", "missing.csv", "-o"],
        ["card", "missing", "-o"],
        ["card", "missing", "--html"],
        ["records", "missing", "--csv"],
        ["records", "missing", "--html"],
    ],
    ids=" ".join,
)
def test_outputs_are_refused_before_anything_is_read(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "itself").symlink_to("itself")
    for name in ("folder", "nowhere/page", "itself", "folder/.."):
        result = CliRunner().invoke(main, [*words, name])
        assert "must be a file that can be written, it is not:" in result.output
        assert result.exit_code == 2
    monkeypatch.setattr(os, "access", lambda *_: False)  # a read-only disc
    assert "must be a file that can be written" in CliRunner().invoke(main, [*words, "new"]).output
    assert "must be a file that can be written" in CliRunner().invoke(main, ["init", "new.yaml"]).output


def test_the_answer_is_printed_before_a_page_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """A full disc shows itself only when the page is written."""

    def full(*_: object) -> None:
        raise RunError("No space left on device")

    rows = "a,b\n" + "".join(f"{number % 7},{number % 5}\n" for number in range(60))
    for name in ("train", "holdout", "synth"):
        (tmp_path / f"{name}.csv").write_text(rows)
    (tmp_path / "scores.csv").write_text("score,member\n" + "1,1\n0,0\n" * 30)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpaudit.synthetic_tables.front_door.page.write_page", full)
    monkeypatch.setattr("dpaudit.engine.estimate.results.write_page", full)
    monkeypatch.setattr("dpaudit.plain_files.write_user_file", full)
    for words, start in (
        (["synthetic", "train.csv", "holdout.csv", "synth.csv", "-o", "page.html"], "lower bound"),
        (["synthetic", "train.csv", "holdout.csv", "synth.csv", "--json", "-o", "page.html"], '"train'),
        (["estimate", "scores.csv", "-o", "page.html"], "epsilon >="),
        (["card", str(report.folder), "--html", "page.html"], "---"),
    ):
        result = CliRunner().invoke(main, words)
        assert start in result.output
        assert "No space left on device" in result.output
        assert result.exit_code == 3
