"""The game of label advantages: cross-fitted priors, releases, beliefs, and the utility of models."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpaudit.actors.unit import Inputs
from dpaudit.engine.data.generated import BetaPriors
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.label_advantage import (
    Utility,
    auc,
    members_by_size,
    padded,
)
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, RunOptions
from dpaudit.engine.run.driver import audit
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import (
    LEFT_OUT,
    Bags,
    GeometricProportions,
    LabelProportions,
    LaplaceProportions,
)
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.models.tables import LogisticRegression
from papers.label_comparison import label_studies

HERE = RunOptions(runner="in-process", figures=False, repeats=0)
ALL = Partition(target=1.0, reference=0.0, test=0.0)


def game(**fields: object) -> dict[str, object]:
    return {"name": "label-advantage", "releases": 2, **fields}


def audits(mechanisms: dict[str, object], **fields: object) -> AuditSpec:
    settings = {"data": BetaPriors(2, 30, 2003), "game": game(), "proxy": "true-posterior", "split": ALL} | fields
    return AuditSpec(
        tuple(Audit(mechanism=mechanism, name=name, **settings) for name, mechanism in mechanisms.items()), run=HERE
    )  # type: ignore[arg-type]


def test_computed_gains_of_four_mechanisms_agree_with_realised_gains(tmp_path: Path) -> None:
    """Computed and realised gains differ with probability < 0.003 for each mechanism; the seed is fixed."""
    mechanisms = {
        "rr": RandomizedResponse(1.0),
        "llp": LabelProportions(size=8),
        "laplace": LaplaceProportions(size=8, epsilon=1.0),
        "geometric": GeometricProportions(size=8, epsilon=1.0),
    }
    report = audit(audits(mechanisms, data=BetaPriors(5, 5, 2003)), output=tmp_path / "run", quiet=True)
    by_name = {result.name: result for result in report.results}
    for name in ("rr", "laplace", "geometric"):
        finding = by_name[name].finding
        assert finding.largest <= 1.0 + 1e-12  # type: ignore[union-attr]
        assert by_name[name].verdict.value == "NO VIOLATION FOUND"
    assert by_name["llp"].verdict.value == "NO CLAIM"
    assert dict(by_name["llp"].finding.counts)["left out"] == 2 * 3  # type: ignore[union-attr]
    for result in report.results:
        assert not result.finding.realised.differs  # type: ignore[union-attr]
    (study,) = label_studies(report.results)
    additive = {setting.family: setting.advantage["additive"] for setting in study.settings}
    assert 0 < additive["llp-laplace"] < additive["llp"]
    assert additive["llp-geometric"] < additive["llp"]


def test_priors_are_cross_fitted() -> None:
    """With random labels, a model trained on them recalls each label; a cross-fitted model predicts about a half."""
    rng = np.random.default_rng(0)
    data = Examples(rng.standard_normal((60, 50)).astype(np.float32), rng.integers(0, 2, 60), 2, "chance")
    spec = audits(
        {"rr": RandomizedResponse(1.0)},
        data=data,
        proxy={"name": "model", "model": LogisticRegression(inverse_penalty=1e4)},
        game=game(folds=3),
    )
    plan = make_plan(spec)
    priors = [unit for unit in plan.units if unit.label.startswith("priors")]
    assert len(priors) == 3
    (target,) = (examples for name, examples in plan.shared.items() if name.startswith("target"))
    parts = [unit.task.outcome(Inputs(plan.shared), Compute()).value for unit in priors]  # type: ignore[attr-defined]
    rows = np.concatenate([part.row for part in parts])
    assert sorted(rows) == list(range(60))
    prior = np.concatenate([part.prior for part in parts])
    overfitted = LogisticRegression(inverse_penalty=1e4).fit(target, seed=np.random.SeedSequence(0), compute=Compute())
    recalled = overfitted.probabilities(target.features)[:, 1]
    assert ((recalled > 0.5) == target.labels).all()
    # Binomial(60, 1/2) exceeds 49 with probability < 1e-6.
    assert ((prior > 0.5) == target.labels[rows]).sum() <= 49


def test_bags_of_several_sizes_are_padded() -> None:
    bags = Bags(np.array([0, 1, 0, LEFT_OUT, 1, 1]))
    assert [members.tolist() for members in members_by_size(bags)] == [[[0, 2]], [[1, 4, 5]]]
    rows, shares = padded(bags)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert rows[0, :2].tolist() == [0, 2]
    assert shares[0].tolist() == [0.5, 0.5, 0.0]


def test_models_learn_less_from_noisier_releases(tmp_path: Path) -> None:
    """The seed is fixed. The exact labels teach more than randomised response with epsilon 0.3."""
    utility = Utility(Mlp(hidden=(8,), epochs=8, batch_size=64, optimizer="adam", standardise=True), (1e-5, 0.03), 2)
    spec = audits(
        {"labels": RandomizedResponse(math.inf), "rr": RandomizedResponse(0.3), "llp": LabelProportions(size=4)},
        data={"name": "gaussian-mixture", "rows": 1200, "dimensions": 4},
        split=Partition(target=0.5, reference=0.0, test=0.5),
        game=game(releases=1, utility=utility),
    )
    report = audit(spec, output=tmp_path / "run", quiet=True)
    by_name = {result.name: result.metrics for result in report.results}
    assert by_name["labels"]["test_auc"] > 0.7
    assert by_name["labels"]["test_auc"] > by_name["rr"]["test_auc"]
    assert by_name["llp"]["test_auc"] > 0.6
    assert {metrics["learning_rate"] for metrics in by_name.values()} == {0.03}
    assert report.results[0].metrics["test_auc_error"] >= 0
    (study,) = label_studies(report.results)
    assert study.lines[0].startswith("at equal utility (AUC) on gaussian-mixture")


def test_auc_counts_pairs() -> None:
    score, label = np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 1, 0, 1])
    pairs = [(p > n) + 0.5 * (p == n) for p in score[label == 1] for n in score[label == 0]]
    assert auc(score, label) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(score, np.ones(4, np.int64)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"data": "iris", "mechanism": LabelProportions(size=2)},
            "label-advantage needs labels of two classes, iris has 3. Merge classes",
        ),
        ({"game": game(utility={})}, "utility is measured on the test part, which has too few rows. Give"),
        ({"game": game(releases=0)}, "releases must be >= 1, got 0"),
        ({"game": game(utility={"learning_rates": [0.0]})}, "learning_rates must be > 0"),
        (
            {"mechanism": LabelProportions(size=5000)},
            "the size of a bag must be in 1..2003, the number of examples, got",
        ),
        ({"mechanism": LabelProportions(key="campaign")}, "key must be the number of a column, 0..0, got 'campaign'"),
        ({"attack": "lira-online"}, "attack lira-online sees"),
        ({"estimator": "one-run"}, "must read posteriors, got one-run"),
        (
            {"mechanism": {"name": "one-hot-laplace", "epsilon": 1.0}},
            "needs mechanisms that release numbers about bags of labels",
        ),
    ],
)
def test_invalid_games_are_refused_in_one_sentence(fields: dict[str, object], message: str) -> None:
    settings = dict(fields)
    mechanism = settings.pop("mechanism", RandomizedResponse(1.0))
    with pytest.raises((SpecError, InputError)) as caught:
        make_plan(audits({"one": mechanism}, **settings))
    assert message in str(caught.value)
