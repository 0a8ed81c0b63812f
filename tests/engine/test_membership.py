"""Membership of a trained model: the attack that learns from shadow models, by its validity, power and words."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import dpaudit
from dpaudit import Audit, AuditSpec, Claim, RunOptions, audit, from_callable, from_sklearn
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.answers import CanaryView, MembershipView, ShadowAnswers
from dpaudit.engine.games.one_run.attacks import LearnedMembership, means_by_world
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.one_run.membership import Membership
from dpaudit.engine.games.two_world.views import LossThreshold
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.request.plain_yaml import parse_yaml_argument
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from tests import nightly

QUICK = RunOptions("in-process", figures=False, repeats=0)
X, Y = make_classification(900, n_informative=6, flip_y=0.2, random_state=0)
SPLIT = Partition(target=0.6, reference=0.3, test=0.1)


def bound_of(mechanism: Any, folder: Path, *, attack: Any = None, game: Any = "membership") -> float:
    """Return the lower bound of one audit."""
    requested = Audit(mechanism, (X, Y), game=game, attack=attack, split=SPLIT)
    report = audit(AuditSpec((requested,), run=QUICK), quiet=True, output=folder)
    assert report.results[0].finding is not None
    return float(report.results[0].finding.lower)  # type: ignore[attr-defined]


def raw_probability(model: Any) -> float:
    """Return the bound that `estimate` shows by the probability of the label, for a fair coin for each row."""
    member = np.random.default_rng(0).random(540) < 0.5
    model.fit(X[:540][member], Y[:540][member])
    return float(dpaudit.estimate(model.predict_proba(X[:540])[np.arange(540), Y[:540]], member).lower)


# Validity


def answers_about(bits: NDArray[np.bool_], keep: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return class probabilities, of which the label's is high if randomised response tells that the row was used."""
    answers = np.where(rng.random(bits.size) < keep, bits, ~bits)
    noise = 0.02 * rng.random(bits.size)  # independent of the bits, so that all orders are tried
    probability = np.where(answers, 0.8, 0.3) + noise
    return np.column_stack([1 - probability, probability]).astype(np.float32)


def played(epsilon: float, of_shadows: float, seed: int, rows: int = 120) -> float:
    """Return the bound of a game whose model leaks exactly epsilon, and its shadow models another one."""
    rng = np.random.default_rng([seed, rows])
    bits = rng.random((4, rows)) < 0.5
    keeps = [1 / (1 + math.exp(-value)) for value in (epsilon, *3 * [of_shadows])]
    models = np.array([answers_about(coins, keep, rng) for coins, keep in zip(bits, keeps, strict=True)])
    labels = np.ones(rows, np.int64)
    view = MembershipView(models[0], np.full((rows, 2), 0.5, np.float32), labels, ShadowAnswers(models[1:], bits[1:]))
    method = SimultaneousGuessCount()
    return method.bound([method.tally(Scores(LearnedMembership().score(view), bits[0]))]).lower


@pytest.mark.parametrize(("epsilon", "of_shadows"), [(0.0, 0.0), (0.0, 3.0), (1.0, 1.0), (1.0, 3.0)])
def test_the_learned_attack_exceeds_the_truth_as_rarely_as_stated(epsilon: float, of_shadows: float) -> None:
    """Exact epsilons, with shadow models that leak as much or more; false failure < 1e-6."""
    games = 2_000 if nightly.on() else 60
    exceeding = sum(played(epsilon, of_shadows, seed) > epsilon for seed in range(games))
    assert exceeding <= binom.ppf(1 - 1e-6, games, 0.05)


# Power: a forest, three neighbours, and honest twins


def remembers_a_tenth(x: NDArray[np.float32], y: NDArray[np.int64], seed: int) -> Any:
    """Return a model that is sure of a tenth of its training rows and says nothing about any other row."""
    return Remembered({row.tobytes(): int(label) for row, label in zip(x, y, strict=True) if in_tenth(row)})


def in_tenth(row: NDArray[np.float32]) -> bool:
    return zlib.crc32(row.tobytes()) % 10 == 0


