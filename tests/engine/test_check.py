"""`dpaudit check`: fitting games run, share the error, and give one verdict."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from dpaudit import (
    Claim,
    Relation,
    Report,
    RunOptions,
    Verdict,
    check,
    from_callable,
    from_opacus,
    from_predictor,
    from_sklearn,
    from_steps,
    from_summary,
    from_torch,
)
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.work import Call
from dpaudit.claims import NO_FRACTIONS, Scope
from dpaudit.engine.answer.record import Confirmation, Sensitivity
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import JointVerdict
from dpaudit.engine.answer.shift import ShiftControl
from dpaudit.engine.cli.main import main
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.planning.plan import PlannedAudit, make_plan
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.check import (
    CheckOptions,
    CheckRequest,
    check_spec,
    default_data,
    even_shares,
    matching_tests,
    within_seconds,
)
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.request.timing import Budget, training_seconds
from dpaudit.engine.run.checking import rerun_undecided
from dpaudit.engine.run.driver import audit, report_again, resume
from dpaudit.engine.run.policy import Policy, Stage
from dpaudit.errors import InputError, SpecError, VerdictError
from dpaudit.estimators.bound import Bound
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels, Recall
from dpaudit.mechanisms.models.networks import SmallCnn
from dpaudit.mechanisms.protocols import Model
from tests.bank import loops
from tests.mechanisms import user_code

pytestmark = pytest.mark.usefixtures("few_releases")
HERE = RunOptions(runner="in-process", figures=False, repeats=0)
SMALL = GaussianMixture(classes=2, rows=400)
FEW = GaussianMixture(classes=10, rows=600)
FEW_ROWS = "{name: gaussian-mixture, classes: 10, rows: 600}"
CLAIM = Claim(1.0, relation=Relation.ADD_REMOVE)


@dataclass(frozen=True)
class Memorises:
    """A learner that is certain of its training points."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=Relation.ADD_REMOVE)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return Recalls({row.tobytes() for row in np.asarray(train.features)}, train.classes)


@dataclass(frozen=True)
class Recalls:
    """Model that is certain of class 0 for training points and uncertain of others."""

    training_points: set[bytes]
    classes: int

    def probabilities(self, features: Any) -> Any:
        is_training_point = np.array([row.tobytes() in self.training_points for row in np.asarray(features)])
        odds = np.full((len(is_training_point), self.classes), 1 / self.classes)
        odds[is_training_point] = np.eye(self.classes)[0]
        return odds


def seeds(entry: PlannedAudit, tried: bool = True) -> set[str]:
    """Return the seeds of the units of an audit's game; without those of tried data sets if `tried` is False."""
    calls = [unit for unit in entry.units if isinstance(unit.task, Call)]
    shared = () if tried else ("tried: ", "which data sets it takes")
    values = (unit.task.argument("seed") for unit in calls if not unit.label.startswith(shared))
    return {str(seed) for seed in values if seed is not None}


def names(mechanism: Any, claim: Claim | None = None) -> list[str]:
    chosen, *_ = matching_tests(mechanism, claim or mechanism.claim())
    return [choice.name for choice in chosen]


def test_games_are_chosen_by_their_traits() -> None:
    assert names(RandomizedResponse(1.0)) == ["label-canaries", "label-channel", "label-crafted", "label-repeats"]
    assert names(LP1ST(1.0, model=Recall())) == ["label-canaries", "label-inference", "label-crafted"]
    assert names(Memorises()) == ["ind-mia, far point"]
    assert names(Memorises(), Claim(1.0, relation=Relation.REPLACE)) == [
        "label-canaries",
        "label-inference",
        "label-crafted",
        "mia",
    ]
    assert names(DpSgd(1.0)) == [
        "dp-sgd-coins",
        "dp-sgd-steps, few trainings",
        "dp-sgd-steps, many trainings",
        "opposing-gradients",
        "ind-mia, far point",
        "ind-mia, gradient",
    ]


def test_games_left_out_have_a_reason() -> None:
    _, other_claims, others = matching_tests(Memorises(), CLAIM)
    assert "mia: for claims about replace neighbours" in other_claims
    assert "label-channel, label-repeats: for label mechanisms (with methods `claim` and `release`)" in others
    (on_request,) = [line for line in others if line.endswith(": for audits that name them")]
    assert "membership" in on_request


class ClaimsAlone:
    def claim(self) -> Claim:
        return CLAIM


