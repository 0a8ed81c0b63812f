"""Calls in this process and in another Python have equal outcomes, and every failure is an outcome."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.actors.audited.signals import TimeLimitExceeded, raised_externally, time_limit
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.other_python import worker
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome
from tests.mechanisms import audited_functions
from tests.waiting import until

HERE = str(Path(__file__).parent)
TABLE = pa.table({"x": [0.5, 2.0, None, float("nan"), -0.0]})
WIDE = pa.table(
    {
        "x": pa.array([0.5, None, float("inf"), 5e-324], pa.float64()),
        "n": pa.array([2**53 + 1, -3, None, 0], pa.int64()),
        "word": pa.array(["", None, "ä\n", "x"], pa.string()),
    }
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a Python without libraries, also without NumPy."""
    script = tmp_path_factory.mktemp("bare") / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    script.chmod(0o700)
    return str(script)


def other(python: str, function: str, **how: Any) -> OtherPython:
    return OtherPython(python, f"audited_functions:{function}", **{"form": "list", "path": [HERE], **how})


def same(first: CallOutcome, second: CallOutcome) -> bool:
    alike = first.ending == second.ending and first.fault == second.fault
    return alike and first.numbers.tobytes() == second.numbers.tobytes()


@pytest.mark.parametrize("form", worker.FORMS)
def test_outcomes_are_equal_in_both_pythons_and_seeded(form: str) -> None:
    """All generators are seeded, those of this process are restored, and calls share no rows."""
    before = np.random.get_state()[1].tobytes()
    function = audited_functions.noisy_sum
    in_process = call_in_process(function, TABLE, [3, 4, 3], form=form, settings={"scale": 2.0})
    assert np.random.get_state()[1].tobytes() == before
    assert same(in_process[0], in_process[2])
    assert not np.array_equal(in_process[0].numbers, in_process[1].numbers)
    assert in_process[0].numbers[0] == 5
    with other(sys.executable, "noisy_sum", form=form, settings={"scale": 2.0}) as python:
        in_worker = python.call(TABLE, [3, 4])
    assert all(map(same, in_process, in_worker))


def test_coroutines_and_private_attributes_are_read_in_both_pythons() -> None:
    table = pa.table({"x": [0.5, 2.0]})
    (in_process,) = call_in_process(audited_functions.later, table, [0], form="list")
    assert in_process.ending == "list of 2 (int, object Total{_total: float})"
    assert in_process.numbers[:2].tolist() == [2.0, 2.5]
    with other(sys.executable, "later") as python:
        assert same(in_process, *python.call(table, [0]))


@pytest.mark.parametrize("form", [form for form in worker.FORMS if form != "arrow"])
def test_each_call_gets_fresh_rows_and_settings(form: str) -> None:
    assert [
        outcome.numbers[0] for outcome in call_in_process(audited_functions.first, TABLE, [1, 2, 3], form=form)
    ] == [0.5] * 3
    grown = call_in_process(audited_functions.grows, TABLE, [1, 2], form=form, settings={"words": ["one"]})
    assert [outcome.numbers[0] for outcome in grown] == [2, 2]


def test_rows_hold_the_exact_cells_of_the_table(bare: str) -> None:
    """Nulls, NaN, -0.0, denormals, whole numbers beyond 2^53, and words of any kind; settings keep tuples."""
    rows = [
        {"x": 0.5, "n": 2**53 + 1, "word": ""},
        {"x": None, "n": -3, "word": None},
        {"x": float("inf"), "n": None, "word": "ä\n"},
        {"x": 5e-324, "n": 0, "word": "x"},
    ]
    calls: list[Any] = []
    settings = {"pair": (1, [None, {"key": (2.5,)}])}

    def keep(rows: Any, rng: Any, pair: Any) -> None:
        calls.append((rows, pair))

    call_in_process(keep, WIDE, [0], form="records", settings=settings)
    assert calls == [(rows, settings["pair"])]
    frame, array = call_in_process(audited_functions.as_text, WIDE, [0], form="frame"), WIDE.select(["x", "n"])
    assert "NaN" in frame[0].ending
    with other(bare, "as_text", form="records") as python:
        assert same(*python.call(WIDE, [0]), *call_in_process(audited_functions.as_text, WIDE, [0], form="records"))
        empty = python.call(WIDE.slice(0, 0), [0])
    assert empty[0].ending == "str '[]'"
    assert "nan" in call_in_process(audited_functions.as_text, array, [0], form="array")[0].ending
    for form in worker.FORMS[:-1]:
        table = array if form == "array" else WIDE
        assert not call_in_process(audited_functions.as_text, table.slice(0, 0), [0], form=form)[0].fault


