"""`audit()` states which units it reuses, and detects a leak that a change of code introduces."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpaudit import Report, Verdict, audit
from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.run.driver import report_again
from tests.warm import python

MECHANISM = """
from dataclasses import dataclass
from dpaudit import Claim
from leaky.helpers import answer

@dataclass(frozen=True)
class Coins:
    def claim(self):
        return Claim(0.5)
    def release(self, labels, *, classes, rng):
        return answer(labels, classes, rng)
"""
HONEST = "def answer(labels, classes, rng):\n    return rng.integers(0, classes, size=labels.shape)\n"
LEAK = "def answer(labels, classes, rng):\n    return labels.copy()\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "leaky").mkdir()

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "leaky"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def write_module(name: str, text: str) -> None:
        (tmp_path / "leaky" / name).write_text(text)
        forget()

    for name, text in {"__init__.py": "", "mechanism.py": MECHANISM, "helpers.py": HONEST, "other.py": ""}.items():
        write_module(name, text)
    yield write_module
    forget()


def spec(mechanism: Any = "leaky.mechanism:Coins") -> dict[str, Any]:
    return {
        "name": "reuse",
        "data": {"name": "gaussian-mixture", "rows": 600},
        "mechanism": mechanism,
        "proxy": "true-posterior",
        "game": {"name": "label-inference", "replays": 4},
        "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
        "run": {"runner": "in-process", "figures": False},
    }


def run(folder: Path) -> Report:
    return audit(spec(), output=folder / "run")


def test_a_leak_in_a_helper_is_found(write: Callable[[str, str], None], tmp_path: Path) -> None:
    """The seed is fixed; with another seed the honest version would be rejected with probability <= 0.05."""
    assert run(tmp_path).results[0].verdict is Verdict.NO_VIOLATION
    write("helpers.py", LEAK)
    report = run(tmp_path)
    assert report.results[0].verdict is Verdict.VIOLATION
    assert report.executed == report.units - report.reused.units
    assert report.executed > 0


def test_reused_units_are_stated_in_text_page_and_json(write: Callable[[str, str], None], tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.reused.units == 0
    assert "finished before" not in str(first)
    write("notes.txt", "no code")
    report = run(tmp_path)
    assert report.executed == 0
    pattern = rf"{report.units} of {report.units} units reused \(20\d\d-\d\d-\d\d \d\d:\d\d UTC.*, dpaudit "
    pattern += r"0\.1\.0\+[0-9a-f]{12}, your code [0-9a-f]{12}\)"
    assert re.search(pattern, str(report))
    assert re.search(pattern, (tmp_path / "run" / "report.html").read_text())
    recorded = json.loads((tmp_path / "run" / "bounds.json").read_text())["reused"]
    assert recorded["units"] == report.units
    assert recorded["own"] == list(report.reused.user_code)


def test_a_report_describes_the_code_that_ran(write: Callable[[str, str], None], tmp_path: Path) -> None:
    report = run(tmp_path)
    write("helpers.py", LEAK)
    again = report_again(tmp_path / "run")
    assert again.results[0].finding == report.results[0].finding
    assert again.reused.user_code != ()


def test_a_leak_typed_at_a_prompt_is_found(tmp_path: Path) -> None:
    text = MECHANISM.replace("from leaky.helpers import answer\n", "{helper}") + (
        f"from dpaudit import audit\nspec = {spec()!r}\nspec['mechanism'] = Coins()\n"
        f"print(audit(spec, output={str(tmp_path / 'run')!r}))\n"
    )
    outputs = []
    for helper in (HONEST, HONEST, LEAK):
        code = text.replace("{helper}", helper)
        process = python(code, cwd=tmp_path)
        assert process.code == 0, process.err
        outputs.append(process.out)
    assert outputs[0].startswith("NO VIOLATION FOUND")
    assert "\n0 of " in outputs[1]
    assert outputs[2].startswith("VIOLATION")


def test_code_that_cannot_be_read_runs_again_and_is_named(write: Callable[[str, str], None], tmp_path: Path) -> None:
    """The file changed after its import, so this process runs the honest code and its results cannot be reused."""
    run(tmp_path)
    (tmp_path / "leaky" / "helpers.py").write_text(LEAK)
    for _ in range(2):
        report = run(tmp_path)
        assert report.executed > 0
        assert "never reused, because the code cannot be read: the module leaky.helpers changed on disk" in str(report)
    assert report.unseen == ("the module leaky.helpers changed on disk after it was imported",)
    assert "never reused" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((tmp_path / "run" / "bounds.json").read_text())["unseen"] == list(report.unseen)
    assert report_again(tmp_path / "run").results[0].finding == report.results[0].finding
    write("helpers.py", LEAK)
    assert run(tmp_path).results[0].verdict is Verdict.VIOLATION


def test_a_damaged_unit_is_rerun_and_reported(write: Callable[[str, str], None], tmp_path: Path) -> None:
    report = run(tmp_path)
    unit = min((tmp_path / "run" / "units").iterdir())
    content = bytearray(unit.read_bytes())
    content[len(content) // 2] ^= 1
    unit.write_bytes(content)
    assert f"damaged, not used: units/{unit.name}" in str(report_again(tmp_path / "run"))
    report = run(tmp_path)
    assert report.executed == 1
    assert f"damaged, run again: units/{unit.name}: its content has changed since it was written" in str(report)
    assert report.results[0].finding == report.results[0].finding
    assert EventKind.UNIT_DAMAGED in [event.kind for event in read_events(tmp_path / "run" / "events.jsonl")]
    assert run(tmp_path).damaged == ()
