"""`dpaudit list`, `show`, `schema`, shell completion, closed pipes and interrupts."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.names import described_fields, spec_schema
from dpaudit.engine.report.progress import TerminalProgress
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.registry import PACKAGES, catalogue, load

ROOT = Path(__file__).parents[2]


def dpaudit(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


def test_show_names_every_field_with_type_default_and_meaning() -> None:
    output = dpaudit("show", "catboost").output
    fields = described_fields(CatBoost)
    assert [field.name for field in fields] == [field.name for field in dataclasses.fields(CatBoost) if field.init]
    for field in fields:
        assert f"    {field.name}: {field.type}, " in output
        assert field.description
    listed = dpaudit("list", "models", "--fields").output
    for line in output.splitlines()[2:]:
        assert line in listed
    assert "    epsilon: float, needed\n" in dpaudit("show", "lp-1st").output
    assert "    model: a model, " in dpaudit("show", "lp-1st").output


def test_inherited_fields_have_descriptions() -> None:
    one_run = {field.name: field for field in described_fields(load("estimator", "one-run"))}
    assert "Order of the canaries" in one_run["guess"].description
    assert one_run["confidence"].default == "0.95"


def test_every_name_can_be_shown() -> None:
    for kind in PACKAGES:
        for name in catalogue(kind):
            described_fields(load(kind, name))


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["show", "catbost"], "catboost"),
        (["list", "modles"], "models"),
        (["esitmate"], "estimate"),
        (["estimate", "SCORES", "--method", "one-rum"], "one-run"),
        (["estimate", "SCORES", "--option", "confidense=0.9"], "confidence"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(words: list[str], nearest: str, tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    scores.write_text("score,member\n1,1\n0,0\n")
    result = dpaudit(*(str(scores) if word == "SCORES" else word for word in words))
    assert result.exit_code == 2
    assert f"did you mean {nearest!r}?" in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("dpaudit show catb", 2, "catboost"),
        ("dpaudit list mod", 2, "models"),
        ("dpaudit estimate x --method one-r", 4, "one-run"),
    ],
)
def test_the_shell_completes_names(words: str, position: int, expected: str) -> None:
    environment = {**os.environ, "_DPAUDIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    command = [sys.executable, "-c", "from dpaudit.engine.cli.main import main; main(prog_name='dpaudit')"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert f"plain,{expected}\n" in process.stdout


@pytest.mark.parametrize("words", [["list"], ["--help"], ["list", "--help"]])
def test_a_closed_pipe_causes_no_traceback(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "dpaudit", *words], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


def test_a_closed_pipe_keeps_the_exit_code(tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text("tp,fp,tn,fn\n90,1,99,10\n")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dpaudit", "estimate", str(counts), "--claim", "0.1", "--fail-on-violation"]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (process.returncode, process.stderr) == (1, b"")


def test_an_interrupt_names_the_folder_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpaudit.engine.run.driver.run_plan", interrupted)
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text("name: mine\ndata: iris\nmechanism: {name: randomized-response, epsilon: 1}\n")
    result = dpaudit("run", "spec.yaml", "-o", "a folder")
    assert (result.exit_code, "`dpaudit resume 'a folder'` continues it" in result.output) == (3, True)
    assert "`dpaudit resume runs/mine-" in dpaudit("run", "spec.yaml", "--quiet").output


def test_no_more_units_run_than_there_are_workers() -> None:
    from rich.console import Console

    progress = TerminalProgress(Console(file=open(os.devnull, "w")))  # noqa: SIM115
    progress(Event(EventKind.WORKER_STARTED, count=1))
    progress(Event(EventKind.WORKER_STARTED, count=2))
    for key in "abc":
        progress(Event(EventKind.UNIT_STARTED, unit=key))
    assert progress._state().startswith("2 running")
    progress(Event(EventKind.UNIT_DONE, unit="a"))
    progress(Event(EventKind.UNIT_DONE, unit="b"))
    assert progress._state().startswith("1 running")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


SPECS = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.parent.name != "cluster")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_matches_the_schema(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    spec = yaml.safe_load(path.read_text())
    problems = [error.message[:300] for error in validator.iter_errors(spec)]
    assert not problems


@pytest.mark.parametrize(
    "spec",
    [
        {"data": "iris"},
        {"data": "iris", "mechanism": "lp-9st"},
        {"data": "iris", "mechanism": {"name": "lp-1st", "epsilom": 1}},
        {
            "data": "iris",
            "mechanism": {"name": "lp-1st", "epsilon": 1, "model": {"name": "catboost", "iterations": "many"}},
        },
        {"data": "iris", "mechanism": {"name": "lp-1st"}},
        {"data": "iris", "mechanism": {"name": "lp-1st", "epsilon": 1}, "sead": 1},
        {"data": "iris", "mechanism": {"name": "lp-1st", "epsilon": 1}, "run": {"runner": "threads"}},
    ],
)
def test_an_invalid_spec_does_not_match_the_schema(
    spec: dict[str, object], validator: jsonschema.Draft202012Validator
) -> None:
    assert not validator.is_valid(spec)


def test_schema_prints_json() -> None:
    assert json.loads(dpaudit("schema").output)["title"] == "A dpaudit spec"
