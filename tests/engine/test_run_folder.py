"""Run folders: finished units are kept, other files are never overwritten, and one driver writes at a time."""

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

from dpaudit import Report, audit, registry
from dpaudit.actors.events import EventKind, read_events
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.planned_run import times_of_run
from dpaudit.engine.request import build
from dpaudit.engine.run import driver, run_folder
from dpaudit.engine.run.driver import report_again, resume
from dpaudit.engine.run.run_folder import PlanRecord, lease, remote_lease
from dpaudit.engine.run.run_status import run_status
from dpaudit.errors import RunError, SpecError
from dpaudit.registry import catalogue
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


def dpaudit(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in arguments])


def run(folder: Path, **change: Any) -> Report:
    return audit({**SPEC, **change}, output=folder, quiet=True)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def csv_of(folder: Path, rows: int = 200, other: str = "") -> dict[str, Any]:
    (folder / "x.csv").write_text("a,y\n" + "1,0\n2,1\n" * (rows // 2) + other)
    data = {"name": "csv", "path": str(folder / "x.csv"), "label": "y"}
    return {"data": data, "proxy": "model", "split": {"target": 0.5, "reference": 0.5, "test": 0}}


def test_a_spec_in_the_output_folder_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(YAML)
    refused = dpaudit("run", "spec.yaml", "-o", ".", "--quiet")
    assert refused.exit_code == 2
    assert "the run folder must be new, empty or the folder of a run, but . contains spec.yaml" in refused.output
    assert dpaudit("resume", ".").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]
    assert Path("spec.yaml").read_text() == YAML


def test_scores_of_a_renamed_audit_are_deleted(tmp_path: Path) -> None:
    run(tmp_path, audits=[{"name": "before"}, {"name": "stays"}])
    units = set((tmp_path / "units").iterdir())
    run(tmp_path, audits=[{"name": "after"}, {"name": "stays"}])
    assert sorted(path.name[:5] for path in (tmp_path / "scores").iterdir()) == ["after", "stays"]
    assert units <= set((tmp_path / "units").iterdir())


def test_report_and_resume_refuse_changed_data_and_write_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, **csv_of(tmp_path))
    before = contents(folder)
    csv_of(tmp_path, other="3,1\n")
    for call in (lambda: report_again(folder), lambda: resume(folder, quiet=True)):
        with pytest.raises(RunError, match="the data have changed"):
            call()
    (tmp_path / "x.csv").unlink()
    assert dpaudit("report", folder).exit_code == 2
    assert contents(folder) == before


def test_units_of_other_code_are_kept_and_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr("dpaudit.actors.unit._hash_of_sources", lambda: "another code")
    refused = dpaudit("resume", tmp_path, "--quiet")
    assert refused.exit_code == 3
    assert "+another code." in refused.output
    assert "--fresh`" in refused.output
    assert contents(tmp_path) == before
    assert dpaudit("report", tmp_path, "--quiet").exit_code == 0
    report = resume(tmp_path, fresh=True, quiet=True)
    assert report.executed == report.units
    after = contents(tmp_path)
    old_units = {name: digest for name, digest in before.items() if name.startswith("units/")}
    assert old_units.items() <= after.items()
    (earlier,) = (tmp_path / "earlier").iterdir()
    assert contents(earlier)["plan.parquet"] == before["plan.parquet"]
    assert json.loads((earlier / "bounds.json").read_text())["name"] == "small"
    assert any("dpaudit was" in event.detail for event in read_events(tmp_path / "events.jsonl"))
    assert resume(tmp_path, quiet=True).executed == 0


