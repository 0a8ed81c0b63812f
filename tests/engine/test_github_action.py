"""The GitHub Action and the hooks of pre-commit: their own shell lines run, and their options exist."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dpaudit.engine.cli.main import main
from tests.nightly import by_night_unless_changed

ROOT = Path(__file__).parent.parent.parent
STEPS: dict[str, dict[str, Any]] = {
    step["name"]: step for step in yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
}
FUNCTIONS = """
def noisy(rows, rng):
    return float(rows["age"].clip(0, 100).sum()) + rng.laplace(scale=100)


def exact(rows, rng):
    return float(rows["age"].clip(0, 100).sum())
"""
TESTS = """
from sums import exact


def test_exact(dp_audit):
    dp_audit.check(exact, claim=1.0, schema={"age": (0, 100)}, effort="quick", budget="5s")
"""
OPTIONS = "--schema '{age: [0, 100]}' --claim 1 --effort quick --budget 5s"
of_the_action = by_night_unless_changed("action.yml", ".pre-commit-hooks.yaml", "tests/engine/test_github_action.py")


def ran(step: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the lines of a step as GitHub does, with this environment's commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = os.environ | inputs | {"PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)


@of_the_action
@pytest.mark.parametrize(("function", "code", "verdict"), [("exact", 1, "VIOLATION"), ("noisy", 0, "NO VIOLATION")])
def test_a_violation_fails_the_step(function: str, code: int, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    process = ran("Check claims", tmp_path, CHECKS=f"\nsums:{function} {OPTIONS}\n\n")
    assert process.returncode == code, process.stderr
    assert verdict in (tmp_path / "summary.md").read_text(encoding="utf-8")


@of_the_action
def test_tests_write_the_summary(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    (tmp_path / "test_sums.py").write_text(TESTS)
    process = ran("Run tests", tmp_path, ARGUMENTS="-q -p no:cacheprovider 'test_sums.py'", PYTHONPATH=f"{tmp_path}")
    assert process.returncode != 0
    assert "VIOLATION" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_no_shell_expands_an_argument(tmp_path: Path) -> None:
    process = ran("Check claims", tmp_path, CHECKS="no:thing --claim '$(touch expanded)'; touch expanded")
    assert process.returncode == 1
    assert not (tmp_path / "expanded").exists()


def test_hooks_name_commands_and_options_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert [hook["id"] for hook in hooks] == ["dpaudit-check", "dpaudit-pytest"]
    program, verb, *options = shlex.split(hooks[0]["entry"])
    command = main.get_command(click.Context(main), verb)
    assert program == "dpaudit"
    assert command is not None
    all_options = {name for parameter in command.params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= all_options
