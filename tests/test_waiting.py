"""No test reads a clock, and few start Ray at once: otherwise results would depend on the load of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import waiting
from tests.conftest import HEAVY, heavy_group

ROOT = Path(__file__).parent
CLOCKS = re.compile(
    r"\b(monotonic|perf_counter|process_time|thread_time|clock_gettime|getrusage|timeit|os\.times|time_ns"
    r"|time\.time\(|from time import)"
)
MAY = {
    "waiting.py": "tells a hang from a wait",
    "hostile/reader.py": "gives processes time to end, and says how long a command took",
    "fuzz/__main__.py": "goes on for as long as it was asked to",
    "processes.py": "counts the processor seconds of a test, for the record of the run",
    "suite.py": "measures what other programs use of the machine",
    "test_waiting.py": "this file",
}


def read_clocks(files: Mapping[str, str]) -> list[str]:
    """Files that name a clock, in a program that they start too; the bank measures how long checks take."""
    return [
        name for name, text in files.items() if name not in MAY and not name.startswith("bank/") and CLOCKS.search(text)
    ]


def test_no_test_reads_a_clock() -> None:
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert read_clocks(files) == []
    assert files.keys() >= MAY.keys()
    for clock in ("time.monotonic()", "from time import perf_counter as p", 'RUN = "began = time.time()"'):
        assert read_clocks({**files, "engine/test_new.py": clock}) == ["engine/test_new.py"]


def test_waiting_gives_what_was_reached_and_says_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, 0, "reached"])
    assert waiting.until(lambda: next(answers), "an answer") == "reached"
    monkeypatch.setattr(waiting, "HANGS_S", 0.0)
    with pytest.raises(TimeoutError, match="an answer: not within 0 s, so it hangs"):
        waiting.until(lambda: None, "an answer")


def test_clusters_stand_beside_the_session_only_where_there_are_cores_for_both() -> None:
    assert [{heavy_group(kind, processes) for kind in HEAVY} for processes in (1, 2, 4)] == [
        {"ray"},
        {"ray"},
        {"ray", "cluster"},
    ]
