"""`dpaudit sweep`: configurations trained and audited side by side; what is picked afterwards keeps its confidence."""

from __future__ import annotations

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
from scipy.stats import beta, binom

from dpaudit import Audit, AuditSpec, Claim, Relation, SweepResult, Verdict, restore_sweep
from dpaudit.actors.events import Event, EventKind, read_events
from dpaudit.engine.cli.main import main
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.reading.sweep_summary import SweepRow, SweepSummary, _meets_limits, _with_dominance
from dpaudit.engine.report.charts import frontier
from dpaudit.engine.request.error_budget import ErrorBudget
from dpaudit.engine.request.loading import load_spec, spec_parts
from dpaudit.engine.request.override import overridden
from dpaudit.engine.request.space import configurations, normalized_space
from dpaudit.engine.request.sweep import AUDITED, FAILED, STOPPED, Configuration, SubjectTo, Sweep
from dpaudit.engine.run.configurations import CONFIGURATIONS, configuration_states, described_states
from dpaudit.engine.sweep.running import is_sweep, read_request, sweep
from dpaudit.errors import AuditError, InputError, RunError, SpecError
from dpaudit.estimators.finding import Validity
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.lp_mst import LP1ST

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "sweep-lp1st.yaml"


@dataclass(frozen=True)
class Nearest:
    """Answers by the nearest mean of a class; what it has seen it may tell as well."""

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
        seen = {row.tobytes(): int(label) for row, label in zip(features, train.labels, strict=True)}
        return NearestModel(means, self.sharpness, seen if self.tells else {})


@dataclass(frozen=True)
class NearestModel:
    """Means of classes, and labels that are remembered."""

    means: NDArray[np.float64]
    sharpness: float
    seen: dict[bytes, int]

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        rows = np.asarray(features)
        logits = -self.sharpness * ((rows[:, None] - self.means) ** 2).sum(axis=2)
        answers: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
        answers /= answers.sum(axis=1, keepdims=True)
        for place, row in enumerate(rows):
            if row.tobytes() in self.seen:
                answers[place] = np.eye(len(self.means))[self.seen[row.tobytes()]] * 0.98 + 0.02 / len(self.means)
        return answers


def base(**fields: Any) -> dict[str, Any]:
    """A spec with a grid over the learner above."""
    return {
        "name": "nearest",
        "seed": 4,
        "data": {"name": "gaussian-mixture", "rows": 500},
        "game": {"name": "label-canaries", "replays": 5},
        "mechanism": {"name": "tests.engine.test_sweep:Nearest"},
        "run": {"runner": "in-process", "figures": False, "repeats": 0},
        **fields,
    }


GRID = {"mechanism.epsilon": [0.5, 8.0], "mechanism.tells": [False, True]}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    wanted = {"minimise": "test log loss", "subject_to": {"epsilon": 1}, "reaudit": True}
    return sweep(base(grid=GRID, sweep=wanted), output=tmp_path_factory.mktemp("sweep") / "run", quiet=True)


def test_every_configuration_is_audited_at_its_share_of_the_error(found: SweepResult) -> None:
    assert [trial.config for trial in found] == [
        {"mechanism.epsilon": epsilon, "mechanism.tells": tells} for epsilon in (0.5, 8.0) for tells in (False, True)
    ]
    confidences = [trial.audit.finding.confidence for trial in found if trial.audit and trial.audit.finding]
    assert confidences == [pytest.approx(1 - 0.05 / 4)] * 4
    assert not found.errors
    assert found.num_terminated == 4
    assert "All 4 bounds hold together with confidence 0.95" in str(found)


def test_the_best_one_is_below_the_limit_by_an_unrefuted_claim(found: SweepResult) -> None:
    """What tells labels claims 0.5 as well, and is as useful: its claim is refuted, so it is out."""
    best = found.get_best_result()
    assert best.config == {"mechanism.epsilon": 0.5, "mechanism.tells": False}
    told = found[1]
    assert told.audit is not None
    assert told.audit.verdict is Verdict.VIOLATION
    assert told.metrics["audited_epsilon"] > 1
    assert not told.row.meets
    assert "was shown, more than 1" in told.row.why
    assert "it claims 8" in found[2].row.why
    assert "rests on its claim of 0.5" in str(found)
    assert "proves nothing" in str(found)
    assert found.get_best_result("audited_epsilon", "min").config == best.config


