"""A run folder: nothing finished is lost, nothing of anybody else's is overwritten, one driver at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dpaudit import Report, audit
from dpaudit.actors.events import EventKind, read_events
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.cli.main import main
from dpaudit.engine.run import driver, run_folder
from dpaudit.engine.run.driver import report_again, resume
from dpaudit.engine.run.forecast import times_of_run
from dpaudit.engine.run.run_folder import Record, lease, remote_lease
from dpaudit.engine.run.watching import run_status
from dpaudit.errors import RunError, SpecError
from tests.waiting import HANGS_S
from tests.warm import python

SPEC: dict[str, Any] = {
    "name": "small",
    "data": {"name": "gaussian-mixture", "rows": 400},
    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
    "proxy": "true-posterior",
    "game": {"name": "label-inference", "replays": 4},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "run": {"runner": "in-process", "figures": False},
}
YAML = json.dumps(SPEC)  # JSON is YAML


def dpaudit(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run(folder: Path, **change: Any) -> Report:
    return audit({**SPEC, **change}, output=folder, quiet=True)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def csv_of(folder: Path, rows: int = 200, other: str = "") -> dict[str, Any]:
    (folder / "x.csv").write_text("a,y\n" + "1,0\n2,1\n" * (rows // 2) + other)
    data = {"name": "csv", "path": str(folder / "x.csv"), "label": "y"}
    return {"data": data, "proxy": "model", "split": {"target": 0.5, "reference": 0.5, "test": 0}}


def test_a_spec_in_the_output_folder_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(YAML)
    refused = dpaudit("run", "spec.yaml", "-o", ".", "--quiet")
    assert refused.exit_code == 2
    assert "the run folder must be new, empty or one that a run made, . holds spec.yaml" in refused.output
    assert dpaudit("resume", ".").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]
    assert Path("spec.yaml").read_text() == YAML


def test_scores_of_a_renamed_audit_are_gone(tmp_path: Path) -> None:
    run(tmp_path, audits=[{"name": "before"}, {"name": "stays"}])
    units = set((tmp_path / "units").iterdir())
    run(tmp_path, audits=[{"name": "after"}, {"name": "stays"}])
    assert sorted(path.name[:5] for path in (tmp_path / "scores").iterdir()) == ["after", "stays"]
    assert units <= set((tmp_path / "units").iterdir())


def test_other_data_and_report_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, **csv_of(tmp_path))
    before = contents(folder)
    csv_of(tmp_path, other="3,1\n")
    for ask in (lambda: report_again(folder), lambda: resume(folder, quiet=True)):
        with pytest.raises(RunError, match="the data are others"):
            ask()
    (tmp_path / "x.csv").unlink()
    assert dpaudit("report", folder).exit_code == 2
    assert contents(folder) == before


def test_results_of_other_code_are_kept_and_what_differs_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr("dpaudit.actors.unit._hash_of_sources", lambda: "another code")
    refused = dpaudit("resume", tmp_path, "--quiet")
    assert refused.exit_code == 3
    assert "+another code;" in refused.output
    assert "--fresh` runs anew beside them" in refused.output
    assert contents(tmp_path) == before
    assert dpaudit("report", tmp_path, "--quiet").exit_code == 0
    report = resume(tmp_path, fresh=True, quiet=True)
    assert report.executed == report.units
    after = contents(tmp_path)
    kept = {name: digest for name, digest in before.items() if name.startswith("units/")}
    assert kept.items() <= after.items()
    (earlier,) = (tmp_path / "earlier").iterdir()
    assert contents(earlier)["plan.parquet"] == before["plan.parquet"]
    assert json.loads((earlier / "bounds.json").read_text())["name"] == "small"
    assert any("dpaudit was" in event.detail for event in read_events(tmp_path / "events.jsonl"))
    assert resume(tmp_path, quiet=True).executed == 0


def test_an_edited_spec_is_not_resumed_in_silence(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "spec.yaml").write_text((tmp_path / "spec.yaml").read_text().replace("epsilon: 1.0", "epsilon: 2.0"))
    for ask in (lambda: report_again(tmp_path), lambda: resume(tmp_path, quiet=True)):
        with pytest.raises(RunError, match="the spec has changed"):
            ask()


def test_a_plan_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "plan.parquet").write_bytes(b"PAR1 odd")
    for verb in ("report", "resume"):
        refused = dpaudit(verb, tmp_path, "--quiet")
        assert (refused.exit_code, "is no plan that can be read" in refused.output) == (3, True)
    (tmp_path / "plan.parquet").unlink()
    assert "resume` writes it anew" in dpaudit("report", tmp_path).output.replace(f" {tmp_path}", "")
    assert resume(tmp_path, quiet=True).executed == 0


def test_a_damaged_plan_is_one_sentence_for_whoever_reads_it(tmp_path: Path) -> None:
    run(tmp_path)
    path, rng = tmp_path / "plan.parquet", np.random.default_rng(7)
    whole = path.read_bytes()
    flips = [(int(at), bytes([whole[at] ^ 1 << int(bit)])) for at, bit in zip(
        rng.integers(len(whole), size=300), rng.integers(8, size=300), strict=True
    )]  # fmt: skip
    damaged = [whole[:at] + byte + whole[at + 1 :] for at, byte in flips]
    for content in (*damaged, *(whole[:end] for end in range(0, len(whole), 50))):
        path.write_bytes(content)
        for read in (Record.read, times_of_run, run_status):
            with contextlib.suppress(RunError):
                read(tmp_path)


def test_a_relative_path_survives_a_resume_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = csv_of(tmp_path)
    run(tmp_path / "run", **{**parts, "data": {**parts["data"], "path": "x.csv"}})
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run", quiet=True).executed == 0
    assert report_again(tmp_path / "run").failed == ()


OWN = {"mechanism": "tests.own_mechanism:KeepsEverything"}


def test_a_strangers_folder_runs_their_code_only_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run", **OWN)
    assert dpaudit("report", tmp_path / "run", "--quiet").exit_code == 0
    spec = tmp_path / "run" / "spec.yaml"
    spec.write_text(spec.read_text().replace("tests.own_mechanism:KeepsEverything", "imported_unasked:Mechanism"))
    (tmp_path / "imported_unasked.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    refused = dpaudit("report", tmp_path / "run", "--quiet")
    assert (refused.exit_code, "the spec has changed" in refused.output) == (3, True)
    (tmp_path / "run" / "plan.parquet").unlink()
    refused = dpaudit("resume", tmp_path / "run", "--quiet")
    assert refused.exit_code == 2
    assert "names code (imported_unasked:Mechanism), and this folder was not created here" in refused.output
    assert "imported_unasked" not in sys.modules
    run(tmp_path / "mine", **OWN)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    with pytest.raises(SpecError, match="add --allow-code"):
        report_again(tmp_path / "mine")
    assert report_again(tmp_path / "mine", allow_code=True).results
    assert resume(tmp_path / "mine", allow_code=True, quiet=True).results
    with pytest.raises(SpecError, match="add --allow-code"):  # the code may have changed since
        report_again(tmp_path / "mine")
    run(tmp_path / "plain")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a third one"))
    assert report_again(tmp_path / "plain").results


def test_a_second_driver_says_who_holds_the_folder(tmp_path: Path) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    holding = "import sys, time; from pathlib import Path; from dpaudit.engine.run.run_folder import lease\n"
    holding += f"with lease(Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for verb in ("resume", "report"):
            refused = dpaudit(verb, tmp_path, "--quiet")
            assert refused.exit_code == 3
            assert f"is being written by process {other.pid} on {os.uname().nodename}" in refused.output
        assert contents(tmp_path) == before
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert resume(tmp_path, quiet=True).executed == 0  # a dead driver holds nothing


def test_a_driver_on_another_machine_holds_the_folder_while_its_lease_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lease"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "boot": "x"}))
    with monkeypatch.context() as patch:
        patch.setattr("dpaudit.engine.run.run_folder.STALE_S", HANGS_S)
        with pytest.raises(RunError, match="is being written by process 1 on elsewhere"), lease(tmp_path):
            pass
    for beaten in (0, 4_102_444_800, 10**10):  # nobody who lives is ahead of the clock
        path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "boot": "x"}))
        os.utime(path, (beaten, beaten))
        with lease(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert path.read_bytes() == b""
    for odd in (b"\xff\xfe", b"[]", b"{}", b"9" * 5000, b"[" * 4000):
        path.write_bytes(odd)
        with lease(tmp_path):
            pass


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(YAML)
    for output in ("/dev/null", "/dev/null/x", "/proc/none", tmp_path / ("n" * 256)):
        refused = dpaudit("run", tmp_path / "spec.yaml", "--quiet", "-o", output)
        assert refused.exit_code == 3, refused.output
        assert refused.output.count("\n") == 1
        assert "must be a folder that can be written" in refused.output
    for verb in ("resume", "report"):
        assert dpaudit(verb, "n" * 256).exit_code == 2


FULL = """
import resource, sys
from click.testing import CliRunner
from dpaudit.engine.cli.main import main
words = ["run", sys.argv[1], "--quiet", "-o", sys.argv[2]]
for size in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 3, (size, ended.output)
    assert "must be a folder that can be written and has room: File too large" in ended.output, (size, ended.output)
    assert "Traceback" not in ended.output and ended.output.count("\\n") == 1, (size, ended.output)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert CliRunner().invoke(main, words).exit_code == 0
