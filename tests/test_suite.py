"""Messages of the test run about slow tests, and the record behind them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import nightly, suite
from tests.conftest import PROCESSOR_S, TimesRecorder
from tests.suite import LONGEST_S, TOLERANCE, long_tests, read_record, slowest, uncompiled_kernels

QUICK = {"clock_s": 60.0, "processor_s": LONGEST_S}
LONG = {"clock_s": 6.0, "processor_s": TOLERANCE * LONGEST_S + 0.1}


def test_a_day_test_that_takes_long_fails_the_run_unless_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "loop_s", lambda: suite.LOOPS_S)
    record = {"tests/test_a.py::test_quick": QUICK, "tests/test_a.py::test_long": LONG}
    (line,) = long_tests(record, other_cores=0.0)
    assert line.startswith("tests/test_a.py::test_long must take less than 15 s of processor, it took 15.1")
    monkeypatch.setattr(suite, "LONG", {"tests/test_a.py::test_long": "a reason"})
    assert long_tests(record, other_cores=0.0) == []


def test_a_test_that_is_a_little_too_long_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "loop_s", lambda: suite.LOOPS_S)
    assert long_tests({"a": {"processor_s": LONGEST_S + 1}}, other_cores=0.0) == []
    assert capsys.readouterr().out == "a took 6.0 s of processor\n"


def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "loop_s", lambda: 2 * suite.LOOPS_S)
    assert long_tests({"a": LONG, "b": {"processor_s": 2 * TOLERANCE * LONGEST_S}}, other_cores=0.0) == []
    assert len(long_tests({"c": {"processor_s": 2 * TOLERANCE * LONGEST_S + 1}}, other_cores=0.0)) == 1
    assert suite.loop_s() > 0


def test_times_are_not_checked_on_a_busy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert long_tests({"tests/test_a.py::test_long": LONG}, other_cores=0.9) == []
    assert "other programs used 0.9 cores" in capsys.readouterr().out


def test_every_listed_test_exists() -> None:
    for test in (*suite.LONG, *suite.KERNEL_TESTS):
        file, name = test.split("::", 1)
        assert f"def {name.partition('[')[0]}(" in (suite.ROOT / file).read_text(encoding="utf-8"), test
    assert all(len(reason) > 20 for reason in suite.LONG.values())


@pytest.mark.parametrize(
    ("path", "waiting"),
    [
        ("docs/install.md", ["language_models", "synthetic_tables"]),
        ("engine/run/driver.py", ["language_models", "synthetic_tables"]),
        ("tests/engine/test_run.py", ["language_models", "synthetic_tables"]),
        ("language_models/games/text_canaries.py", ["synthetic_tables"]),
        ("tests/synthetic_tables/test_table_pairs.py", ["language_models"]),
        ("synthetic_tables/front_door/page.html.j2", ["language_models"]),
        ("requirements/constraints.txt", []),
        ("tests/loops.py", []),
        ("dpaudit/registry.py", []),
    ],
)
def test_tests_of_a_wing_run_by_day_where_it_or_what_it_imports_was_changed(
    path: str, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (suite.ALL_WINGS, nightly.SWITCH):
        monkeypatch.delenv(variable, raising=False)
    assert suite.waiting_wings({path}) == waiting
    assert suite.waiting_wings(None) == []
    for variable in (suite.ALL_WINGS, nightly.SWITCH):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "yes")
            assert suite.waiting_wings({path}) == []


def test_a_module_that_a_wing_imports_is_one_of_its_files() -> None:
    """An import of the text game, as its source has it."""
    text = (suite.ROOT / "language_models" / "games" / "text_canaries.py").read_text(encoding="utf-8")
    module = next(line.split()[1] for line in text.splitlines() if line.startswith("from dpaudit.engine."))
    path = module.removeprefix("dpaudit.").replace(".", "/") + ".py"
    assert "language_models" not in suite.waiting_wings({path})


def test_a_kernel_is_compiled_again_after_a_change(tmp_path: Path) -> None:
    kernel = tmp_path / "estimators" / "room" / "kernel.py"
    index = kernel.parent / "__pycache__" / "kernel.sum-3.py311.nbi"
    index.parent.mkdir(parents=True)
    kernel.write_text("@njit(cache=True)")
    (kernel.parent / "plain.py").write_text("")
    assert uncompiled_kernels(tmp_path) == [kernel]
    index.touch()
    os.utime(kernel, (1, 1))
    assert uncompiled_kernels(tmp_path) == []
    os.utime(index, (0, 0))
    assert uncompiled_kernels(tmp_path) == [kernel]


def test_the_record_adds_the_phases_of_a_test_and_leaves_out_the_group(tmp_path: Path) -> None:
    path = tmp_path / "build" / "times.json"
    recorder = TimesRecorder(path)

    def report(when: str, duration: float, properties: list[tuple[str, float]]) -> Any:
        nodeid = "tests/test_a.py::test_one@ray"
        return SimpleNamespace(nodeid=nodeid, when=when, duration=duration, user_properties=properties)

    recorder.pytest_runtest_logreport(report("setup", 1.0, []))
    recorder.pytest_runtest_logreport(report("call", 2.0, []))
    recorder.pytest_runtest_logreport(report("teardown", 0.5, [(PROCESSOR_S, 1.25)]))
    recorder.pytest_sessionfinish()
    assert json.loads(path.read_text()) == {"tests/test_a.py::test_one": {"clock_s": 3.5, "processor_s": 1.25}}
    assert slowest(read_record(path)) == ["1 processor seconds in 1 tests", "    1.2 s  tests/test_a.py::test_one"]
    assert read_record(tmp_path / "missing.json") == {}


def test_an_interrupt_is_not_ignored_though_a_shell_started_the_run_in_the_background() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_processor_time_of_children_counts(tmp_path: Path) -> None:
    """A child process is counted while it runs and after its end."""
    import subprocess
    import sys

    from tests.processes import processor_s

    before = processor_s()
    burn = "import sys\nfor _ in range(6_000_000): pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = processor_s()
        child.communicate()
    assert before < running <= processor_s() + 1e-6  # the parts are added in another order
    assert running - before > 0.01


def test_processor_time_of_children_counts_while_threads_end() -> None:
    """A reading that loses a running child would charge its time to the test that is next."""
    import subprocess
    import sys
    import threading

    from tests.processes import processor_s

    burn = "import sys\nfor _ in range(6_000_000): pass\nprint(flush=True)\nsys.stdin.read()"
    ending = threading.Event()

    def start_threads() -> None:
        while not ending.is_set():
            thread = threading.Thread(target=ending.wait, args=(0.0005,))
            thread.start()
            thread.join()

    churn = threading.Thread(target=start_threads)
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        churn.start()
        readings = [processor_s() for _ in range(300)]
        ending.set()
        churn.join()
        child.communicate()
    assert readings == sorted(readings)