def test_the_winner_is_audited_afresh_with_another_seed_at_full_confidence(found: SweepResult) -> None:
    again = found.summary.reaudit
    assert again is not None
    assert again.seed != found.report.seed
    assert again.confidence == 0.95
    fresh = json.loads((Path(found.experiment_path) / "reaudit" / "bounds.json").read_text())
    assert fresh["results"][0]["finding"]["confidence"] == 0.95
    assert "Audited afresh" in str(found)
    assert "together with those of the sweep with 0.9." in str(found)


def test_the_folder_holds_the_same_as_tables(found: SweepResult) -> None:
    folder = Path(found.experiment_path)
    told = json.loads((folder / "sweep.json").read_text())
    table = pq.read_table(folder / "sweep.parquet").to_pandas()
    assert told["best"] == found.summary.best.name  # type: ignore[union-attr]
    assert [row["audited_epsilon"] for row in told["rows"]] == table["audited_epsilon"].tolist()
    assert table["config/mechanism.epsilon"].tolist() == [0.5, 0.5, 8.0, 8.0]
    assert found.get_dataframe()["verdict"].tolist() == table["verdict"].tolist()
    page = (folder / "report.html").read_text()
    assert "All 4 bounds hold together with confidence 0.95" in page
    assert page.count("<td>epsilon=0.5, tells=False</td>") == 1
    assert [row["configuration"] for row in told["rows"]] == [result.name for result in found.report.results]


def test_a_finished_sweep_is_read_again_and_nothing_is_run(found: SweepResult) -> None:
    folder = Path(found.experiment_path)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    again = restore_sweep(folder)
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()} == before
    assert again.report.executed == 0
    assert str(again.summary) == str(found.summary)


def test_a_sweeps_file_that_was_cut_or_edited_is_said(found: SweepResult, tmp_path: Path) -> None:
    """A cut one is a spec still, and what was cut off would be taken as left out."""
    shutil.copy(Path(found.experiment_path) / "sweep.yaml", tmp_path)
    path = tmp_path / "sweep.yaml"
    lines = path.read_text().splitlines(keepends=True)
    edited = [line.replace("seed: ", "seed: 1") for line in lines]
    for damaged in (lines[:-1], lines[:-2], lines[:3], [], edited):
        path.write_text("".join(damaged))
        with pytest.raises(SpecError, match="must be as it was written, it was cut, damaged or edited"):
            restore_sweep(tmp_path, allow_code=True)


def test_resume_goes_on_with_a_sweep(found: SweepResult) -> None:
    shown = CliRunner().invoke(main, ["resume", found.experiment_path, "--quiet"])
    assert shown.exit_code == 0, shown.output
    assert "Best: epsilon=0.5" in shown.output


def test_a_sweep_that_was_interrupted_runs_what_is_missing_alone(tmp_path: Path) -> None:
    done: list[Event] = []

    def interrupt(event: Event) -> None:
        done.append(event) if event.kind is EventKind.UNIT_DONE else None
        if len(done) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(base(grid=GRID), output=tmp_path / "run", listeners=[interrupt])
    assert not (tmp_path / "run" / "report.html").exists()
    restored = restore_sweep(tmp_path / "run")
    assert len(restored) == 4
    often = Counter(event.unit for event in read_events(tmp_path / "run" / "events.jsonl") if event.kind == "unit-done")
    assert set(often.values()) == {1}


def test_units_that_several_configurations_want_are_run_once(tmp_path: Path) -> None:
    """Two estimators of the same scores share everything but the counting."""
    asked = base(grid={"estimator": ["simultaneous-guess-count", "one-run"]})
    request = read_request(asked)
    one, other = make_plan(request.spec(request.known)).audits
    assert {unit.function_name for unit in one.units if unit.key not in other.keys} == {"count"}
    result = sweep(asked, output=tmp_path / "run", quiet=True)
    done = Counter(event.unit for event in read_events(tmp_path / "run" / "events.jsonl") if event.kind == "unit-done")
    assert set(done.values()) == {1}
    assert len(result) == 2