@dataclass(frozen=True)
class Remembered:
    """Is sure of the labels of these rows."""

    labels: dict[bytes, int]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        labels = [self.labels.get(row.tobytes()) for row in x]
        return np.array([[0.5, 0.5] if label is None else [1.0 - label, label] for label in labels])


def ignores_its_rows(x: NDArray[np.float32], y: NDArray[np.int64], seed: int) -> Any:
    """Return a model whose answers depend on the features and the seed only."""
    direction = np.random.default_rng(seed).normal(size=x.shape[1])
    return Public(direction)


@dataclass(frozen=True)
class Public:
    direction: NDArray[np.float64]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        probability = 1 / (1 + np.exp(-x @ self.direction))
        return np.column_stack([1 - probability, probability])


def test_the_game_shows_at_least_what_raw_probability_and_estimate_show(tmp_path: Path) -> None:
    """The reported case: the game showed half of what the raw probability shows."""
    learned = bound_of(from_sklearn(RandomForestClassifier(25)), tmp_path)
    assert learned >= raw_probability(RandomForestClassifier(25, random_state=0)) > 1


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("tree", DecisionTreeClassifier(min_samples_leaf=3)),
        ("neighbours", KNeighborsClassifier(3)),
        ("boosting", GradientBoostingClassifier(n_estimators=60, max_depth=4)),
    ],
)
def test_the_learned_attack_is_no_weaker_than_single_attacks(name: str, classifier: Any, tmp_path: Path) -> None:
    learned = bound_of(from_sklearn(classifier), tmp_path / name)
    for attack in ("loss", "calibrated-loss"):
        assert learned >= 0.9 * bound_of(from_sklearn(classifier), tmp_path / f"{name} {attack}", attack=attack)
    assert learned > 0.5


def test_a_leak_of_few_members_is_shown_in_full(tmp_path: Path) -> None:
    """A tenth of the members stand out and no other row does. If all their guesses are right, they show about 1.9."""
    mechanism = from_callable(remembers_a_tenth)
    member = np.random.default_rng(0).random(540) < 0.5
    stands_out = np.array([in_tenth(row) for row in X[:540].astype(np.float32)])
    score = (member & stands_out).astype(float)
    alone = dpaudit.estimate(score, member, guess="member-only").lower
    assert bound_of(mechanism, tmp_path) >= 0.9 * alone > 0


def test_a_model_that_ignores_its_rows_shows_nothing(tmp_path: Path) -> None:
    assert bound_of(from_callable(ignores_its_rows), tmp_path) == 0


# The attack and its view


def view_of(target: NDArray[np.float64], labels: NDArray[np.int64], shadows: ShadowAnswers | None) -> MembershipView:
    even = np.full(target.shape, 1 / target.shape[1], np.float32)
    return MembershipView(target.astype(np.float32), even, labels, shadows)


def test_the_learned_attack_takes_certain_models_and_coins_that_agree() -> None:
    """Probabilities of 0 and 1 give finite scores; coins that all agree teach nothing."""
    certain = np.eye(2, dtype=np.float32)[[0, 1, 1, 0, 1]]
    labels = np.array([0, 0, 1, 1, 1])
    models = np.stack([certain, certain[::-1]])
    for member in (np.array([[True, False, True, False, True]] * 2), np.ones((2, 5), np.bool_)):
        score = LearnedMembership().score(view_of(certain, labels, ShadowAnswers(models, member)))
        assert np.isfinite(score).all()
    assert not score.any()
    with pytest.raises(SpecError, match="needs a game with shadow models"):
        LearnedMembership().score(view_of(certain, labels, None))


def test_means_by_world_fill_in_canaries_without_models_of_a_world() -> None:
    values = np.array([[3.0, 1.0, 3.0], [1.0, 1.0, 3.0]])
    member = np.array([[True, False, True], [False, False, True]])
    with_it, without_it = means_by_world(values, member)
    gap = 2.0  # members have 3, others 1
    np.testing.assert_allclose(with_it, [3.0, 1.0 + gap, 3.0])
    np.testing.assert_allclose(without_it, [1.0, 1.0, 3.0 - gap])


