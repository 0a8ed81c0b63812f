"""Sweeps: all bounds hold together, so the choice of a configuration keeps its confidence."""

from __future__ import annotations

import ast
import json
import math
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, Relation, SweepResult, Verdict, restore_sweep
from dpaudit.actors.events import Event, EventKind, read_events
from dpaudit.actors.work import make_call, unit
from dpaudit.engine.answer.sweep_summary import SweepRow, SweepSummary, _meets_limits, _with_dominance
from dpaudit.engine.cli.main import main
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.report.charts import frontier
from dpaudit.engine.request.loading import configurations, load_spec, normalized_space, overridden, spec_parts
from dpaudit.engine.request.sweep import AUDITED, FAILED, STOPPED, Configuration, SubjectTo, Sweep
from dpaudit.engine.run.run_status import CONFIGURATIONS, configuration_states, described_states
from dpaudit.engine.sweep.request import read_request
from dpaudit.engine.sweep.running import _require_metric, is_sweep, sweep
from dpaudit.errors import AuditError, InputError, RunError, SpecError
from dpaudit.estimators.finding import Validity
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.lp_mst import LP1ST

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "sweep-lp1st.yaml"


@dataclass(frozen=True)
class Nearest:
    """Predicts by the nearest class mean; with `tells`, it reveals the labels of its training rows."""

    epsilon: float = 1.0
    sharpness: float = 1.0
    tells: bool = False

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=Relation.LABEL)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> NearestModel:
        if self.sharpness < 0:
            raise TrainingError("the loss is no finite number")
        features = np.asarray(train.features)
        means = np.stack([features[train.labels == label].mean(axis=0) for label in range(train.classes)])
        labels_by_row = {row.tobytes(): int(label) for row, label in zip(features, train.labels, strict=True)}
        return NearestModel(means, self.sharpness, labels_by_row if self.tells else {})


@dataclass(frozen=True)
class NearestModel:
    """Class means, and remembered labels by row."""

    means: NDArray[np.float64]
    sharpness: float
    labels_by_row: dict[bytes, int]

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        rows = np.asarray(features)
        logits = -self.sharpness * ((rows[:, None] - self.means) ** 2).sum(axis=2)
        answers: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
        answers /= answers.sum(axis=1, keepdims=True)
        for place, row in enumerate(rows):
            if row.tobytes() in self.labels_by_row:
                answers[place] = np.eye(len(self.means))[self.labels_by_row[row.tobytes()]] * 0.98 + 0.02 / len(
                    self.means
                )
        return answers


def base(**fields: Any) -> dict[str, Any]:
    """Return a spec with the learner `Nearest`."""
    return {
        "name": "nearest",
        "seed": 4,
        "data": {"name": "gaussian-mixture", "rows": 500},
        "game": {"name": "label-canaries", "replays": 5},
        "mechanism": {"name": "tests.engine.test_sweep:Nearest"},
        "run": {"runner": "in-process", "figures": False, "repeats": 0},
        **fields,
    }


def times_run(folder: Path) -> set[int]:
    """Return how often units of a run have finished."""
    events = read_events(folder / "events.jsonl")
    return set(Counter(event.unit for event in events if event.kind is EventKind.UNIT_DONE).values())


GRID = {"mechanism.epsilon": [0.5, 8.0], "mechanism.tells": [False, True]}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    settings = {"minimise": "test log loss", "subject_to": {"epsilon": 1}, "reaudit": True}
    return sweep(base(grid=GRID, sweep=settings), output=tmp_path_factory.mktemp("sweep") / "run", quiet=True)


def test_every_configuration_is_audited_at_its_share_of_the_error(result: SweepResult) -> None:
    assert [trial.config for trial in result] == [
        {"mechanism.epsilon": epsilon, "mechanism.tells": tells} for epsilon in (0.5, 8.0) for tells in (False, True)
    ]
    confidences = [trial.audit.finding.confidence for trial in result if trial.audit and trial.audit.finding]
    assert confidences == [pytest.approx(1 - 0.05 / 4)] * 4
    assert not result.errors
    assert result.num_terminated == 4
    assert "All 4 bounds hold together with confidence 0.95" in str(result)