def test_a_mechanism_without_a_fitting_game_is_refused() -> None:
    """The error names each kind of mechanism once."""
    with pytest.raises(SpecError, match="no game fits ClaimsAlone with a claim about add-remove") as refused:
        check_spec(CheckRequest(ClaimsAlone()))
    assert str(refused.value).count("label mechanisms (with methods `claim` and `release`)") == 1


def test_tests_share_the_error_and_the_spec_round_trips() -> None:
    spec = check_spec(CheckRequest(RandomizedResponse(1.0)))
    assert [audit.estimator.confidence for audit in spec.audits] == pytest.approx([1 - 0.05 / 4] * 4)
    again = load_spec(dict(yaml.safe_load(spec.to_yaml())))
    assert again == spec
    with_confirmation = check_spec(CheckRequest(LP1ST(1.0, model=Recall())))
    assert with_confirmation.error_budget().first_pass == pytest.approx(1 - 0.05 / 3)


def test_a_confirmatory_run_has_new_seeds_and_its_share_of_the_error() -> None:
    """It has more trials if the test states so, and planted labels if the test uses a proxy."""
    spec = check_spec(CheckRequest(RandomizedResponse(1.0)))
    audits = make_plan(spec).audits
    first, again = audits[:3:2][1], audits[3]
    assert (first.audit.name, again.confirms, again.confirmatory) == ("label-channel", "label-channel", True)
    assert again.audit.estimator.confidence == pytest.approx(1 - 0.001 / 4)
    assert (first.audit.game.releases, again.audit.game.releases) == (50, 200)
    assert first.keys.isdisjoint(again.keys)
    used = {seed for entry in audits[::2] for seed in seeds(entry)}
    assert used
    for entry in audits[1::2]:
        fresh = seeds(entry, tried=False)
        assert fresh
        assert fresh.isdisjoint(used)
        used |= fresh
    of_learner = make_plan(check_spec(CheckRequest(LP1ST(1.0, model=Recall()), SMALL))).audits
    (planted,) = [entry for entry in of_learner if entry.confirms == "label-inference"]
    assert not planted.confirmatory
    assert planted.audit.estimator.confidence == pytest.approx(1 - 0.001 / 3)


def test_tests_beyond_the_error_budget_or_with_other_claims_are_refused() -> None:
    spec = check_spec(CheckRequest(RandomizedResponse(1.0)))
    first, *others = spec.audits
    greedy = replace(first, estimator=replace(first.estimator, confidence=0.95))
    with pytest.raises(InputError, match=r"must sum to at most 0\.05"):
        replace(spec, audits=(greedy, *others))
    with pytest.raises(InputError, match="must have the same mechanism and claim"):
        replace(spec, audits=(replace(first, claim=Claim(2.0)), *others))


def test_a_release_about_bags_is_checked_by_recalled_labels() -> None:
    spec = check_spec(CheckRequest({"name": "llp-laplace", "epsilon": 1.0, "size": 4}))
    assert [audit.name for audit in spec.audits] == ["label-canaries", "label-inference", "label-crafted"]
    assert spec.audits[0].mechanism == AggregatedLabels(LaplaceProportions(epsilon=1.0, size=4))


def test_a_budget_is_a_time_or_trainings() -> None:
    assert Budget.parse("90s") == Budget(90.0)
    assert Budget.parse("1h, 500 trainings") == Budget(3600.0, 500)
    with pytest.raises(InputError, match="like 90s, 10m, 1h or 200 trainings"):
        Budget.parse("soon")


def test_the_tests_share_a_budget_of_trainings() -> None:
    """Half of 1,330 trainings are for the first pass: cheap tests take what they need, larger ones share the others."""
    spec = check_spec(CheckRequest(DpSgd(1.0), budget="1330 trainings"))
    planned = {audit.name: getattr(audit.game, "trials", 1) for audit in spec.audits}
    assert planned["opposing-gradients"] == 1_024
    assert planned["ind-mia, far point"] == 258
    few = check_spec(CheckRequest(LP1ST(1.0, model=Recall()), budget="2 trainings"))
    assert [audit.name for audit in few.audits] == ["label-canaries"]
    assert few.together is not None
    assert (
        "label-inference: needs at least 1 trainings and as many for its confirmatory run; the budget leaves 0 and 1"
        in few.together.left_out
    )


