"""The command line: quick start, one-line errors and exit codes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dpaudit.engine.cli.main import main
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.registry import catalogue


def dpaudit(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


def imported(*arguments: str, **environment: str) -> set[str]:
    """Return the packages outside the standard library that any process of a command imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    tried = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines} - sys.stdlib_module_names
    return {
        name for name in tried if importlib.util.find_spec(name)
    }  # the standard library tries to import a package of Jython


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["list", "estimators"],
        ["run", "--help"],
        ["show", "endpoint"],
        ["reproduce"],
    ],
    ids=" ".join,
)
def test_quick_commands_import_no_library_but_click(arguments: list[str]) -> None:
    """`show` of other classes imports the libraries that these need."""
    assert imported("-m", "dpaudit", *arguments) - imported("-c", "") == {"dpaudit", "click"}


@pytest.mark.parametrize("arguments", ["dpaudit show catb", "dpaudit estimate x --method one-r"])
def test_shell_completion_imports_no_library_but_click(arguments: str) -> None:
    environment = {
        "_DPAUDIT_COMPLETE": "bash_complete",
        "COMP_WORDS": arguments,
        "COMP_CWORD": str(arguments.count(" ")),
    }
    assert imported("-m", "dpaudit", **environment) - imported("-c", "") == {"dpaudit", "click"}


def test_summaries_of_commands_fit_on_their_lines() -> None:
    text = dpaudit("--help").output
    listed = text[text.index("Commands:") :].splitlines()[1:]
    assert len(listed) >= 2
    assert all(re.fullmatch(r"  [a-z-]+ +[A-Z].*[^.]\.", line) for line in listed), text


def test_list_shows_every_registered_name() -> None:
    listing = dpaudit("list").output
    for kind in ("mechanism", "game", "attack", "estimator", "data", "reproduction"):
        for name in catalogue(kind):
            assert f"  {name} " in listing
    narrowed = dpaudit("list", "estimators").output
    assert "Theorem 17" in narrowed
    assert dpaudit("list", "spoons").exit_code == 2


def test_plan_prints_units_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("data: iris\nmechanism: {name: randomized-response, epsilon: 1}\n")
    monkeypatch.chdir(tmp_path)
    plan = dpaudit("plan", spec)
    assert plan.exit_code == 0
    assert list(tmp_path.iterdir()) == [spec]
    for word in ("reference model", "training 1 of 1", "replays 1-50", "counting", "1 CPU 0 GPU", "seed 0."):
        assert word in plan.output
    text = " ".join(plan.output.split())
    assert "randomized-response: sensitivity: would detect noise scaled down " in text
    assert "maximum detectable epsilon " in text
    assert "noise scaled down 2 times needs " in text


SPEC = """
name: cli
data: {name: gaussian-mixture, rows: 4000}
mechanism: {name: MECHANISM, epsilon: 1}
proxy: true-posterior
game: {name: label-inference, replays: 4}
split: {target: 1.0, reference: 0.0, test: 0.0}
run: {runner: in-process}
"""


def run_spec(tmp_path: Path, mechanism: str, *options: str) -> Result:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("MECHANISM", mechanism))
    return dpaudit("run", spec, "-o", tmp_path / "run", *options)


def test_run_report_resume_and_exit_codes(tmp_path: Path) -> None:
    honest = run_spec(tmp_path, "randomized-response", "--fail-on-violation")
    assert honest.exit_code == 0
    assert honest.stdout.startswith("NO VIOLATION FOUND")
    again = dpaudit("resume", tmp_path / "run", "--quiet")
    assert again.exit_code == 0
    assert "0 of 8 units ran" in again.output
    assert dpaudit("report", tmp_path / "run").output.startswith("NO VIOLATION FOUND")


def test_fail_on_violation_exits_with_1(tmp_path: Path) -> None:
    leaky = run_spec(tmp_path, "rr-leaky", "--fail-on-violation", "--quiet")
    assert leaky.exit_code == 1
    assert leaky.output.startswith("VIOLATION")
    assert dpaudit("report", tmp_path / "run").exit_code == 0
    assert dpaudit("report", tmp_path / "run", "--fail-on-violation").exit_code == 1


