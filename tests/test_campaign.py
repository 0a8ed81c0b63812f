"""The harness of benchmarks: runs are resumed, chosen and written as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import campaign as harness
from benchmarks.campaign import by_case, campaign, of_each, rows_of
from tools.rows import Row

PLAYED: list[tuple[str, int]] = []


def run(case: str, seed: int, offset: str = "") -> dict[str, Any]:
    PLAYED.append((case, seed))
    return {"value": len(case) + seed + int(offset or 0)}


def columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [line["value"] for line in lines]
    return {"sum": str(sum(values)), "range": (str(min(values)), f"({min(values)}, {max(values)})"), "none": ""}


def cases(seeds: int, offset: str = "") -> Iterator[Mapping[str, Any]]:
    yield from of_each(("first", "second"), seeds)


def play(*arguments: str, **settings: Any) -> list[tuple[str, int]]:
    PLAYED.clear()
    campaign(cases, run, columns, groups=by_case("case"), file="f.csv", arguments=arguments, **settings)
    return list(PLAYED)


def test_missing_runs_are_played_and_all_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs.jsonl"
    assert play(str(runs), "--only", "second") == [("second", 0)]
    with runs.open("a") as file:
        file.write('\n{"case": "first", "se')  # cut short
    assert play(str(runs), "--seeds", "2", "--only", "f", "s", "--only", "first") == [("first", 0), ("first", 1)]
    assert play(str(runs), "--seeds", "2", "--seconds", "-1") == []
    capsys.readouterr()
    assert play(str(runs), "--seeds", "2", "--jobs", "1") == [("second", 1)]
    line, *rows = capsys.readouterr().out.splitlines()
    assert json.loads(line)["value"] == 7
    assert rows == [
        str(Row("case=first", "sum", "11", "", "2")),
        str(Row("case=first", "range", "5", "(5, 6)", "2")),
        str(Row("case=second", "sum", "13", "", "2")),
        str(Row("case=second", "range", "6", "(6, 7)", "2")),
    ]


def test_rows_are_written_where_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr(harness, "record", lambda *words: recorded.append(words))
    play()
    assert recorded == []
    play("--write", "--offset", "3", settings={"offset": "a number"}, counted=False)
    ((file, rows, program),) = recorded
    assert (file, program) == ("f.csv", f"python -m {harness.program()} RUNS.jsonl --seeds 1")
    assert harness.file_of("benchmarks.dp_sgd_steps") == "dp-sgd-steps.csv"
    assert rows[0] == Row("case=first", "sum", "8")


def test_several_processes_give_the_same_lines() -> None:
    lines = [{"case": case, "seed": 0} for case in ("first", "second")]
    played = list(harness._played(len, lines, 2, float("inf")))  # type: ignore[arg-type]
    assert played == [2, 2]


def test_a_line_may_belong_to_several_rows() -> None:
    rows = rows_of([{"a": 1}, {"a": 2}], lambda line: [({"b": "x"}, line["a"]), ({"b": str(line["a"])}, 0)], counts)
    assert [(row.setting, row.value) for row in rows] == [("b=x", "3"), ("b=1", "0"), ("b=2", "0")]


def counts(parts: Sequence[int]) -> dict[str, str]:
    return {"sum": str(sum(parts))}