def test_the_loss_is_relative_to_the_median_canary() -> None:
    target = np.array([[0.9, 0.1], [0.5, 0.5], [1.0, 0.0]], np.float32)
    view = CanaryView(target, target, np.array([0, 0, 1]))
    np.testing.assert_allclose(LossThreshold().score(view)[:2], [np.log(0.9 / 0.5), 0], atol=1e-6)
    assert LossThreshold().score(view)[2] < -50


# Requests


def test_shadow_models_are_trained_only_if_the_attack_needs_them() -> None:
    def labels(**more: Any) -> list[str]:
        planned = make_plan(AuditSpec((Audit("non-private", "gaussian-mixture", **more),)))
        return [unit.label for unit in planned.units]

    shadowed = labels(game={"name": "membership", "shadows": 3})
    assert [label for label in shadowed if "shadow" in label] == [f"shadow model {number} of 3" for number in (1, 2, 3)]
    assert not any("shadow" in label for label in labels(game="membership", attack="loss"))
    with pytest.raises(InputError, match=r"shadows must be >= 2.*attack: loss"):
        Membership(shadows=1)


def test_more_shadow_models_reuse_those_that_were_trained() -> None:
    def trained(shadows: int) -> set[str]:
        game = {"name": "membership", "shadows": shadows}
        (entry,) = make_plan(AuditSpec((Audit("non-private", "gaussian-mixture", game),))).audits
        return {unit.key for unit in (*entry.game.shadows, *entry.game.trainings)}

    assert trained(2) < trained(4)


def test_a_classifier_without_a_claim_is_measured(tmp_path: Path) -> None:
    """`audit` plays membership and says so; the words are about records that were used, not about labels."""
    requested = Audit(from_sklearn(DecisionTreeClassifier()), (X, Y), split=SPLIT)
    report = audit(AuditSpec((requested,), run=QUICK), quiet=True, output=tmp_path)
    (result,) = report.results
    assert result.verdict is Verdict.NO_CLAIM
    assert result.compared.claim == Claim(math.inf, relation=dpaudit.Relation.ADD_REMOVE)
    assert "Asked whether a record was used" in str(report)
    assert "AUC" in str(report)
    assert "TPR at 1 % FPR" in str(report)
    rates = result.series["trade-off"]
    assert rates["members"] + rates["non_members"] == result.rows["target"]
    assert rates["true_positive_rate"][-1] == rates["false_positive_rate"][-1] == 1
    assert "AUC" in (tmp_path / "report.html").read_text()
    exposed = report.records(top=3).to_frame()
    assert exposed.margin.iloc[0] == exposed.margin.max()
    assert (exposed.right.iloc[:3] == 1).all()


def test_a_check_without_a_claim_is_sized_by_effort_and_budget() -> None:
    def checked(effort: Any = "standard", budget: str | None = None) -> Audit:
        request = CheckRequest(from_sklearn(DecisionTreeClassifier), (X, Y), budget=budget)
        (only,) = check_spec(request, CheckOptions(effort=effort)).audits
        assert type(only.game) is Membership
        return only

    shadows = {effort: checked(effort).game.shadows for effort in ("quick", "standard", "thorough")}
    assert shadows == {"quick": 2, "standard": 4, "thorough": 16}
    assert checked("thorough", "5 trainings").game.shadows == 4
    assert type(checked(budget="1 trainings").attack) is LossThreshold


def test_a_measurement_can_be_stored_and_loaded() -> None:
    request = CheckRequest(from_sklearn(DecisionTreeClassifier), "gaussian-mixture")
    spec = check_spec(request, CheckOptions())
    assert load_spec(parse_yaml_argument(spec.to_yaml())).to_yaml() == spec.to_yaml()


def test_a_mechanism_with_a_claim_is_asked_about_labels_as_before() -> None:
    claimed = from_sklearn(DecisionTreeClassifier, Claim(math.inf))
    (only,) = AuditSpec((Audit(claimed, (X, Y)),)).audits
    assert type(only.game) is LabelInference