def test_fail_on_inconclusive_exits_with_4(tmp_path: Path) -> None:
    """A mechanism that leaks, with a claim that this audit could not reject."""
    claim = "claim: {epsilon: 30, relation: label}\n"
    (tmp_path / "spec.yaml").write_text(SPEC.replace("MECHANISM", "rr-leaky") + claim)
    plain = dpaudit("run", tmp_path / "spec.yaml", "-o", tmp_path / "run", "--fail-on-violation", "--quiet")
    assert plain.exit_code == 0
    assert plain.output.startswith("INCONCLUSIVE")
    for verb in ("resume", "report"):
        assert dpaudit(verb, tmp_path / "run", "--fail-on-inconclusive", "--quiet").exit_code == 4


def test_a_failed_run_exits_with_3(tmp_path: Path) -> None:
    failed = run_spec(tmp_path, "tests.own_mechanism:Raises", "--quiet")
    assert failed.exit_code == 3
    assert failed.output.startswith("FAILED")
    assert "ZeroDivisionError" in failed.output
    again = dpaudit("report", tmp_path / "run")
    assert again.exit_code == 3
    assert failed.stderr == again.stderr == "dpaudit: 1 of 1 audits have no result: 1 tests.own_mechanism:Raises\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write_file(text: str) -> Path:
        path = tmp_path / "scores.csv"
        path.write_text(text)
        return path

    return write_file


def some_scores() -> tuple[list[float], list[int]]:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(1, 1, 500), rng.normal(0, 1, 500)])
    return scores.tolist(), [1] * 500 + [0] * 500


def as_csv(scores: list[float], members: list[int]) -> str:
    return "\n".join(["score,member", *(f"{row[0]},{row[1]}" for row in zip(scores, members, strict=True))])


def test_estimate_reads_scores_from_csv_and_parquet(write: Callable[[str], Path], tmp_path: Path) -> None:
    scores, members = some_scores()
    path = write(as_csv(scores, members))
    fixed = dpaudit("estimate", path, "--method", "clopper-pearson", "--selection", "fixed:0.5")
    hits = sum(score >= 0.5 for score in scores[:500])
    alarms = sum(score >= 0.5 for score in scores[500:])
    lower = epsilon_interval(
        hits, alarms, 500 - alarms, 500 - hits, delta=0.0, confidence=0.95, method="clopper-pearson", side="lower"
    ).lower
    assert fixed.exit_code == 0
    assert f"epsilon >= {np.floor(lower * 1000) / 1000:.3f} " in fixed.output
    pq.write_table(pa.table({"s": scores, "m": [bool(member) for member in members]}), tmp_path / "scores.parquet")
    other = dpaudit(
        "estimate", tmp_path / "scores.parquet", "--method", "clopper-pearson", "--selection", "fixed:0.5",
        "--score-column", "s", "--member-column", "m",
    )  # fmt: skip
    assert other.output == fixed.output


def test_estimate_labels_valid_and_as_published_bounds(write: Callable[[str], Path]) -> None:
    scores, members = some_scores()
    path = write(as_csv(scores, members))
    assert "finite-sample" in dpaudit("estimate", path).output
    assert "as-published" in dpaudit("estimate", path, "--selection", "as-published").output


def test_missing_files_and_folders_are_bad_input(tmp_path: Path) -> None:
    for verb in ("run", "plan", "estimate"):
        result = dpaudit(verb, tmp_path / "nothing")
        assert result.exit_code == 2, verb
    for verb in ("resume", "report"):
        assert "must be a run folder" in dpaudit(verb, tmp_path).output


def test_a_field_in_two_options_is_refused(write: Callable[[str], Path]) -> None:
    result = dpaudit("estimate", write("score,member\n1,1\n0,0\n"), "--delta", 0.1, "--option", "delta=0.2")
    assert (result.exit_code, "delta must be given once" in result.output) == (2, True)


def test_an_unexpected_error_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr("dpaudit.engine.run.driver.make_plan", broken)
    assert run_spec(tmp_path, "randomized-response").exit_code == 3
