"""`--json`: every command but `logs` and `schema` prints one JSON value on standard output, with the same exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dpaudit.engine.cli.main import main

WITHOUT = {"logs", "schema"}
"""`logs` prints the text of a job, `schema` prints JSON in any case."""
SPEC = """\
name: small
seed: 3
mechanism: {name: randomized-response, epsilon: 4}
data: {name: iris}
split: {target: 0.5, reference: 0.4, test: 0.1}
game: {name: label-canaries, canaries: 20, replays: 1}
proxy: {name: model, model: logistic-regression}
run: {runner: in-process}
"""


def values(*arguments: object) -> Any:
    """Return the values that a command prints in JSON."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the spec of a small audit, and its run in the folder `run`."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    printed = values("run", folder / "spec.yaml", "-o", folder / "run")
    written = json.loads((folder / "run" / "bounds.json").read_text(encoding="utf-8"))
    assert printed | {"seconds": 0} == written | {"seconds": 0}  # the report is written before the run ends
    return folder


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_has_the_option(name: str) -> None:
    options = {option for each in main.commands[name].params for option in each.opts if isinstance(each, click.Option)}
    assert ("--json" in options) == (name not in WITHOUT)


def test_commands_of_a_run_print_its_values(folder: Path) -> None:
    run = folder / "run"
    (result,) = values("report", run)["results"]
    assert values("resume", run)["results"][0]["answer"] == result["answer"]
    status = values("status", run)
    assert status["finished"] == status["units"] > 0
    assert status["verdicts"] == {result["name"]: result["verdict"]}
    (line,) = values("card", run)["lines"]
    assert (line["name"], line["verdict"]) == (result["name"], result["verdict"])
    records = values("records", run, "--top", 3)
    assert [set(each) for each in records["records"]] == [
        {"record", "right", "margin", "p_value", "adjusted", "found"}
    ] * 3
    assert values("fetch", run, folder / "copy") == {"folder": str(folder / "copy")}
    assert values("plan", folder / "spec.yaml")["units"]


def test_commands_without_a_run_print_their_values(folder: Path) -> None:
    assert [entry["name"] for entry in values("list", "games")["games"]]
    assert set(values("list")) > {"games", "mechanisms"}
    (entry,) = values("show", "lp-1st")
    assert {"name", "type", "default", "description"} == set(entry["fields"][0])
    checks = values("doctor")["checks"]
    assert all(check["ok"] for check in checks)
    assert "observational-label" in " ".join(values("reproduce")["names"])
    new = folder / "new.yaml"
    assert values("init", new, "--mechanism", "lp-1st", "--epsilon", 1, "--data", "digits") == {"file": str(new)}


def test_exit_codes_are_those_of_the_text(folder: Path) -> None:
    command = ["report", str(folder / "run"), "--fail-on-inconclusive"]
    text, in_json = (CliRunner().invoke(main, [*command, *more]) for more in ([], ["--json"]))
    assert json.loads(in_json.stdout)["results"][0]["verdict"] == "INCONCLUSIVE"
    assert in_json.exit_code == text.exit_code == 4