def test_the_best_configuration_meets_the_limit_by_a_claim_that_is_not_rejected(result: SweepResult) -> None:
    """The learner that reveals labels is as useful and claims 0.5 too, but its claim is rejected."""
    best = result.get_best_result()
    assert best.config == {"mechanism.epsilon": 0.5, "mechanism.tells": False}
    leaky = result[1]
    assert leaky.audit is not None
    assert leaky.audit.verdict is Verdict.VIOLATION
    assert leaky.metrics["audited_epsilon"] > 1
    assert not leaky.meets
    assert "was shown, which exceeds 1" in leaky.why
    assert "it claims 8" in result[2].why
    assert "Only its claim of 0.5" in str(result)
    assert "proves nothing" in str(result)
    assert result.get_best_result("audited_epsilon", "min").config == best.config


def test_the_best_configuration_is_audited_again_with_a_new_seed_at_full_confidence(result: SweepResult) -> None:
    again = result.summary.reaudit
    assert again is not None
    assert again.seed != result.report.seed
    assert again.confidence == 0.95
    fresh = json.loads((Path(result.experiment_path) / "reaudit" / "bounds.json").read_text())
    assert fresh["results"][0]["finding"]["confidence"] == 0.95
    assert "Audited afresh" in str(result)
    assert "together with those of the sweep with 0.9." in str(result)


def test_the_folder_has_the_results_as_tables(result: SweepResult) -> None:
    folder = Path(result.experiment_path)
    summary = json.loads((folder / "sweep.json").read_text())
    table = pq.read_table(folder / "sweep.parquet").to_pandas()
    assert summary["best"] == result.summary.best.name  # type: ignore[union-attr]
    assert [row["audited_epsilon"] for row in summary["rows"]] == table["audited_epsilon"].tolist()
    assert table["config/mechanism.epsilon"].tolist() == [0.5, 0.5, 8.0, 8.0]
    assert result.get_dataframe()["verdict"].tolist() == table["verdict"].tolist()
    page = (folder / "report.html").read_text()
    assert "All 4 bounds hold together with confidence 0.95" in page
    assert page.count("<td>epsilon=0.5, tells=False</td>") == 1
    assert [row["configuration"] for row in summary["rows"]] == [audit.name for audit in result.report.results]


def test_a_finished_sweep_is_restored_without_running(result: SweepResult) -> None:
    folder = Path(result.experiment_path)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    again = restore_sweep(folder)
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()} == before
    assert again.report.executed == 0
    assert str(again.summary) == str(result.summary)


def test_a_truncated_or_edited_sweep_file_is_refused(result: SweepResult, tmp_path: Path) -> None:
    """A truncated file is still a valid spec, whose missing settings would become defaults."""
    shutil.copy(Path(result.experiment_path) / "sweep.yaml", tmp_path)
    path = tmp_path / "sweep.yaml"
    lines = path.read_text().splitlines(keepends=True)
    edited = [line.replace("seed: ", "seed: 1") for line in lines]
    for damaged in (lines[:-1], lines[:-2], lines[:3], [], edited):
        path.write_text("".join(damaged))
        with pytest.raises(SpecError, match="was truncated, damaged or edited"):
            restore_sweep(tmp_path, allow_code=True)


def test_resume_continues_a_sweep(result: SweepResult) -> None:
    ended = CliRunner().invoke(main, ["resume", result.experiment_path, "--quiet"])
    assert ended.exit_code == 0, ended.output
    assert "Best: epsilon=0.5" in ended.output


def test_an_interrupted_sweep_runs_missing_units_only(tmp_path: Path) -> None:
    finished: list[Event] = []

    def interrupt(event: Event) -> None:
        finished.append(event) if event.kind is EventKind.UNIT_DONE else None
        if len(finished) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(base(grid=GRID), output=tmp_path / "run", listeners=[interrupt])
    assert not (tmp_path / "run" / "report.html").exists()
    restored = restore_sweep(tmp_path / "run")
    assert len(restored) == 4
    assert times_run(tmp_path / "run") == {1}


def test_shared_units_of_configurations_run_once(tmp_path: Path) -> None:
    """Two estimators of the same scores share all units but `count`."""
    spec_fields = base(grid={"estimator": ["simultaneous-guess-count", "one-run"]})
    request = read_request(spec_fields)
    first, other = make_plan(request.spec(request.configurations)).audits
    assert {unit.function_name for unit in first.units if unit.key not in other.keys} == {"count"}
    result = sweep(spec_fields, output=tmp_path / "run", quiet=True)
    assert times_run(tmp_path / "run") == {1}
    assert len(result) == 2