def test_a_configuration_that_fails_is_an_error_and_the_others_are_kept(tmp_path: Path) -> None:
    result = sweep(base(grid={"mechanism.sharpness": [-1.0, 1.0]}), output=tmp_path / "run", quiet=True)
    assert [trial.row.configuration.state for trial in result] == [FAILED, AUDITED]
    assert "no finite number" in result.errors[0]
    assert "failed" in str(result)
    with pytest.raises(RunError, match=r"none of 1 configurations could be audited; the first: .*no finite number"):
        sweep(base(grid={"mechanism.sharpness": [-1.0]}), output=tmp_path / "none", quiet=True)


def test_an_unknown_metric_is_said_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no metric 'test_acuracy'.*did you mean 'test_accuracy'"):
        sweep(base(grid={"mechanism.epsilon": [1.0]}), maximise="test acuracy", output=tmp_path / "run", quiet=True)


def test_a_stop_rule_ends_the_audit_of_a_configuration_that_leaks_more_than_the_limit(tmp_path: Path) -> None:
    asked = base(
        game={"name": "ind-mia", "trials": 128, "stack": 8, "shadows": 16},
        attack="lira-online",
        estimator="betting",
        stop={"refuted": False, "epsilon": 0.5},
        split={"target": 0.85, "reference": 0.0, "test": 0.15},
        mechanism={"name": "non-private", "model": {"name": "mlp", "hidden": [8], "epochs": 1}},
        grid={"mechanism.model.epochs": [1, 40]},
        data={"name": "gaussian-mixture", "rows": 60, "classes": 2},
    )
    request = read_request(asked)
    spec = request.spec(request.known)
    assert [audit.estimator.confidence for audit in spec.audits] == [pytest.approx(0.975)] * 2
    assert spec.audits[0].stop is not None


class TestSpace:
    def test_lists_are_gone_through_and_the_rest_is_drawn_from_the_seed(self) -> None:
        space = normalized_space({"a.b": [1, 2], "c": {"loguniform": [0.01, 1]}, "d, e": [[1, 2], [3, 4]]})
        drawn = configurations(space, 3, 7)
        assert len(drawn) == 12
        assert drawn == configurations(space, 3, 7)
        assert drawn != configurations(space, 3, 8)
        assert {(one["d"], one["e"]) for one in drawn} == {(1, 2), (3, 4)}
        assert all(0.01 <= one["c"] <= 1 for one in drawn)

    def test_what_is_drawn_twice_is_tried_once(self) -> None:
        assert len(configurations(normalized_space({"a": {"choice": [1, 2]}}), 50, 0)) == 2

    def test_values_of_tune_are_read(self) -> None:
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
        with pytest.raises(SpecError, match=r"g must be drawn by one of tune.choice"):
            normalized_space({"g": tune.quniform(0, 1, 0.1)})

    @pytest.mark.parametrize(
        ("space", "says"),
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
    def test_what_is_no_space_is_refused(self, space: dict[str, Any], says: str) -> None:
        with pytest.raises(SpecError, match=says):
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
        ("path", "value", "says"),
        [
            ("gme.replays", 3, "did you mean 'game'"),
            ("mechanism.modl.depth", 3, "did you mean 'model'"),
            ("mechanism.model.dept", 3, "did you mean 'depth'"),
            ("mechanism.model.depth", "deep", "must be a whole number.* got 'deep'"),
            ("attack.x", 1, "attack is left open"),
            ("split.targt", 0.5, "did you mean 'target'"),
            ("split.target", 1.5, "must be in \\[0, 1\\]"),
        ],
    )
    def test_what_is_no_field_is_said(self, path: str, value: Any, says: str) -> None:
        with pytest.raises(AuditError, match=says):
            self.value(path, value)

    def test_a_bad_configuration_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"epsilo=1.*no field 'epsilo'"):
            sweep(base(grid={"mechanism.epsilo": [1.0, 2.0]}), output=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()


class TestRequests:
    def test_the_example_is_a_sweep_of_twelve(self, tmp_path: Path) -> None:
        request = read_request(EXAMPLE)
        assert len(request.known) == request.sweep.count == 12
        request.write(tmp_path)
        assert read_request(tmp_path / "sweep.yaml").to_words() == request.to_words()
        with pytest.raises(SpecError, match="is not one run: use `dpaudit sweep`"):
            load_spec(EXAMPLE)

    def test_a_spec_of_configurations_survives_the_way_to_yaml_and_back(self, found: SweepResult) -> None:
        spec = load_spec(Path(found.experiment_path) / "spec.yaml")
        assert spec.to_yaml() == found.report.spec
        assert spec.sweep is not None
        assert spec.sweep.subject_to == SubjectTo(epsilon=1.0)

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({}, "must vary at least one field"),
            ({"grid": GRID, "sweep": {"maximise": "a", "minimise": "b"}}, "one of maximise and minimise"),
            ({"grid": GRID, "sweep": {"maximize": "a"}}, "did you mean 'maximise'"),
            ({"grid": GRID, "sweep": {"space": GRID}}, "in `grid` or in `space`"),
            ({"grid": GRID, "audits": [{}, {}]}, "varies one audit"),
            ({"grid": GRID, "sweep": {"rungs": {"field": "game.replays", "values": [1]}}}, "at least two values"),
            ({"grid": GRID, "sweep": {"subject_to": {"epsilon": 0}}}, "must be > 0"),
            ({"grid": GRID, "check": {"mechanism": "x"}}, "leave `check` out"),
        ],
    )
    def test_what_is_no_sweep_is_refused(self, fields: dict[str, Any], says: str, tmp_path: Path) -> None:
        with pytest.raises(AuditError, match=says):
            sweep(base(**fields), output=tmp_path / "run", quiet=True)

    def test_an_estimator_with_a_confidence_of_its_own_is_refused(self) -> None:
        """Else the bounds would hold each alone, and not together as the report says."""
        request = read_request(base(grid=GRID, estimator={"name": "simultaneous-guess-count", "confidence": 0.95}))
        with pytest.raises((SpecError, InputError), match=r"4 configurations share the error.*leave it out"):
            request.spec(request.known)

    def test_an_audit_without_a_bound_on_epsilon_is_refused(self) -> None:
        asked = base(game="label-advantage", mechanism="randomized-response", grid={"mechanism.epsilon": [1, 2]})
        request = read_request(asked)
        with pytest.raises(SpecError, match="ends in a lower bound on epsilon"):
            request.spec(request.known)