def test_results_of_another_dpaudit_are_printed_as_written(tmp_path: Path) -> None:
    """Its units have other keys: `report` reads `bounds.json`, if it has the checksum in the last event of the run."""
    run(tmp_path)
    same = dpaudit("report", tmp_path)
    stored = (tmp_path / "bounds.json").read_bytes()
    plan = pq.read_table(tmp_path / "plan.parquet")
    keys = ["0" * 64, *plan["key"].to_pylist()[1:]]
    position = plan.column_names.index("key")
    pq.write_table(plan.set_column(position, plan.schema.field("key"), [keys]), tmp_path / "plan.parquet")
    before = contents(tmp_path)
    printed = dpaudit("report", tmp_path)
    assert "another version of dpaudit" in printed.stderr
    answer = same.stdout.partition("\n1 of")[0]
    assert printed.stdout.strip() == "\n".join(answer.splitlines()[: len(printed.stdout.strip().splitlines())])
    assert "lower bound" in printed.stdout
    assert json.loads(dpaudit("report", tmp_path, "--json").stdout) == json.loads(stored)
    assert (printed.exit_code, contents(tmp_path)) == (0, before)
    (tmp_path / "bounds.json").write_bytes(stored.replace(b'"small"', b'"other"'))
    refused = dpaudit("report", tmp_path)
    assert (refused.exit_code, "does not match the checksum" in refused.output) == (2, True)


def test_results_of_a_mechanism_that_is_no_longer_registered_are_printed_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    without = {kind: dict(catalogue(kind)) for kind in registry.PACKAGES}
    del without["mechanism"]["randomized-response"]
    for module in (registry, build):
        monkeypatch.setattr(module, "catalogue", without.__getitem__)
    monkeypatch.setitem(registry.FORMER_NAMES, "randomized-response", "rr-leaky")
    printed = dpaudit("report", tmp_path)
    assert (printed.exit_code, "another version of dpaudit" in printed.stderr) == (0, True)
    assert "lower bound" in printed.stdout


def test_report_and_resume_refuse_an_edited_spec(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "spec.yaml").write_text((tmp_path / "spec.yaml").read_text().replace("epsilon: 1.0", "epsilon: 2.0"))
    for call in (lambda: report_again(tmp_path), lambda: resume(tmp_path, quiet=True)):
        with pytest.raises(RunError, match="the spec has changed"):
            call()


def test_an_invalid_or_missing_plan_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "plan.parquet").write_bytes(b"PAR1 odd")
    for verb in ("report", "resume"):
        refused = dpaudit(verb, tmp_path, "--quiet")
        assert (refused.exit_code, "is not a valid plan" in refused.output) == (3, True)
    (tmp_path / "plan.parquet").unlink()
    assert "resume` writes it again" in dpaudit("report", tmp_path).output.replace(f" {tmp_path}", "")
    assert resume(tmp_path, quiet=True).executed == 0


def test_a_damaged_plan_raises_no_other_error_than_run_error(tmp_path: Path) -> None:
    run(tmp_path)
    path, rng = tmp_path / "plan.parquet", np.random.default_rng(7)
    intact = path.read_bytes()
    damaged = [intact[:end] for end in range(0, len(intact), 50)]
    for at, bit in zip(rng.integers(len(intact), size=300), rng.integers(8, size=300), strict=True):
        damaged.append(intact[:at] + bytes([intact[at] ^ 1 << int(bit)]) + intact[at + 1 :])
    for content in damaged:
        path.write_bytes(content)
        for read_folder in (PlanRecord.load, times_of_run, run_status):
            with contextlib.suppress(RunError):
                read_folder(tmp_path)


def test_a_relative_path_works_in_a_resume_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = csv_of(tmp_path)
    run(tmp_path / "run", **{**parts, "data": {**parts["data"], "path": "x.csv"}})
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run", quiet=True).executed == 0
    assert report_again(tmp_path / "run").failed == ()


def test_code_of_a_folder_of_another_user_runs_only_with_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_code = {"mechanism": "tests.own_mechanism:KeepsEverything"}
    run(tmp_path / "run", **with_code)
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
    run(tmp_path / "mine", **with_code)
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


def test_a_second_driver_is_refused_and_names_the_first(tmp_path: Path) -> None:
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
    assert resume(tmp_path, quiet=True).executed == 0  # the lease of a killed driver is void