def test_a_failed_configuration_leaves_the_others(tmp_path: Path) -> None:
    result = sweep(base(grid={"mechanism.sharpness": [-1.0, 1.0]}), output=tmp_path / "run", quiet=True)
    assert [trial.configuration.state for trial in result] == [FAILED, AUDITED]
    assert "no finite number" in result.errors[0]
    assert "failed" in str(result)
    with pytest.raises(
        RunError, match=r"none of 1 configurations could be audited. The first error: .*no finite number"
    ):
        sweep(base(grid={"mechanism.sharpness": [-1.0]}), output=tmp_path / "none", quiet=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": {"mechanism.epsilon": [1.0, 2.0]}},
        {"grid": {"mechanism.sharpness": [1.0]}, "sweep": {"rungs": {"field": "mechanism.epsilon", "values": [1, 2]}}},
        {
            "game": {"name": "ind-mia", "trials": 128, "stack": 8, "shadows": 16},
            "attack": "lira-online",
            "split": {"target": 0.85, "reference": 0.0, "test": 0.15},
            "mechanism": {"name": "non-private", "model": "mlp"},
            "grid": {"mechanism.model.epochs": [1, 2]},
        },
    ],
)
def test_a_metric_that_nothing_measures_is_refused_before_anything_runs(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"no metric 'test_acuracy', only .*did you mean 'test_accuracy'"):
        sweep(base(**changes), maximise="test acuracy", output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_metric_of_the_other_kind_of_table_is_refused_before_anything_runs(tmp_path: Path) -> None:
    text = EXAMPLE.with_name("sweep-synthetic.yaml").read_text()
    (tmp_path / "spec.yaml").write_text(text.replace("minimise: mean two way distance", "maximise: test r2"))
    with pytest.raises(SpecError, match=r"maximise must be .* no metric 'test_r2', only .*test_accuracy"):
        sweep(tmp_path / "spec.yaml", output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def share_of_class_one(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """A metric of a user: share of the rows of class 1 that are predicted as such."""
    return float((probabilities.argmax(axis=1) == 1)[labels == 1].mean())


def fails(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    raise ValueError("no such class")


def test_a_metric_of_the_user_chooses_the_best_configuration(tmp_path: Path) -> None:
    """A sharpness of 0 makes the answers equal, so class 0 is predicted for all rows."""
    spec = base(
        metrics={"recall_of_one": "tests.engine.test_sweep:share_of_class_one"},
        grid={"mechanism.sharpness": [1.0, 0.0]},
        sweep={"maximise": "recall of one"},
        game={"name": "label-canaries", "replays": 1},
    )
    result = sweep(spec, output=tmp_path / "run", quiet=True)
    assert result.get_best_result().config == {"mechanism.sharpness": 1.0}
    assert result[1].metrics["recall_of_one"] == 0.0
    assert result[0].metrics["recall_of_one"] > 0.5
    again = restore_sweep(tmp_path / "run")
    assert again[0].metrics["recall_of_one"] == result[0].metrics["recall_of_one"]


def test_a_metric_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"metrics\.f1 must take \(labels, probabilities\)"):
        read_request(base(metrics={"f1": "math:sqrt"}, grid=GRID))
    with pytest.raises(AuditError, match="names of metrics must be letters"):
        read_request(base(metrics={"macro f1": "tests.engine.test_sweep:share_of_class_one"}, grid=GRID))
    spec = base(
        metrics={"f1": "tests.engine.test_sweep:fails"},
        grid={"mechanism.epsilon": [1.0]},
        sweep={"maximise": "f1"},
        game={"name": "label-canaries", "replays": 1},
    )
    with pytest.raises(RunError, match="metric 'f1' must return a number: ValueError: no such class"):
        sweep(spec, output=tmp_path / "run", quiet=True)


@unit
def measure_anything() -> NearestModel:
    """Stands for a training of a game that a user wrote."""
    raise NotImplementedError


def test_trainings_of_users_games_may_measure_anything() -> None:
    request = read_request(base(grid={"mechanism.epsilon": [1.0]}, sweep={"maximise": "own metric"}))
    plan = make_plan(request.spec(request.configurations))
    with pytest.raises(SpecError, match="own_metric"):
        _require_metric(plan, request.sweep)
    entry = plan.audits[0]
    users_unit = replace(entry.game.trainings[0], task=make_call(measure_anything))
    _require_metric(
        replace(plan, audits=(replace(entry, game=replace(entry.game, trainings=(users_unit,))),)), request.sweep
    )


def test_every_unit_that_returns_metrics_declares_their_names() -> None:
    """The names are checked before a sweep runs, so an undeclared one could not be chosen."""
    for path in sorted((EXAMPLE.parent.parent / "engine" / "games").glob("**/*.py")):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == "Outcome"
                and "metrics" in [keyword.arg for keyword in call.keywords]
                for call in ast.walk(function)
            ):
                assert any("measuring(" in ast.unparse(each) for each in function.decorator_list), function.name


class TestSpace:
    def test_lists_are_a_grid_and_other_axes_are_random(self) -> None:
        space = normalized_space({"a.b": [1, 2], "c": {"loguniform": [0.01, 1]}, "d, e": [[1, 2], [3, 4]]})
        values = configurations(space, 3, 7)
        assert len(values) == 12
        assert values == configurations(space, 3, 7)
        assert values != configurations(space, 3, 8)
        assert {(values["d"], values["e"]) for values in values} == {(1, 2), (3, 4)}
        assert all(0.01 <= values["c"] <= 1 for values in values)

    def test_equal_configurations_are_merged(self) -> None:
        assert len(configurations(normalized_space({"a": {"choice": [1, 2]}}), 50, 0)) == 2

    def test_axes_of_ray_tune_are_accepted(self) -> None:
        from ray import tune

        space = {
            "a": tune.grid_search([1, 2]),
            "b": tune.choice(["x", "y"]),
            "c": tune.uniform(0, 1),
            "d": tune.loguniform(1e-3, 1),
            "e": tune.randint(1, 5),
            "f": tune.lograndint(1, 100),
        }
        assert normalized_space(space) == {
            "a": [1, 2],
            "b": {"choice": ["x", "y"]},
            "c": {"uniform": [0, 1]},
            "d": {"loguniform": [0.001, 1]},
            "e": {"randint": [1, 5]},
            "f": {"lograndint": [1, 100]},
        }
        with pytest.raises(SpecError, match=r"g must have one of the distributions tune.choice"):
            normalized_space({"g": tune.quniform(0, 1, 0.1)})

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            ({"a": {"loguniformly": [1, 2]}}, "did you mean 'loguniform'"),
            ({"a": {"loguniform": [0, 2]}}, "both > 0"),
            ({"a": {"randint": [1.5, 2]}}, "two whole numbers"),
            ({"a": []}, "at least one value"),
            ({"a, b": [[1, 2], [3]]}, "2 values each"),
            ({"a, b": {"choice": [1]}}, "have a list"),
            ({"a": 3}, "must be a list"),
        ],
    )
    def test_an_invalid_space_is_refused(self, space: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            normalized_space(space)


class TestFields:
    (AUDIT,), _ = spec_parts({"mechanism": {"name": "lp-1st"}, "data": "iris", "estimator": "simultaneous-guess-count"})

    def value(self, path: str, value: Any, audit: Audit | None = None) -> Audit:
        varied = overridden(audit or self.AUDIT, path, value)
        return AuditSpec((overridden(varied, "mechanism.epsilon", 2.0),)).audits[0]

    def test_any_field_can_be_varied(self) -> None:
        assert self.value("mechanism.model.depth", 3).mechanism.model.depth == 3  # the usual model's
        assert self.value("mechanism.model", "mlp").mechanism.model.hidden == (64, 64)
        assert self.value("estimator.delta", 1e-5).estimator.delta == 1e-5
        assert self.value("split.target", 0.3).split.target == 0.3
        assert self.value("claim.epsilon", 3).claim == Claim(3.0)
        assert self.value("game.replays", 3).game.replays == 3
        built = replace(self.AUDIT, mechanism=LP1ST(1.0), data=GaussianMixture(rows=100))
        assert self.value("mechanism.model.depth", 3, built).mechanism == LP1ST(2.0, replace(LP1ST(1.0).model, depth=3))
        assert self.value("data.rows", 50, built).data.rows == 50

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("gme.replays", 3, "did you mean 'game'"),
            ("mechanism.modl.depth", 3, "did you mean 'model'"),
            ("mechanism.model.dept", 3, "did you mean 'depth'"),
            ("mechanism.model.depth", "deep", "must be a whole number.* got 'deep'"),
            ("attack.x", 1, "attack is not set"),
            ("split.targt", 0.5, "did you mean 'target'"),
            ("split.target", 1.5, "must be in \\[0, 1\\]"),
        ],
    )
    def test_an_invalid_field_is_refused(self, path: str, value: Any, message: str) -> None:
        with pytest.raises(AuditError, match=message):
            self.value(path, value)

    def test_a_bad_configuration_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"epsilo=1.*no field 'epsilo'"):
            sweep(base(grid={"mechanism.epsilo": [1.0, 2.0]}), output=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()


class TestRequests:
    def test_the_example_has_twelve_configurations(self, tmp_path: Path) -> None:
        request = read_request(EXAMPLE)
        assert len(request.configurations) == request.sweep.count == 12
        request.write(tmp_path)
        assert read_request(tmp_path / "sweep.yaml") == request
        with pytest.raises(SpecError, match="is not one run: use `dpaudit sweep`"):
            load_spec(EXAMPLE)

    def test_the_spec_of_a_sweep_is_unchanged_by_yaml(self, result: SweepResult) -> None:
        spec = load_spec(Path(result.experiment_path) / "spec.yaml")
        assert spec.to_yaml() == result.report.spec
        assert spec.sweep is not None
        assert spec.sweep.subject_to == SubjectTo(epsilon=1.0)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({}, "must vary at least one field"),
            ({"grid": GRID, "sweep": {"maximise": "a", "minimise": "b"}}, "either `maximise` or `minimise`"),
            ({"grid": GRID, "sweep": {"maximize": "a"}}, "did you mean 'maximise'"),
            ({"grid": GRID, "sweep": {"space": GRID}}, "in `grid` or in `space`"),
            ({"grid": GRID, "audits": [{}, {}]}, "varies one audit"),
            ({"grid": GRID, "sweep": {"rungs": {"field": "game.replays", "values": [1]}}}, "at least two values"),
            ({"grid": GRID, "sweep": {"subject_to": {"epsilon": 0}}}, "must be > 0"),
            ({"grid": GRID, "check": {"mechanism": "x"}}, "Leave `check` out"),
        ],
    )
    def test_an_invalid_sweep_is_refused(self, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(AuditError, match=message):
            sweep(base(**fields), output=tmp_path / "run", quiet=True)

    def test_an_estimator_with_a_confidence_is_refused(self) -> None:
        """The bounds would hold separately, but not together as the report says."""
        request = read_request(base(grid=GRID, estimator={"name": "simultaneous-guess-count", "confidence": 0.95}))
        with pytest.raises((SpecError, InputError), match=r"4 configurations share the error.*remove it"):
            request.spec(request.configurations)

    def test_an_audit_without_a_bound_on_epsilon_is_refused(self) -> None:
        spec_fields = base(game="label-advantage", mechanism="randomized-response", grid={"mechanism.epsilon": [1, 2]})
        request = read_request(spec_fields)
        with pytest.raises(SpecError, match="result is a lower bound on epsilon"):
            request.spec(request.configurations)


def _row(name: str, utility: float, audited: float, claimed: float, verdict: Verdict) -> SweepRow:
    configuration = Configuration(name, {"x": name})
    return SweepRow(configuration, utility, {}, audited, claimed, 5.0, verdict.value, Validity.FINITE_SAMPLE.value)


class TestSummaries:
    ROWS = (
        _row("low", 0.6, 0.1, 0.5, Verdict.NO_VIOLATION),
        _row("middle", 0.8, 0.4, 2.0, Verdict.NO_VIOLATION),
        _row("worse", 0.7, 0.5, 3.0, Verdict.NO_VIOLATION),
        _row("broken", 0.9, 1.5, 1.0, Verdict.VIOLATION),
        _row("silent", 0.95, 0.0, math.inf, Verdict.NO_CLAIM),
        _row("high", 0.99, 2.5, 4.0, Verdict.NO_VIOLATION),
    )

    def summary(self, **limits: float) -> SweepSummary:
        sweep = Sweep({"x": [1]}, subject_to=SubjectTo(**limits), count=6)
        rows = []
        for row in self.ROWS:
            meets, why = _meets_limits(sweep, row)
            rows.append(replace(row, meets=meets, why=why))
        return SweepSummary(sweep, _with_dominance(sweep, rows), 0.95)

    def test_a_low_bound_alone_meets_no_limit(self) -> None:
        """Configuration "silent" has no claim, so it is no candidate, although it is the most useful below 2."""
        assert self.summary(epsilon=2).best.name == "middle"  # type: ignore[union-attr]
        assert {row.name for row in self.summary(epsilon=2).rows if row.meets} == {"low", "middle"}

    def test_a_limit_on_the_audited_epsilon_excludes_leaks(self) -> None:
        assert self.summary(audited_epsilon=1).best.name == "silent"  # type: ignore[union-attr]
        assert "does not prove" in str(self.summary(audited_epsilon=1))
        assert self.summary().best.name == "high"  # type: ignore[union-attr]

    def test_dominated_configurations_are_marked(self) -> None:
        rows = {row.name: row for row in self.summary().rows}
        assert [name for name, row in rows.items() if row.dominated_claim] == ["middle", "worse", "silent"]
        assert [name for name, row in rows.items() if row.dominated_audit] == ["low", "middle", "worse", "broken"]

    def test_a_metric_can_be_minimised(self) -> None:
        sweep = Sweep({"x": [1]}, minimise="test log loss", count=6)
        rows = tuple(replace(row, meets=True) for row in self.ROWS)
        assert SweepSummary(sweep, _with_dominance(sweep, list(rows)), 0.95).best.name == "low"  # type: ignore[union-attr]
        assert sweep.metric == "test_log_loss"


def test_the_frontier_chart_has_lines_from_audited_to_claimed_epsilon() -> None:
    axes = frontier(TestSummaries().summary(epsilon=2)).figure.axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert {"claimed epsilon", "audited epsilon, a lower bound", "frontier by claim", "best", "limit ε = 2"} <= set(
        labels
    )
    assert "middle" in {text.get_text() for text in axes.texts}
    lines = [tuple(line.get_xdata()) for line in axes.lines]
    assert (0.4, 2.0) in [tuple(map(float, line)) for line in lines if len(line) == 2]


RUNNERS = [pytest.param("ray", marks=pytest.mark.ray), "in-process"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_rungs_stop_configurations_and_an_interrupted_sweep_is_restored(
    runner: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if runner == "ray":
        request.getfixturevalue("ray_cluster")
    spec_fields = base(
        run={"runner": runner, "workers": 1, "figures": False, "repeats": 0},
        grid={"mechanism.sharpness": [1.0, 2.0, 3.0, -1.0]},
        sweep={"rungs": {"field": "split.target", "values": [0.1, 0.2, 0.4], "reduction_factor": 2}},
    )

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(spec_fields, output=tmp_path / "run", listeners=[interrupt])
    result = restore_sweep(tmp_path / "run")
    states = Counter(trial.configuration.state for trial in result)
    assert states[AUDITED] >= 1
    assert states[FAILED] == 1
    assert "the training at a rung failed" in result.errors[0]
    assert len(result) == 4
    for trial in list(result)[:3]:
        assert (trial.configuration.rung in (0.1, 0.2)) == (trial.configuration.state == STOPPED)
        assert trial.metrics["test_accuracy"] > 0.1
    # The error is split over all configurations, because the choice of the remaining ones depends on results.
    assert {result.summary.sweep.count} == {4}
    confidences = [audit.finding.confidence for audit in result.report.results if audit.finding]
    assert confidences == [pytest.approx(0.9875)] * states[AUDITED]
    assert times_run(tmp_path / "run") == {1}
    assert not Path("~/ray_results").expanduser().exists()


def test_a_sweep_in_a_remote_folder_resumes_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_fields = base(
        grid={"mechanism.sharpness": [1.0, 2.0, -1.0]},
        sweep={"reaudit": True},
    )
    place = f"file://{tmp_path}/remote"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE and event.label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(spec_fields, output=place, listeners=[interrupt])
    assert is_sweep(place)
    assert list((tmp_path / "remote" / "units").glob("*.parquet")), "finished units were uploaded"
    shutil.rmtree(tmp_path / "cache")
    result = restore_sweep(place, allow_code=True, quiet=True)
    assert [trial.configuration.state for trial in result] == [AUDITED, AUDITED, FAILED]
    assert result.experiment_path == place
    assert times_run(tmp_path / "remote") == {1}
    assert (tmp_path / "remote" / "reaudit" / "bounds.json").exists()
    local = sweep(spec_fields, output=tmp_path / "local", quiet=True)
    tables = sorted(path.relative_to(tmp_path / "local") for path in (tmp_path / "local" / "scores").rglob("*.parquet"))
    assert tables
    for table in tables:
        assert (tmp_path / "local" / table).read_bytes() == (tmp_path / "remote" / table).read_bytes()
    assert [trial.metrics for trial in result] == [trial.metrics for trial in local]


@pytest.mark.parametrize("runner", [pytest.param("ray", marks=(pytest.mark.ray, pytest.mark.nightly)), "in-process"])
def test_a_search_algorithm_gets_utility_only(
    runner: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no bound, and the utility of other trainings than those of the audits. The folder has a URI."""
    from ray import tune
    from ray.tune.search import Searcher

    results: list[dict[str, Any]] = []

    class Next(Searcher):  # type: ignore[misc]
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"mechanism.sharpness": 1.0 + len(results)}

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            results.append(result or {})

        def save(self, path: str) -> None: ...

        def restore(self, path: str) -> None: ...

        def set_search_properties(self, *_: Any, **__: Any) -> bool:
            return True

    if runner == "ray":
        request.getfixturevalue("ray_cluster")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tune.TuneConfig(num_samples=2, search_alg=Next(), max_concurrent_trials=1)
    spec_fields = base(run={"runner": runner, "workers": 1, "figures": False, "repeats": 0})
    result = sweep(
        spec_fields,
        {"mechanism.sharpness": tune.uniform(1, 4)},
        tune_config=config,
        output=f"file://{tmp_path}/remote",
        quiet=True,
    )
    assert list((tmp_path / "remote" / "units").glob("*.parquet"))
    assert [trial.config for trial in result] == [{"mechanism.sharpness": 1.0}, {"mechanism.sharpness": 2.0}]
    assert result.summary.sweep.adaptive
    assert all("audited_epsilon" not in metrics for metrics in results)
    assert [metrics["test_log_loss"] for metrics in results] != [trial.metrics["test_log_loss"] for trial in result]
    # A sweep that is resumed without the algorithm has the proposed configurations.
    again = restore_sweep(result.experiment_path, allow_code=True, quiet=True)
    assert [trial.config for trial in again] == [trial.config for trial in result]
    assert again.report.executed == 0
    with pytest.raises(SpecError, match="may use utility only"):
        sweep(spec_fields, {"a": tune.uniform(0, 1)}, maximise="audited_epsilon", tune_config=config)
    with pytest.raises(SpecError, match="instead of a grid"):
        sweep(spec_fields, {"a": [1]}, tune_config=config)


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    def refused(message: str, config: tune.TuneConfig | None = None, **settings: Any) -> None:
        with pytest.raises((SpecError, InputError), match=message):
            sweep(base(grid=GRID, sweep=settings), tune_config=config, output=tmp_path / "run", quiet=True)

    refused(r"trial_workers is now called run\.workers", trial_workers=4)
    refused("max_concurrent_trials needs a search algorithm", tune.TuneConfig(max_concurrent_trials=2))
    training = PopulationBasedTraining(hyperparam_mutations={"a": [1, 2]})
    refused(
        "must not change or pause configurations: they are trained in the order", tune.TuneConfig(scheduler=training)
    )
    assert not (tmp_path / "run").exists()


def test_no_configuration_but_the_first_starts_after_the_time_budget(tmp_path: Path) -> None:
    from ray import tune

    config = tune.TuneConfig(time_budget_s=1e-9)
    result = sweep(base(grid=GRID), tune_config=config, output=tmp_path / "run", quiet=True)
    assert [trial.configuration.state for trial in result] == [AUDITED, STOPPED, STOPPED, STOPPED]
    assert len(restore_sweep(tmp_path / "run", quiet=True).report.results) == 4


def test_the_plan_of_a_sweep_counts_configurations_and_trainings(tmp_path: Path) -> None:
    spec = tmp_path / "planned.yaml"
    words = base(grid=GRID, sweep={"reaudit": True})
    spec.write_text(json.dumps(words))
    planned = make_plan(read_request(words).spec(read_request(words).configurations))
    ended = CliRunner().invoke(main, ["plan", str(spec), "--seed", "9"])
    assert ended.exit_code == 0, ended.output
    size = f"4 configurations (trials), {len(planned.units)} units, 8 trainings, seed 9"
    assert size in ended.stdout
    assert "the best configuration is audited once more" in ended.stdout
    counted = json.loads(CliRunner().invoke(main, ["plan", str(spec), "--json"]).stdout)
    assert (counted["configurations"], counted["trainings"]) == (4, 8)
    rungs = {"field": "mechanism.sharpness", "values": [1.0, 2.0]}
    spec.write_text(json.dumps(base(grid=GRID, sweep={"rungs": rungs})))
    assert "early stopping runs up to 4 further trainings" in CliRunner().invoke(main, ["plan", str(spec)]).stdout
    spec.write_text(json.dumps(base(sweep={})))
    assert "a sweep must vary at least one field" in CliRunner().invoke(main, ["plan", str(spec)]).output


def test_the_status_of_a_sweep_lists_its_configurations(tmp_path: Path) -> None:
    grid = {"mechanism.epsilon": [0.5, 8.0], "mechanism.sharpness": [1.0, -1.0]}
    sweep(base(grid=grid, sweep={}), output=tmp_path / "run", quiet=True)
    status = CliRunner().invoke(main, ["status", str(tmp_path / "run")]).stdout
    assert "4 configurations: 2 done, 0 running, 2 failed" in status
    assert "failed: epsilon=0.5, sharpness=-1.0; epsilon=8.0, sharpness=-1.0" in status
    (tmp_path / "run" / CONFIGURATIONS).write_text("{")
    assert f"{CONFIGURATIONS} must be JSON" in CliRunner().invoke(main, ["status", str(tmp_path / "run")]).stdout


def test_states_of_configurations_during_a_sweep() -> None:
    entries = [
        {"name": name, "state": state, "units": units}
        for name, state, units in (
            ("a", "audited", ["1", "2"]),
            ("b", "audited", ["1", "3"]),
            ("c", "audited", ["4"]),
            ("d", "audited", ["5"]),
            ("e", "stopped", []),
        )
    ]
    kinds = [(EventKind.UNIT_STARTED, "1"), (EventKind.UNIT_DONE, "1"), (EventKind.UNIT_DONE, "2")]
    events = [Event(kind, unit=unit) for kind, unit in [*kinds, (EventKind.UNIT_FAILED, "5")]]
    content = json.dumps({"over": False, "configurations": entries}).encode()
    states = configuration_states(content, "file", events)
    assert [str(state) for _, state in states] == ["done", "running", "waiting", "failed", "stopped"]
    assert described_states(states)[0] == "5 configurations: 1 done, 1 running, 1 waiting, 1 failed, 1 stopped"
    for wrong in (b"[]", b'{"configurations": [{"name": 1}]}', b'{"configurations": [{"name": "a", "state": "x"}]}'):
        with pytest.raises(SpecError, match="file"):
            configuration_states(wrong, "file", events)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ({"name": "lp-1st", "model": "mlp"}, "column 'job' has type string; use catboost or logistic-regression"),
        ({"name": "lp-1st", "model": "small-cnn"}, "small-cnn cannot be trained on these data"),
        ({"name": "gaussian-naive-bayes"}, "a table of mixed types"),
    ],
)
def test_columns_that_a_model_cannot_use_are_refused_before_anything_runs(
    mechanism: dict[str, Any], words: str, tmp_path: Path
) -> None:
    rows = "".join(f"{index / 7},{'abc'[index % 3]},{index % 2}\n" for index in range(60))
    (tmp_path / "rows.csv").write_text(f"age,job,label\n{rows}")
    data = {"name": "csv", "path": str(tmp_path / "rows.csv"), "label": "label"}
    spec_fields = base(mechanism={**mechanism, "epsilon": 1.0}, data=data, grid={"mechanism.epsilon": [1.0, 2.0]})
    with pytest.raises(SpecError, match=r"^epsilon=1\.0: mechanism: .*cannot be trained on these data: ") as refused:
        sweep({**spec_fields, "sweep": {}}, output=tmp_path / "run", quiet=True)
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("varied", "config", "words"),
    [
        ({"grid": {"mechanism.epsilon": [1.0]}}, {}, "sharpness"),
        ({"sweep": {"space": {"mechanism.blunt": {"uniform": [0.5, 1.0]}}}}, {"search": True}, "no field 'blunt'"),
    ],
)
def test_fields_of_rungs_and_searches_are_refused_before_anything_runs(
    varied: dict[str, Any], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    tune = pytest.importorskip("ray.tune")
    searching = tune.TuneConfig(num_samples=4, search_alg=tune.search.BasicVariantGenerator()) if config else None
    rungs = None if config else {"field": "mechanism.sharpness", "values": ["dull", 1.0]}
    with pytest.raises(SpecError, match=words):
        sweep(base(**varied), rungs=rungs, tune_config=searching, output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
