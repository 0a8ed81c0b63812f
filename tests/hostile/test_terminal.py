"""Hostile names and file contents never reach the terminal, the page or a figure unescaped."""

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
"""All kinds of characters that control a terminal or are invisible, then lines that look like another verdict."""
UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e01ef]")


def hostile_spec() -> str:
    """Return the harmless spec with a hostile name in YAML, which escapes characters beyond 16 bits differently from
    JSON."""
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
    """Assert that the text has no control or invisible character."""
    assert not BAD_SIGNS.search(text), text
    assert not UNSEEN.search(text), text


def clean(text: str) -> None:
    """Assert that the text is readable, and that no name in it makes a line that looks like a verdict."""
    readable(text)
    assert not re.search(r"^\s*NO VIOLATION {7}faked", text, re.MULTILINE), text


@pytest.fixture
def spec(reader: Reader) -> Path:
    path = reader.stranger / "spec.yaml"
    path.write_text(hostile_spec())
    return path


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_names_in_a_spec_are_escaped(reader: Reader, spec: Path, verb: str) -> None:
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
def test_arguments_of_a_command_are_escaped(reader: Reader, arguments: list[str]) -> None:
    """Users may paste a hostile name."""
    (reader.work / "scores.csv").write_text("score,member\n1,1\n0,0\n")
    process = reader.opens(*arguments)
    process.refused()
    clean(process.out + process.err)


def test_events_and_errors_of_a_folder_are_escaped(reader: Reader, folder: Path) -> None:
    event = {"kind": "unit-started", "unit": "u", "label": HOSTILE, "worker": HOSTILE, "time": 1.7e9}
    lines = [{"kind": "units-planned", "count": 30}, {"kind": "stage", "detail": HOSTILE}, event]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    key = next((folder / "units").glob("*.parquet")).stem
    (folder / "units" / f"{key}.parquet").unlink()
    (folder / "units" / f"{key}.failed").write_text(f"Traceback\n{HOSTILE}\nValueError: {HOSTILE}")
    for verb, expected in (
        ("status", "owned"),
        ("report", "faked"),
    ):  # long texts are shortened, errors to their last line
        process = reader.opens(verb, folder)
        process.harmless()
        clean(process.out + process.err)
        assert expected in process.out, process.out


def test_columns_of_a_file_are_escaped(reader: Reader) -> None:
    scores = reader.stranger / "scores.csv"
    scores.write_text(f'"{HOSTILE}",member\n1,1\n0,0\n')
    for more in ([], ["--score-column", HOSTILE]):
        process = reader.opens("estimate", scores, *more)
        process.harmless()
        clean(process.out + process.err)


def test_reports_and_refusals_in_python_are_escaped(reader: Reader, spec: Path) -> None:
    """In Python no output filter exists, so texts of dpaudit are clean themselves."""
    code = (
        "import dpaudit, sys\n"
        f"report = dpaudit.audit({str(spec)!r}, output={str(reader.stranger / 'run')!r})\n"
        "print(report); print(repr(report), report.results[0], repr(report.results[0]))\n"
        f"raise dpaudit.AuditError({HOSTILE!r})"
    )
    process = reader.runs([sys.executable, "-c", code])
    assert process.out
    clean(process.out + process.err)


def test_output_of_other_code_is_escaped(tmp_path: Path) -> None:
    """Warnings, logs, tracebacks, and output of imported code."""
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


def test_the_output_filter_keeps_bytes_numbers_and_order(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        door = EscapingStream(stream)
        assert door.write("ε\x1b\ud800\tb\n") == 6
        door.original.write("own \x1b[1m\n")
        door.original.flush()
        print("after", 3, file=door, flush=True)
    assert (tmp_path / "out").read_bytes() == b"\\u03b5\\x1b\\ud800\tb\nown \x1b[1m\nafter 3\n"
