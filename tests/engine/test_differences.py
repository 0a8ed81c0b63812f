"""Two runs side by side: what got worse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpaudit.actors.events import Event, EventKind, EventLog
from dpaudit.engine.cli.main import main
from dpaudit.engine.reading.bounds_checksum import checksum_note
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.differences import run_differences
from dpaudit.engine.run.driver import audit
from dpaudit.errors import SpecError

SPEC = Path("examples/violations/half-scale.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One claim that holds and one that is false."""
    spec, folder = load_spec(SPEC), tmp_path_factory.mktemp("run")
    audit(replace(spec, run=replace(spec.run, figures=False)), output=folder, quiet=True)
    return folder


@pytest.fixture
def edited(run: Path, tmp_path: Path) -> Callable[[Callable[[Any], object]], Path]:
    """The same run with another report, which its last event names."""

    def made(edit: Callable[[Any], object]) -> Path:
        folder = tmp_path / "new"
        shutil.copytree(run, folder)
        report = json.loads((folder / "bounds.json").read_text())
        edit(report)
        (folder / "bounds.json").write_text(json.dumps(report))
        log = EventLog(folder / "events.jsonl")
        log(Event(EventKind.REPORTED, detail=checksum_note((folder / "bounds.json").read_bytes())))
        log.close()
        return folder

    return made


def test_the_same_run_is_no_worse(run: Path) -> None:
    found = run_differences(run, run)
    assert found.worse == ()
    assert "nothing got worse" in str(found)
    assert found.lines[0].startswith("honest: NO VIOLATION FOUND (epsilon >= ")
    assert found.lines[1].startswith("half the scale: VIOLATION (epsilon >= ")


def became(name: str, **fields: Any) -> Callable[[Any], object]:
    return lambda report: next(one for one in report["results"] if one["name"] == name).update(fields)


def claims(**fields: Any) -> Callable[[Any], object]:
    """The honest audit's claim is another one."""
    return lambda report: report["results"][0]["claim"].update(fields)


CLAIMED = "epsilon 1 at delta 0 (1-DP, label)"


@pytest.mark.parametrize(
    ("edit", "worse"),
    [
        (became("honest", verdict="VIOLATION"), "honest is VIOLATION, was NO VIOLATION FOUND"),
        (became("honest", verdict="INCONCLUSIVE"), "honest is INCONCLUSIVE, was NO VIOLATION FOUND"),
        (became("honest", verdict="FAILED", comparison=None), "honest is FAILED, was NO VIOLATION FOUND"),
        (claims(epsilon=2.0, curve="2-DP"), "honest claims epsilon 2 at delta 0 (2-DP, label), claimed " + CLAIMED),
        (
            claims(delta=0.01, curve="(1, 0.01)-DP"),
            "honest claims epsilon 1 at delta 0.01 ((1, 0.01)-DP, label), claimed " + CLAIMED,
        ),
        (claims(relation="replace"), "honest claims epsilon 1 at delta 0 (1-DP, replace), claimed " + CLAIMED),
        (claims(curve="1-GDP"), "honest claims epsilon 1 at delta 0 (1-GDP, label), claimed " + CLAIMED),
        (claims(epsilon="inf"), "honest claims epsilon inf at delta 0 (1-DP, label), claimed " + CLAIMED),
        (lambda report: report["results"].pop(0), "honest is not audited any more"),
        (
            lambda report: report["results"].append({**report["results"][1], "name": "more"}),
            "more is VIOLATION, and was not audited before",
        ),
    ],
)
def test_what_is_worse(
    run: Path, edited: Callable[[Callable[[Any], object]], Path], edit: Callable[[Any], object], worse: str
) -> None:
    assert run_differences(run, edited(edit)).worse == (f"worse: {worse}",)


@pytest.mark.parametrize(
    "edit",
    [
        became("half the scale", verdict="NO VIOLATION FOUND"),
        became("honest", comparison={"words": "epsilon >= 0.999 at delta=0"}),
        claims(epsilon=0.5, curve="0.5-DP"),
        lambda report: report["results"].append({**report["results"][0], "name": "more"}),
    ],
)
def test_what_is_not_worse(
    run: Path, edited: Callable[[Callable[[Any], object]], Path], edit: Callable[[Any], object]
) -> None:
    assert run_differences(run, edited(edit)).worse == ()


def checked(verdict: str, *tests: str) -> Callable[[Any], object]:
    """The report of a check: one verdict of tests that each had one of their own."""

    def edit(report: Any) -> None:
        report["joint"] = {"verdict": verdict, "headline": "in words"}
        for one, own in zip(report["results"], tests, strict=True):
            one["verdict"] = own

    return edit


@pytest.mark.parametrize(
    ("verdict", "tests", "worse"),
    [
        ("NO VIOLATION FOUND", ("NO VIOLATION FOUND", "FAILED"), ("FAILED",)),
        ("NO VIOLATION FOUND", ("NO VIOLATION FOUND", "VIOLATION"), ()),
        ("VIOLATION", ("VIOLATION", "FAILED"), ("VIOLATION",)),
    ],
)
def test_of_a_check_the_one_verdict_counts_and_a_test_that_failed(
    run: Path,
    edited: Callable[[Callable[[Any], object]], Path],
    verdict: str,
    tests: tuple[str, str],
    worse: tuple[str, ...],
) -> None:
    """As its exit code has it."""
    honest = edited(checked("NO VIOLATION FOUND", "NO VIOLATION FOUND", "NO VIOLATION FOUND"))
    before = run_differences(honest, honest)
    assert before.lines == ("half the scale: NO VIOLATION FOUND (in words) -> NO VIOLATION FOUND (in words)",)
    shutil.move(honest, honest.with_name("before"))
    found = run_differences(honest.with_name("before"), edited(checked(verdict, *tests)))
    assert found.worse == tuple(f"worse: half the scale is {one}, was NO VIOLATION FOUND" for one in worse)


def test_a_report_of_another_form_is_refused(run: Path, edited: Callable[[Callable[[Any], object]], Path]) -> None:
    with pytest.raises(SpecError, match=r"bounds\.json: results\[0\]\.comparison must be a mapping, got a list"):
        run_differences(run, edited(became("honest", comparison=["epsilon"])))


def test_a_report_that_was_edited_is_not_believed(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "forged")
    path = tmp_path / "forged" / "bounds.json"
    path.write_text(path.read_text().replace('"VIOLATION"', '"NO VIOLATION FOUND"'))
    with pytest.raises(SpecError, match="is not the one that the run's last event names"):
        run_differences(run, tmp_path / "forged")


def test_a_folder_without_a_report_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be the folder of a run"):
        run_differences(run, tmp_path)


def test_the_command_ends_with_one_where_that_is_asked_for(
    run: Path, edited: Callable[[Callable[[Any], object]], Path]
) -> None:
    worse = str(edited(became("honest", verdict="VIOLATION")))
    assert CliRunner().invoke(main, ["diff", str(run), worse]).exit_code == 0
    ended = CliRunner().invoke(main, ["diff", str(run), worse, "--fail-on-worse"])
    assert ended.exit_code == 1
    assert "worse: honest is VIOLATION" in ended.output
    assert CliRunner().invoke(main, ["diff", worse, str(run), "--fail-on-worse"]).exit_code == 0