@pytest.mark.parametrize(
    ("wanted", "available", "shares"),
    [
        ([5, 3, 4], 100, [5, 3, 4]),
        ([5, 3, 4], 9, [3, 3, 3]),
        ([100, 2, 100], 22, [10, 2, 10]),
        ([1, 64], 1, [1, 0]),
        ([7, 7], 0, [0, 0]),
        ([], 5, []),
    ],
)
def test_even_shares(wanted: list[int], available: int, shares: list[int]) -> None:
    assert even_shares(wanted, available) == shares


@pytest.mark.parametrize(
    ("budget", "planned", "left_out"),
    [
        ("2000 trainings", {"one answer": 1_000}, "two answers"),
        ("4000 trainings", {"two answers": 1_000, "one answer": 1_000}, ""),
        ("20s", {"one answer": 375}, "two answers"),
        ("60s", {"two answers": 1_000, "one answer": 750}, ""),
        ("10m", {"two answers": 3_500, "one answer": 12_000}, ""),
    ],
)
def test_no_test_of_a_predictor_takes_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch, budget: str, planned: dict[str, int], left_out: str
) -> None:
    """With 10 ms per run. Two answers need at least 1,000 runs: where that exceeds their share, they are left out."""
    monkeypatch.setattr(within_seconds.__module__ + ".training_seconds", lambda mechanism, target: 0.01)
    spec = check_spec(CheckRequest(from_predictor(Answering, Claim(1.0, relation=Relation.ADD_REMOVE)), budget=budget))
    assert spec.together is not None
    runs = {audit.name.rpartition(", ")[2]: audit.game.trials + audit.game.search for audit in spec.audits}
    assert runs == pytest.approx(planned, abs=1)
    named = [words for words in spec.together.left_out if words.startswith("crafted-queries")]
    assert [words.partition(":")[0] for words in named] == ([f"crafted-queries, {left_out}"] if left_out else [])


class Answering:
    """A predictor that answers at once."""

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(2))


def test_half_of_a_budget_of_trainings_is_reserved_for_a_confirmatory_run() -> None:
    spec = check_spec(CheckRequest(DpSgd(1.0), budget="2 trainings"))
    (audit,) = spec.audits
    assert (audit.name, audit.game.trainings, spec.confirmatory(audit).game.trainings) == ("dp-sgd-coins", 1, 1)
    with pytest.raises(SpecError, match="needs at least 1 trainings and as many for its confirmatory run"):
        check_spec(CheckRequest(DpSgd(1.0), budget="1 training"))
    larger = check_spec(CheckRequest(DpSgd(1.0), budget="300 trainings"))
    coins, audit, steps, crowd, far, gradient = larger.audits
    assert (coins.game.trainings, larger.confirmatory(coins).game.trainings) == (1, 2)
    assert (audit.game.trainings, larger.confirmatory(audit).game.trainings) == (7, 28)
    assert (steps.game.trainings, larger.confirmatory(steps).game.trainings) == (36, 72)
    # A training on a crowd counts as a twentieth.
    assert (crowd.game.trials, larger.confirmatory(crowd).game.trials) == (480, 1_920)
    assert (far.game.trials, larger.confirmatory(far).game.trials) == (35, 70)
    assert (gradient.game.trials, larger.confirmatory(gradient).game.trials) == (35, 70)