def _row(name: str, utility: float, audited: float, claimed: float, verdict: Verdict) -> SweepRow:
    one = Configuration(name, {"x": name})
    return SweepRow(one, utility, {}, audited, claimed, 5.0, verdict.value, Validity.FINITE_SAMPLE.value)


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
        """ "silent" shows nothing and claims nothing: it is no candidate, though it is the most useful below 2."""
        assert self.summary(epsilon=2).best.name == "middle"  # type: ignore[union-attr]
        assert {row.name for row in self.summary(epsilon=2).rows if row.meets} == {"low", "middle"}

    def test_a_limit_of_what_was_shown_leaves_out_what_is_known_to_leak(self) -> None:
        assert self.summary(audited_epsilon=1).best.name == "silent"  # type: ignore[union-attr]
        assert "does not prove" in str(self.summary(audited_epsilon=1))
        assert self.summary().best.name == "high"  # type: ignore[union-attr]

    def test_dominated_configurations_are_marked(self) -> None:
        rows = {row.name: row for row in self.summary().rows}
        assert [name for name, row in rows.items() if row.dominated_claim] == ["middle", "worse", "silent"]
        assert [name for name, row in rows.items() if row.dominated_audit] == ["low", "middle", "worse", "broken"]

    def test_a_small_metric_may_be_wanted(self) -> None:
        sweep = Sweep({"x": [1]}, minimise="test log loss", count=6)
        rows = tuple(replace(row, meets=True) for row in self.ROWS)
        assert SweepSummary(sweep, _with_dominance(sweep, list(rows)), 0.95).best.name == "low"  # type: ignore[union-attr]
        assert sweep.metric == "test_log_loss"