FAILURES = {
    "exit": ("process ended: exit code 3", "its process ended: exit code 3; it printed: no more disk"),
    "null": ("process ended: SIGSEGV", ""),
    "kill": ("process ended: SIGKILL", ""),
    "sleep": ("out of time", "still running after 1 s"),
    "print": ("out of time", "still running after 1 s"),
    "garble": ("process ended: wrote into the pipe of its worker", ""),
    "close": ("process ended: exit code 1", "Bad file descriptor"),
    "system": ("raises SystemExit: as # asked", "SystemExit: as 17 asked"),
    "interrupt": ("raises KeyboardInterrupt", ""),
    "memory": ("raises MemoryError", ""),
    "child": ("process ended: exit code 5", ""),
    "fork": ("float", ""),
    "recursion": ("raises RecursionError: maximum recursion depth exceeded", ""),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failed_call_is_an_outcome_and_later_calls_run(how: str, bare: str) -> None:
    seeds = range(4)
    failing = [audited_functions.fails(seed) for seed in seeds]
    assert 1 < sum(failing) < len(seeds)
    ending, fault = FAILURES[how]
    limits = {"limit_s": 1.0 if ending == "out of time" else None, "memory_bytes": 1 << 28 if how == "memory" else None}
    with other(bare, "sometimes", settings={"how": how}, **limits) as python:
        outcomes = python.call(TABLE, seeds)
    assert [outcome.ending for outcome in outcomes] == [ending if bad else "float" for bad in failing]
    for bad, outcome in zip(failing, outcomes, strict=True):
        assert fault in outcome.fault if bad else not outcome.fault
        assert bad or outcome.numbers.tolist() == [1.5, -1, 2]
    if how == "child":  # the child process was killed too
        child = int(outcomes[failing.index(True)].fault.rpartition(" ")[2])
        until(lambda: b"sleep" not in _command(child), "a process that was left running is ended")


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_in_process_failures_are_outcomes_but_signals_pass() -> None:
    def interrupts(rows: Any, rng: Any) -> None:
        raise KeyboardInterrupt

    def sleeps(rows: Any, rng: Any) -> None:
        time.sleep(100)

    def outside(err: BaseException) -> bool:
        return raised_externally(err) and not isinstance(err, KeyboardInterrupt)

    (outcome,) = call_in_process(sleeps, TABLE, [0], limits=CallLimits(0.05, 1, time_limit, raised_externally))
    assert outcome.ending == "out of time"
    (outcome,) = call_in_process(interrupts, TABLE, [0], limits=CallLimits(from_outside=outside))
    assert outcome.ending == "raises KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt):
        call_in_process(interrupts, TABLE, [0], limits=CallLimits(1.0, 1, time_limit, lambda err: True))
    with pytest.raises(TimeLimitExceeded), time_limit(0.05):  # of all calls together
        call_in_process(sleeps, TABLE, [0], limits=CallLimits(from_outside=raised_externally))


def _peak_kb() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def test_printed_output_does_not_accumulate(bare: str) -> None:
    before = _peak_kb()
    with other(bare, "prints") as python:
        assert python.call(TABLE, [0])[0].numbers.tolist() == [100]
    assert _peak_kb() - before < 20_000  # kB


def test_each_different_warning_is_recorded_once(bare: str) -> None:
    with other(bare, "warns") as python:
        (in_worker,) = python.call(TABLE, [0])
    assert in_worker.ending == "None; warns RuntimeWarning: bounds (#) are from the data; warns UserWarning: of # rows"
    assert in_worker.numbers.tolist() == [1.5, 7]
    assert same(in_worker, *call_in_process(audited_functions.warns, TABLE, [0]))


def test_more_calls_than_a_request_holds(bare: str) -> None:
    with other(bare, "first") as python:
        assert python.call(TABLE, []) == []
        assert len(python.call(TABLE, range(2_500))) == 2_500


def test_a_worker_ends_with_its_parent(bare: str, tmp_path: Path) -> None:
    """Also during an endless call, and if the parent could not end it."""
    file = tmp_path / "process"
    code = f"""
import os, threading, time
from tests.mechanisms.test_other_python import TABLE, other
def leave():
    while not os.path.exists({str(file)!r}) or not open({str(file)!r}).read():
        time.sleep(0.01)
    os._exit(0)
threading.Thread(target=leave).start()
with other({bare!r}, "process", settings={{"file": {str(file)!r}}}) as python:
    python.call(TABLE, [0])
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(HERE).parent.parent)
    process = int(file.read_text())
    until(lambda: b"worker.py" not in _command(process), "a worker without a parent ends")


def test_invalid_functions_and_tables_are_refused(bare: str, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit('not today')\n")
    (tmp_path / "dies.py").write_text("import os\nos.write(2, b'no licence\\n')\nos._exit(7)\n")

    def refused(python: str, function: str, table: pa.Table = TABLE, **how: Any) -> str:
        with (
            pytest.raises(InputError) as caught,
            OtherPython(python, function, path=[HERE, str(tmp_path)], **how) as it,
        ):
            it.call(table, [0])
        return str(caught.value)

    of_list = {"form": "list"}
    assert "must be a Python that can be started" in refused("/nowhere/python", "a:b", **of_list)
    assert "cannot start in '/bin/false': its process ended: exit code 1" in refused("/bin/false", "a:b", **of_list)
    assert "nowhere:f cannot be imported: ModuleNotFoundError" in refused(bare, "nowhere:f", **of_list)
    assert "cannot be imported: AttributeError" in refused(bare, "audited_functions:nothing", **of_list)
    assert "must be a function, got an object of int" in refused(bare, "audited_functions:NO_FUNCTION", **of_list)
    assert "leaves:f cannot be imported: SystemExit: not today" in refused(bare, "leaves:f", **of_list)
    assert "exit code 7; it printed: no licence" in refused(bare, "dies:f", **of_list)
    assert "must be given as `module:name`, got 'f'" in refused(bare, "f", **of_list)
    assert "form must be one of frame, arrow" in refused(bare, "audited_functions:first", form="table")
    assert "need a library that this Python lacks" in refused(bare, "audited_functions:first", form="frame")
    assert "must be of one column, got 3: x, n, word" in refused(bare, "audited_functions:first", WIDE, **of_list)
    assert "settings must be numbers, words" in refused(bare, "audited_functions:first", settings={"x": object()})
    assert "a column must be float64, int64 or string" in refused(
        bare, "audited_functions:first", pa.table({"x": pa.array([1], pa.int8())}), **of_list
    )
    with pytest.raises(InputError, match=r"a seed must be >= 0, got -1"):
        call_in_process(audited_functions.first, TABLE, [3, -1])
    with pytest.raises(InputError, match="column 'word' holds words; choose the form"):
        call_in_process(audited_functions.first, WIDE, [0], form="array")


def test_identity_names_versions_and_file_hash(bare: str) -> None:
    version = sys.version.split()[0]
    words = other(bare, "first").identity()
    assert words.startswith(f"Python {version}, audited_functions ")
    assert words == other(bare, "first").identity()
    assert OtherPython(sys.executable, "numpy:mean").identity().endswith(f", numpy {np.__version__}")


def test_the_worker_needs_only_the_standard_library() -> None:
    """Python 3.8's standard library, though a newer Python runs this test."""
    code = f"import runpy, sys; runpy.run_path({worker.__file__!r}); print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in finished.stdout.split()}
    assert loaded <= sys.stdlib_module_names | {"__main__", "__mp_main__"}
    ast.parse(Path(worker.__file__).read_text(), feature_version=(3, 8))