def test_the_lease_of_another_machine_is_valid_until_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lease"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "boot": "x"}))
    with monkeypatch.context() as patch:
        patch.setattr("dpaudit.engine.run.run_folder.STALE_S", HANGS_S)
        with pytest.raises(RunError, match="is being written by process 1 on elsewhere"), lease(tmp_path):
            pass
    for touched in (0, 4_102_444_800, 10**10):  # a live lease is never in the future
        path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "boot": "x"}))
        os.utime(path, (touched, touched))
        with lease(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert path.read_bytes() == b""
    for odd in (b"\xff\xfe", b"[]", b"{}", b"9" * 5000, b"[" * 4000):
        path.write_bytes(odd)
        with lease(tmp_path):
            pass


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(YAML)
    for output in ("/dev/null", "/dev/null/x", "/proc/none", tmp_path / ("n" * 256)):
        refused = dpaudit("run", tmp_path / "spec.yaml", "--quiet", "-o", output)
        assert refused.exit_code == 3, refused.output
        assert refused.output.count("\n") == 1
        assert "cannot write the run folder" in refused.output
    for verb in ("resume", "report"):
        assert dpaudit(verb, "n" * 256).exit_code == 2


def test_a_run_folder_replaces_no_file_link_pipe_or_device(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(YAML)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("not yet")
    os.mkfifo(tmp_path / "pipe")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name, kind in (
        ("file", "a file"),
        ("link", "a link that leads to no folder"),
        ("nowhere", "a link that leads to no folder"),
        ("pipe", "a device, a pipe or a socket"),
        ("/dev/null", "a device, a pipe or a socket"),
    ):
        refused = dpaudit("run", tmp_path / "spec.yaml", "--quiet", "-o", tmp_path / name)
        assert refused.exit_code == 3
        assert refused.output.endswith(f"it is {kind}. Give another --output\n"), refused.output
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before
    assert (tmp_path / "file").read_text() == "mine"


FULL = """
import resource, sys
from click.testing import CliRunner
from dpaudit.engine.cli.main import main
words = ["run", sys.argv[1], "--quiet", "-o", sys.argv[2]]
for size in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 3, (size, ended.output)
    assert "run: File too large" in ended.output, (size, ended.output)
    assert "Traceback" not in ended.output and ended.output.count("\\n") == 1, (size, ended.output)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert CliRunner().invoke(main, words).exit_code == 0
"""


def test_a_full_disk_stops_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    """Writes beyond a file size fail, as on a full disk: first at the plan, then at a unit and at the report."""
    (tmp_path / "spec.yaml").write_text(YAML)
    sizes = ("0", "1000", "3000", "8000", "10000")
    result = python(FULL, tmp_path / "spec.yaml", tmp_path / "run", *sizes, cwd=tmp_path)
    assert result.code == 0, result.err
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_an_interrupted_report_leaves_the_previous_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, run={"runner": "in-process"})
    before = contents(tmp_path)

    monkeypatch.setattr("dpaudit.plain_files.os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        report_again(tmp_path)
    assert contents(tmp_path) == before


def test_an_interrupt_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run_units", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert [event.kind for event in read_events(tmp_path / "events.jsonl")][-1] is EventKind.INTERRUPTED
    assert pq.read_metadata(tmp_path / "plan.parquet").num_rows > 0


@pytest.fixture
def left_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FileStore]:
    """Return a function that writes the lease of a killed process to a store, with some values changed."""
    monkeypatch.setattr(run_folder, "CONFIRM_S", 0.0)
    store = FileStore.at(tmp_path)

    def write(**changed: object) -> FileStore:
        child = os.fork()
        if child == 0:
            store.write(".lease", json.dumps({"id": "x", **run_folder._this_process(), **changed}).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended but was not reaped
        return store

    return write


def test_the_remote_lease_of_a_killed_driver_of_this_machine_is_void(left_lease: Callable[..., FileStore]) -> None:
    for _ in range(2):
        with remote_lease(left_lease()):
            pass
        os.wait()
    with remote_lease(left_lease(pid=os.getpid(), start=1)):  # its process number was reused
        pass


@pytest.mark.parametrize(
    "changed",
    [{"host": "another"}, {"boot": "an earlier one"}, {"pids": "pid:[1]"}, {"start": None}, {"pid": "1"}, {"alive": 1}],
)
def test_the_remote_lease_of_a_process_that_may_live_is_valid(
    left_lease: Callable[..., FileStore], changed: dict[str, object]
) -> None:
    if changed.pop("alive", None):
        changed = {name: run_folder._this_process()[name] for name in ("pid", "start")}
    with pytest.raises(RunError, match="is being written by"), remote_lease(left_lease(**changed)):
        pass