def test_the_frontier_is_drawn_from_what_was_shown_to_what_is_claimed() -> None:
    axes = frontier(TestSummaries().summary(epsilon=2)).figure.axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert {"claimed epsilon", "audited epsilon, a lower bound", "frontier by claim", "best", "limit ε = 2"} <= set(
        labels
    )
    assert "middle" in {text.get_text() for text in axes.texts}
    lines = [tuple(line.get_xdata()) for line in axes.lines]
    assert (0.4, 2.0) in [tuple(map(float, line)) for line in lines if len(line) == 2]


def test_the_best_of_many_bounds_errs_more_often_than_stated_unless_the_error_is_split() -> None:
    """Twelve mechanisms of epsilon = 1, 4,000 sweeps; false failure < 1e-6 by the quantile of Binomial(4000, 0.05).

    The two rates of randomised response are known beside each other, so that the bound spends its error almost whole.
    The naive bound of whichever shows most errs in far more sweeps than one in twenty: the test could fail.
    """
    rng, sweeps, count, trials, keep = np.random.default_rng(11), 4000, 12, 400, math.e / (1 + math.e)
    right = rng.binomial(trials, keep, size=(sweeps, count))

    def largest_bound(confidence: float, right: NDArray[np.int64]) -> NDArray[np.float64]:
        rate = beta.ppf(1 - confidence, right, trials - right + 1)
        return np.asarray(np.log(rate / (1 - rate)).max(axis=1))

    most = binom.ppf(1 - 1e-6, sweeps, 0.05)
    assert (largest_bound(0.95, right) > 1).sum() > 4 * most
    assert (largest_bound(ErrorBudget(0.95, count).first_pass, right) > 1).sum() <= most
    fresh = rng.binomial(trials, keep, size=(sweeps, 1))  # the winner, audited afresh at full confidence
    assert (largest_bound(0.95, fresh) > 1).sum() <= most
    again = np.take_along_axis(right, right.argmax(axis=1)[:, None], axis=1)  # "afresh" with the same seed is not
    assert (largest_bound(0.95, again) > 1).sum() > 4 * most


