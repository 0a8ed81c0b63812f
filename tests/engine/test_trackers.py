"""Logging to MLflow and Weights & Biases, or to replacements of what is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dpaudit
from dpaudit import AuditSpec, RunOptions, audit
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.loading import load_spec

REAL = importlib.util.find_spec("mlflow") is not None


@dataclass
class Run:
    """Values logged to a run."""

    name: str
    parent: str | None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)


class StandIn:
    """Replaces the calls of MLflow that dpaudit uses; like MLflow, it refuses a second run that is not nested."""

    def __init__(self) -> None:
        self.experiment, self.made, self.open = "Default", list[Run](), list[Run]()

    def set_experiment(self, name: str) -> None:
        self.experiment = name

    def active_run(self) -> Run | None:
        return self.open[-1] if self.open else None

    def start_run(self, *, run_name: str, nested: bool) -> Any:
        assert nested == bool(self.open)
        run = Run(run_name, self.open[-1].name if self.open else None)
        self.made.append(run)
        stand_in = self

        class Active:
            info = SimpleNamespace(run_id=str(len(self.made)))

            def __enter__(self) -> Active:
                stand_in.open.append(run)
                return self

            def __exit__(self, *error: object) -> None:
                stand_in.open.pop()

        return Active()

    def set_tag(self, name: str, value: str) -> None:
        self.open[-1].tags[name] = value

    def log_params(self, values: Mapping[str, str]) -> None:
        self.open[-1].params |= values

    def log_metrics(self, values: Mapping[str, float]) -> None:
        self.open[-1].metrics |= values

    def log_artifact(self, path: str) -> None:
        self.open[-1].artifacts.append(Path(path).name)

    def runs(self, experiment: str) -> list[Run]:
        assert experiment == self.experiment
        return self.made


class Real:
    """Reads the runs of a real MLflow from an SQLite store."""

    def runs(self, experiment: str) -> list[Run]:
        import mlflow

        client = mlflow.MlflowClient()
        stored_experiment = client.get_experiment_by_name(experiment)
        logged_runs = client.search_runs([stored_experiment.experiment_id], order_by=["attributes.start_time ASC"])
        names = {run.info.run_id: run.info.run_name for run in logged_runs}
        return [
            Run(
                run.info.run_name,
                names.get(run.data.tags.get("mlflow.parentRunId")),
                dict(run.data.params),
                dict(run.data.metrics),
                dict(run.data.tags),
                [file.path for file in client.list_artifacts(run.info.run_id)],
            )
            for run in logged_runs
        ]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn | Real]:
    if not REAL:
        stand_in = StandIn()
        monkeypatch.setitem(sys.modules, "mlflow", stand_in)
        yield stand_in
        return
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield Real()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    spec: AuditSpec = load_spec(Path("examples/violations/half-scale.yaml"))
    options = RunOptions(runner="in-process", figures=False)
    return audit(replace(spec, run=options), output=tmp_path_factory.mktemp("run"), quiet=True)


def test_several_audits_are_runs_in_one_run(logged: StandIn | Real, report: Report) -> None:
    assert dpaudit.log_to_mlflow(report, experiment="audits")
    outer, *inner = logged.runs("audits")
    assert (outer.name, outer.parent, outer.params["seed"]) == ("half the scale", None, "4")
    assert set(outer.artifacts) == {"report.html", "bounds.json", "spec.yaml"}
    assert "not evidence of privacy" in outer.tags["dpaudit.means"]
    assert [(run.name, run.parent) for run in inner] == [(result.name, "half the scale") for result in report.results]
    for run, result in zip(inner, report.results, strict=True):
        assert run.tags["verdict"] == str(result.verdict)
        assert run.metrics["epsilon_lower"] == result.epsilon
        assert run.metrics["claimed"] == 1.0
        assert run.params["mechanism"] == result.mechanism
        assert 0.5 < run.metrics["AUC"] <= 1
    assert "detectable_factor" not in inner[1].metrics, "NaN is no metric"


def test_one_audit_is_one_run(logged: StandIn | Real, report: Report) -> None:
    dpaudit.log_to_mlflow(replace(report, results=report.results[1:]), experiment="one", name="mine")
    (run,) = logged.runs("one")
    assert (run.name, run.tags["verdict"]) == ("mine", "VIOLATION")
    assert run.metrics["observed"] == report.results[1].epsilon


def test_an_estimate_is_a_run_with_its_measures(logged: StandIn | Real) -> None:
    member = np.random.default_rng(0).random(400) < 0.5
    result = dpaudit.estimate(np.random.default_rng(1).normal(3.0 * member), member, claim=0.5)
    dpaudit.log_to_mlflow(result, experiment="estimates")
    (run,) = logged.runs("estimates")
    assert run.tags["verdict"] == "VIOLATION"
    assert run.metrics["epsilon_lower"] == result.lower
    assert run.metrics["AUC"] == result.measures[0].value
    assert run.metrics["TPR at 1 percent FPR"] == result.measures[1].value


def test_a_command_logs_its_results(logged: StandIn | Real, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "name: odd | <name>\nseed: 1\ndata: {name: digits}\ngame: {name: label-canaries, canaries: 50, replays: 2}\n"
        "mechanism: {name: randomized-response, epsilon: 1.0}\nrun: {runner: in-process, figures: false}\n"
    )
    arguments = ["run", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "run"), "--quiet", "--mlflow", "by command"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    (run,) = logged.runs("by command")
    assert run.name == "odd | <name>"


@pytest.mark.skipif(REAL, reason="it is installed")
def test_without_mlflow_the_error_names_the_package(report: Report) -> None:
    with pytest.raises(dpaudit.AuditError, match=r"install it with `pip install dpaudit\[mlflow\]`"):
        dpaudit.log_to_mlflow(report)


class WandbStandIn:
    """Replaces the calls of wandb that dpaudit uses."""

    def __init__(self) -> None:
        self.made, self.settings = list[Run](), list[dict[str, Any]]()

    def init(self, **settings: Any) -> Any:
        run = Run(settings["name"], settings["group"], settings["config"])
        self.made.append(run)
        self.settings.append(settings)
        return SimpleNamespace(
            id=f"{len(self.made)}",
            name=run.name,
            summary=run.metrics,
            save=lambda path, base_path, policy: run.artifacts.append(Path(path).relative_to(base_path).as_posix()),
            finish=lambda: run.tags.update(finished="yes"),
        )


def test_a_report_is_a_group_of_runs_of_weights_and_biases(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = WandbStandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert dpaudit.log_to_wandb(report, project="audits") == "1"
    outer, *inner = wandb.made
    assert {settings["project"] for settings in wandb.settings} == {"audits"}
    assert {settings["reinit"] for settings in wandb.settings} == {"create_new"}, "the caller's run stays open"
    assert {run.parent for run in wandb.made} == {"half the scale"}
    assert set(outer.artifacts) == {"report.html", "bounds.json", "spec.yaml"}
    assert [run.name for run in inner] == [result.name for result in report.results]
    assert [run.metrics["epsilon_lower"] for run in inner] == [result.epsilon for result in report.results]
    assert [run.metrics["verdict"] for run in inner] == [str(result.verdict) for result in report.results]
    assert all(run.tags == {"finished": "yes"} for run in wandb.made)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_writes_a_folder_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": f"{tmp_path}", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    member = np.random.default_rng(0).random(400) < 0.5
    result = dpaudit.estimate(np.random.default_rng(1).normal(3.0 * member), member, claim=0.5)
    number = dpaudit.log_to_wandb(result, project="estimates")
    (written,) = tmp_path.rglob(f"run-{number}.wandb")
    assert b"epsilon_lower" in written.read_bytes()