"""


def test_a_disk_that_is_full_ends_in_one_sentence_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """Every write beyond so many bytes of a file fails, as on a full disk: at the plan, a unit, the report."""
    (tmp_path / "spec.yaml").write_text(YAML)
    sizes = ("0", "1000", "3000", "8000", "10000")
    done = python(FULL, tmp_path / "spec.yaml", tmp_path / "run", *sizes, cwd=tmp_path)
    assert done.code == 0, done.err
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_every_file_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is cut off while it is written leaves the one before."""
    run(tmp_path, run={"runner": "in-process"})
    before = contents(tmp_path)

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    for renamed in ("dpaudit.plain_files.os.replace",):
        monkeypatch.setattr(renamed, cut_off)
        with pytest.raises(KeyboardInterrupt):
            report_again(tmp_path)
    assert contents(tmp_path) == before


def test_an_interrupt_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "run_units", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert [event.kind for event in read_events(tmp_path / "events.jsonl")][-1] is EventKind.INTERRUPTED
    assert pq.read_metadata(tmp_path / "plan.parquet").num_rows > 0


@pytest.fixture
def left_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FileStore]:
    """A store whose lease a process has left that was killed a moment ago, with some of what it says changed."""
    monkeypatch.setattr(run_folder, "SETTLE_S", 0.0)
    store = FileStore.at(tmp_path)

    def write(**changed: object) -> FileStore:
        child = os.fork()
        if child == 0:
            store.write(".lease", json.dumps({"id": "x", **run_folder._this_process(), **changed}).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has taken note of it yet
        return store

    return write


def test_a_driver_of_this_machine_that_was_killed_holds_no_remote_folder(left_lease: Callable[..., FileStore]) -> None:
    with remote_lease(left_lease()):
        pass
    os.wait()
    with remote_lease(left_lease()):
        pass
    os.wait()
    with remote_lease(left_lease(pid=os.getpid(), start=1)):  # its number is another process's by now
        pass


@pytest.mark.parametrize(
    "changed",
    [{"host": "another"}, {"boot": "an earlier one"}, {"pids": "pid:[1]"}, {"start": None}, {"pid": "1"}, {"alive": 1}],
)
def test_who_may_live_still_holds_it(left_lease: Callable[..., FileStore], changed: dict[str, object]) -> None:
    if changed.pop("alive", None):
        changed = {name: run_folder._this_process()[name] for name in ("pid", "start")}
    with pytest.raises(RunError, match="is being written by"), remote_lease(left_lease(**changed)):
        pass
