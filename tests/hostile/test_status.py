"""`dpaudit status` believes no file more than it can: an edited one is said, and what is no event left out and said."""

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
    """Another verdict, under the name the audit has."""
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


def test_what_the_last_report_wrote_is_shown_and_no_more_promised(folder: Path) -> None:
    status = str(run_status(folder))
    assert "\nNO VIOLATION FOUND " in status
    assert "(it matches the checksum in the run's last event). A user who can write" in status
    log = folder / "events.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"finished"' not in line))
    with log.open("a") as earlier:  # as versions before this one wrote it
        earlier.write('{"kind": "finished", "seconds": 1.0}\n')
    forged(folder)
    assert "verdicts as written in bounds.json (not checked). A user who can write" in str(run_status(folder))


def test_a_report_made_anew_is_noted_too(reader: Reader, folder: Path) -> None:
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
def test_bounds_that_are_no_bounds(folder: Path, content: bytes) -> None:
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
def test_values_that_no_event_has(values: str) -> None:
    log = '{"kind": "unit-started"}\n{"kind": "unit-started", ' + values + "}\n"
    good, bad = parse_events(io.BytesIO(log.encode()))
    assert good is not None
    assert bad is None


def test_a_log_of_nonsense_is_said(reader: Reader, folder: Path) -> None:
    lines = [
        b'{"kind": "units-spared", "count": "many"}',
        b'{"kind": "unit-started", "unit": [], "time": 1e999}',
        b"[" * 100_000,
        b"\xff\x00",
        b'"finished"',
    ]
    with (folder / "events.jsonl").open("ab") as log:
        log.write(b"\n".join(lines) + b"\n")
        log.truncate(log.tell() + (1 << 30))  # one line of a gigabyte, which takes no room on the disk
    process = reader.opens("status", folder)
    process.harmless()
    if process.code == 0:  # a log of that size may be refused as well
        assert f"6 {UNREAD}" in process.out