def test_default_data_fit_the_mechanism() -> None:
    labels = Claim(1.0, relation=Relation.LABEL)
    assert default_data(RandomizedResponse(1.0), labels) == GaussianMixture(classes=10, rows=2_000)
    assert default_data(LP1ST(1.0, model=Recall()), labels) == GaussianMixture(classes=2, rows=10_000)
    assert default_data(Memorises(), CLAIM) == GaussianMixture(classes=2, rows=1_000)
    assert default_data(DpSgd(1.0, model=SmallCnn(learning_rate=0.5, momentum=0.0)), CLAIM) == Digits()


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Report of a check of a user class without privacy."""
    folder = tmp_path_factory.mktemp("leak")
    return check("tests.own_mechanism:KeepsEverything", FEW, run=HERE, output=folder, quiet=True)


def test_a_leak_is_rejected_by_the_first_test_and_the_rest_is_skipped(leak: Report) -> None:
    """A resumed run and a loaded report give the same answer without running anything."""
    report, folder = leak, Path(leak.folder)
    assert report.joint is not None
    assert report.joint.verdict is Verdict.VIOLATION
    assert [result.name for result in report.results] == ["label-canaries", "label-canaries, confirmatory run"]
    assert report.joint.not_played == ("label-channel", "label-crafted", "label-repeats")
    not_run = "skipped, because the claim is already rejected: label-channel; label-crafted; label-repeats"
    assert report.joint.answer.line("not run") == not_run
    assert not_run in report.text(verbose=True)
    again = resume(folder, quiet=True)
    reloaded = report_again(folder)
    assert again.executed == 0
    for other in (again, reloaded):
        assert other.joint is not None
        assert other.joint.to_dict() == report.joint.to_dict()
        assert other.failed == ()
    assert json.loads((folder / "bounds.json").read_text())["joint"]["verdict"] == "VIOLATION"
    assert "label-crafted" in (folder / "report.html").read_text()


@dataclass(frozen=True)
class LeaksOnce(RandomizedResponse):
    """No privacy in its first release; keeps its claim or raises in later releases."""

    raises: bool = False
    later: float = 0.0
    releases: ClassVar[int] = 0

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        type(self).releases += 1
        if type(self).releases == 1:
            return labels
        if self.raises:
            raise ValueError("no more")
        return RandomizedResponse(self.later or self.epsilon).release(labels, classes=classes, rng=rng)


def test_an_unconfirmed_rejection_is_no_violation_and_the_other_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed is fixed; with other seeds the test fails with probability <= 0.05."""
    monkeypatch.setattr(LeaksOnce, "releases", 0)
    report = check(LeaksOnce(1.0), FEW, run=HERE, output=tmp_path, quiet=True)
    assert report.joint is not None
    assert report.joint.verdict is Verdict.NO_VIOLATION
    assert report.violations == report.failed == ()
    first, again, *others = report.results
    assert (first.name, again.name) == ("label-canaries", "label-canaries, confirmatory run")
    assert [result.name for result in others] == ["label-channel", "label-crafted", "label-repeats"]
    assert first.epsilon > 3 > 1 > again.epsilon
    not_confirmed = r"exceeded the claim \(epsilon >= [3-9]\.\d+ at delta=0\), and the confirmatory run did not"
    assert re.fullmatch(f"the first pass {not_confirmed}", first.answer.line("reason"))
    assert first.comparison is not None
    assert first.comparison.observed < 1  # what is shown beside the claim is the confirmatory run
    assert "confirmatory run" in first.headline
    assert re.fullmatch(f"the first pass of label-canaries {not_confirmed}", report.joint.answer.line("reason"))
    (confirmation,) = json.loads((tmp_path / "bounds.json").read_text())["joint"]["confirmations"]
    assert (confirmation["test"], confirmation["confirmed"], confirmation["again"]) == (
        "label-canaries",
        False,
        again.headline,
    )
    reloaded = report_again(tmp_path)
    assert reloaded.joint is not None
    assert reloaded.joint.to_dict() == report.joint.to_dict()


