"""`dpaudit status` reports edited files, and skips and reports invalid events."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dpaudit.actors.events import parse_events
from dpaudit.engine.run.run_status import run_status
from tests.hostile.reader import Reader

UNREAD = "lines of events.jsonl are not events and were skipped"
EDITED = "bounds.json does not match the checksum in the run's last event and is ignored"


def forged(folder: Path) -> None:
    """Replace the verdict of the audit."""
    path = folder / "bounds.json"
    bounds = json.loads(path.read_text())
    bounds["results"][0]["verdict"] = "VIOLATION"
    path.write_text(json.dumps(bounds))


def test_an_edited_verdict_is_not_shown(reader: Reader, folder: Path) -> None:
    forged(folder)
    process = reader.opens("status", folder)
    process.harmless()
    assert process.code == 0
    assert EDITED in process.out
    assert "VIOLATION" not in process.out


def test_an_unverified_report_is_shown_with_a_warning(folder: Path) -> None:
    status = str(run_status(folder))
    assert "\nNO VIOLATION FOUND " in status
    assert "(it matches the checksum in the run's last event). A user who can write" in status
    log = folder / "events.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"finished"' not in line))
    with log.open("a") as earlier:  # the format of earlier versions
        earlier.write('{"kind": "finished", "seconds": 1.0}\n')
    forged(folder)
    assert "verdicts as written in bounds.json (not checked). A user who can write" in str(run_status(folder))


def test_a_renewed_report_is_recorded_too(reader: Reader, folder: Path) -> None:
    forged(folder)
    reader.opens("report", folder).harmless()
    status = str(run_status(folder))
    assert EDITED not in status
    assert "\nNO VIOLATION FOUND " in status


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b'{"results": 3}',
        b'{"results": [{"name": ["x"], "verdict": "VIOLATION"}]}',
        b'{"results": [{"name": "x", "verdict": {"a": 1}}]}',
        b'{"results": [{"name": "x", "verdict": "ALL IS WELL"}]}',
        b'{"results": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_invalid_bounds_are_reported(folder: Path, content: bytes) -> None:
    (folder / "bounds.json").write_bytes(content)
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"kind": "finished"}\n')
    status = str(run_status(folder))
    assert "bounds.json is not a valid report" in status
    assert "ALL IS WELL" not in status


@pytest.mark.parametrize(
    "values",
    [
        '"count": "3"',
        '"count": true',
        '"count": 1.5',
        '"count": -1',
        f'"count": {"9" * 400}',
        f'"count": {"9" * 5000}',
        '"time": 1e400',
        '"time": NaN',
        '"time": "now"',
        '"time": 9e15',
        '"seconds": null',
        '"unit": []',
        '"label": {}',
        '"detail": 3',
        '"more": 1',
        '"kind": []',
    ],
)
def test_invalid_events_are_skipped(values: str) -> None:
    log = '{"kind": "unit-started"}\n{"kind": "unit-started", ' + values + "}\n"
    good, bad = parse_events(io.BytesIO(log.encode()))
    assert good is not None
    assert bad is None


def test_an_invalid_log_is_reported(reader: Reader, folder: Path) -> None:
    lines = [
        b'{"kind": "units-spared", "count": "many"}',
        b'{"kind": "unit-started", "unit": [], "time": 1e999}',
        b"[" * 100_000,
        b"\xff\x00",
        b'"finished"',
    ]
    with (folder / "events.jsonl").open("ab") as log:
        log.write(b"\n".join(lines) + b"\n")
        log.truncate(log.tell() + (1 << 30))  # one sparse line of a gigabyte
    process = reader.opens("status", folder)
    process.harmless()
    if process.code == 0:  # a log of this size may also be refused
        assert f"6 {UNREAD}" in process.out