RUNNERS = [pytest.param("ray", marks=pytest.mark.ray), "in-process"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_rungs_leave_configurations_out_and_an_interrupted_sweep_is_restored(
    runner: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if runner == "ray":
        request.getfixturevalue("ray_cluster")
    asked = base(
        run={"runner": runner, "workers": 1, "figures": False, "repeats": 0},
        grid={"mechanism.sharpness": [1.0, 2.0, 3.0, -1.0]},
        sweep={"rungs": {"field": "split.target", "values": [0.1, 0.2, 0.4], "reduction_factor": 2}},
    )

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(asked, output=tmp_path / "run", listeners=[interrupt])
    result = restore_sweep(tmp_path / "run")
    states = Counter(trial.row.configuration.state for trial in result)
    assert states[AUDITED] >= 1
    assert states[FAILED] == 1
    assert "the training at a rung failed" in result.errors[0]
    assert len(result) == 4
    for trial in list(result)[:3]:
        assert (trial.row.configuration.rung in (0.1, 0.2)) == (trial.row.configuration.state == STOPPED)
        assert trial.metrics["test_accuracy"] > 0.1
    # Whoever was left out, the error was split over all: which are left depends on what was seen.
    assert {result.summary.sweep.count} == {4}
    confidences = [audit.finding.confidence for audit in result.report.results if audit.finding]
    assert confidences == [pytest.approx(0.9875)] * states[AUDITED]
    done = Counter(event.unit for event in read_events(tmp_path / "run" / "events.jsonl") if event.kind == "unit-done")
    assert set(done.values()) == {1}
    assert not Path("~/ray_results").expanduser().exists()


def test_a_sweep_whose_folder_has_a_uri_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine has nothing but the place."""
    asked = base(
        grid={"mechanism.sharpness": [1.0, 2.0, -1.0]},
        sweep={"reaudit": True},
    )
    place = f"file://{tmp_path}/there"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE and event.label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(asked, output=place, listeners=[interrupt])
    assert is_sweep(place)
    assert list((tmp_path / "there" / "units").glob("*.parquet")), "what was finished is at the place"
    shutil.rmtree(tmp_path / "cache")
    result = restore_sweep(place, allow_code=True, quiet=True)
    assert [trial.row.configuration.state for trial in result] == [AUDITED, AUDITED, FAILED]
    assert result.experiment_path == place
    done = Counter(
        event.unit for event in read_events(tmp_path / "there" / "events.jsonl") if event.kind == "unit-done"
    )
    assert set(done.values()) == {1}
    assert (tmp_path / "there" / "reaudit" / "bounds.json").exists()
    here = sweep(asked, output=tmp_path / "here", quiet=True)
    tables = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here" / "scores").rglob("*.parquet"))
    assert tables
    for table in tables:
        assert (tmp_path / "here" / table).read_bytes() == (tmp_path / "there" / table).read_bytes()
    assert [trial.metrics for trial in result] == [trial.metrics for trial in here]


@pytest.mark.parametrize("runner", [pytest.param("ray", marks=(pytest.mark.ray, pytest.mark.nightly)), "in-process"])
def test_a_search_algorithm_sees_utility_alone(
    runner: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told no bound, and utility of another seed than that of the audits; the folder has a URI."""
    from ray import tune
    from ray.tune.search import Searcher

    seen: list[dict[str, Any]] = []

    class Next(Searcher):  # type: ignore[misc]
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"mechanism.sharpness": 1.0 + len(seen)}

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            seen.append(result or {})

        def save(self, path: str) -> None: ...

        def restore(self, path: str) -> None: ...

        def set_search_properties(self, *_: Any, **__: Any) -> bool:
            return True

    if runner == "ray":
        request.getfixturevalue("ray_cluster")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tune.TuneConfig(num_samples=2, search_alg=Next(), max_concurrent_trials=1)
    asked = base(run={"runner": runner, "workers": 1, "figures": False, "repeats": 0})
    result = sweep(
        asked,
        {"mechanism.sharpness": tune.uniform(1, 4)},
        tune_config=config,
        output=f"file://{tmp_path}/there",
        quiet=True,
    )
    assert list((tmp_path / "there" / "units").glob("*.parquet"))
    assert [trial.config for trial in result] == [{"mechanism.sharpness": 1.0}, {"mechanism.sharpness": 2.0}]
    assert result.summary.sweep.adaptive
    assert all("audited_epsilon" not in told for told in seen)
    assert [told["test_log_loss"] for told in seen] != [trial.metrics["test_log_loss"] for trial in result]
    # Without the algorithm, a sweep that is continued has what it chose.
    again = restore_sweep(result.experiment_path, allow_code=True, quiet=True)
    assert [trial.config for trial in again] == [trial.config for trial in result]
    assert again.report.executed == 0
    with pytest.raises(SpecError, match="may look at utility alone"):
        sweep(asked, {"a": tune.uniform(0, 1)}, maximise="audited_epsilon", tune_config=config)
    with pytest.raises(SpecError, match="instead of a grid"):
        sweep(asked, {"a": [1]}, tune_config=config)


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    def refused(says: str, config: tune.TuneConfig | None = None, **wanted: Any) -> None:
        with pytest.raises((SpecError, InputError), match=says):
            sweep(base(grid=GRID, sweep=wanted), tune_config=config, output=tmp_path / "run", quiet=True)

    refused("trial_workers must be left out: workers run units of whichever configuration", trial_workers=4)
    refused("max_concurrent_trials is for search algorithms", tune.TuneConfig(max_concurrent_trials=2))
    training = PopulationBasedTraining(hyperparam_mutations={"a": [1, 2]})
    refused("cannot be audited; configurations are trained in the order", tune.TuneConfig(scheduler=training))
    assert not (tmp_path / "run").exists()


def test_no_configuration_is_begun_when_time_is_up(tmp_path: Path) -> None:
    """The first one is audited in any case."""
    from ray import tune

    config = tune.TuneConfig(time_budget_s=1e-9)
    result = sweep(base(grid=GRID), tune_config=config, output=tmp_path / "run", quiet=True)
    assert [trial.row.configuration.state for trial in result] == [AUDITED, STOPPED, STOPPED, STOPPED]
    assert len(restore_sweep(tmp_path / "run", quiet=True).report.results) == 4


def test_the_plan_of_a_sweep_says_planning_announcement(tmp_path: Path) -> None:
    spec = tmp_path / "planned.yaml"
    words = base(grid=GRID, sweep={"reaudit": True})
    spec.write_text(json.dumps(words))
    planned = make_plan(read_request(words).spec(read_request(words).known))
    shown = CliRunner().invoke(main, ["plan", str(spec), "--seed", "9"])
    assert shown.exit_code == 0, shown.output
    size = f"4 configurations (trials), {len(planned.units)} units, 8 trainings, seed 9"
    assert size in shown.stdout
    assert "the best configuration is audited once more" in shown.stdout
    counted = json.loads(CliRunner().invoke(main, ["plan", str(spec), "--json"]).stdout)
    assert (counted["configurations"], counted["trainings"]) == (4, 8)
    rungs = {"field": "mechanism.sharpness", "values": [1.0, 2.0]}
    spec.write_text(json.dumps(base(grid=GRID, sweep={"rungs": rungs})))
    assert "early stopping runs up to 4 trainings more" in CliRunner().invoke(main, ["plan", str(spec)]).stdout
    spec.write_text(json.dumps(base(sweep={})))
    assert "a sweep must vary at least one field" in CliRunner().invoke(main, ["plan", str(spec)]).output


def test_the_status_of_a_sweep_says_how_its_configurations_stand(tmp_path: Path) -> None:
    grid = {"mechanism.epsilon": [0.5, 8.0], "mechanism.sharpness": [1.0, -1.0]}
    sweep(base(grid=grid, sweep={}), output=tmp_path / "run", quiet=True)
    shown = CliRunner().invoke(main, ["status", str(tmp_path / "run")]).stdout
    assert "4 configurations: 2 done, 0 running, 2 failed" in shown
    assert "failed: epsilon=0.5, sharpness=-1.0; epsilon=8.0, sharpness=-1.0" in shown
    (tmp_path / "run" / CONFIGURATIONS).write_text("{")
    assert f"{CONFIGURATIONS} must be JSON" in CliRunner().invoke(main, ["status", str(tmp_path / "run")]).stdout


def test_how_configurations_stand_while_the_sweep_runs() -> None:
    noted = [
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
    content = json.dumps({"over": False, "configurations": noted}).encode()
    states = configuration_states(content, "file", events)
    assert [str(state) for _, state in states] == ["done", "running", "waiting", "failed", "stopped"]
    assert described_states(states)[0] == "5 configurations: 1 done, 1 running, 1 waiting, 1 failed, 1 stopped"
    for wrong in (b"[]", b'{"configurations": [{"name": 1}]}', b'{"configurations": [{"name": "a", "state": "x"}]}'):
        with pytest.raises(SpecError, match="file"):
            configuration_states(wrong, "file", events)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ({"name": "lp-1st", "model": "mlp"}, "column 'job' holds string; use catboost or logistic-regression"),
        ({"name": "lp-1st", "model": "small-cnn"}, "small-cnn cannot be trained on these data"),
        ({"name": "gaussian-naive-bayes"}, "these are columns of mixed types"),
    ],
)
def test_columns_that_a_model_cannot_take_are_refused_before_anything_runs(
    mechanism: dict[str, Any], words: str, tmp_path: Path
) -> None:
    rows = "".join(f"{place / 7},{'abc'[place % 3]},{place % 2}\n" for place in range(60))
    (tmp_path / "rows.csv").write_text(f"age,job,label\n{rows}")
    data = {"name": "csv", "path": str(tmp_path / "rows.csv"), "label": "label"}
    asked = base(mechanism={**mechanism, "epsilon": 1.0}, data=data, grid={"mechanism.epsilon": [1.0, 2.0]})
    with pytest.raises(SpecError, match=r"^epsilon=1\.0: mechanism: .*cannot be trained on these data: ") as refused:
        sweep({**asked, "sweep": {}}, output=tmp_path / "run", quiet=True)
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_network_of_images_does_not_take_columns(tmp_path: Path) -> None:
    asked = base(mechanism={"name": "lp-1st", "epsilon": 1.0, "model": "small-cnn"}, grid={"mechanism.epsilon": [1.0]})
    with pytest.raises(SpecError, match="a convolutional network takes images"):
        sweep({**asked, "sweep": {}}, output=tmp_path / "run", quiet=True)


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