def test_a_confirmatory_run_must_reject_at_the_confidence_of_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fixed seed, epsilon 1.8 for a claim of 1 is detected at 98.75 %, but not at 99.975 %."""
    monkeypatch.setattr(LeaksOnce, "releases", 0)
    report = check(LeaksOnce(1.0, later=1.8), FEW, run=HERE, output=tmp_path, quiet=True)
    first, again, *_ = report.results
    assert first.at_first_confidence is not None
    assert again.epsilon < 1 < first.at_first_confidence.lower
    assert first.finding is not None
    assert first.at_first_confidence.confidence == first.finding.confidence
    confirmed = [result for result in report.results if result.confirmation is Confirmation.CONFIRMED]
    assert confirmed
    assert all(result.at_first_confidence is None for result in confirmed)
    assert first.confirmation is Confirmation.CLOSE
    assert first.verdict is Verdict.UNDECIDED
    assert "only at the lower confidence of the first pass" in first.answer.line("reason")
    assert "`dpaudit check --until-decided`" in first.answer.line("next")
    assert first.comparison == first.at_first_confidence.comparison(first.compared.claim.curve)


def test_a_test_that_cannot_be_repeated_leaves_the_verdict_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaksOnce, "releases", 0)
    report = check(LeaksOnce(1.0, raises=True), FEW, run=HERE, output=tmp_path, quiet=True)
    assert report.joint is not None
    assert report.joint.verdict is Verdict.UNDECIDED
    assert report.violations == ()
    assert report.failed
    assert report.joint.answer.rule == "confirmation-open"
    assert "the first pass exceeds the claim, and the confirmatory run did not finish" in str(report)


def test_later_tests_wait_for_a_confirmatory_run(tmp_path: Path, leak: Report) -> None:
    plan = make_plan(load_spec(Path(leak.folder) / "spec.yaml"))
    store = UnitStore(Path(leak.folder) / "units")
    first, second, third, fourth = Policy(plan, store).pairs
    assert first.confirmation is not None
    finished_keys = store.finished(first.first.keys)
    nothing: frozenset[str] = frozenset()
    reader = Policy(plan, store, lambda: 0.0)
    waiting = frozenset().union(
        *(pair.confirmation.keys - pair.first.keys for pair in reader.pairs if pair.confirmation)
    )
    assert reader.waiting(nothing, nothing) == waiting
    assert reader.waiting(finished_keys, nothing) == (second.keys | third.keys | fourth.keys) - first.keys
    assert reader.skippable(finished_keys, nothing) == nothing
    both = finished_keys | store.finished(first.confirmation.keys)
    assert reader.waiting(both, nothing) <= second.keys | third.keys | fourth.keys
    assert reader.skippable(both, nothing) == (second.keys | third.keys | fourth.keys) - first.keys


def test_a_confirmatory_run_does_not_wait_for_a_later_one_that_shares_its_units(tmp_path: Path) -> None:
    plan = make_plan(check_spec(CheckRequest(loops.BANK["sigma halved half-way"].defect())))
    reader = Policy(plan, UnitStore(tmp_path), lambda: 0.0)
    _, first, *later = reader.pairs
    shared = first.confirmation_keys & frozenset().union(*(pair.confirmation_keys for pair in later))
    assert shared - frozenset().union(*(pair.first.keys for pair in reader.pairs)), "the test needs such a unit"
    stages = [Stage.NOTHING_TO_CONFIRM, Stage.TO_CONFIRM, *(Stage.UNREAD for _ in later)]
    assert reader._keys_waiting(stages).isdisjoint(first.keys)


def test_two_world_games_stop_when_the_claim_is_rejected(tmp_path: Path) -> None:
    report = check(Memorises(), SMALL, run=HERE, output=tmp_path, quiet=True)
    assert report.joint is not None
    assert report.joint.verdict is Verdict.VIOLATION
    first, again = report.results
    assert report.violations == (first, again)
    for result in (first, again):
        assert result.stopped is not None
        assert result.stopped.reason == "the claim is rejected"
        assert result.stopped.trainings < result.stopped.planned


def test_a_started_first_pass_ends_soon_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_seconds.__module__ + ".training_seconds", lambda mechanism, target: 0.05)
    plan = make_plan(check_spec(CheckRequest(DpSgd(1.0), budget="60s")))
    store = UnitStore(tmp_path)
    pairs = Policy(plan, store).pairs
    shared = Policy(plan, store)._shared
    second = pairs[1].first.keys - shared - pairs[0].keys
    started_units = frozenset({min(second)})

    def skipped_units(seconds: float) -> frozenset[str]:
        return Policy(plan, store, lambda: seconds).skippable(started_units, frozenset())

    assert not skipped_units(59.0) & second
    assert not skipped_units(65.0) & second
    assert second <= skipped_units(67.0)
    assert not skipped_units(67.0) & pairs[0].first.keys


@pytest.mark.parametrize(("seconds", "trials"), [(0.001, 512), (0.1, 64)])
def test_a_budget_in_seconds_halves_the_trainings_until_they_fit(
    monkeypatch: pytest.MonkeyPatch, seconds: float, trials: int
) -> None:
    """With 0.1 s per training, 80 % of 30 s are 240 trainings; a repeat takes twice those of the first test."""
    monkeypatch.setattr(within_seconds.__module__ + ".training_seconds", lambda mechanism, target: seconds)
    spec = check_spec(CheckRequest(RecordsAnswered(), budget="30s"))
    games = [audit.game for audit in spec.audits]
    assert [game.trials for game in games] == [trials]
    assert [game.stack for game in games] == [64 if seconds < 0.01 else 8]
    assert spec.together is not None
    cut = "the budget allows fewer trainings than usual: ind-mia, far point 64 of 512" if trials < 512 else ""
    assert spec.together.cut == cut


def test_a_test_beyond_the_budget_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_seconds.__module__ + ".training_seconds", lambda mechanism, target: 5.0)
    learner = LP1ST(1.0, model=Recall())
    spec = check_spec(CheckRequest(learner, budget="30s"))
    assert spec.together is not None
    assert [audit.name for audit in spec.audits] == ["label-canaries", "label-inference"]
    assert "label-crafted: the budget of 30 s is too short for it" in spec.together.left_out
    shorter = check_spec(CheckRequest(learner, budget="1s"))
    assert [audit.name for audit in shorter.audits] == ["label-canaries"]


def test_an_effort_fixes_the_trials_of_each_test() -> None:
    """Quick has an eighth of the trials, thorough four times as many, and never fewer than the minimum."""
    trials = {}
    for effort in ("quick", "standard", "thorough"):
        spec = check_spec(CheckRequest(RecordsAnswered()), CheckOptions(effort=effort))
        trials[effort] = [audit.game.trials for audit in spec.audits]
    assert trials == {"quick": [64], "standard": [512], "thorough": [2_048]}
    with pytest.raises(InputError, match="effort"):
        CheckOptions(effort="lazy")  # type: ignore[arg-type]


def test_a_training_is_timed_by_the_protocol_that_games_use() -> None:
    rows = GaussianMixture(classes=2, rows=60).load(seed=0)
    quick = training_seconds(RecordsAnswered(), rows)
    slow = training_seconds(RecordsAnswered(sleeps_s=0.2), rows)
    assert quick is not None
    assert slow is not None
    assert quick < 0.1 < 0.2 <= slow < 5


@dataclass(frozen=True)
class RecordsAnswered:
    """A learner of records whose training takes seconds."""

    sleeps_s: float = 0.0

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)

    def fit(self, train: Examples, *, seed: Any, compute: Compute, validation: Examples | None = None) -> Model:
        time.sleep(self.sleeps_s)
        return LogisticRegression().fit(train.features, train.labels)


def test_after_the_budget_only_the_first_test_starts_and_started_tests_finish(tmp_path: Path) -> None:
    plan = make_plan(check_spec(CheckRequest(RandomizedResponse(1.0), budget="60s")))
    reader = Policy(plan, UnitStore(tmp_path), lambda: 61.0)
    first, second, third, fourth = reader.pairs
    assert reader.skippable(frozenset(), frozenset()) == (second.keys | third.keys | fourth.keys) - first.keys
    started_units = frozenset({second.first.trainings[0]})
    assert reader.skippable(started_units, frozenset()) == third.keys | fourth.keys
    in_time = Policy(plan, UnitStore(tmp_path), lambda: 59.0)
    assert in_time.skippable(frozenset(), frozenset()) == frozenset()


def test_a_spec_with_check_leaves_the_choice_to_dpaudit(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: mine\nseed: 3\ncheck: {mechanism: {name: randomized-response, epsilon: 1}, budget: 30s}\n")
    spec = load_spec(path)
    assert isinstance(spec, AuditSpec)
    assert (spec.name, spec.seed, len(spec.audits)) == ("mine", 3, 4)
    assert spec.together is not None
    assert spec.together.budget_s == 30.0
    path.write_text("check: {mechanism: {name: randomized-response, epsilon: 1}}\ngame: mia\n")
    allowed = "name, seed, confidence, strict, effort, run"
    with pytest.raises(SpecError, match=f"next to `check` a spec may have {allowed}, got 'game'"):
        load_spec(path)


def test_the_command_prints_the_chosen_tests_and_exits_like_run(tmp_path: Path) -> None:
    arguments = ["check", "tests.own_mechanism:KeepsEverything", "--data", FEW_ROWS, "-o", str(tmp_path / "run")]
    ended = CliRunner().invoke(main, [*arguments, "--fail-on-violation"])
    assert ended.exit_code == 1
    assert "label-repeats: finds noise that ignores the given generator" in ended.stderr
    assert ended.stdout.startswith("VIOLATION")
    refused = CliRunner().invoke(main, ["check", "randomized-respnse"])
    assert refused.exit_code == 2


def test_a_test_with_a_proxy_alone_rejects_no_claim(leak: Report) -> None:
    test, again = leak.results
    assert isinstance(test.finding, Bound)
    control = ShiftControl("held-out rows", 100, 1, 0.0, 0.95, 0.0, (0.0, 0.1), test.finding, None)  # leaves no doubt
    believed = replace(test, name="believed", on_proxy=True, control=control, confirmation=Confirmation.NOT_PLANNED)
    assert believed.verdict is Verdict.VIOLATION
    alone = together(believed)
    assert (alone.verdict, alone.answer.rule) == (Verdict.UNDECIDED, "proxy")
    planted = quietly(again, "planted labels")
    assert together(believed, confirmations={"believed": planted}).verdict is Verdict.UNDECIDED
    assert together(believed, confirmations={"believed": again}).verdict is Verdict.VIOLATION
    confirmed = together(believed, test, confirmations={test.name: again})
    assert confirmed.verdict is Verdict.VIOLATION
    assert confirmed.deciding is test


def together(*tests: AuditResult, confirmations: Mapping[str, AuditResult] | None = None) -> JointVerdict:
    """Return the joint verdict of tests of one claim."""
    return JointVerdict("together", tests, confirmations or {}, JointTest(), 0.999)


def quietly(test: AuditResult, name: str, **changes: Any) -> AuditResult:
    """Return the result of a test with a bound of 0.5, below the claim."""
    assert isinstance(test.finding, Bound)
    finding = replace(test.finding, lower=0.5, evidence=())
    return replace(test, name=name, finding=finding, **{"confirmation": Confirmation.NOT_PLANNED, **changes})


def test_whole_numbers_that_unrounded_results_reject_twice_break_the_claim(leak: Report) -> None:
    """The error of the verdict is left for them, unless the test on rounded results needs it for its own repetition."""
    test, again = leak.results
    digits = replace(test, name="digits", leak_location=(NO_FRACTIONS,))
    again = replace(again, leak_location=())
    together = JointTest(side={"digits": Scope.FLOATING_POINT})
    confirmations = {"digits": again, "rounded": quietly(again, "rounded, again")}
    below = quietly(test, "rounded")
    above = replace(test, name="rounded", confirmation=Confirmation.NOT_CONFIRMED, p_value=1e-3)
    fractions = replace(digits, leak_location=())
    decided = {
        (below, digits): (Verdict.VIOLATION, "claim-rejected"),
        (above, digits): (Verdict.UNDECIDED, "digits-cannot-tell"),
        (below, fractions): (Verdict.NO_VIOLATION, "not-rejected"),
        (above, fractions): (Verdict.NO_VIOLATION, "not-rejected"),
    }
    for tests, expected in decided.items():
        joint = JointVerdict("together", tests, confirmations, together, 0.999)
        assert (joint.verdict, joint.answer.rule) == expected
        assert (joint.deciding is digits) is (tests[1] is digits)


def test_the_maximum_of_a_partial_claim_is_not_compared_with_that_of_the_claim(leak: Report) -> None:
    """The maximum of a step has its own scale, and counts only if there is no other test."""

    def silent(name: str, could_show: float, **changes: Any) -> AuditResult:
        test, _ = leak.results
        maximum = test.sensitivity.maximum
        assert isinstance(maximum, Bound)
        lower = replace(maximum, lower=could_show, evidence=())
        return quietly(test, name, sensitivity=replace(test.sensitivity, maximum=lower), **changes)

    step, low, high = (
        silent("step", 9.0, meaning_for_whole=("tested: a step",)),
        silent("low", 2.0),
        silent("high", 3.0),
    )
    joint = together(step, low, high)
    assert joint.verdict is Verdict.NO_VIOLATION
    assert joint.deciding is high
    assert joint.answer.line("sensitivity").endswith("maximum detectable epsilon 3.00")
    alone = together(step)
    assert alone.deciding is step
    assert alone.answer.line("sensitivity").endswith("maximum detectable epsilon 9.00")
    assert alone.answer.line("claim") == "tested: a step"
    assert alone.answer.line("part") == "the claim allows each step epsilon <= 1 (label, delta = 0)"
    blind = silent("blind", 0.5)
    assert blind.verdict is Verdict.INCONCLUSIVE
    verdict = together(step, blind)
    assert (verdict.verdict, verdict.deciding) == (Verdict.NO_VIOLATION, step)
    steps = together(step, replace(step, name="another step"))
    assert "no test covered the training from end to end" in steps.answer.line("reason")


def test_a_test_without_a_verdict_is_named_in_the_headline_and_does_not_pass(leak: Report) -> None:
    test, again = leak.results
    quiet, no_verdict = quietly(test, "quiet"), replace(test, name="lost", finding=None)
    near = replace(test, name="near", confirmation=Confirmation.MISSING)
    assert [result.verdict for result in (quiet, no_verdict, near)] == [
        Verdict.NO_VIOLATION,
        Verdict.FAILED,
        Verdict.UNDECIDED,
    ]
    joint = together(quiet, no_verdict)
    assert joint.answer.line("test") == "quiet"
    assert joint.answer.line("reason") == "these tests failed and say nothing: lost"
    assert together(quiet).answer.headline == quiet.headline
    open_report = replace(leak, joint=together(quiet, near), results=(quiet, near))
    assert open_report.violations == ()
    assert open_report.undecided == (near,)
    failed = replace(leak, joint=joint, results=(quiet, no_verdict))
    refuted = replace(leak, joint=together(test, confirmations={test.name: again}))
    for report, word in ((open_report, "UNDECIDED"), (failed, "FAILED"), (refuted, "VIOLATION")):
        with pytest.raises(VerdictError, match=word):
            report.raise_for_verdict()
    with pytest.raises(AssertionError):  # so that a test of one's own fails and does not break
        failed.raise_for_verdict()
    failed.raise_for_verdict(Verdict.FAILED)
    replace(leak, joint=together(quiet), results=(quiet,)).raise_for_verdict()
    alone = replace(
        leak, joint=None, results=(quiet, replace(quiet, name="blind", sensitivity=Sensitivity(reference_failed=True)))
    )
    with pytest.raises(VerdictError, match="INCONCLUSIVE  blind"):
        alone.raise_for_verdict()


def test_an_undecided_test_is_repeated_with_more_trials(tmp_path: Path) -> None:
    request = CheckRequest(RandomizedResponse(epsilon=1.4), FEW, claim=Claim(1.0))
    spec = check_spec(request, CheckOptions(until_decided=True, run=HERE))
    assert spec.confidence == pytest.approx(0.9995)  # both runs share the error of 0.001
    assert check_spec(request, CheckOptions(run=HERE)).confidence == 0.999
    report = audit(spec, output=tmp_path / "run", quiet=True)
    assert rerun_undecided(spec, report, tmp_path / "run", quiet=True) is report
    assert report.joint is not None
    channel = report.joint.deciding
    assert channel is not None
    assert channel.name == "label-channel"
    channel = replace(channel, confirmation=Confirmation.MISSING)
    undecided = replace(report, joint=replace(report.joint, tests=(channel,), confirmations={}), results=(channel,))
    more = rerun_undecided(spec, undecided, tmp_path / "run", quiet=True)
    assert more.folder == f"{tmp_path / 'run'}-more"
    assert (more.seed, more.joint and more.joint.verdict) == (spec.seed + 1, Verdict.VIOLATION)
    assert {result.name.removesuffix(", confirmatory run") for result in more.results} == {channel.name}
    (before,) = [planned.audit.game for planned in make_plan(spec).audits if planned.audit.name == channel.name]
    (after, *_) = [planned.audit.game for planned in make_plan(load_spec(Path(more.folder) / "spec.yaml")).audits]
    assert after.releases == 4 * before.releases


def steps_of(X: Any, y: Any, seed: int, canary: Any) -> Any:
    """Training loop that shows its steps."""
    return iter(())


def means_of(X: Any, y: Any, seed: int) -> Any:
    """Release of numbers."""
    return X.mean(0)


OWN_CODE = {
    "callable": lambda claim: from_callable(user_code.shares, claim, pull=2.0),
    "sklearn": lambda claim: from_sklearn(LogisticRegression(max_iter=50), claim),
    "torch": lambda claim: from_torch(user_code.Linear, user_code.descend, claim),
    "summary": lambda claim: from_summary(means_of, claim),
    "predictor": lambda claim: from_predictor(user_code.Frank, claim),
    "opacus": lambda claim: from_opacus(user_code.with_opacus, delta=1e-5, epsilon=claim.epsilon),
    "steps": lambda claim: from_steps(steps_of, noise_multiplier=1.0, steps=3),
}
"""Adapters for user code, by name."""


@pytest.mark.parametrize("relation", [Relation.LABEL, Relation.REPLACE, Relation.ADD_REMOVE])
@pytest.mark.parametrize("way", OWN_CODE)
def test_each_kind_of_user_code_is_planned(way: str, relation: Relation) -> None:
    if (way, relation) == ("predictor", Relation.LABEL):
        with pytest.raises(SpecError, match="no game fits"):
            check_spec(CheckRequest(OWN_CODE[way](Claim(1.0, relation=relation))))
    else:
        data = {"name": "gaussian-mixture", "dimensions": 4, "classes": 3, "rows": 300} if way == "opacus" else None
        spec = check_spec(CheckRequest(OWN_CODE[way](Claim(1.0, relation=relation)), data))
        assert make_plan(spec).units


def test_a_loop_that_cannot_train_on_the_data_is_named() -> None:
    pytest.importorskip("opacus")
    with pytest.raises(SpecError, match=r"check\.mechanism must train on 700 rows of the data.*RuntimeError: mat1"):
        check_spec(CheckRequest(OWN_CODE["opacus"](Claim(1.0))))  # made for four features
