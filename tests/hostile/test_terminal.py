"""What a stranger names, and what their files say, never reaches the terminal, the page or a figure as it is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from dpaudit.engine.exits import EscapingStream
from tests.hostile.reader import BAD_SIGNS, Reader
from tests.warm import python

CSI, OSC, BEL, TURNED, ISOLATED = "\x1b[2J", "\x1b]0;owned\x07", "\x07", "\u202e", "\u2067"
FAKED = "\rNO VIOLATION       faked\nNO VIOLATION       faked\x85NO VIOLATION       faked"
HOSTILE = f"n{CSI}{OSC}{BEL}\x9b1m{TURNED}{ISOLATED}\u2028\u200b\U000e0041[link=http://evil.example]$\\frac{{${FAKED}"
"""Every kind of sign that a terminal obeys or does not show, then lines that look like another audit's verdict."""
UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e01ef]")


def hostile_spec() -> str:
    """The harmless spec under a hostile name, in YAML, which writes a sign beyond 16 bits in another way than JSON."""
    spec = json.dumps(
        {
            "name": HOSTILE,
            "seed": 3,
            "data": {"name": "digits"},
            "game": {"name": "label-canaries", "canaries": 50, "replays": 2},
            "audits": [{"name": f"a {HOSTILE}", "mechanism": {"name": "randomized-response", "epsilon": 1.0}}],
            "run": {"runner": "in-process"},
        }
    )
    return spec.replace("\\udb40\\udc41", "\\U000e0041")


def readable(text: str) -> None:
    """Asserts that nothing is obeyed or hidden."""
    assert not BAD_SIGNS.search(text), text
    assert not UNSEEN.search(text), text


def clean(text: str) -> None:
    """Asserts that it is readable, and no name in it makes a line that looks like a verdict."""
    readable(text)
    assert not re.search(r"^\s*NO VIOLATION {7}faked", text, re.MULTILINE), text


@pytest.fixture
def spec(reader: Reader) -> Path:
    path = reader.stranger / "spec.yaml"
    path.write_text(hostile_spec())
    return path


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_the_names_in_a_spec(reader: Reader, spec: Path, verb: str) -> None:
    more = ["--output", reader.stranger / "run"] if verb == "run" else []
    process = reader.opens(verb, spec, *more)
    process.harmless()
    assert process.code == 0, process.err
    assert "faked" in process.out
    clean(process.out + process.err)
    if verb == "run":
        readable((reader.stranger / "run" / "report.html").read_text())
        assert "owned" in (reader.stranger / "run" / "figures" / "overview.svg").read_text()
        for drawing in (reader.stranger / "run" / "figures").glob("*.svg"):
            readable(drawing.read_text())
        assert (reader.stranger / "run" / "bounds.json").read_bytes().isascii()
        for verb in ("report", "status"):
            again = reader.opens(verb, reader.stranger / "run")
            again.harmless()
            assert again.code == 0, again.err
            clean(again.out + again.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", HOSTILE],
        ["--" + HOSTILE],
        ["list", HOSTILE],
        ["estimate", "scores.csv", "--group-by", HOSTILE],
        [HOSTILE],
    ],
)
def test_the_arguments_of_a_command(reader: Reader, arguments: list[str]) -> None:
    """A name is pasted from a mail more often than it is typed."""
    (reader.work / "scores.csv").write_text("score,member\n1,1\n0,0\n")
    process = reader.opens(*arguments)
    process.refused()
    clean(process.out + process.err)


def test_events_and_errors_of_a_folder(reader: Reader, folder: Path) -> None:
    event = {"kind": "unit-started", "unit": "u", "label": HOSTILE, "worker": HOSTILE, "time": 1.7e9}
    lines = [{"kind": "units-planned", "count": 30}, {"kind": "stage", "detail": HOSTILE}, event]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    key = next((folder / "units").glob("*.parquet")).stem
    (folder / "units" / f"{key}.parquet").unlink()
    (folder / "units" / f"{key}.failed").write_text(f"Traceback\n{HOSTILE}\nValueError: {HOSTILE}")
    for verb, expected in (
        ("status", "owned"),
        ("report", "faked"),
    ):  # what is long is shortened; errors by their last line
        process = reader.opens(verb, folder)
        process.harmless()
        clean(process.out + process.err)
        assert expected in process.out, process.out


def test_the_columns_of_a_file(reader: Reader) -> None:
    scores = reader.stranger / "scores.csv"
    scores.write_text(f'"{HOSTILE}",member\n1,1\n0,0\n')
    for more in ([], ["--score-column", HOSTILE]):
        process = reader.opens("estimate", scores, *more)
        process.harmless()
        clean(process.out + process.err)


def test_python_shows_reports_and_refusals_clean(reader: Reader, spec: Path) -> None:
    """In somebody's own Python there is no door: what dpaudit makes is clean in itself."""
    code = (
        "import dpaudit, sys\n"
        f"report = dpaudit.audit({str(spec)!r}, output={str(reader.stranger / 'run')!r})\n"
        "print(report); print(repr(report), report.results[0], repr(report.results[0]))\n"
        f"raise dpaudit.AuditError({HOSTILE!r})"
    )
    process = reader.runs([sys.executable, "-c", code])
    assert process.out
    clean(process.out + process.err)


def test_what_passes_the_commands_own_words_by(tmp_path: Path) -> None:
    """Warnings, logs, tracebacks, and what is printed by whoever is imported."""
    code = (
        "import logging, sys, warnings\n"
        "from dpaudit.engine.exits import install_escaping_streams, show\n"
        "install_escaping_streams()\n"
        f"hostile = {HOSTILE!r}\n"
        "print(hostile); warnings.warn(hostile); logging.warning(hostile); show(hostile, bold=hostile)\n"
        "raise ValueError(hostile)"
    )
    process = python(code, cwd=tmp_path)
    assert (process.out + process.err).count("owned") == 6
    readable(process.out + process.err)


def test_a_door_takes_bytes_numbers_and_order_as_the_stream_did(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        door = EscapingStream(stream)
        assert door.write("ε\x1b\ud800\tb\n") == 6
        door.original.write("own \x1b[1m\n")
        door.original.flush()
        print("after", 3, file=door, flush=True)
    assert (tmp_path / "out").read_bytes() == b"\\u03b5\\x1b\\ud800\tb\nown \x1b[1m\nafter 3\n"
